"""Compares a topic with its copy: values, keys, headers, timestamps and order of every record.

    python -m tests.system.compare_topics SOURCE TOPIC COPIES COPY       (SOURCE, COPIES: bootstrap addresses)

Rules
1. Both logs are compared from their start to the end that they had at the beginning, as read_committed shows
   them. Offsets need not agree. Every batch's checksum must match.
2. Batches of the same bytes hold the same records and are not decoded. Others are decoded and compared record
   by record, so batch sizes and compression do not matter.
3. At a difference the comparison reads up to `LOOKAHEAD_RECORDS` records of both logs. It then knows which
   records are missing or repeated, and continues behind them. It may guess wrong where whole records,
   timestamps included, are equal.

Verbatim copies take seconds per million records; copies with other batches are compared at some 200,000
records a second.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.util import calc_crc32c

from app.kafka.client import aiokafka_patches
from app.kafka.client.cluster import EARLIEST, LATEST, READ_COMMITTED, ClusterClient, ClusterSpec
from app.kafka.fetch.decoder import records_of
from app.kafka.records.batch import CHECKED_FROM, HEADER_BYTES, ReadCommittedFilter, RecordBatch, iter_batches

LOOKAHEAD_RECORDS = 50_000
MAX_DIFFERENCES = 20  # differences of a partition
FETCH_BYTES = 8 * 1024 * 1024
FETCH_WAIT_MS = 500
EMPTY_ANSWERS = 20  # one after the other; then the comparison fails
CODEC_AND_CLOCK = 0x0F  # the bits of a batch's attributes that concern its records
FIELDS = ("timestamp", "key", "value", "headers")

Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where the copy differs.

    Attributes:
        kind: One of missing, twice, foreign (the source has no such record), out of order, changed.
        source_offset: The first record concerned in the source, or where it should be.
        copy_offset: The same in the copy.
        records: The number of records concerned.
    """

    partition: int
    kind: str
    source_offset: int
    copy_offset: int
    records: int
    message: str

    def __str__(self) -> str:
        return (
            f"partition {self.partition}: {self.records} {self.kind} at source offset {self.source_offset}, "
            f"copy's offset {self.copy_offset}: {self.message}"
        )


@dataclass(slots=True)
class Comparison:
    """The number of equal records, and the first `MAX_DIFFERENCES` differences of each partition."""

    same: int = 0
    differences: list[Difference] = field(default_factory=list)

    def count(self, kind: str) -> int:
        """The number of records with this kind of difference."""
        return sum(found.records for found in self.differences if found.kind == kind)

    def __str__(self) -> str:
        return "\n".join([f"{self.same:,} records are the same", *map(str, self.differences)])


async def compare_topics(source: str, topic: str, copies: str, copy: str) -> Comparison:
    """Compares `topic` at the bootstrap address `source` with `copy` at `copies`.

    Raises:
        ValueError: A batch's checksum does not match.
        KafkaError, ClusterUnreachable: A broker does not answer.
    """
    source_client, copy_client = (
        ClusterClient(ClusterSpec(name, (at,))) for name, at in (("source", source), ("copies", copies))
    )
    found = Comparison()
    await source_client.start()
    try:
        await copy_client.start()
        partitions = max(await source_client.partitions(topic) or 0, await copy_client.partitions(copy) or 0)
        await asyncio.gather(
            *(
                _compare(source_client, topic, copy_client, copy, partition, found)
                for partition in range(partitions)
            )
        )
    finally:
        await source_client.stop()
        await copy_client.stop()
    found.differences.sort(key=lambda difference: (difference.partition, difference.copy_offset))
    return found


class Cursor:
    """Reads [start, end) of a partition as whole batches or as decoded rows."""

    def __init__(self, client: ClusterClient, topic: str, partition: int, start: int, end: int) -> None:
        self._client = client
        self._topic, self._partition = topic, partition
        self._start = self._next_offset = start
        self._end = end
        self._batches: deque[RecordBatch] = deque()
        self._empty = 0  # empty answers one after the other
        self.rows: list[Row] = []
        self.offsets: list[int] = []

    @classmethod
    async def over(cls, client: ClusterClient, topic: str, partition: int) -> Cursor:
        """A cursor over all that read_committed shows now; empty when there is no such partition."""
        at = topic, partition
        if partition >= (await client.partitions(topic) or 0):
            return cls(client, topic, partition, 0, 0)
        end = (await client.offsets([at], LATEST, READ_COMMITTED))[at]
        return cls(client, topic, partition, (await client.offsets([at], EARLIEST))[at], end)

    @property
    def at(self) -> int:
        """The offset of the next record, or where it would be."""
        if self.offsets:
            return self.offsets[0]
        return self._batches[0].header.base_offset if self._batches else self._next_offset

    async def batch(self) -> RecordBatch | None:
        """The next whole batch, which is not consumed; None at the end, or when some of its rows are
        consumed.
        """
        while not self.rows and not self._batches and self._next_offset < self._end:
            await self._fetch()
        if self.rows or not self._batches:
            return None
        header = self._batches[0].header
        whole = self._start <= header.base_offset and header.next_offset <= self._end
        return self._batches[0] if whole else None

    def drop_batch(self) -> None:
        """Consumes the next batch."""
        self._batches.popleft()

    async def load_rows(self, count: int) -> int:
        """Decodes until there are `count` rows or the log ends; returns the number of rows."""
        while len(self.rows) < count:
            while not self._batches:
                if self._next_offset >= self._end:
                    return len(self.rows)
                await self._fetch()
            batch = self._batches.popleft()
            for record in records_of(batch):
                if self._start <= record.offset < self._end:
                    self.rows.append((record.timestamp, record.key, record.value, tuple(record.headers)))
                    self.offsets.append(record.offset)
        return len(self.rows)

    def drop(self, count: int) -> None:
        """Consumes `count` rows."""
        del self.rows[:count], self.offsets[:count]

    async def cursor_before(self, count: int) -> Cursor:
        """A cursor over the `count` offsets before the next record."""
        return Cursor(self._client, self._topic, self._partition, max(self._start, self.at - count), self.at)

    async def _fetch(self) -> None:
        node = await self._client.leader(self._topic, self._partition)
        assert node is not None, f"{self._topic}-{self._partition} has no leader"
        partitions = [(self._topic, [(self._partition, self._next_offset, FETCH_BYTES)])]
        request = FetchRequest(FETCH_WAIT_MS, 1, FETCH_BYTES, READ_COMMITTED, partitions)
        response: Any = await self._client.send(node, request)
        ((_, ((_, code, _, *rest),)),) = response.topics
        self._empty = 0 if rest[-1] else self._empty + 1
        if code or self._empty > EMPTY_ANSWERS:
            at = f"{self._topic}-{self._partition} at offset {self._next_offset} of {self._end}"
            raise for_code(code)(at) if code else TimeoutError(f"nothing comes of {at}")
        # Which field it is depends on the version (app.kafka.fetch.service).
        aborted = next((part for part in rest if isinstance(part, list)), None) or []
        shown = ReadCommittedFilter((entry[0], entry[1]) for entry in aborted)
        for batch in iter_batches(rest[-1]):
            header = batch.header
            if calc_crc32c(batch.data[CHECKED_FROM:]) != header.crc:
                raise ValueError(f"{self._topic}-{self._partition}, offset {header.base_offset}: checksum")
            visible = shown.shows(batch) and header.record_count
            if visible and header.next_offset > self._next_offset and header.base_offset < self._end:
                self._batches.append(batch)
            self._next_offset = max(self._next_offset, header.next_offset)


async def _compare(
    one: ClusterClient, topic: str, other: ClusterClient, copy: str, partition: int, found: Comparison
) -> None:
    source, copied = await Cursor.over(one, topic, partition), await Cursor.over(other, copy, partition)
    difference_count = 0
    while difference_count < MAX_DIFFERENCES:
        batch, copied_batch = await source.batch(), await copied.batch()
        if batch is not None and copied_batch is not None and _same_batch(batch, copied_batch):
            found.same += batch.header.record_count
            source.drop_batch()
            copied.drop_batch()
            continue
        count = min(await source.load_rows(1), await copied.load_rows(1))
        if source.rows[:count] == copied.rows[:count] and count:
            found.same += count
            source.drop(count)
            copied.drop(count)
            continue
        if not source.rows and not copied.rows:
            return
        same = next((n for n in range(count) if source.rows[n] != copied.rows[n]), count)
        found.same += same
        source.drop(same)
        copied.drop(same)
        difference = await _difference(source, copied, partition)
        found.differences.append(difference)
        difference_count += 1
        if difference.kind == "out of order":
            return


def _same_batch(one: RecordBatch, other: RecordBatch) -> bool:
    """Whether both certainly hold the same records (the flag of the delete horizon does not matter)."""
    a, b = one.header, other.header
    return (
        a.attributes & CODEC_AND_CLOCK == b.attributes & CODEC_AND_CLOCK
        and a.record_count == b.record_count
        and a.first_timestamp_ms == b.first_timestamp_ms
        and a.max_timestamp_ms == b.max_timestamp_ms
        and one.data[HEADER_BYTES:] == other.data[HEADER_BYTES:]
    )


async def _difference(source: Cursor, copied: Cursor, partition: int) -> Difference:
    """The difference at the next record of both; consumes the records concerned."""
    await source.load_rows(LOOKAHEAD_RECORDS)
    await copied.load_rows(LOOKAHEAD_RECORDS)
    rows, copies = source.rows, copied.rows
    at, copied_at = source.at, copied.at

    def difference(kind: str, records: int, message: str) -> Difference:
        return Difference(partition, kind, at, copied_at, records, message)

    missing = _index(rows, copies[0]) if copies else len(rows)
    extra = _index(copies, rows[0]) if rows else len(copies)
    if missing is not None and extra is not None and rows and copies:
        return difference(
            "out of order", 1,
            f"the copy has source offset {source.offsets[missing]} here, and what belongs here at its offset "
            f"{copied.offsets[extra]}; the rest of the partition is not compared",
        )  # fmt: skip
    if missing is not None and rows:
        source.drop(missing)
        return difference(
            "missing", missing, "the copy continues behind them" if copies else "the copy ends here"
        )
    if extra is not None:
        earlier = await source.cursor_before(2 * LOOKAHEAD_RECORDS)
        await earlier.load_rows(2 * LOOKAHEAD_RECORDS)
        first = _index(earlier.rows, copies[0])
        copied.drop(extra)
        if first is None:
            return difference("foreign", extra, "the source has no such record before")
        return difference("twice", extra, f"the first of them is source offset {earlier.offsets[first]}")
    differ = [name for name, a, b in zip(FIELDS, rows[0], copies[0], strict=True) if a != b]
    source.drop(1)
    copied.drop(1)
    return difference("changed", 1, f"{', '.join(differ)} differ")


def _index(rows: list[Row], row: Row) -> int | None:
    try:
        return rows.index(row)
    except ValueError:
        return None


if __name__ == "__main__":
    aiokafka_patches.install()
    result = asyncio.run(compare_topics(*sys.argv[1:5]))
    sys.stdout.write(f"{result}\n")
    sys.exit(bool(result.differences))
