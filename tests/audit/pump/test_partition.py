"""The pump of an audit: it counts fetched batches once, reports until the topic takes it, and hands over."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from app.audit.counts import handover as notes
from app.audit.counts.handover import AuditNote
from app.audit.counts.partition_counter import new_part
from app.audit.definition import AuditPlan
from app.audit.folds.collector import Collector
from app.audit.jobs.controller import AuditController
from app.audit.pump import partition as pumps
from app.audit.pump.partition import PART_OFFSETS, AuditPump
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches, LogGap, PartitionFetch
from app.kernel.fencing import LogId
from app.kernel.job import JobId
from app.payload.schema_loader import SchemaLoader
from switchyard.audit.model.reports import Report
from switchyard.audit.model.tally import UNTIMED
from tests.audit.counts.logs import Log
from tests.audit.query.test_view import audit_plan

WIDTH_MS = 60_000
JOB = JobId.parse("audit:all//east:orders:3")


class Budgeted:
    """The owner of the batches' memory."""

    def __init__(self) -> None:
        self.budget = ByteBudget(1 << 20)


class Stand:
    """A log, successive pumps, and the collector of their reports."""

    def __init__(self, plan: AuditPlan | None = None) -> None:
        self.plan = plan or audit_plan()
        self.log, self.collector, self.position = Log(), Collector(), 0
        self.owner, self.incidents = Budgeted(), list[tuple[str, ...]]()
        self.takes = True
        self.pump = self.begin(0, 0)

    def begin(
        self, next_offset: int, base: int, former: AuditNote | None = None, *, is_cut: bool = False
    ) -> AuditPump:
        def record(*incident: str) -> None:
            self.incidents.append(incident)

        self.pump = AuditPump(
            JOB, 1, self.plan, "regional", next_offset=next_offset, base=base, lineage=0,
            log=LogId("c", "t"), former=former, is_cut=is_cut, report_incident=record, send=self.report,
        )  # fmt: skip
        return self.pump

    async def report(self, pump: AuditPump) -> None:
        for report in pump.reports(int(time.time() * 1000), time.monotonic()):
            if self.takes:
                self.apply(report)
                pump.acknowledged(report)

    def apply(self, report: Report) -> None:
        self.collector.apply(report, self.position)
        self.position += 1

    def fetched(self, data: bytes, start: int, end: int, *, damage: str = "") -> FetchedBatches:
        service: Any = self.owner
        part = PartitionFetch(service, (str(JOB), 1), "orders", 3, start)
        part.unreleased_bytes = self.owner.budget.used_bytes = len(data)
        return FetchedBatches(part, len(data), data, end, [], self.log.next_offset, damage)

    def feed(self, batches: int = 1_000) -> FetchedBatches:
        start = self.pump.reader.next_offset
        data, end = self.log.fetch(start, batches)
        made = self.fetched(data, start, end)
        self.pump.accept(made)
        return made

    @property
    def counts(self) -> dict[int, int]:
        found = {key.start_ms: record.totals.count for key, record in self.collector.windows.items()}
        return dict(sorted(found.items()))


async def test_fetched_batches_are_counted_at_once_and_their_memory_is_released() -> None:
    stand = Stand()
    stand.log.append([1, 2, 70_000])
    fetched = stand.feed()

    assert (fetched.budget, stand.owner.budget.used_bytes) == (None, 0)
    assert stand.pump.base == 0, "nothing is reported yet"
    await stand.report(stand.pump)
    assert stand.counts == {0: 2, WIDTH_MS: 1}
    assert (stand.pump.base, stand.pump.version, stand.pump.status().delivered) == (3, 1, 3)


async def test_a_refused_report_is_sent_again_and_counts_once() -> None:
    stand = Stand()
    for number in range(5):
        stand.log.append([number, number])
        stand.feed(1)
        stand.takes = number % 2 == 0
        await stand.report(stand.pump)
        assert stand.pump.base == 2 * (number + 1 - number % 2)
    assert stand.counts == {0: 10}


def saved(stand: Stand) -> AuditNote:
    note = AuditNote.from_bytes(stand.pump.note)
    assert note is not None
    return note


@pytest.mark.parametrize("killed_at", [0, 1, 7, 40_000, PART_OFFSETS - 1, PART_OFFSETS, PART_OFFSETS + 9])
@pytest.mark.parametrize("is_heard", [True, False])
async def test_a_successor_counts_only_what_its_predecessor_had_not(killed_at: int, is_heard: bool) -> None:
    stand = Stand()
    for upto in (killed_at, 300_000):
        if count := upto - stand.log.next_offset:
            stand.log.append([5] * count)
        stand.feed()
        for report in stand.pump.reports(1, 1.0):
            stand.apply(report)
            if is_heard and upto == killed_at:
                stand.pump.acknowledged(report)
        if upto == killed_at:
            note, base = saved(stand), stand.pump.base
    assert (note.next_offset, base) == (killed_at, killed_at if is_heard else 0)
    for former in (note, AuditNote(note.counting, False, (new_part(0, 0),))):  # that is all it may know
        stand.begin(former.next_offset, base, former)
        stand.feed()
        await stand.report(stand.pump)
        assert stand.counts == {0: 300_000}
        assert stand.pump.base == 300_000


async def test_a_successor_reports_from_the_start_of_its_predecessors_part() -> None:
    stand = Stand()
    stand.log.next_offset = 30_000  # what came before had gone
    stand.begin(30_000, 30_000, is_cut=True)
    stand.log.append([WIDTH_MS * 5] * 10)
    stand.feed()

    note = saved(stand)
    assert (note.counting, note.is_cut) == (stand.plan.counting, True), "no report has said that it is cut"
    await stand.report(stand.pump)
    note = saved(stand)
    assert (note.is_cut, note.next_offset, note.state[0].since) == (False, 30_010, 30_000)
    (tier,) = stand.collector.tiers.values()
    assert tier.complete_ms == WIDTH_MS * 5 + stand.plan.bounds.lateness_ms
    stand.log.append([WIDTH_MS * 5] * 10)
    stand.begin(30_010, 30_010, note)
    stand.feed()
    await stand.report(stand.pump)
    assert stand.counts == {WIDTH_MS * 5: 20}


async def test_a_successor_knows_of_losses_that_were_not_reported_yet() -> None:
    stand = Stand()
    stand.log.append([WIDTH_MS] * 10)
    stand.feed()
    stand.pump.skip(LogGap((), "orders", 3, 10, 20, "retention"))
    complete_ms = stand.pump.reader.complete_ms
    assert complete_ms > 0
    stand.begin(20, 0, saved(stand))
    await stand.report(stand.pump)
    (tier,) = stand.collector.tiers.values()
    assert (tier.complete_ms, stand.counts) == (complete_ms, {WIDTH_MS: 10})


async def test_losses_between_two_owners_are_reported_also_after_an_earlier_cut() -> None:
    stand = Stand()
    stand.log.append([WIDTH_MS] * 10)
    stand.feed()
    note = AuditNote(stand.plan.counting, False, stand.pump.reader.state(), complete_ms=7)
    stand.log.next_offset = 20  # what came meanwhile has gone
    stand.log.append([WIDTH_MS] * 5)
    stand.begin(20, 20, note, is_cut=True)
    stand.feed()
    await stand.report(stand.pump)
    (tier,) = stand.collector.tiers.values()
    assert tier.complete_ms > 1_700_000_000_000
    assert (stand.counts, saved(stand).is_cut) == ({WIDTH_MS: 15}, False)


async def test_the_note_has_the_counts_of_as_many_windows_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MOST_BYTES", 2_000)
    now_ms = int(time.time() * 1000) // WIDTH_MS * WIDTH_MS
    stand = Stand(audit_plan(disorder="1h"))
    for number in range(20):
        at_ms = now_ms - (20 - number) * WIDTH_MS
        stand.log.append([at_ms + 300 * one for one in range(200)])
    stand.feed()
    await stand.report(stand.pump)
    note = saved(stand)
    (state,) = note.state
    assert 1 <= len(state.windows) < 16
    assert (note.next_offset, state.whole_ms) == (4_000, state.windows[0].start_ms)
    assert len(note.to_bytes()) <= notes.MOST_BYTES


async def test_a_pump_that_lacks_counts_reports_nothing_and_begins_again() -> None:
    stand, again = Stand(), list[str]()
    catalog: Any = SimpleNamespace(plan=lambda _: stand.plan)
    clusters: Any = None
    audits = AuditController(catalog, clusters, lambda *_: None, {}, SchemaLoader(Path("schemas")))
    audits.pumps["job"] = stand.pump
    stand.log.append([WIDTH_MS] * 10)
    stand.feed()
    audits.reconcile(lambda job, _: again.append(job))
    assert (again, stand.pump.is_due(0.0, 5.0)) == ([], True)
    stand.pump.reader.is_lacking = True
    audits.reconcile(lambda job, _: again.append(job))
    assert (again, stand.pump.is_due(0.0, 5.0), stand.pump.is_busy) == (["job"], False, False)
    await stand.report(stand.pump)
    assert stand.counts == {}


async def test_a_drained_pump_has_reported_everything() -> None:
    stand = Stand()
    stand.log.append([1] * 100)
    stand.feed()
    assert stand.pump.is_busy
    assert await stand.pump.drain(5.0)
    assert (stand.pump.base, stand.pump.is_busy, stand.counts) == (100, False, {0: 100})
    stand.log.append([1])
    assert stand.feed().budget is None
    assert stand.pump.reader.next_offset == 100, "it takes nothing new"


async def test_nothing_more_is_counted_while_many_reports_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumps, "MOST_PENDING", 2)
    monkeypatch.setattr(pumps, "PART_OFFSETS", 1 << 16)
    stand = Stand()
    for _ in range(12):
        stand.log.append([1] * 40_000)
    while stand.pump.reader.next_offset < 160_000:
        stand.feed(1)
    waiting = [stand.feed(1) for _ in range(1)]
    assert [fetched.budget is None for fetched in waiting] == [False]
    assert stand.pump.reader.next_offset == 160_000
    await stand.report(stand.pump)
    assert [fetched.budget is None for fetched in waiting] == [True]
    assert stand.pump.reader.next_offset == 200_000
    stand.pump.close()


async def test_a_gap_and_damage_are_passed_over_and_reported() -> None:
    stand = Stand()
    stand.pump.skip(LogGap((), "orders", 3, 0, 500, "retention"))
    assert stand.pump.reader.next_offset == 500
    stand.pump.accept(stand.fetched(b"x" * 70, 500, 600, damage="its checksum does not match"))
    assert (stand.pump.reader.next_offset, stand.incidents[0][0]) == (600, "audit-damage")
    await stand.report(stand.pump)
    assert (stand.counts, stand.pump.base) == ({}, 600)
    (tier,) = stand.collector.tiers.values()
    assert tier.complete_ms > 1_700_000_000_000, "windows of before may lack what the log lost"


async def test_batches_that_wait_before_a_gap_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumps, "MOST_PENDING", 1)
    monkeypatch.setattr(pumps, "PART_OFFSETS", 1 << 16)
    stand = Stand()
    for _ in range(3):
        stand.log.append([1] * 40_000)
        stand.feed(1)
    assert stand.pump.reader.next_offset == 80_000, "the third one waits: a report was not taken yet"
    stand.pump.skip(LogGap((), "orders", 3, 120_000, 130_000, "retention"))
    await stand.report(stand.pump)
    await stand.report(stand.pump)
    assert (stand.counts, stand.pump.reader.next_offset) == ({0: 120_000}, 130_000)
    stand.pump.close()


async def test_offsets_that_were_not_fetched_are_never_passed_over() -> None:
    stand = Stand()
    with pytest.raises(ValueError, match="was not fetched"):
        stand.pump.accept(stand.fetched(b"", 5, 6))


def test_reports_are_due_when_something_was_counted_and_now_and_then() -> None:
    stand = Stand()
    stand.log.append([1])
    stand.feed()
    assert stand.pump.is_due(0.0, 5.0)
    stand.pump.acknowledged(stand.pump.reports(0, 100.0)[-1])
    assert [stand.pump.is_due(at_s, 5.0) for at_s in (104.0, 106.0, 131.0)] == [False, False, True]
    stand.log.append([1])
    stand.feed()
    assert [stand.pump.is_due(at_s, 5.0) for at_s in (104.0, 106.0)] == [False, True]


@pytest.mark.parametrize(("otherwise", "window"), [("record", 2 * WIDTH_MS), ("none", UNTIMED)])
async def test_the_event_time_may_be_a_field_of_the_value(otherwise: str, window: int) -> None:
    stand = Stand(audit_plan(timestamp={"source": "json", "field": "at", "otherwise": otherwise}))
    values = [orjson.dumps({"at": 5}), orjson.dumps({"at": 3 * WIDTH_MS}), b"no json"]
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for index, value in enumerate(values):
        builder.append(index, timestamp=2 * WIDTH_MS, key=None, value=value, headers=[])
    stand.log.batches.append((0, bytes(builder.build()), [0, 0, 0]))
    stand.log.next_offset = 3
    stand.feed()
    await stand.report(stand.pump)
    assert stand.counts == {0: 1, 3 * WIDTH_MS: 1, window: 1}


async def test_message_ids_of_a_header_are_fingerprinted() -> None:
    stand = Stand(audit_plan(id={"header": "id"}))
    stand.log.append([1, 2], names=[b"a", b"b"])
    stand.feed()
    await stand.report(stand.pump)
    (record,) = stand.collector.windows.values()
    assert record.totals.identified == 2
