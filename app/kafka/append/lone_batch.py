"""A batch of one record, encoded before it is given to aiokafka's producer, and not in the event loop when it
is large: compressing 100 MB takes a second.

A producer compresses all that it sends alike. Such a batch has the compression that its record asks for.
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
LARGE_BYTES = 16 * 1024  # more is encoded in a thread
_NO_LIMIT = (1 << 31) - 1

Headers = Sequence[tuple[str, bytes | None]]


class LoneBatch(BatchBuilder):
    """See the module; to be made by `encoded`, and sent once by `AIOKafkaProducer.send_batch`.

    Its content must not be looked at: whoever sends it writes its own number into it.
    """

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
        """What a topic's `max.message.bytes` bounds."""
        return len(self._encoded)

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        set_producer(self._encoded, producer_id, producer_epoch, base_sequence, crc32c)


async def encoded(
    key: bytes | None, value: bytes | None, headers: Headers, codec: int, *, is_transactional: bool = False,
    timestamp_ms: int | None = None,
) -> LoneBatch:  # fmt: skip
    """The batch. `codec` is Kafka's number of the compression; no timestamp means this moment."""
    time_ms = now_ms() if timestamp_ms is None else timestamp_ms
    given = (key, value, headers, codec, is_transactional, time_ms)
    if content_bytes(key, value, headers) < LARGE_BYTES:
        return LoneBatch(*given)
    return await asyncio.to_thread(LoneBatch, *given)


def content_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of a record's content, which Kafka's own bookkeeping comes on top of."""
    return sum(len(part or b"") for part in (key, value, *(part for header in headers for part in header)))
