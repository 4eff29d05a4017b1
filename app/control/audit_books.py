"""What is known of windows and tiers: folds of the partitions of the audit topic, each on the worker whose
agent writes its tables (`agents.audit_reports`); and the sweep that closes windows, and drops old ones.

Rules
1. A book is a fold up to its `next_offset`. When another event comes than the one that it waits for, somebody
   else has gone on meanwhile: it is read anew from the tables, whose values may lack what was made of the
   last events: these are folded in again (`audit_margin`), and each value takes what it does not have. One
   that a worker holds of a partition that is another's now is behind; of several workers' books the furthest
   one counts.
2. What is due is written into the topic, and counts there. Only a book that has come to the end which the
   topic had a moment ago says what is due: what another one wrote since cannot be missed for long, and
   whatever was decided twice counts once (`app.core.audit.tiers`).
3. A book begins with the first event that comes: the leader sees to it that one comes now and then (`Tick`).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app import wire
from app.clock import now_ms
from app.control.audit_margin import Events, Margin
from app.control.audit_sender import AuditSender
from app.core.audit.collect import Collector, Written
from app.core.audit.reports import BadReport, Scope, Verdict
from app.core.audit.tiers import Bounds, TierKey
from app.core.audit.windows import WindowKey
from app.kafka.clusters import ClusterClient, ClusterUnreachable
from app.topics import AUDIT_PARTITIONS

log = structlog.get_logger(__name__)

SWEEP_S = 2.0
TICK_S = 10.0
MOST_TOLD = 10_000  # windows of which it is remembered that a refusal was told
AT_ONCE = 100  # records are read before others get the loop
REFUSED = {Verdict.OVERLAPS, Verdict.TOO_MANY}

BoundsOf = Callable[[str, str], Bounds]  # of a cluster's topic


@dataclass(slots=True)
class Book:
    """See the module. `end`: of the topic when it was asked last, -1: not known."""

    next_offset: int
    collector: Collector = field(default_factory=Collector)
    end: int = -1


class AuditBooks(Service):
    """See the module. `books`: by partition of the audit topic."""

    def __init__(
        self, topic: str, client: ClusterClient, sender: AuditSender, margin: Margin, bounds_of: BoundsOf,
        tell: Callable[[str, str, str, str], None], leads: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.books: dict[int, Book] = {}
        self._topic = topic
        self._client = client
        self._sender = sender
        self._margin = margin
        self._bounds_of = bounds_of
        self._tell = tell
        self._leads = leads
        self._ticked_s = float("-inf")
        self._told: set[tuple[WindowKey, str]] = set()

    # -- the fold ----------------------------------------------------------------------------------

    def goes_on_at(self, partition: int, offset: int) -> bool:
        """Whether the event at `offset` can be folded in (rule 1)."""
        book = self.books.get(partition)
        return book is not None and offset <= book.next_offset

    async def restore(
        self,
        partition: int,
        offset: int,
        windows: Iterable[tuple[bytes, bytes]],
        tiers: Iterable[tuple[bytes, bytes]],
    ) -> Written:
        """Begins a book with what stands in the tables before the event at `offset`.

        Returns what they lack, which is to be written. Raises KafkaError, OSError: it cannot be known now.
        """
        collector = Collector()
        for count, (key, value) in enumerate(windows):
            try:
                collector.restore_window(WindowKey.parse(key.decode()), wire.window_record(value))
            except ValueError as error:
                log.error("a record of a window cannot be read and begins anew", key=key, error=str(error))
            if count % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        for key, value in tiers:
            try:
                collector.restore_tier(TierKey.parse(key.decode()), wire.tier_record(value))
            except ValueError as error:
                log.error("a record of a tier cannot be read and begins anew", key=key, error=str(error))
        written = await _folded(collector, await self._margin.before(partition, offset))
        self.books[partition] = Book(offset, collector)
        log.info("audit tables were read", partition=partition, next_offset=offset,
                 windows=len(collector.windows), lacked=len(written.windows))  # fmt: skip
        return written

    def forget(self, partition: int) -> None:
        """The book is not as its tables are."""
        self.books.pop(partition, None)

    def fold(self, partition: int, offset: int, value: bytes | None) -> Written:
        """What an event changes; all of it is to be written.

        Raises:
            BadEvent, BadReport: it is passed over.
        """
        book = self.books[partition]
        book.next_offset = max(book.next_offset, offset + 1)
        written = book.collector.apply(wire.audit_event(value), offset)
        for window, verdict in written.verdicts:
            if verdict in REFUSED and (window, verdict.value) not in self._told:
                if len(self._told) >= MOST_TOLD:
                    self._told.clear()
                self._told.add((window, verdict.value))
                self._tell(
                    "audit-report-refused", f"{window.cluster}/{window.topic}",
                    f"a report of the window of {window.start_ms} was refused: {verdict.value}",
                    "its source counts otherwise than before, or lost records meanwhile: see its plan's "
                    "changes, and its topic's retention",
                )  # fmt: skip
        return written

    def encoded(self, partition: int) -> Callable[[WindowKey | TierKey], bytes]:
        """What is to be written of a window or tier of the partition."""
        collector = self.books[partition].collector

        def encoded(key: WindowKey | TierKey) -> bytes:
            return wire.encode(collector.windows[key] if isinstance(key, WindowKey) else collector.tiers[key])

        return encoded

    async def without(self, partitions: Collection[int]) -> list[int]:
        """Partitions that are not among these, although something was ever written into them.

        Raises: KafkaError, ClusterUnreachable.
        """
        others = [number for number in range(AUDIT_PARTITIONS) if number not in partitions]
        ends = await self._client.end_offsets([(self._topic, partition) for partition in others])
        return [partition for partition in others if ends.get((self._topic, partition)) != 0]

    # -- the sweep ---------------------------------------------------------------------------------

    @Service.task
    async def _sweep_for_ever(self) -> None:
        while not self.should_stop:
            await self.sleep(SWEEP_S)
            try:
                await self._sweep()
            except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
                log.warning("what of the audit is due cannot be said now", error=repr(error))
            except Exception:
                log.exception("a sweep of the audit failed and is made again")

    async def _sweep(self) -> None:
        """Rule 2."""
        for partition, book in list(self.books.items()):
            if 0 <= book.end <= book.next_offset and self.books.get(partition) is book:
                await self._due(book.collector)
        ends = await self._client.end_offsets([(self._topic, partition) for partition in self.books])
        for (_, partition), end in ends.items():
            if (at := self.books.get(partition)) is not None:
                at.end = end
        now_s = time.monotonic()
        if self._leads() and now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            await self._sender.tick(now_ms())

    async def _due(self, collector: Collector) -> None:
        scopes: defaultdict[Bounds, list[Scope]] = defaultdict(list)
        for scope in {key.scope for key in collector.windows}:
            scopes[self._bounds_of(scope.cluster, scope.topic)].append(scope)
        for bounds, some in scopes.items():
            for event in collector.due(now_ms(), bounds, some):
                await (await self._sender.send(event))


async def _folded(collector: Collector, events: Events) -> Written:
    """What events change, all of them together."""
    windows: set[WindowKey] = set()
    tiers: set[TierKey] = set()
    deleted: set[WindowKey] = set()
    for count, (offset, value) in enumerate(events):
        if count % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
        try:
            written = collector.apply(wire.audit_event(value), offset)
        except (wire.BadEvent, BadReport):
            continue  # it was told when it came
        windows |= set(written.windows)
        tiers |= set(written.tiers)
        deleted |= set(written.deleted)
    there = collector.windows.keys()
    return Written(tuple(sorted(windows & there)), tuple(sorted(tiers)), tuple(sorted(deleted - there)))
