"""The first offset at or after a time, where the broker's word is not enough.

A broker finds the first batch that is new enough, and answers the offset that a record in it says. Of a batch
that lies (`app.kafka.fetch.decoder`) that may be any number. A record whose offset is beyond the log's end
makes it answer that there is none; one that is too low, that it is a later record.

Rules
1. An answer is believed if it is the first record of its batch that is new enough, and the batch before that
   one is older. That there is none is believed if the log's last batch is older.
2. Else the log is read from where an earlier time begins, to the first batch of the wanted time: its first
   offset is the answer. That may be some records too early, and never too late.
3. What lies behind the end of what is committed cannot be read. An answer there is believed as if there were
   none before; where the search comes to the end, that is the answer.

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
from app.kafka.fetch.span_reader import read_span
from app.kafka.records.batch import MAGIC, RecordBatch, iter_batches

PARTITIONS_AT_ONCE = 16
FIRST_STEP_MS, STEP_GROWTH = 60_000, 2  # how much earlier the search begins, at first and then
NONE = -1, -1

At = tuple[str, int]


class LogSpan(NamedTuple):
    """What of a partition may hold records of a time: [start, end) of its log, as it is now.

    `log_start`, `log_end`: where the log begins, and what is committed ends. `is_cut`: records of that time
    may have been deleted.
    """

    start: int
    end: int
    log_start: int
    log_end: int
    is_cut: bool


async def offsets_at_time(
    client: ClusterClient, wanted: Iterable[At], time_ms: int, isolation: int = READ_UNCOMMITTED
) -> dict[At, tuple[int, int]]:
    """Offset and timestamp of the first record at or after `time_ms` of each (topic, partition).

    -1, -1: there is none. A partition whose leader does not answer is left out.

    Raises:
        ClusterUnreachable, KafkaError: a log in which a batch lies cannot be read now.
    """
    places = list(wanted)
    logs = _Logs(
        client,
        await client.offsets(places, EARLIEST),
        await client.offsets(places, LATEST, READ_COMMITTED),  # first: what comes meanwhile lies behind it
    )
    answers = await client.offsets_and_times(places, time_ms, isolation)
    gate = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def checked(at: At) -> tuple[int, int]:
        async with gate:
            if await logs.stands(at, time_ms, answers[at]):
                return answers[at]
            return await logs.searched(at, time_ms)

    known = [at for at in answers if at in logs.starts and at in logs.ends]
    return dict(zip(known, await asyncio.gather(*map(checked, known)), strict=True))


async def offsets_at(
    client: ClusterClient, wanted: Iterable[At], timestamp: int, isolation: int = READ_UNCOMMITTED
) -> dict[At, int]:
    """First offset at or after `timestamp` (ms; EARLIEST, LATEST) of each, as of `ClusterClient.offsets`.

    Raises: as `offsets_at_time`, of a time.
    """
    if timestamp < 0:
        return await client.offsets(wanted, timestamp, isolation)
    found = await offsets_at_time(client, wanted, timestamp, isolation)
    return {at: offset for at, (offset, _) in found.items()}


async def spans(
    client: ClusterClient, topic: str, partitions: int, from_ms: int, before_ms: int
) -> Mapping[int, LogSpan]:
    """By partition: from the first record with a timestamp of `from_ms` or later, to the first with one of
    `before_ms` or later, or to where the committed log ends now.

    Raises:
        ClusterUnreachable, KafkaError: some leader does not answer.
    """
    wanted = [(topic, partition) for partition in range(partitions)]
    starts = await client.offsets(wanted, EARLIEST)
    firsts = await offsets_at_time(client, wanted, from_ms)
    lasts = await offsets_at_time(client, wanted, before_ms)
    ends = await client.offsets(wanted, LATEST, READ_COMMITTED)
    found: dict[int, LogSpan] = {}
    for at in wanted:
        if not (at in starts and at in firsts and at in lasts and at in ends):
            raise ClusterUnreachable(f"{client.name}: the leader of {topic}-{at[1]} does not answer")
        (first, _), (last, _), end = firsts[at], lasts[at], ends[at]
        start = end if first < 0 else min(first, end)
        stop = end if last < 0 else min(last, end)
        # Of an empty log nobody knows what it had.
        is_cut = starts[at] > 0 and start <= starts[at]
        found[at[1]] = LogSpan(start, max(start, stop), starts[at], max(start, end), is_cut)
    return found


class _Logs(NamedTuple):
    """Where logs begin, and what is committed of them ends."""

    client: ClusterClient
    starts: Mapping[At, int]
    ends: Mapping[At, int]

    async def stands(self, at: At, time_ms: int, answer: tuple[int, int]) -> bool:
        """Rules 1 and 3."""
        offset, end = answer[0], self.ends[at]
        if not 0 <= offset < end:
            return await self._is_older(at, end - 1, time_ms)
        found = await self._batch_at(at, offset)
        if found is None:
            return False
        if found.header.magic == MAGIC:
            first = await asyncio.to_thread(_first, found, self.starts[at], time_ms)
            if first != answer:
                return False
        return await self._is_older(at, found.header.base_offset - 1, time_ms)

    async def searched(self, at: At, time_ms: int) -> tuple[int, int]:
        """Rules 2 and 3."""
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
            if 0 <= answer[0] < self.ends[at] and await self.stands(at, earlier_ms, answer):
                return answer[0]
            step_ms *= STEP_GROWTH
        return self.starts[at]

    async def _is_older(self, at: At, offset: int, time_ms: int) -> bool:
        """Whether the batch with this offset is older than that; one that is not there is."""
        batch = await self._batch_at(at, offset)
        return batch is None or batch.header.max_timestamp_ms < time_ms

    async def _batch_at(self, at: At, offset: int) -> RecordBatch | None:
        """The batch with this offset; None: the log has none."""
        if offset < self.starts[at]:
            return None
        async for piece in read_span(self.client, *at, offset, offset + 1):
            for batch in iter_batches(piece.data):
                if batch.header.base_offset <= offset < batch.header.next_offset:
                    return batch
        return None


def _first(batch: RecordBatch, start: int, time_ms: int) -> tuple[int, int] | None:
    """Its first record from offset `start` on that is not older than `time_ms`: its offset and time."""
    try:
        for one in records_of(batch):
            if one.offset >= start and one.timestamp >= time_ms:
                return one.offset, one.timestamp
    except Exception:  # noqa: BLE001 - decoders raise what they like
        return None
    return None
