"""Append errors: Kafka's codes grouped by their consequence, and the errors that a lane gives its sender."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aiokafka.errors import (
    BrokerResponseError,
    CorruptRecordException,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)

from app.kafka.client.aiokafka_patches import InvalidRecordError
from app.kafka.client.aiokafka_types import Answer
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
from app.kernel.incidents import IsOver

DUPLICATE = 46  # the batch is in the log, at an unknown offset
OUT_OF_SEQUENCE = {45, 59}  # OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID
FENCED = {47, 90}  # INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
# CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, INVALID_REQUEST,
# UNSUPPORTED_FOR_MESSAGE_FORMAT, POLICY_VIOLATION, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD
REFUSED = {2, 10, 18, 32, 42, 43, 44, 76, 87}
TOO_LARGE = {10, 18}  # smaller batches of the same records may be accepted
# CORRUPT_MESSAGE (which before Kafka 2.4 also meant INVALID_RECORD), INVALID_TIMESTAMP, INVALID_RECORD: the
# batch's other records may be accepted.
FOR_A_RECORD = {2, 32, 87}
# INVALID_RECORD, and the answer of brokers before Kafka 2.4 in its place.
RECORD_INVALID = (CorruptRecordException, InvalidRecordError)
RECORD_REFUSED = (*RECORD_INVALID, InvalidTimestampError)  # aiokafka's classes for `FOR_A_RECORD`
INVALID_RECORD_REMEDY = (
    "records without a key cannot be kept in a compacted topic: set its cleanup.policy to delete; "
    "or check the record against the schema that the broker enforces"
)
TOO_LARGE_ERRORS = (MessageSizeTooLargeError, RecordListTooLargeError)  # aiokafka's classes for `TOO_LARGE`
REFUSALS = (*TOO_LARGE_ERRORS, *RECORD_REFUSED)  # of a single record: others of its batch may be accepted
UNSUPPORTED_COMPRESSION = 76
UNKNOWN_SERVER_ERROR = -1
REMEDIES = {  # Kafka's code -> change to the destination topic
    10: "raise max.message.bytes of the destination topic",
    18: "raise segment.bytes of the destination topic",
    32: "raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the destination topic",
    UNKNOWN_SERVER_ERROR: "see the leader's log: the broker has a fault, or cannot read these records",
    UNSUPPORTED_COMPRESSION: "allow the source's compression in the destination topic",
    87: INVALID_RECORD_REMEDY,
}
OTHER_REMEDY = "check the destination topic's settings"
NOT_ENOUGH_REPLICAS = 19
TOO_FEW_REPLICAS = {NOT_ENOUGH_REPLICAS, 20}
NO_ANSWER = -101  # not a Kafka code: the connection or the answer was lost
UNEXPECTED = -102
UNANSWERED = {NO_ANSWER, UNEXPECTED}
# With these codes, NOT_ENOUGH_REPLICAS among them, the broker has appended nothing. A deposed leader answers
# NOT_LEADER_OR_FOLLOWER also for batches that it had appended, and its successor may have them.
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
    """A batch was not appended; the message names the partition and the broker's reason."""


class BatchRefused(AppendError):
    """The broker refuses the batch's content (`code`: Kafka's). The lane waits for
    `AppendLane.replace_refused`. `records`: the refused records, counted from 0, in order; empty if the
    broker does not say."""

    def __init__(self, message: str, code: int, records: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.records = records


class ProducerFenced(AppendError):
    """Another producer writes in a newer epoch of the lane's producer id. The lane has ended."""


class LaneClosed(AppendError):
    """The lane was closed, or its appender stopped."""


@dataclass(frozen=True, slots=True)
class AppendIncident:
    """A partition takes no batches and is retried, or the lane has continued in a way worth knowing.
    `is_over`: as of `app.kernel.incidents`."""

    topic: str
    partition: int
    message: str
    remedy: str
    is_over: IsOver | None = None


def first_refused(answers: Iterable[Answer]) -> tuple[int, BrokerResponseError] | None:
    """Position and error of the first refused record among a producer's answers, in sending order. All
    answers are of one partition. None: no answer failed, or the first failure is no refusal. Records after a
    refused one fail too, because of the hole in the sequence numbers."""
    for number, answer in enumerate(answers):
        if answer.done() and not answer.cancelled() and (error := answer.exception()) is not None:
            return (number, error) if isinstance(error, REFUSALS) else None
    return None


def words_of(error: BrokerResponseError) -> str:
    """A refusal in words: Kafka's number, name and description, and the remedy."""
    reason = ": ".join(map(str, error.args)) or error.description.split(". ")[0].rstrip(".")
    return f"error {error.errno} ({error.message}): {reason}; {REMEDIES.get(error.errno, OTHER_REMEDY)}"


def refusal(code: int, cluster: ConfiguredCluster, topic: str) -> str | None:
    """The permission that an append lacks; None: the code has another meaning."""
    if code == NOT_AUTHORISED:
        return f"{lacks(cluster, 'topic', topic, 'Write')} (TopicAuthorizationFailed)"
    return lacks(cluster, "cluster", CLUSTER, "IdempotentWrite") if code == CLUSTER_NOT_AUTHORISED else None


def remedy_of(code: int, cluster: ConfiguredCluster, topic: str) -> str:
    """The operator's remedy for an error code."""
    if code in {UNKNOWN_TOPIC, 17, 100}:  # INVALID_TOPIC, UNKNOWN_TOPIC_ID
        return "create the topic, or correct the route; the worker retries by itself"
    if code == NOT_AUTHORISED:
        return grant(cluster, "topic", topic, "Read", "Write", "Describe")
    if code == CLUSTER_NOT_AUTHORISED:
        older = allow(cluster, "cluster", CLUSTER, "IdempotentWrite")
        return f"{grant(cluster, 'topic', topic, 'Read', 'Write', 'Describe')}; before Kafka 2.8 also {older}"
    if code in TOO_FEW_REPLICAS:
        return (
            "restart brokers with its replicas, or lower min.insync.replicas; the worker retries by itself. "
            "If it still waits then, its leader has not moved the high watermark: remove the stopped brokers "
            "from its replicas (kafka-reassign-partitions.sh), restart the leader, or write "
            "any record to the partition"
        )
    if code == UNEXPECTED:
        return "this is a bug in Switchyard; report the traceback in the log. The worker retries by itself"
    return "check that the broker runs; the worker retries by itself"
