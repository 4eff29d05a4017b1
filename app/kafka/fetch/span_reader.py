"""Reads a span of a partition's log once, as committed raw batches, for look-ups.

    [start, end) --fetches--> SpanPiece, SpanPiece, ... with contiguous offsets

It keeps nothing and does not wait for new records: the end must be within the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest

from app.kafka.client.cluster import EARLIEST, READ_COMMITTED, ClusterClient, ClusterUnreachable
from app.kafka.client.only_partition import only_partition
from app.kafka.producers.history import OFFSET_OUT_OF_RANGE
from app.kafka.records.batch import CorruptBatch, take
from app.kafka.records.checksum import crc32c

FETCH_BYTES = 1024 * 1024
MOST_FETCH_BYTES = 64 * 1024 * 1024
WAIT_MS = 100
SPAN_READ_TIMEOUT_S, SPAN_RETRY_INTERVAL_S = 20.0, 0.3
CONNECTION = "read-span"


class SpanPiece(NamedTuple):
    """Whole batches of the offsets [start, end). `aborted` is for `ReadCommittedFilter`. `damage` says why
    the offsets cannot be read; `data` is empty then."""

    start: int
    end: int
    data: bytes
    aborted: list[tuple[int, int]]
    damage: str = ""


async def read_span(
    client: ClusterClient, topic: str, partition: int, start: int, end: int
) -> AsyncIterator[SpanPiece]:
    """Reads [start, end) piece by piece. Offsets that retention deletes meanwhile come as a damaged piece.
    Raises ClusterUnreachable: no data came for `SPAN_READ_TIMEOUT_S`. Raises KafkaError: the broker refuses,
    for example without authorisation."""
    position, most_bytes = start, FETCH_BYTES
    deadline_s = time.monotonic() + SPAN_READ_TIMEOUT_S
    empty = 0
    while position < end:
        trouble: Exception | None = None
        code = 0
        try:
            code, high_watermark, data, aborted = await _fetch(client, topic, partition, position, most_bytes)
            if code == OFFSET_OUT_OF_RANGE:
                at = topic, partition
                log_start = (await client.offsets([at], EARLIEST)).get(at, -1)
                if log_start > position:
                    until = min(log_start, end)
                    yield SpanPiece(position, until, b"", [], "deleted by retention while it was read")
                    position = until
                    continue
                trouble = for_code(code)(f"{topic}-{partition} at {position}")
            elif code:
                trouble = for_code(code)(f"{topic}-{partition} in {client.name}")
                client.client.force_metadata_update()
            elif not data:
                empty += 1
                # Compaction removed the rest. A new leader may report a lower high watermark for a moment.
                if empty >= 3 and high_watermark >= end:
                    return
            else:
                pieces = take(data, position, high_watermark, crc32c)
                if not pieces:
                    most_bytes = min(most_bytes * 4, MOST_FETCH_BYTES)
                for piece in pieces:
                    content = b"" if piece.damage else data[piece.start_byte : piece.end_byte]
                    yield SpanPiece(position, piece.next_offset, content, aborted, piece.damage)
                    position, empty = piece.next_offset, 0
                    deadline_s = time.monotonic() + SPAN_READ_TIMEOUT_S
        except CorruptBatch as error:
            yield SpanPiece(position, end, b"", [], f"damaged, with an unknown end: {error}")
            return
        except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
            trouble = error
            client.client.force_metadata_update()
        if isinstance(trouble, KafkaError) and not trouble.retriable and code != OFFSET_OUT_OF_RANGE:
            raise trouble
        if time.monotonic() > deadline_s:
            raise ClusterUnreachable(f"{client.name}: no data of {topic}-{partition}: {trouble!r}")
        if trouble is not None:
            await asyncio.sleep(SPAN_RETRY_INTERVAL_S)


async def _fetch(
    client: ClusterClient, topic: str, partition: int, position: int, most_bytes: int
) -> tuple[int, int, bytes, list[tuple[int, int]]]:
    """Error code, high watermark, data, aborted transactions."""
    node = await client.leader(topic, partition)
    if node is None:
        raise ClusterUnreachable(f"{topic}-{partition} in {client.name} has no leader")
    topics = [(topic, [(partition, position, most_bytes)])]
    request = FetchRequest(WAIT_MS, 1, most_bytes, READ_COMMITTED, topics)
    response = await client.send(node, request, CONNECTION)
    _, code, high_watermark, *rest = only_partition(response)
    aborted = next((part for part in rest if isinstance(part, list)), None) or []
    return code, high_watermark, bytes(rest[-1] or b""), [(entry[0], entry[1]) for entry in aborted]
