"""The first offset at or after a time, verified where a broker's answer may be wrong.

A broker finds the first batch that is new enough and returns the offset that a record of it has. A
producer may have written any offset there (`app.kafka.fetch.decoder`). The broker returns "none" if that
offset is beyond the log's end, and an offset that is too low is mistaken for a later record's.

Rules (tests/kafka/fetch/test_offsets_at_time.py)
1. An answer stands if it is the first new enough record of its batch, and the batch before it is older.
   "None" stands if the log's last batch is older. An answer within unreadable offsets stands, so that
   readers report them.
2. Otherwise the search reads the log from the start of an earlier time. It ends at the first batch of the
   wanted time, with that batch's first offset: some records too early at most, never too late.
3. Records after the committed end cannot be read. An answer from there counts as "none", and a search that
   reaches that end returns it.

Source: Kafka's FileRecords.searchForTimestamp.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from app.kafka.client.cluster import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
    ClusterUnreachable,
)
from app.kafka.fetch.decoder import records_of
from app.kafka.fetch.span_reader import SpanPiece, read_span
from app.kafka.records.batch import RecordBatch, iter_batches

PARTITIONS_AT_ONCE = 16
FIRST_STEP_MS, STEP_GROWTH = 60_000, 2  # how much earlier the search begins, and its growth per attempt
NONE = -1, -1

At = tuple[str, int]


class LogSpan(NamedTuple):
    """The range [start, end) of a partition's log that may hold records of a time.

    Attributes:
        log_start: Where the log begins.
        log_end: Where its committed part ends.
        is_cut: Whether records of that time may have been deleted.
    """

    start: int
    end: int
    log_start: int
    log_end: int
    is_cut: bool


async def offsets_at_time(
    client: ClusterClient, wanted: Iterable[At], time_ms: int, isolation: int = READ_UNCOMMITTED
) -> dict[At, tuple[int, int]]:
    """Offset and timestamp of the first record at or after `time_ms`, by (topic, partition). (-1, -1): there
    is none. A partition whose leader does not answer is missing. Raises ClusterUnreachable, KafkaError: a log
    whose answer needs verification cannot be read now."""
    return await (await _logs_of(client, list(wanted))).at_time(time_ms, isolation)


async def offsets_at(
    client: ClusterClient, wanted: Iterable[At], timestamp: int, isolation: int = READ_UNCOMMITTED
) -> dict[At, int]:
    """The first offsets at or after `timestamp` (ms, or EARLIEST, LATEST), like `ClusterClient.offsets`.
    Raises the errors of `offsets_at_time` for a time."""
    if timestamp < 0:
        return await client.offsets(wanted, timestamp, isolation)
    found = await offsets_at_time(client, wanted, timestamp, isolation)
    return {at: offset for at, (offset, _) in found.items()}


async def spans(
    client: ClusterClient, topic: str, partitions: int, from_ms: int, before_ms: int
) -> Mapping[int, LogSpan]:
    """The log range of each partition between two times. A range begins at the first record with a timestamp
    of `from_ms` or later. It ends at the first record of `before_ms` or later, or at the committed end.
    Raises ClusterUnreachable, KafkaError: a leader does not answer."""
    wanted = [(topic, partition) for partition in range(partitions)]
    logs = await _logs_of(client, wanted)
    firsts, lasts = await logs.at_time(from_ms), await logs.at_time(before_ms)
    found: dict[int, LogSpan] = {}
    for at in wanted:
        if not (at in firsts and at in lasts):
            raise ClusterUnreachable(f"{client.name}: the leader of {topic}-{at[1]} does not answer")
        (first, _), (last, _), log_start, end = firsts[at], lasts[at], logs.starts[at], logs.ends[at]
        start = end if first < 0 else min(first, end)
        stop = end if last < 0 else min(last, end)
        # An empty log may have had such records.
        is_cut = log_start > 0 and start <= log_start
        found[at[1]] = LogSpan(start, max(start, stop), log_start, max(start, end), is_cut)
    return found


async def _logs_of(client: ClusterClient, places: list[At]) -> _Logs:
    starts = await client.offsets(places, EARLIEST)
    return _Logs(client, starts, await client.offsets(places, LATEST, READ_COMMITTED))


class _Logs(NamedTuple):
    client: ClusterClient
    starts: Mapping[At, int]
    ends: Mapping[At, int]

    async def at_time(self, time_ms: int, isolation: int = READ_UNCOMMITTED) -> dict[At, tuple[int, int]]:
        places = [at for at in self.starts if at in self.ends]
        answers = await self.client.offsets_and_times(places, time_ms, isolation)
        gate = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def checked(at: At) -> tuple[int, int]:
            async with gate:
                if await self.is_right(at, time_ms, answers[at]):
                    return answers[at]
                return await self.search(at, time_ms)

        return dict(zip(answers, await asyncio.gather(*map(checked, answers)), strict=True))

    async def is_right(self, at: At, time_ms: int, answer: tuple[int, int]) -> bool:
        """Whether the answer is right (rules 1 and 3)."""
        offset, end = answer[0], self.ends[at]
        if not 0 <= offset < end:
            return await self._is_older(at, end - 1, time_ms)
        found = await self._batch_at(at, offset)
        if found is None:
            return False
        if isinstance(found, SpanPiece):
            return await self._is_older(at, offset - 1, time_ms)
        if await asyncio.to_thread(_first, found, self.starts[at], time_ms) != answer:
            return False
        return await self._is_older(at, found.header.base_offset - 1, time_ms)

    async def search(self, at: At, time_ms: int) -> tuple[int, int]:
        """The answer by reading the log (rules 2 and 3)."""
        start, end = await self._begin_of_search(at, time_ms), self.ends[at]
        async for piece in read_span(self.client, *at, start, end):
            for batch in iter_batches(piece.data):
                if batch.header.max_timestamp_ms >= time_ms and batch.header.next_offset > start:
                    return max(start, batch.header.base_offset), batch.header.max_timestamp_ms
        return end, time_ms

    async def _begin_of_search(self, at: At, time_ms: int) -> int:
        step_ms = FIRST_STEP_MS
        while step_ms < time_ms:
            earlier_ms = time_ms - step_ms
            answer = (await self.client.offsets_and_times([at], earlier_ms)).get(at, NONE)
            if 0 <= answer[0] < self.ends[at] and await self.is_right(at, earlier_ms, answer):
                return answer[0]
            step_ms *= STEP_GROWTH
        return self.starts[at]

    async def _is_older(self, at: At, offset: int, time_ms: int) -> bool:
        """Whether the batch with this offset is older; true if it is missing or unreadable."""
        batch = await self._batch_at(at, offset)
        return not isinstance(batch, RecordBatch) or batch.header.max_timestamp_ms < time_ms

    async def _batch_at(self, at: At, offset: int) -> RecordBatch | SpanPiece | None:
        """The batch with this offset, or the unreadable piece around it; None: the log has none."""
        if offset < self.starts[at]:
            return None
        async for piece in read_span(self.client, *at, offset, offset + 1):
            if piece.damage:
                return piece
            for batch in iter_batches(piece.data):
                if batch.header.base_offset <= offset < batch.header.next_offset:
                    return batch
        return None


def _first(batch: RecordBatch, start: int, time_ms: int) -> tuple[int, int] | None:
    """Offset and time of the first record from offset `start` on that is not older than `time_ms`."""
    try:
        for record in records_of(batch):
            if record.offset >= start and record.timestamp >= time_ms:
                return record.offset, record.timestamp
    except Exception:  # noqa: BLE001 - decoders raise any error
        return None
    return None
