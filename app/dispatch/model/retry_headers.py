"""The headers of a message in retry topics and in the dead letter queue.

Copies keep key and value; Switchyard's data is in headers that begin with `switchyard-`. Values are ASCII
text, so that any Kafka tool shows them. Headers are untrusted, because other producers may write to a topic.
A value that cannot be read, or that exceeds Kafka's and the contracts' integers, counts as absent and never
raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

Header = tuple[str, bytes | None]

PREFIX = "switchyard-"
ORIGIN_TOPIC = "switchyard-origin-topic"  # the workload's main topic
ORIGIN_PARTITION = "switchyard-origin-partition"  # of the record in the main topic
ORIGIN_OFFSET = "switchyard-origin-offset"  # of the record in the main topic
ORIGIN_TIMESTAMP = "switchyard-origin-timestamp"  # of the record in the main topic, ms since 1970
ATTEMPT = "switchyard-attempt"  # deliveries so far, from all topics
RETRY_COUNT = "switchyard-retry-count"  # times it went through a retry topic
MERGES = "switchyard-merges"  # times it was merged from the DLQ
TIER = "switchyard-tier"  # the retry tier whose topic it lies in; absent in the DLQ
TIER_ATTEMPT = "switchyard-tier-attempt"  # deliveries from that tier
TIMEOUTS = "switchyard-timeouts"  # deliveries that ended without an answer in time
REASON = "switchyard-reason"  # why it was moved, at most 1000 characters
CODE = "switchyard-code"  # the code of the last failure
MOVED_AT = "switchyard-moved-at"  # when it was moved, ms since 1970
POSTPONED_TO = "switchyard-postponed-to"  # ms since 1970: the copy waits until then, whatever its topic
RAW_BATCH = "switchyard-raw-batch"  # offsets "start-end" of a batch that lies in the DLQ as it was fetched
VALUE_BYTES = "switchyard-value-bytes"  # of a value that the copy lacks, because no topic takes it
VALUE_AT = "switchyard-value-at"  # the record that has it: topic/partition/offset/id of the topic
KEY_BYTES = "switchyard-key-bytes"  # of a key that the copy lacks, too

WHY = (REASON, CODE, MOVED_AT)  # the last failure

MAX_REASON_CHARS = 1_000  # a receiver may send a message, but not a core dump
MAX_INT32, MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1
_TOPIC = re.compile(rb"[a-zA-Z0-9._-]{1,249}")  # Kafka's own rule


@dataclass(frozen=True, slots=True)
class MessageOrigin:
    """The original record of a message, and its deliveries so far.

    Attributes:
        topic, partition, offset, timestamp_ms: The record in the workload's main topic.
        attempt: Deliveries so far, from all topics.
        retry_count: How often it went through a retry topic.
        tier, tier_attempt: The present retry tier (None: the main topic), and deliveries from there.
        timeouts: Deliveries that ended without an answer in time.
        merges: How often it was merged back from the DLQ.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    attempt: int = 0
    retry_count: int = 0
    tier: int | None = None
    tier_attempt: int = 0
    timeouts: int = 0
    merges: int = 0


def read_origin(
    headers: Iterable[Header],
    *,
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    tier: int | None,
    keeps_tier: bool = False,
) -> MessageOrigin:
    """The origin according to `headers` of a record in a retry topic; missing fields are the record's own.

    `keeps_tier`: the headers name the tier, because the topic belongs to none (merged and delayed messages).
    """
    found = {name: value for name, value in headers if name.startswith(PREFIX) and value is not None}
    origin_topic = found.get(ORIGIN_TOPIC, b"")
    if not _TOPIC.fullmatch(origin_topic):
        return MessageOrigin(topic, partition, offset, timestamp_ms, tier=tier)
    header_tier = _number(found.get(TIER), -1)
    if keeps_tier and header_tier >= 0:
        tier = header_tier
    return MessageOrigin(
        topic=origin_topic.decode(),
        partition=_number(found.get(ORIGIN_PARTITION), partition),
        offset=_number(found.get(ORIGIN_OFFSET), offset, MAX_INT64),
        timestamp_ms=_number(found.get(ORIGIN_TIMESTAMP), timestamp_ms, MAX_INT64),
        attempt=_number(found.get(ATTEMPT), 0),
        retry_count=_number(found.get(RETRY_COUNT), 0),
        tier=tier,
        tier_attempt=_number(found.get(TIER_ATTEMPT), 0) if header_tier == tier else 0,
        timeouts=_number(found.get(TIMEOUTS), 0),
        merges=_number(found.get(MERGES), 0),
    )


def moved_headers(
    headers: Sequence[Header],
    origin: MessageOrigin,
    *,
    tier: int | None,
    reason: str,
    code: str,
    moved_at_ms: int,
    due_ms: int | None = None,
) -> list[Header]:
    """The headers of a copy: the producer's own, unchanged and in order, then Switchyard's.

    `origin` counts the delivery that just failed. The copy goes to `tier` (None: the DLQ), and waits there
    until `due_ms` at least.
    """
    stays = tier is not None and tier == origin.tier
    moved = replace(
        origin, tier=tier, tier_attempt=origin.tier_attempt if stays else 0,
        retry_count=origin.retry_count + (tier is not None),
    )  # fmt: skip
    why: list[tuple[str, object]] = [
        (REASON, reason[:MAX_REASON_CHARS]), (CODE, code), (MOVED_AT, moved_at_ms)
    ]  # fmt: skip
    return _producer_headers(headers) + _encoded([*_origin_values(moved), *why, *_due_values(due_ms)])


def postponed_headers(headers: Sequence[Header], origin: MessageOrigin, due_ms: int) -> list[Header]:
    """The headers of a copy that only waits until `due_ms`; it keeps the reason of its last failure."""
    last = [] if origin.tier is None else [(name, value) for name, value in headers if name in WHY and value]
    return _producer_headers(headers) + _encoded([*_origin_values(origin), *_due_values(due_ms)]) + last


def left_out_headers(
    value: bytes | None, topic: str, partition: int, offset: int, topic_id: str, key: bytes | None = None
) -> list[Header]:
    """The headers of a copy that lacks its value, and its `key` if one is given: their sizes, and the record
    that has them. `topic_id` is "" if no broker reports it."""
    place = f"{topic}/{partition}/{offset}/{topic_id}"
    lacks_key = [] if key is None else [(KEY_BYTES, len(key))]
    return _encoded([(VALUE_BYTES, len(value or b"")), (VALUE_AT, place), *lacks_key])


class ValuePlace(NamedTuple):
    """The record that has the value of a copy; `topic_id` is "" if it is unknown."""

    topic: str
    partition: int
    offset: int
    topic_id: str


def read_value_places(headers: Mapping[str, bytes]) -> list[ValuePlace]:
    """The records that may have the value of a copy: the one that its headers name, and the original one."""
    named = headers.get(VALUE_AT, b"").split(b"/")
    original = [headers.get(name, b"") for name in (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET)]
    places = list[ValuePlace]()
    candidates = [named] if len(named) == 4 else []
    if named[:3] != original:
        candidates.append([*original, b""])
    for topic, partition, offset, topic_id in candidates:
        place = _number(partition, -1), _number(offset, -1, MAX_INT64)
        if _TOPIC.fullmatch(topic) and min(place) >= 0 and topic_id.isascii():
            places.append(ValuePlace(topic.decode(), *place, topic_id.decode()))
    return places


def _producer_headers(headers: Sequence[Header]) -> list[Header]:
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]


def _encoded(values: Sequence[tuple[str, object]]) -> list[Header]:
    return [(name, str(value).encode("utf-8", "replace")) for name, value in values]


def _due_values(due_ms: int | None) -> list[tuple[str, object]]:
    return [] if due_ms is None else [(POSTPONED_TO, due_ms)]


def _origin_values(origin: MessageOrigin) -> list[tuple[str, object]]:
    values: list[tuple[str, object]] = [
        (ORIGIN_TOPIC, origin.topic),
        (ORIGIN_PARTITION, origin.partition),
        (ORIGIN_OFFSET, origin.offset),
        (ORIGIN_TIMESTAMP, origin.timestamp_ms),
        (ATTEMPT, origin.attempt),
        (RETRY_COUNT, origin.retry_count),
    ]
    counts = ((TIMEOUTS, origin.timeouts), (MERGES, origin.merges))
    values += [(name, count) for name, count in counts if count]
    if origin.tier is not None:
        values += [(TIER, origin.tier), (TIER_ATTEMPT, origin.tier_attempt)]
    return values


def _number(value: bytes | None, default: int, maximum: int = MAX_INT32) -> int:
    if not value or len(value) > 19 or not value.isdigit():
        return default
    number = int(value)
    return number if number <= maximum else default
