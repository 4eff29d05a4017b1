"""Reads two tiers of a window and says where the records are by which they differ, in bounded memory.

    batches:  prints of whole batches --sieve--> those that only one side has; nothing is decoded
    records:  prints of their records --sieve--> those that one side has more often
    places:   where these are, also behind those offsets

Rules
1. Each step reads the same offsets again; they were fixed before the first. A log that lost some of them
   meanwhile is noticed, as places and prints do not agree then (`LogsChanged`).
2. Where hardly any batch is the same, records are compared at once.
3. Copies may come late, with old timestamps, far behind the others of their time. So what is missing is
   looked for up to the log's end; as is, upstream, what is there too often downstream.
4. Bytes are looked at in a thread, a piece at a time: others on the loop go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from app.audit.drilldown.copy_origins import ClusterPartition
from app.audit.drilldown.findings import ObservedRecord
from app.audit.drilldown.prints import PrintReader
from app.audit.drilldown.sieve import Prints, Sieve, SievedPrints
from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.span_reader import SpanPiece, read_span

PRINTS_PER_SIEVE_BATCH = 1 << 16  # prints that are put into a sieve together
MOST_TRIES = 6
MOST_IDS = 2_000_000  # held at once: some 150 MB
MOST_PLACES = 20_000  # of one print: records of the same contents
STEPS = 3

ReportProgress = Callable[[dict[str, Any]], None]
T = TypeVar("T")


class LogsChanged(RuntimeError):
    """What was read first was not there any more when it was read again."""


class ScanRange(NamedTuple):
    """A partition's offsets [start, end) that may hold records of the window, by their timestamps. `log_end`:
    where the log ended then."""

    client: ClusterClient
    reader: PrintReader
    start: int
    end: int
    log_end: int
    is_upstream: bool
    begins_at: int = -1  # batches that begin before are not looked at


class UnreadRange(NamedTuple):
    """Offsets [start, end) that cannot be read."""

    place: ClusterPartition
    start: int
    end: int
    why: str
    is_upstream: bool


class Scanned(NamedTuple):
    """What a scan has found.

    Attributes:
        upstream, downstream: places of the records by which the two differ.
        estimate: about how many prints differ. share: all of them are told, or one of so many.
        alike: records of the same contents that are too many to be told apart, by how many more upstream has.
        unread: what could not be read.
    """

    upstream: list[ObservedRecord]
    downstream: list[ObservedRecord]
    estimate: int = 0
    share: int = 1
    alike: tuple[int, ...] = ()
    unread: tuple[UnreadRange, ...] = ()


class Scan:
    """See the module. `report_progress` takes its progress: offsets `looked_at`, `of` so many."""

    def __init__(self, parts: Sequence[ScanRange], report_progress: ReportProgress) -> None:
        self._parts = parts
        self._report_progress = report_progress
        self._offsets = sum(part.end - part.start for part in parts)
        self._looked_at, self._of = 0, STEPS * self._offsets
        self._unread: dict[tuple[ClusterPartition, int], UnreadRange] = {}

    async def run(self) -> Scanned:
        """Reads.

        Raises:
            ClusterUnreachable, KafkaError: some of it cannot be read now. LogsChanged: see there.
        """
        batches = await self._batches()
        if batches is not None and not batches:
            return Scanned([], [], unread=self.unread)
        found, share = await self._records(batches)
        if not found.surplus:
            return Scanned([], [], found.estimate, share, unread=self.unread)
        return await self._places(batches, found, share)

    async def ids(self) -> list[bytes] | None:
        """The ids of all records of the window, each once; None: they are more than `MOST_IDS`. Raises as
        `run`."""
        found: set[bytes] = set()

        def take(part: ScanRange, piece: SpanPiece) -> None:
            if len(found) <= MOST_IDS:
                found.update(part.reader.ids(piece))

        async for _ in self._read("ids", take):
            pass
        return sorted(found) if len(found) <= MOST_IDS else None

    async def places_of(self, ids: Collection[bytes]) -> list[ObservedRecord]:
        """Where the records with these ids are. Raises as `run`."""
        found: list[ObservedRecord] = []

        def take(part: ScanRange, piece: SpanPiece) -> None:
            found.extend(part.reader.seen_ids(piece, ids))

        async for _ in self._read("places", take):
            pass
        return found

    @property
    def unread(self) -> tuple[UnreadRange, ...]:
        """What could not be read."""
        return tuple(one for _, one in sorted(self._unread.items()))

    async def _batches(self) -> dict[int, int] | None:
        """Batches that one side has more often; None: too many to tell (rule 2)."""
        found = await self._sift("batches", Sieve(), lambda part, piece: part.reader.batch_prints(piece))
        return found.surplus if found.is_complete else None

    async def _records(self, batches: dict[int, int] | None) -> tuple[SievedPrints, int]:
        sieve = Sieve()
        for number in range(MOST_TRIES):
            if number:
                self._of += self._offsets
            found = await self._sift(
                "records", sieve, lambda part, piece: part.reader.record_prints(piece, batches)
            )
            if found.is_complete:
                return found, 1 << sieve.bits
            sieve = sieve.wider(found.estimate)
        raise LogsChanged(f"after {MOST_TRIES} readings it cannot be told what differs; ask again")

    async def _sift(
        self, step: str, sieve: Sieve, prints_of: Callable[[ScanRange, SpanPiece], Prints]
    ) -> SievedPrints:
        waiting: dict[bool, list[Prints]] = {True: [], False: []}

        def put(*, is_upstream: bool) -> None:
            some, waiting[is_upstream] = waiting[is_upstream], []
            if some:
                sieve.add(np.concatenate(some), is_upstream=is_upstream)

        def take(part: ScanRange, piece: SpanPiece) -> None:
            waiting[part.is_upstream].append(prints_of(part, piece))
            if sum(map(len, waiting[part.is_upstream])) >= PRINTS_PER_SIEVE_BATCH:
                put(is_upstream=part.is_upstream)

        async for _ in self._read(step, take):
            pass
        for is_upstream in (True, False):
            await asyncio.to_thread(put, is_upstream=is_upstream)
        return await asyncio.to_thread(sieve.found)

    async def _places(self, batches: dict[int, int] | None, found: SievedPrints, share: int) -> Scanned:
        contents = dict(found.surplus)
        counts: Counter[int] = Counter()
        sides: dict[bool, list[ObservedRecord]] = {True: [], False: []}
        alike: list[int] = []

        def take(part: ScanRange, piece: SpanPiece) -> None:
            wanted = batches if part.begins_at < 0 else None
            seen = part.reader.seen(piece, wanted, contents, part.begins_at)
            sides[part.is_upstream] += seen
            counts.update(one.contents for one in seen)
            for name in {one.contents for one in seen if counts[one.contents] > MOST_PLACES}:
                alike.append(contents.pop(name))
                for is_upstream, some in sides.items():
                    sides[is_upstream] = [one for one in some if one.contents != name]

        async for _ in self._read("places", take):
            pass
        balance = Counter(one.contents for one in sides[True])
        balance.subtract(Counter(one.contents for one in sides[False]))
        if any(balance[name] != count for name, count in contents.items()):
            raise LogsChanged("the logs lost records while they were read; ask again")
        is_short = {True: min(contents.values(), default=0) < 0, False: max(contents.values(), default=0) > 0}
        behind = [part._replace(start=part.end, end=part.log_end, begins_at=part.end) for part in self._parts]
        rest = [part for part in behind if part.start < part.end and is_short[part.is_upstream]]
        self._of += sum(part.end - part.start for part in rest)
        async for _ in self._read("later", take, rest):
            pass
        return Scanned(sides[True], sides[False], found.estimate, share, tuple(alike), self.unread)

    async def _read(
        self, step: str, take: Callable[[ScanRange, SpanPiece], T], parts: Sequence[ScanRange] | None = None
    ) -> AsyncIterator[T]:
        """What `take` makes of each piece of `parts`, of all without them, in a thread."""
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
                    {"step": step, "looked_at": self._looked_at, "of": max(self._of, self._looked_at)}
                )


def _within(piece: SpanPiece, end: int) -> SpanPiece:
    return piece if piece.end <= end else piece._replace(end=end)
