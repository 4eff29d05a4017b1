"""Books: folds of the audit topic's partitions into windows and tiers, and the sweep that closes old windows.

A worker has the books of the partitions whose tables its agent writes (`agents.audit_reports`).

Rules (tests/audit/jobs/test_books.py)
1. A book contains every event below its `next_offset`. If a later event than that comes, another worker has
   written the tables meanwhile, and the book is restored from them. Their values may lack the last events, so
   these are folded in again (`replay_tail`), and each value skips what it has. A worker may still hold a book
   of a partition that another worker has taken over. So of several books of a partition the one with the
   highest `next_offset` counts.
2. Closings and droppings are written into the topic, and count there. A book decides on them only if it has
   reached the end that the topic had at the last sweep. So it cannot miss another worker's decisions for
   long, and a decision that is made twice counts once (`app.audit.folds.tier`).
3. A book begins with the first event that arrives. So the leader sends one to each partition at intervals
   (`CollectorTick`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.audit.folds.collector import UNKNOWN_MS, Collector, Event, TableChanges
from app.audit.folds.counted_parts import ReportOutcome
from app.audit.folds.seals import check_author, is_sealed
from app.audit.folds.tier import ForgetWindows, PlanBounds, TierKey
from app.audit.folds.window import WindowKey
from app.audit.jobs.replay_tail import Events, Margin, Recorded
from app.audit.jobs.report_sender import AuditSender
from app.audit.jobs.seal_key import SealKey
from app.controllog import codec
from app.controllog.topics import AUDIT_PARTITIONS
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kernel.clock import now_ms
from app.kernel.incidents import ReportIncident
from switchyard.audit.model.reports import MOST_SOURCES, BadReport, Report, Scope

log = structlog.get_logger(__name__)

SWEEP_INTERVAL_S = 2.0
TICK_INTERVAL_S = 10.0
MOST_REPORTED = 10_000  # incidents that are remembered as reported
LOG_INTERVAL_S = 1.0
RECORDS_PER_TURN = 100  # handled before other tasks get the event loop
CHANGED = (
    "check the changes of the plan and the topic's retention: the source counts by other settings than "
    "before, or lost records meanwhile"
)
TOO_MANY = (
    "find the clients that report so many names or times; wider windows or a shorter keep in the plan need "
    "less room"
)
NO_EVENT = "find out who else writes into this topic; the records of such an event are not counted"
NOT_FOLDED = (
    "report this error of Switchyard with the worker's log; the event may still count, because the tables "
    "are read again"
)
UNNUMBERED = "let the client number its reports (the audit library does); further ones are not counted"
REFUSED = {
    ReportOutcome.OVERLAPS: CHANGED,
    ReportOutcome.TOO_MANY: UNNUMBERED,
    ReportOutcome.FULL: TOO_MANY,
    ReportOutcome.APART: TOO_MANY,
}

NO_ROOM = {ReportOutcome.FULL, ReportOutcome.APART}  # reported once for all windows of a tier
UNTIMED_NOTE = "records of such times are counted with those without a timestamp, and not compared"

BoundsOf = Callable[[str, str], PlanBounds]  # of a cluster's topic
OddityOf = Callable[[Scope], str]  # how a client's scope deviates from the plan; "": it does not


@dataclass(frozen=True, slots=True)
class PlannedCounts:
    """What the audit plans say: when a topic's windows close, and how a client's scope deviates."""

    bounds_of: BoundsOf
    oddity_of: OddityOf = lambda _: ""


@dataclass(slots=True)
class AuditBook:
    """The fold of a partition. `end`: the topic's end at the last sweep; -1: unknown."""

    next_offset: int
    collector: Collector = field(default_factory=Collector)
    end: int = -1


class AuditBooks(Service):
    """This worker's books by partition, and their sweep. `passed_over`: the number of unusable events in each
    partition. Without a `seal_key` all events count as workers' own."""

    def __init__(
        self,
        topic: str,
        client: ClusterClient,
        sender: AuditSender,
        margin: Margin,
        plans: PlannedCounts,
        report_incident: ReportIncident,
        leads: Callable[[], bool] = lambda: False,
        seal_key: SealKey | None = None,
    ) -> None:
        super().__init__()
        self.books: dict[int, AuditBook] = {}
        self.passed_over: Counter[int] = Counter()
        self._log_again_s = float("-inf")
        self._topic = topic
        self._client = client
        self._sender = sender
        self._margin = margin
        self._plans = plans
        self._report_incident = report_incident
        self._leads = leads
        self._ticked_s = float("-inf")
        self._seal_key = seal_key
        self._secret = b""
        self._reported: set[tuple[object, str]] = set()

    # -- the fold ----------------------------------------------------------------------------------

    def can_fold(self, partition: int, offset: int) -> bool:
        """Whether the event at `offset` can be folded in (rule 1)."""
        book = self.books.get(partition)
        return book is not None and offset <= book.next_offset

    async def restore(
        self,
        partition: int,
        offset: int,
        windows: Iterable[tuple[bytes, bytes]],
        tiers: Iterable[tuple[bytes, bytes]],
    ) -> TableChanges:
        """Begins a book with the tables' values before the event at `offset`. Returns what they lack, for the
        caller to write. Raises KafkaError, OSError, ClusterUnreachable: The topic cannot be read now."""
        collector = Collector()
        unreadable = UnreadableRecords("unreadable records of windows or tiers begin again from nothing")
        for count, (key, value) in enumerate(windows):
            try:
                collector.restore_window(WindowKey.parse(key.decode()), codec.window_record(value))
            except ValueError as error:
                unreadable.add(count, error)
            if count % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
                await asyncio.sleep(0)
        for count, (key, value) in enumerate(tiers):
            try:
                collector.restore_tier(TierKey.parse(key.decode()), codec.tier_record(value))
            except ValueError as error:
                unreadable.add(count, error)
            if count % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
                await asyncio.sleep(0)
        unreadable.report()
        if self._seal_key is not None:
            self._secret = await self._seal_key.known()
        rewound = collector.rewind(max(offset + 1, await self._end(partition)))
        async with aclosing(self._margin.before(partition, offset)) as pieces:
            written = await self._folded(collector, pieces)
        if any(rewound):
            self._report_incident(
                "audit-topic-shorter", f"{self._topic}/{partition}",
                f"the topic was recreated or truncated: {len(rewound[0])} windows have events that it lacks",
                "find out why the topic lost events; counted events stay, uncounted ones are missing",
            )  # fmt: skip
            written = written._replace(
                windows=tuple(sorted({*written.windows, *rewound[0]} & collector.windows.keys())),
                tiers=tuple(sorted({*written.tiers, *rewound[1]})),
            )
        self.books[partition] = AuditBook(offset, collector)
        log.info("audit tables were read", partition=partition, next_offset=offset,
                 windows=len(collector.windows), lacked=len(written.windows))  # fmt: skip
        return written

    async def _folded(self, collector: Collector, pieces: AsyncIterator[Events]) -> TableChanges:
        """Folds in events; returns all changes together."""
        windows: set[WindowKey] = set()
        tiers: set[TierKey] = set()
        deleted: set[WindowKey] = set()
        async for offset, value, recorded_ms, seal in _one_by_one(pieces):
            try:
                written = collector.apply(self._event(value, seal), offset, recorded_ms)
            except Exception as error:  # noqa: BLE001 - it was reported when it came
                log.debug(
                    "an event of the audit topic is passed over again", offset=offset, error=repr(error)
                )
                continue
            windows |= set(written.windows)
            tiers |= set(written.tiers)
            deleted |= set(written.deleted)
        held = collector.windows.keys()
        return TableChanges(
            tuple(sorted(windows & held)), tuple(sorted(tiers)), tuple(sorted(deleted - held))
        )

    def forget(self, partition: int) -> None:
        """Drops the book, which differs from its tables."""
        self.books.pop(partition, None)

    async def _end(self, partition: int) -> int:
        at = self._topic, partition
        return (await self._client.end_offsets([at])).get(at, 0)

    def fold(
        self,
        partition: int,
        offset: int,
        value: bytes | None,
        recorded_ms: int = UNKNOWN_MS,
        seal: bytes = b"",
    ) -> TableChanges:
        """Folds in an event; the caller writes all of the changes. Raises BadEvent, BadReport: The event is
        to be passed over, as is one that raises any other error."""
        book = self.books[partition]
        book.next_offset = max(book.next_offset, offset + 1)
        event = self._event(value, seal)
        written = book.collector.apply(event, offset, recorded_ms)
        self._report_incidents_of(event, written, book.collector)
        return written

    def _event(self, value: bytes | None, seal: bytes) -> Event:
        """The event. Raises BadEvent, BadReport: It is unusable, or its author may not write it."""
        event = codec.audit_event(value)
        is_worker = self._seal_key is None or is_sealed(self._secret, value or b"", seal)
        check_author(event, is_worker=is_worker)
        return event

    def pass_over(self, partition: int, offset: int, error: Exception) -> None:
        """Counts an unusable event, and reports the 1st, 10th, 100th …: their author may send many."""
        self.passed_over[partition] += 1
        count = self.passed_over[partition]
        if time.monotonic() >= self._log_again_s:
            self._log_again_s = time.monotonic() + LOG_INTERVAL_S
            log.error("events of the audit topic are passed over", partition=partition, offset=offset,
                      passed_over=count, error=str(error)[:500])  # fmt: skip
        if str(count).strip("0") == "1":
            reason, remedy = str(error), NO_EVENT
            if not isinstance(error, codec.BadEvent | BadReport):
                reason, remedy = repr(error), NOT_FOLDED  # the message alone may be empty
            self._report_incident(
                "audit-event-passed-over", f"{self._topic}/{partition}",
                f"{count} of its events were passed over, last at offset {offset}: {reason[:500]}", remedy,
            )  # fmt: skip

    def _report_incidents_of(self, event: Event, written: TableChanges, collector: Collector) -> None:
        if not isinstance(event, Report):
            return
        subject = f"{event.cluster}/{event.topic}"
        for window, verdict in written.verdicts:
            if verdict in REFUSED:
                key = window.scope if verdict in NO_ROOM else window
                message = f"a report of the window at {window.start_ms} ms was refused: {verdict.value}"
                if verdict is ReportOutcome.APART:
                    message = (
                        f"tier {event.tier} has no room for windows like that at {window.start_ms} ms: "
                        f"{UNTIMED_NOTE}"
                    )
                self._report_once(
                    key, verdict.value, "audit-report-refused", subject, message, REFUSED[verdict]
                )
        for tier in written.tiers:
            if len(collector.tiers[tier].sources) >= MOST_SOURCES:
                message = f"tier {tier.tier} has {MOST_SOURCES} sources; windows do not wait for any more"
                self._report_once(tier, "sources", "audit-report-refused", subject, message, TOO_MANY)
        if oddity := self._plans.oddity_of(event.scope):
            message = f"tier {event.tier} does not count as planned: {oddity}"
            remedy = "change the client or the plan; until then its windows may not be compared"
            self._report_once(event.scope, oddity, "audit-not-as-planned", subject, message, remedy)

    def _report_once(self, key: object, why: str, kind: str, subject: str, message: str, remedy: str) -> None:
        if (key, why) in self._reported:
            return
        if len(self._reported) >= MOST_REPORTED:
            self._reported.clear()
        self._reported.add((key, why))
        self._report_incident(kind, subject, message, remedy)

    def encoded(self, partition: int) -> Callable[[WindowKey | TierKey], bytes]:
        """A function that encodes the partition's windows and tiers for the tables."""
        collector = self.books[partition].collector

        def encoded(key: WindowKey | TierKey) -> bytes:
            return codec.encode(
                collector.windows[key] if isinstance(key, WindowKey) else collector.tiers[key]
            )

        return encoded

    async def missing_partitions(self, partitions: Collection[int]) -> list[int]:
        """The other partitions that are not known to be empty. Raises KafkaError, ClusterUnreachable."""
        other_partitions = [number for number in range(AUDIT_PARTITIONS) if number not in partitions]
        ends = await self._client.end_offsets([(self._topic, partition) for partition in other_partitions])
        return [partition for partition in other_partitions if ends.get((self._topic, partition)) != 0]

    # -- the sweep ---------------------------------------------------------------------------------

    @Service.task
    async def _sweep_for_ever(self) -> None:
        while not self.should_stop:
            await self.sleep(SWEEP_INTERVAL_S)
            try:
                await self._sweep()
            except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
                log.warning("the audit topic cannot be swept now", error=repr(error))
            except Exception:
                log.exception("a sweep of the audit topic failed and is repeated")

    async def _sweep(self) -> None:
        """Sends what is due (rule 2), fetches the topic's ends and lets the leader send ticks."""
        for partition, book in list(self.books.items()):
            if 0 <= book.end <= book.next_offset and self.books.get(partition) is book:
                try:
                    await self._due(book.collector)
                except Exception:
                    log.exception("a partition of the audit topic cannot be swept", partition=partition)
        before = {partition: (book, book.next_offset) for partition, book in self.books.items()}
        ends = await self._client.end_offsets([(self._topic, partition) for partition in before])
        for (_, partition), end in ends.items():
            book, known = before[partition]
            book.end = end
            if end < known and self.books.get(partition) is book:
                # It was recreated or truncated: its next events would be taken for known ones.
                log.warning("the audit topic is shorter than it was", partition=partition, end=end, was=known)
                self.forget(partition)
        now_s = time.monotonic()
        if self._leads() and now_s - self._ticked_s >= TICK_INTERVAL_S:
            self._ticked_s = now_s
            await self._sender.tick(now_ms())

    async def _due(self, collector: Collector) -> None:
        scopes: defaultdict[PlanBounds, list[Scope]] = defaultdict(list)
        for scope in {key.scope for key in collector.windows}:
            scopes[self._plans.bounds_of(scope.cluster, scope.topic)].append(scope)
        for bounds, of_bounds in scopes.items():
            at_ms = now_ms()
            for event in collector.due(at_ms, bounds, of_bounds):
                if isinstance(event, ForgetWindows) and event.before_ms > at_ms - bounds.keep_ms:
                    message = f"tier {event.tier} has too many windows: its oldest are dropped early"
                    subject = f"{event.cluster}/{event.topic}"
                    self._report_once(
                        (subject, event.tier), "", "audit-windows-dropped", subject, message, TOO_MANY
                    )
                try:
                    await (await self._sender.send(event))
                except Exception as error:  # noqa: BLE001 - other topics' events are sent
                    log.warning("the audit topic refused an event", topic=event.topic, tier=event.tier,
                                cluster=event.cluster, error=repr(error))  # fmt: skip


async def _one_by_one(pieces: AsyncIterator[Events]) -> AsyncIterator[Recorded]:
    """The events one by one; lets other tasks run now and then."""
    async for events in pieces:
        for count, event in enumerate(events):
            yield event
            if count % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
                await asyncio.sleep(0)
