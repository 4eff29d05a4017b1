"""What is known of windows and tiers: folds of the partitions of the audit topic, each on the worker whose
agent writes its tables (`agents.audit_reports`); and the sweep that closes windows, and drops old ones.

Rules
1. A book is a fold up to its `next_offset`. When another event comes than the one that it waits for, somebody
   else has gone on meanwhile: it is read anew from the tables, whose values may lack what was made of the
   last events: these are folded in again (`replay_tail`), and each value takes what it does not have. One
   that a worker holds of a partition that is another's now is behind; of several workers' books the furthest
   one counts.
2. What is due is written into the topic, and counts there. Only a book that has come to the end which the
   topic had a moment ago says what is due: what another one wrote since cannot be missed for long, and
   whatever was decided twice counts once (`app.audit.folds.tier`).
3. A book begins with the first event that comes: the leader sees to it that one comes now and then
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
from switchyard.audit.model.reports import MOST_SOURCES, BadReport, Report, Scope

log = structlog.get_logger(__name__)

SWEEP_INTERVAL_S = 2.0
TICK_INTERVAL_S = 10.0
MOST_TOLD = 10_000  # windows of which it is remembered that a refusal was told
LOG_INTERVAL_S = 1.0
RECORDS_PER_TURN = 100  # records are read before others get the loop
CHANGED = (
    "its source counts otherwise than before, or lost records meanwhile: see its plan's changes, and its "
    "topic's retention"
)
TOO_MANY = (
    "see which clients report under so many names or times; wider windows, or a shorter keep, in the plan "
    "take less"
)
NO_EVENT = "look who else writes into this topic; what such an event was to tell is counted nowhere"
NOT_FOLDED = (
    "an error of Switchyard's own: its worker's log says where; what the event tells may be counted all the "
    "same, as the tables are read anew"
)
REFUSED = {
    ReportOutcome.OVERLAPS: CHANGED,
    ReportOutcome.TOO_MANY: CHANGED,
    ReportOutcome.FULL: TOO_MANY,
    ReportOutcome.APART: TOO_MANY,
}

NO_ROOM = {ReportOutcome.FULL, ReportOutcome.APART}  # said of one of their windows
UNTIMED_NOTE = "records of such times are counted with those without a time, and not compared"

BoundsOf = Callable[[str, str], PlanBounds]  # of a cluster's topic
OddityOf = Callable[[Scope], str]  # in what a client's scope is not as it was planned; "": it is


@dataclass(slots=True)
class AuditBook:
    """See the module. `end`: of the topic when it was asked last, -1: not known."""

    next_offset: int
    collector: Collector = field(default_factory=Collector)
    end: int = -1


class AuditBooks(Service):
    """See the module. `books`: by partition of the audit topic. `passed_over`: events of each that say
    nothing, since this worker began. Without a `seal_key` all events count as workers' own."""

    def __init__(
        self, topic: str, client: ClusterClient, sender: AuditSender, margin: Margin, bounds_of: BoundsOf,
        report_incident: Callable[[str, str, str, str], None], leads: Callable[[], bool] = lambda: False,
        oddity_of: OddityOf = lambda _: "", seal_key: SealKey | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.books: dict[int, AuditBook] = {}
        self.passed_over: Counter[int] = Counter()
        self._log_again_s = float("-inf")
        self._topic = topic
        self._client = client
        self._sender = sender
        self._margin = margin
        self._bounds_of = bounds_of
        self._report_incident = report_incident
        self._leads = leads
        self._ticked_s = float("-inf")
        self._oddity_of = oddity_of
        self._seal_key = seal_key
        self._secret = b""
        self._told: set[tuple[object, str]] = set()

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
    ) -> TableChanges:
        """Begins a book with what stands in the tables before the event at `offset`.

        Returns what they lack, which is to be written. Raises KafkaError, OSError, ClusterUnreachable: it
        cannot be known now.
        """
        collector = Collector()
        unreadable = UnreadableRecords("records of windows or tiers cannot be read and begin anew")
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
                f"{len(rewound[0])} windows are of events that the topic does not have any more",
                "it was made anew, or lost its end: what was counted stays, what was lost with it is missing",
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
        """What events change, all of them together."""
        windows: set[WindowKey] = set()
        tiers: set[TierKey] = set()
        deleted: set[WindowKey] = set()
        async for offset, value, recorded_ms, seal in _one_by_one(pieces):
            try:
                written = collector.apply(self._event(value, seal), offset, recorded_ms)
            except Exception as error:  # noqa: BLE001 - it was told when it came, and must not come in the way now
                log.debug(
                    "an event of the audit topic is passed over again", offset=offset, error=repr(error)
                )
                continue
            windows |= set(written.windows)
            tiers |= set(written.tiers)
            deleted |= set(written.deleted)
        there = collector.windows.keys()
        return TableChanges(
            tuple(sorted(windows & there)), tuple(sorted(tiers)), tuple(sorted(deleted - there))
        )

    def forget(self, partition: int) -> None:
        """The book is not as its tables are."""
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
        """What an event changes; all of it is to be written.

        Raises:
            BadEvent, BadReport: it is passed over, as is what any other error says.
        """
        book = self.books[partition]
        book.next_offset = max(book.next_offset, offset + 1)
        event = self._event(value, seal)
        written = book.collector.apply(event, offset, recorded_ms)
        self._report_incidents_of(event, written, book.collector)
        return written

    def _event(self, value: bytes | None, seal: bytes) -> Event:
        """The event, which its author may say. Raises BadEvent, BadReport."""
        event = codec.audit_event(value)
        is_worker = self._seal_key is None or is_sealed(self._secret, value or b"", seal)
        check_author(event, is_worker=is_worker)
        return event

    def pass_over(self, partition: int, offset: int, error: Exception) -> None:
        """Counts an event that says nothing, and tells of the first, the tenth, the hundredth of them: who
        writes nonsense does so often."""
        self.passed_over[partition] += 1
        many = self.passed_over[partition]
        if time.monotonic() >= self._log_again_s:
            self._log_again_s = time.monotonic() + LOG_INTERVAL_S
            log.error("events of the audit topic are passed over", partition=partition, offset=offset,
                      passed_over=many, error=str(error)[:500])  # fmt: skip
        if str(many).strip("0") == "1":
            said, remedy = str(error), NO_EVENT
            if not isinstance(error, codec.BadEvent | BadReport):
                said, remedy = repr(error), NOT_FOLDED  # its message alone says little, or nothing
            self._report_incident(
                "audit-event-passed-over", f"{self._topic}/{partition}",
                f"{many} of its events were passed over, the last at offset {offset}: {said[:500]}", remedy,
            )  # fmt: skip

    def _report_incidents_of(self, event: Event, written: TableChanges, collector: Collector) -> None:
        """Tells what a person must know of it."""
        if not isinstance(event, Report):
            return
        subject = f"{event.cluster}/{event.topic}"
        for window, verdict in written.verdicts:
            if verdict in REFUSED:
                key = window.scope if verdict in NO_ROOM else window
                what = f"a report of the window of {window.start_ms} was refused: {verdict.value}"
                if verdict is ReportOutcome.APART:
                    what = (
                        f"tier {event.tier} has no room for windows as that of {window.start_ms}: "
                        f"{UNTIMED_NOTE}"
                    )
                self._report_once(key, verdict.value, "audit-report-refused", subject, what, REFUSED[verdict])
        for tier in written.tiers:
            if len(collector.tiers[tier].sources) >= MOST_SOURCES:
                what = f"tier {tier.tier} has {MOST_SOURCES} sources; windows do not wait for further ones"
                self._report_once(tier, "sources", "audit-report-refused", subject, what, TOO_MANY)
        if oddity := self._oddity_of(event.scope):
            what = f"what tier {event.tier} counts is not as planned: {oddity}"
            remedy = "change the client, or the plan; until then nothing of it may be compared"
            self._report_once(event.scope, oddity, "audit-not-as-planned", subject, what, remedy)

    def _report_once(self, key: object, why: str, kind: str, subject: str, message: str, remedy: str) -> None:
        if (key, why) in self._told:
            return
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told.add((key, why))
        self._report_incident(kind, subject, message, remedy)

    def encoded(self, partition: int) -> Callable[[WindowKey | TierKey], bytes]:
        """What is to be written of a window or tier of the partition."""
        collector = self.books[partition].collector

        def encoded(key: WindowKey | TierKey) -> bytes:
            return codec.encode(
                collector.windows[key] if isinstance(key, WindowKey) else collector.tiers[key]
            )

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
            await self.sleep(SWEEP_INTERVAL_S)
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
                try:
                    await self._due(book.collector)
                except Exception:
                    log.exception(
                        "what is due of a partition of the audit cannot be said", partition=partition
                    )
        asked = {partition: (book, book.next_offset) for partition, book in self.books.items()}
        ends = await self._client.end_offsets([(self._topic, partition) for partition in asked])
        for (_, partition), end in ends.items():
            book, known = asked[partition]
            book.end = end
            if end < known and self.books.get(partition) is book:
                # It was made anew, or lost its end: its next events would be taken for known ones.
                log.warning("the audit topic is shorter than it was", partition=partition, end=end, was=known)
                self.forget(partition)
        now_s = time.monotonic()
        if self._leads() and now_s - self._ticked_s >= TICK_INTERVAL_S:
            self._ticked_s = now_s
            await self._sender.tick(now_ms())

    async def _due(self, collector: Collector) -> None:
        scopes: defaultdict[PlanBounds, list[Scope]] = defaultdict(list)
        for scope in {key.scope for key in collector.windows}:
            scopes[self._bounds_of(scope.cluster, scope.topic)].append(scope)
        for bounds, some in scopes.items():
            at_ms = now_ms()
            for event in collector.due(at_ms, bounds, some):
                if isinstance(event, ForgetWindows) and event.before_ms > at_ms - bounds.keep_ms:
                    what = f"tier {event.tier} has too many windows: its oldest are dropped before their time"
                    subject = f"{event.cluster}/{event.topic}"
                    self._report_once(
                        (subject, event.tier), "", "audit-windows-dropped", subject, what, TOO_MANY
                    )
                try:
                    await (await self._sender.send(event))
                except Exception as error:  # noqa: BLE001 - whatever it is, other topics' events go on
                    log.warning("what of the audit is due was not taken", topic=event.topic, tier=event.tier,
                                cluster=event.cluster, error=repr(error))  # fmt: skip


async def _one_by_one(pieces: AsyncIterator[Events]) -> AsyncIterator[Recorded]:
    """The events, and the loop for others after some."""
    async for events in pieces:
        for count, event in enumerate(events):
            yield event
            if count % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
                await asyncio.sleep(0)
