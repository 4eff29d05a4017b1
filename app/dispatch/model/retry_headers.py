"""The headers a message carries through retry topics and into the dead letter queue.

Key and value are untouched; everything Switchyard has to say stands in headers that begin with
`switchyard-`. Values are ASCII text, so that any Kafka tool shows them. Headers read back are untrusted
(anybody may produce to a topic): what cannot be read, or neither Kafka nor the contracts can hold, counts as
absent, never as an error.
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
ATTEMPT = "switchyard-attempt"  # deliveries so far, everywhere
RETRY_COUNT = "switchyard-retry-count"  # times it went through a retry topic
MERGES = "switchyard-merges"  # times it was merged from the DLQ
TIER = "switchyard-tier"  # the retry tier whose topic it lies in; absent in the DLQ
TIER_ATTEMPT = "switchyard-tier-attempt"  # deliveries from that tier
TIMEOUTS = "switchyard-timeouts"  # deliveries that were given up for lack of an answer
REASON = "switchyard-reason"  # why it was moved, at most 1000 characters
CODE = "switchyard-code"  # the code of the last failure
MOVED_AT = "switchyard-moved-at"  # when it was moved, ms since 1970
POSTPONED_TO = "switchyard-postponed-to"  # ms since 1970: the copy waits until then, whatever its topic
RAW_BATCH = "switchyard-raw-batch"  # offsets "start-end" of a batch that lies in the DLQ as it was fetched
VALUE_BYTES = "switchyard-value-bytes"  # of a value that is not in the copy, as no topic takes it
VALUE_AT = "switchyard-value-at"  # where it stands: topic/partition/offset/id of the topic
KEY_BYTES = "switchyard-key-bytes"  # of a key that is not in the copy either

WHY = (REASON, CODE, MOVED_AT)  # what was last said of it

MAX_REASON_CHARS = 1_000  # a receiver's words are welcome, its core dump is not
MAX_INT32, MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1
_TOPIC = re.compile(rb"[a-zA-Z0-9._-]{1,249}")  # Kafka's own rule


@dataclass(frozen=True, slots=True)
class MessageOrigin:
    """Where a message first stood and what it has been through.

    Attributes:
        topic, partition, offset, timestamp_ms: of the record in the workload's main topic.
        attempt: deliveries so far, everywhere.
        retry_count: how many times it went through a retry topic.
        tier, tier_attempt: the retry tier it lies in (None = main topic) and its deliveries from there.
        timeouts: deliveries that were given up for lack of an answer.
        merges: how many times it was merged back from the DLQ.
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
    """The origin told by `headers` of a record in a retry topic; what is missing is the record itself.

    `keeps_tier`: the tier is the one they tell. The topic is none's; what came from one goes on as from it.
    """
    found = {name: value for name, value in headers if name.startswith(PREFIX) and value is not None}
    origin_topic = found.get(ORIGIN_TOPIC, b"")
    if not _TOPIC.fullmatch(origin_topic):
        return MessageOrigin(topic, partition, offset, timestamp_ms, tier=tier)
    told_tier = _number(found.get(TIER), -1)
    if keeps_tier and told_tier >= 0:
        tier = told_tier
    return MessageOrigin(
        topic=origin_topic.decode(),
        partition=_number(found.get(ORIGIN_PARTITION), partition),
        offset=_number(found.get(ORIGIN_OFFSET), offset, MAX_INT64),
        timestamp_ms=_number(found.get(ORIGIN_TIMESTAMP), timestamp_ms, MAX_INT64),
        attempt=_number(found.get(ATTEMPT), 0),
        retry_count=_number(found.get(RETRY_COUNT), 0),
        tier=tier,
        tier_attempt=_number(found.get(TIER_ATTEMPT), 0) if told_tier == tier else 0,
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
    """The headers of the copy: the producer's own, untouched and in order, then Switchyard's.

    `origin` counts the delivery that just failed; `tier` is where the copy goes (None = DLQ), where it waits
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
    return _own(headers) + _read_headers([*_origin(moved), *why, *_postponed(due_ms)])


def postponed_headers(headers: Sequence[Header], origin: MessageOrigin, due_ms: int) -> list[Header]:
    """The headers of a copy that only waits until `due_ms`: nothing else is said of it than before."""
    last = [] if origin.tier is None else [(name, value) for name, value in headers if name in WHY and value]
    return _own(headers) + _read_headers([*_origin(origin), *_postponed(due_ms)]) + last


def left_out_headers(
    value: bytes | None, topic: str, partition: int, offset: int, topic_id: str, key: bytes | None = None
) -> list[Header]:
    """What a copy says of a value, and of a `key`, that it lacks, and of where these stand; `topic_id` is ""
    where no broker tells it."""
    place = f"{topic}/{partition}/{offset}/{topic_id}"
    lacks_key = [] if key is None else [(KEY_BYTES, len(key))]
    return _read_headers([(VALUE_BYTES, len(value or b"")), (VALUE_AT, place), *lacks_key])


class ValuePlace(NamedTuple):
    """Where a value stands that a copy lacks; `topic_id` is "" where that is not known."""

    topic: str
    partition: int
    offset: int
    topic_id: str


def read_value_places(headers: Mapping[str, bytes]) -> list[ValuePlace]:
    """Where the value of a copy may stand: as its headers say, and where the message first stood."""
    said = headers.get(VALUE_AT, b"").split(b"/")
    first = [headers.get(name, b"") for name in (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET)]
    places = list[ValuePlace]()
    both = [said] if len(said) == 4 else []
    if said[:3] != first:
        both.append([*first, b""])
    for topic, partition, offset, topic_id in both:
        place = _number(partition, -1), _number(offset, -1, MAX_INT64)
        if _TOPIC.fullmatch(topic) and min(place) >= 0 and topic_id.isascii():
            places.append(ValuePlace(topic.decode(), *place, topic_id.decode()))
    return places


def _own(headers: Sequence[Header]) -> list[Header]:
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]


def _read_headers(values: Sequence[tuple[str, object]]) -> list[Header]:
    return [(name, str(value).encode("utf-8", "replace")) for name, value in values]


def _postponed(due_ms: int | None) -> list[tuple[str, object]]:
    return [] if due_ms is None else [(POSTPONED_TO, due_ms)]


def _origin(origin: MessageOrigin) -> list[tuple[str, object]]:
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


def _number(value: bytes | None, default: int, most: int = MAX_INT32) -> int:
    if not value or len(value) > 19 or not value.isdigit():
        return default
    number = int(value)
    return number if number <= most else default
