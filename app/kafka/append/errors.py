"""How an append fails: Kafka's error codes by what follows from them, and what a lane tells its sender."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aiokafka.errors import (
    BrokerResponseError,
    CorruptRecordException,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)

from app.kafka.client.aiokafka_patches import InvalidRecordError
from app.kafka.client.cluster import UNKNOWN_TOPIC
from app.kafka.client.permissions import (
    CLUSTER,
    CLUSTER_NOT_AUTHORISED,
    NOT_AUTHORISED,
    ConfiguredCluster,
    allow,
    grant,
    lacks,
)

DUPLICATE = 46  # it is in the log: acknowledged, with an unknown offset
OUT_OF_SEQUENCE = {45, 59}  # OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID
FENCED = {47, 90}  # INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
# CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, INVALID_REQUEST,
# UNSUPPORTED_FOR_MESSAGE_FORMAT, POLICY_VIOLATION, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD
REFUSED = {2, 10, 18, 32, 42, 43, 44, 76, 87}
TOO_LARGE = {10, 18}  # of the refused ones: smaller batches of the same records may be taken
# CORRUPT_MESSAGE (before Kafka 2.4 for what is INVALID_RECORD now), INVALID_TIMESTAMP, INVALID_RECORD: the
# others of the batch may be taken
FOR_A_RECORD = {2, 32, 87}
# A record that its topic does not take: INVALID_RECORD, and what brokers before Kafka 2.4 answer for that.
RECORD_INVALID = (CorruptRecordException, InvalidRecordError)
RECORD_REFUSED = (*RECORD_INVALID, InvalidTimestampError)  # aiokafka's of `FOR_A_RECORD`
INVALID_RECORD_REMEDY = (
    "records without a key cannot be kept in a compacted topic: set its cleanup.policy to delete; "
    "or see which schema its broker checks records by"
)
TOO_LARGE_ERRORS = (MessageSizeTooLargeError, RecordListTooLargeError)  # aiokafka's of `TOO_LARGE`
REFUSALS = (*TOO_LARGE_ERRORS, *RECORD_REFUSED)  # of a record by what it is: others of its batch may be taken
UNSUPPORTED_COMPRESSION = 76
REMEDIES = {  # by Kafka's code, of what the refused record's topic needs
    10: "raise max.message.bytes of the destination topic",
    18: "raise segment.bytes of the destination topic",
    32: "raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the destination topic",
    UNSUPPORTED_COMPRESSION: "let the destination topic take the source's compression",
    87: INVALID_RECORD_REMEDY,
}
OTHER_REMEDY = "see the destination topic's settings"
NOT_ENOUGH_REPLICAS = 19
TOO_FEW_REPLICAS = {NOT_ENOUGH_REPLICAS, 20}
NO_ANSWER = -101  # no codes of Kafka's: the connection was lost, or its answer was
UNEXPECTED = -102
UNANSWERED = {NO_ANSWER, UNEXPECTED}
# Of these a broker has appended nothing; NOT_ENOUGH_REPLICAS among them. A leader that is deposed says so
# (NOT_LEADER_OR_FOLLOWER) of what it had appended, too, and its successor may have that.
NOT_APPENDED = {
    *REFUSED,
    *FENCED,
    *OUT_OF_SEQUENCE,
    UNKNOWN_TOPIC,
    17,
    19,
    NOT_AUTHORISED,
    CLUSTER_NOT_AUTHORISED,
}


class AppendError(RuntimeError):
    """A batch that was not taken; the message names the partition and the broker's reason."""


class BatchRefused(AppendError):
    """The batch is refused for what it is (`code`: Kafka's), and the lane waits for `Lane.instead`.

    `records`: which of the batch are refused, counted from 0, in order; none where the broker does not say.
    """

    def __init__(self, message: str, code: int, records: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.records = records


class ProducerFenced(AppendError):
    """Somebody else writes under a newer epoch of the lane's producer id. The lane has ended."""


class LaneClosed(AppendError):
    """The lane was closed, or its appender stopped."""


@dataclass(frozen=True, slots=True)
class AppendIncident:
    """A partition takes no batches, and is tried again; or it went on in a way that is to be known."""

    topic: str
    partition: int
    message: str
    remedy: str


def first_refused(answers: Iterable[asyncio.Future[Any]]) -> tuple[int, BrokerResponseError] | None:
    """Which of a producer's answers, in the order of sending to one partition, failed first, and how; None:
    none has, or not by a refusal. What was sent behind a refused one fails for the hole in the numbers."""
    for number, answer in enumerate(answers):
        if answer.done() and not answer.cancelled() and (error := answer.exception()) is not None:
            return (number, error) if isinstance(error, REFUSALS) else None
    return None


def words_of(error: BrokerResponseError) -> str:
    """A refusal for people: Kafka's number, name and description, and the remedy."""
    said = ": ".join(map(str, error.args)) or error.description.split(". ")[0].rstrip(".")
    return f"error {error.errno} ({error.message}): {said}; {REMEDIES.get(error.errno, OTHER_REMEDY)}"


def refusal(code: int, cluster: ConfiguredCluster, topic: str) -> str | None:
    """Which permission an append lacks; None: it is refused for something else."""
    if code == NOT_AUTHORISED:
        return f"{lacks(cluster, 'topic', topic, 'Write')} (TopicAuthorizationFailed)"
    return lacks(cluster, "cluster", CLUSTER, "IdempotentWrite") if code == CLUSTER_NOT_AUTHORISED else None


def remedy_of(code: int, cluster: ConfiguredCluster, topic: str) -> str:
    """What an operator can do about an error code."""
    if code in {UNKNOWN_TOPIC, 17, 100}:  # INVALID_TOPIC, UNKNOWN_TOPIC_ID
        return "create the topic, or correct the route; it is tried again by itself"
    if code == NOT_AUTHORISED:
        return grant(cluster, "topic", topic, "Read", "Write", "Describe")
    if code == CLUSTER_NOT_AUTHORISED:
        older = allow(cluster, "cluster", CLUSTER, "IdempotentWrite")
        return f"{grant(cluster, 'topic', topic, 'Read', 'Write', 'Describe')}; before Kafka 2.8 also {older}"
    if code in TOO_FEW_REPLICAS:
        return (
            "bring back the brokers that keep it, or lower min.insync.replicas; it is tried again by itself. "
            "If it still waits after that, its leader has not moved the high watermark: take the brokers "
            "that are down from its replicas (kafka-reassign-partitions.sh), restart the leader, or write "
            "any record to the partition"
        )
    if code == UNEXPECTED:
        return "a fault of Switchyard's own, its traceback is in the log; it is tried again by itself"
    return "see whether the broker runs; it is tried again by itself"
