"""Batches to the bytes of requests.

Built by protobuf's C code, about a million messages of 200 bytes a second; writing the wire's bytes by hand
in Python gains a sixth only, and is not worth it.

Rules
1. A message is never cut, and a request never larger than asked for, unless it holds one message alone.
2. Data that protobuf refuses (text that is no UTF-8, numbers beyond 64 bits) fails alone, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.dispatch.model.header_filter import HeaderFilter
from app.kafka.records.record import Record
from switchyard.v1.receiver_pb2 import Batch, DeliverRequest

if TYPE_CHECKING:
    from app.dispatch.push.unary import CallResult

BATCH_BYTES = 512  # at most, beside its messages, topic and traceparent
MESSAGE_BYTES = 48  # at most, beside its key, value and headers
HEADER_BYTES = 24  # at most, beside its name and value
BYTES_A_CHAR = 4  # at most, in UTF-8


OnResults = Callable[[int, int, "CallResult"], None]


class OutBatch:
    """Messages of a partition to be sent together.

    Attributes:
        topic, partition: where the messages were first produced.
        records: in order.
        retry_count: deliveries from retry topics before this one.
        attempt: which delivery of these messages this is, 1 for the first.
        on_results: told (first index, end index, result) of ranges of `records`, each index exactly once,
            from the event loop and never from within a method of the target.
        traceparent: for records that carry none among their headers; "": receivers derive it.
        header_filter: which of the records' headers are sent; None: all.
    """

    __slots__ = (
        "attempt", "header_filter", "on_results", "partition", "records", "retry_count", "topic",
        "traceparent",
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


class MessageNotEncodable(ValueError):
    """The first message of a run cannot be encoded."""


def add_run(
    request: DeliverRequest, batch: OutBatch, start: int, end: int, number: int, budget: int
) -> tuple[int, int]:
    """Adds messages [start, end) to the request, as many as `budget` bytes surely hold.

    Args:
        number: delivery number of the first.

    Returns:
        How many were added, perhaps 0, and how many bytes they take at most.

    Raises:
        MessageNotEncodable: the first one's data cannot be encoded; the request is as it was. Another that
        cannot ends
            the run before it.
    """
    size = BATCH_BYTES + BYTES_A_CHAR * (len(batch.topic) + len(batch.traceparent))
    if size >= budget:
        return 0, 0
    out = request.batches.add()
    try:
        _begin(out, batch, start, number)
        count, size = _add_messages(out, batch, start, end, size, budget)
    except (ValueError, TypeError, OverflowError) as error:
        del request.batches[-1]
        raise MessageNotEncodable(f"the message cannot be encoded: {error}") from error
    if not count:
        del request.batches[-1]
        return 0, 0
    return count, size


def alone(batch: OutBatch, index: int, number: int) -> bytes:
    """A request of one message, whatever its size.

    Raises:
        MessageNotEncodable: its data cannot be encoded.
    """
    request = DeliverRequest()
    add_run(request, batch, index, index + 1, number, 1 << 62)
    return request.SerializeToString()


def _begin(out: Batch, batch: OutBatch, start: int, number: int) -> None:
    first = batch.records[start]
    out.first_delivery = number
    out.partition = batch.partition
    out.topic = batch.topic
    out.base_offset = first.offset
    out.base_timestamp_ms = first.timestamp
    out.retry_count = batch.retry_count
    out.attempt = batch.attempt
    out.traceparent = batch.traceparent


def _add_messages(
    out: Batch, batch: OutBatch, start: int, end: int, size: int, budget: int
) -> tuple[int, int]:
    messages, index, records, passing = out.messages, start, batch.records, batch.header_filter
    base_offset, base_timestamp = out.base_offset, out.base_timestamp_ms
    try:
        for index in range(start, end):
            record = records[index]
            key, value, headers = record.key, record.value, record.headers
            if passing is not None and headers:
                headers = passing.of(headers)
            more = MESSAGE_BYTES
            if key is not None:
                more += len(key)
            if value is not None:
                more += len(value)
            for name, content in headers:
                more += HEADER_BYTES + BYTES_A_CHAR * len(name) + len(content or b"")
            if size + more > budget:
                return index - start, size
            size += more
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
