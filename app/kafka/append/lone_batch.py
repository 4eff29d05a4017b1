"""A batch of one record with its own compression, encoded before aiokafka's producer gets it.

aiokafka's producer compresses all its batches alike, in the event loop. Here a thread encodes large
records, because compressing 100 MB takes a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from app.kafka.records.batch import MAGIC, set_producer
from app.kafka.records.checksum import crc32c
from app.kernel.clock import now_ms

NO_CODEC, ZSTD = 0, 4  # Kafka's numbers
LARGE_BYTES = 16 * 1024  # larger records are encoded in a thread
_NO_LIMIT = (1 << 31) - 1

Headers = Sequence[tuple[str, bytes | None]]


class LoneBatch(BatchBuilder):
    """A batch made by `encoded`, to be sent once by `AIOKafkaProducer.send_batch`. Do not read its content:
    the producer writes its sequence number into it."""

    def __init__(
        self, key: bytes | None, value: bytes | None, headers: Headers, codec: int, is_transactional: bool,
        timestamp_ms: int,
    ) -> None:  # fmt: skip
        super().__init__(_NO_LIMIT, codec, is_transactional=int(is_transactional))  # type: ignore[no-untyped-call]
        builder = DefaultRecordBatchBuilder(MAGIC, codec, int(is_transactional), -1, -1, -1, _NO_LIMIT)
        builder.append(0, timestamp_ms, key, value, list(headers))
        self._encoded = self._buffer = bytearray(builder.build())
        self._relative_offset, self._closed = 1, True

    @property
    def nbytes(self) -> int:
        """The size that a topic's `max.message.bytes` limits."""
        return len(self._encoded)

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        set_producer(self._encoded, producer_id, producer_epoch, base_sequence, crc32c)


async def encoded(
    key: bytes | None, value: bytes | None, headers: Headers, codec: int, *, is_transactional: bool = False,
    timestamp_ms: int | None = None,
) -> LoneBatch:  # fmt: skip
    """Encodes the batch. `codec` is Kafka's compression number; without a timestamp, it is now."""
    time_ms = now_ms() if timestamp_ms is None else timestamp_ms
    content = (key, value, headers, codec, is_transactional, time_ms)
    if content_bytes(key, value, headers) < LARGE_BYTES:
        return LoneBatch(*content)
    return await asyncio.to_thread(LoneBatch, *content)


def content_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The size of a record's content, without Kafka's own fields."""
    return sum(len(part or b"") for part in (key, value, *(part for header in headers for part in header)))
