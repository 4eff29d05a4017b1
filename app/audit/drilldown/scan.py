"""Reads two tiers of a window and finds the places of the records that differ, in bounded memory.

    batches:  prints of whole batches --sieve--> batches with a surplus on one side; nothing is decoded
    records:  prints of their records --sieve--> records with a surplus on one side
    places:   where these records lie, also behind the compared offsets

Rules
1. Each step reads the same offsets; they are fixed before the first step. If a log loses some of them
   meanwhile, places and prints disagree (`LogsChanged`).
2. If more batches differ than a sieve can name, all records are compared at once.
3. Copies may come late, with old timestamps, far behind the others of their time. So missing records are
   searched up to downstream's log end, and records that downstream has too often up to upstream's.
4. Prints are made in a thread, a piece at a time, so that the loop stays free.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from app.audit.drilldown.copy_origins import ClusterPartition
from app.audit.drilldown.findings import ObservedRecord
from app.audit.drilldown.prints import PrintReader
from app.audit.drilldown.sieve import Prints, Sieve, SievedPrints
from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.span_reader import SpanPiece, read_span
from app.kernel.json_types import JsonObject

PRINTS_PER_SIEVE_BATCH = 1 << 16  # prints that a sieve takes together
MOST_TRIES = 6
MOST_IDS = 2_000_000  # held at once: some 150 MB
MOST_PLACES = 20_000  # of one print: records with the same contents
STEPS = 3

ReportProgress = Callable[[JsonObject], None]
T = TypeVar("T")


class LogsChanged(RuntimeError):
    """The records of an earlier step were gone when they were read again."""


class ScanRange(NamedTuple):
    """A partition's offsets [start, end) that may have records of the window, by their timestamps. `log_end`:
    the log's end then. Batches below `first_base_offset` are skipped."""

    client: ClusterClient
    reader: PrintReader
    start: int
    end: int
    log_end: int
    is_upstream: bool
    first_base_offset: int = -1


class UnreadRange(NamedTuple):
    """Offsets [start, end) that cannot be read."""

    place: ClusterPartition
    start: int
    end: int
    why: str
    is_upstream: bool


class Scanned(NamedTuple):
    """The result of a scan.

    Attributes:
        upstream, downstream: Places of the records by which the two differ.
        estimate: About how many prints differ.
        share: One of this many prints was compared; 1: all of them.
        alike: Surpluses upstream of records with the same contents, in too many places to list.
    """

    upstream: list[ObservedRecord]
    downstream: list[ObservedRecord]
    estimate: int = 0
    share: int = 1
    alike: tuple[int, ...] = ()
    unread: tuple[UnreadRange, ...] = ()


class Scan:
    """Compares the parts. `report_progress` takes the step, and the offsets `looked_at` `of` all."""

    def __init__(self, parts: Sequence[ScanRange], report_progress: ReportProgress) -> None:
        self._parts = parts
        self._report_progress = report_progress
        self._offsets = sum(part.end - part.start for part in parts)
        self._looked_at, self._total_offsets = 0, STEPS * self._offsets
        self._unread: dict[tuple[ClusterPartition, int], UnreadRange] = {}

    async def run(self) -> Scanned:
        """Reads both tiers. Raises ClusterUnreachable, KafkaError: some of it cannot be read now;
        LogsChanged: a log lost records meanwhile, or the sieve could not separate the prints."""
        batches = await self._batches()
        if batches is not None and not batches:
            return Scanned([], [], unread=self.unread)
        found, share = await self._records(batches)
        if not found.surplus:
            return Scanned([], [], found.estimate, share, unread=self.unread)
        return await self._places(batches, found, share)

    async def ids(self) -> list[bytes] | None:
        """The ids of all records of the window, each once; None: more than `MOST_IDS`. Raises as `run`."""
        found: set[bytes] = set()

        def take(part: ScanRange, piece: SpanPiece) -> None:
            if len(found) <= MOST_IDS:
                found.update(part.reader.ids(piece))

        async for _ in self._read("ids", take):
            pass
        return sorted(found) if len(found) <= MOST_IDS else None

    async def places_of(self, ids: Collection[bytes]) -> list[ObservedRecord]:
        """The places of the records with these ids. Raises as `run`."""
        found: list[ObservedRecord] = []

        def take(part: ScanRange, piece: SpanPiece) -> None:
            found.extend(part.reader.observed_ids(piece, ids))

        async for _ in self._read("places", take):
            pass
        return found

    @property
    def unread(self) -> tuple[UnreadRange, ...]:
        return tuple(unread for _, unread in sorted(self._unread.items()))

    async def _batches(self) -> dict[int, int] | None:
        """The batches with a surplus on one side; None: more than the sieve can name (rule 2)."""
        found = await self._sift("batches", Sieve(), lambda part, piece: part.reader.batch_prints(piece))
        return found.surplus if found.is_complete else None

    async def _records(self, batches: dict[int, int] | None) -> tuple[SievedPrints, int]:
        sieve = Sieve()
        for number in range(MOST_TRIES):
            if number:
                self._total_offsets += self._offsets
            found = await self._sift(
                "records", sieve, lambda part, piece: part.reader.record_prints(piece, batches)
            )
            if found.is_complete:
                return found, 1 << sieve.bits
            sieve = sieve.wider(found.estimate)
        raise LogsChanged(
            f"after {MOST_TRIES} readings, the differing records could not be separated; ask again"
        )

    async def _sift(
        self, step: str, sieve: Sieve, prints_of: Callable[[ScanRange, SpanPiece], Prints]
    ) -> SievedPrints:
        pending_prints: dict[bool, list[Prints]] = {True: [], False: []}

        def add_to_sieve(*, is_upstream: bool) -> None:
            pending, pending_prints[is_upstream] = pending_prints[is_upstream], []
            if pending:
                sieve.add(np.concatenate(pending), is_upstream=is_upstream)

        def take(part: ScanRange, piece: SpanPiece) -> None:
            pending_prints[part.is_upstream].append(prints_of(part, piece))
            if sum(map(len, pending_prints[part.is_upstream])) >= PRINTS_PER_SIEVE_BATCH:
                add_to_sieve(is_upstream=part.is_upstream)

        async for _ in self._read(step, take):
            pass
        for is_upstream in (True, False):
            await asyncio.to_thread(add_to_sieve, is_upstream=is_upstream)
        return await asyncio.to_thread(sieve.found)

    async def _places(self, batches: dict[int, int] | None, found: SievedPrints, share: int) -> Scanned:
        contents = dict(found.surplus)
        counts: Counter[int] = Counter()
        sides: dict[bool, list[ObservedRecord]] = {True: [], False: []}
        alike: list[int] = []

        def take(part: ScanRange, piece: SpanPiece) -> None:
            wanted = batches if part.first_base_offset < 0 else None
            observed = part.reader.observed(piece, wanted, contents, part.first_base_offset)
            sides[part.is_upstream] += observed
            counts.update(record.contents for record in observed)
            for name in {record.contents for record in observed if counts[record.contents] > MOST_PLACES}:
                alike.append(contents.pop(name))
                for is_upstream, places in sides.items():
                    sides[is_upstream] = [record for record in places if record.contents != name]

        async for _ in self._read("places", take):
            pass
        balance = Counter(record.contents for record in sides[True])
        balance.subtract(Counter(record.contents for record in sides[False]))
        if any(balance[name] != count for name, count in contents.items()):
            raise LogsChanged("the logs lost records while they were read; ask again")
        is_short = {True: min(contents.values(), default=0) < 0, False: max(contents.values(), default=0) > 0}
        behind = [
            part._replace(start=part.end, end=part.log_end, first_base_offset=part.end)
            for part in self._parts
        ]
        rest = [part for part in behind if part.start < part.end and is_short[part.is_upstream]]
        self._total_offsets += sum(part.end - part.start for part in rest)
        async for _ in self._read("later", take, rest):
            pass
        return Scanned(sides[True], sides[False], found.estimate, share, tuple(alike), self.unread)

    async def _read(
        self, step: str, take: Callable[[ScanRange, SpanPiece], T], parts: Sequence[ScanRange] | None = None
    ) -> AsyncIterator[T]:
        """Yields the results of `take` for each piece of `parts` (default: all parts), in a thread."""
        for part in self._parts if parts is None else parts:
            topic, partition = part.reader.place.topic, part.reader.place.partition
            async for piece in read_span(part.client, topic, partition, part.start, part.end):
                if piece.damage:
                    at = part.reader.place, piece.start
                    self._unread[at] = UnreadRange(
                        part.reader.place, piece.start, piece.end, piece.damage, part.is_upstream
                    )
                else:
                    yield await asyncio.to_thread(take, part, _within(piece, part.end))
                self._looked_at += min(piece.end, part.end) - piece.start
                self._report_progress(
                    {
                        "step": step,
                        "looked_at": self._looked_at,
                        "of": max(self._total_offsets, self._looked_at),
                    }
                )


def _within(piece: SpanPiece, end: int) -> SpanPiece:
    return piece if piece.end <= end else piece._replace(end=end)
