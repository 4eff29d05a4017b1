"""Encodes batches as the bytes of requests.

Protobuf's C code encodes about a million messages of 200 bytes a second. Writing the bytes by hand in Python
gains only a sixth, which is not worth it.

Rules (tests/dispatch/push/stream/test_encoder.py)
1. A message is never cut. A request exceeds its budget only if it holds a single message (`encode_alone`).
2. Data that protobuf refuses (text that is not UTF-8, numbers beyond 64 bits) fails alone, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from app.dispatch.model.header_filter import HeaderFilter
from app.kafka.records.record import Record
from switchyard.v1.receiver_pb2 import Batch, DeliverRequest

if TYPE_CHECKING:
    from app.dispatch.push.call_result import CallResult

BATCH_BYTES = 512  # upper bound, without messages, topic and traceparent
MESSAGE_BYTES = 48  # upper bound, without key, value and headers
HEADER_BYTES = 24  # upper bound, without name and value
BYTES_A_CHAR = 4  # upper bound, in UTF-8
MAX_TIMEOUT_MS = (1 << 32) - 1


OnResults = Callable[[int, int, "CallResult"], None]


class OutBatch:
    """Messages of a partition that are sent together.

    Attributes:
        topic, partition: Where the messages were first produced.
        records: In order.
        retry_count: Deliveries from retry topics before this one.
        attempt: The number of this delivery of these messages, from 1.
        on_results: Is called with (first index, end index, result) for ranges of `records`, each index once.
            It is called from the event loop, never from within a method of the target.
        traceparent: For records without one among their headers; "": receivers derive it.
        header_filter: Chooses the record headers that are sent; None: all.
        deadline_s: Until when these have time, by `time.monotonic`; 0: as the stream said when it was opened.
        latest_s: Until when they can have it, if the receiver asks for more.
        renewed: Indexes of messages that have more time, because the receiver asked for it.
    """

    __slots__ = (
        "attempt", "deadline_s", "header_filter", "latest_s", "on_results", "partition", "records",
        "renewed", "retry_count", "topic", "traceparent",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        retry_count: int,
        attempt: int,
        on_results: OnResults,
        traceparent: str = "",
        header_filter: HeaderFilter | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records
        self.retry_count = retry_count
        self.attempt = attempt
        self.on_results = on_results
        self.traceparent = traceparent
        self.header_filter = header_filter
        self.deadline_s = self.latest_s = 0.0
        self.renewed: set[int] | None = None


class MessageNotEncodable(ValueError):
    """The first message of a run cannot be encoded."""


def add_run(
    request: DeliverRequest, batch: OutBatch, start: int, end: int, number: int, budget: int
) -> tuple[int, int]:
    """Adds messages of [start, end) to the request, as many as surely fit into `budget` bytes.

    An unencodable message behind the first ends the run before it.

    Args:
        number: Delivery number of the first message.

    Returns:
        How many were added, perhaps 0, and an upper bound of their bytes.

    Raises:
        MessageNotEncodable: The first message cannot be encoded; the request is unchanged.
    """
    size = BATCH_BYTES + BYTES_A_CHAR * (len(batch.topic) + len(batch.traceparent))
    if size >= budget:
        return 0, 0
    wire_batch = request.batches.add()
    try:
        _begin(wire_batch, batch, start, number)
        count, size = _add_messages(wire_batch, batch, start, end, size, budget)
    except (ValueError, TypeError, OverflowError) as error:
        del request.batches[-1]
        raise MessageNotEncodable(f"the message cannot be encoded: {error}") from error
    if not count:
        del request.batches[-1]
        return 0, 0
    return count, size


def encode_alone(batch: OutBatch, index: int, number: int) -> bytes:
    """A request of one message, whatever its size. Raises MessageNotEncodable."""
    request = DeliverRequest()
    add_run(request, batch, index, index + 1, number, 1 << 62)
    return request.SerializeToString()


def _begin(wire_batch: Batch, batch: OutBatch, start: int, number: int) -> None:
    first = batch.records[start]
    wire_batch.first_delivery = number
    wire_batch.partition = batch.partition
    wire_batch.topic = batch.topic
    wire_batch.base_offset = first.offset
    wire_batch.base_timestamp_ms = first.timestamp
    wire_batch.retry_count = batch.retry_count
    wire_batch.attempt = batch.attempt
    wire_batch.traceparent = batch.traceparent
    if batch.deadline_s:  # what the batch has waited for its sending is not the receiver's
        now_s = monotonic()
        wire_batch.timeout_ms = _milliseconds(batch.deadline_s - now_s)
        wire_batch.longest_ms = _milliseconds(max(batch.deadline_s, batch.latest_s) - now_s)


def _milliseconds(seconds: float) -> int:
    return max(1, min(MAX_TIMEOUT_MS, round(seconds * 1000)))


def _add_messages(
    wire_batch: Batch, batch: OutBatch, start: int, end: int, size: int, budget: int
) -> tuple[int, int]:
    messages, index, records, header_filter = wire_batch.messages, start, batch.records, batch.header_filter
    base_offset, base_timestamp = wire_batch.base_offset, wire_batch.base_timestamp_ms
    try:
        for index in range(start, end):
            record = records[index]
            key, value, headers = record.key, record.value, record.headers
            if header_filter is not None and headers:
                headers = header_filter.of(headers)
            message_bytes = MESSAGE_BYTES
            if key is not None:
                message_bytes += len(key)
            if value is not None:
                message_bytes += len(value)
            for name, content in headers:
                message_bytes += HEADER_BYTES + BYTES_A_CHAR * len(name) + len(content or b"")
            if size + message_bytes > budget:
                return index - start, size
            size += message_bytes
            message = messages.add(
                offset_delta=record.offset - base_offset,
                timestamp_delta_ms=record.timestamp - base_timestamp,
                key=key,
                value=value,
            )
            for name, content in headers:
                message.headers.add(name=name, value=content)
    except (ValueError, TypeError, OverflowError):
        if index == start:
            raise
        del messages[index - start :]
        return index - start, size
    return end - start, size
