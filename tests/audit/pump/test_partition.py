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
from app.audit.counts.handover import AuditNote, CountsFrom
from app.audit.counts.partition_counter import new_part
from app.audit.definition import AuditPlan
from app.audit.folds.collector import Collector
from app.audit.jobs.consumer_counts import AuditConsumers
from app.audit.jobs.controller import AuditController
from app.audit.pump import partition as pumps
from app.audit.pump.partition import PART_OFFSETS, AuditPorts, AuditPump
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches, FetchKey, LogGap, PartitionFetch
from app.kernel.fencing import LogId
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.payload.schema_loader import SchemaLoader
from app.worker.jobs.failures import JobFailures
from app.worker.jobs.kind import JobPorts
from app.worker.jobs.start_position import StartPosition
from switchyard.audit.model.reports import Report
from switchyard.audit.model.tally import UNTIMED
from tests.audit.counts.logs import Log
from tests.audit.query.test_view import audit_plan

WIDTH_MS = 60_000
JOB = JobId.parse("audit:all//east:orders:3")


class Rig:
    """A log, successive pumps, and the collector of their reports."""

    def __init__(self, plan: AuditPlan | None = None) -> None:
        self.plan = plan or audit_plan()
        self.log, self.collector, self.position = Log(), Collector(), 0
        self.budget, self.incidents = ByteBudget(1 << 30), list[tuple[str, ...]]()
        self.takes = True
        self.pump = self.begin(0, CountsFrom(0, None, is_cut=False))

    def begin(self, base: int, counts: CountsFrom) -> AuditPump:
        def record(*incident: Any) -> None:
            self.incidents.append(incident[:4])

        start = StartPosition(Snapshot(base), 0, LogId("c", "t"), known=False)
        ports = AuditPorts(record, self.report)
        self.pump = AuditPump(JOB, 1, self.plan, "regional", start, counts, ports)
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
        part = PartitionFetch(self.budget, FetchKey(str(JOB), 1), "orders", 3, start)
        part.unreleased_bytes = self.budget.used_bytes = len(data)
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
    rig = Rig()
    rig.log.append([1, 2, 70_000])
    fetched = rig.feed()

    assert (fetched.budget, rig.budget.used_bytes) == (None, 0)
    assert rig.pump.base == 0, "nothing is reported yet"
    await rig.report(rig.pump)
    assert rig.counts == {0: 2, WIDTH_MS: 1}
    assert (rig.pump.base, rig.pump.version, rig.pump.status().delivered) == (3, 1, 3)


async def test_a_refused_report_is_sent_again_and_counts_once() -> None:
    rig = Rig()
    for number in range(5):
        rig.log.append([number, number])
        rig.feed(1)
        rig.takes = number % 2 == 0
        await rig.report(rig.pump)
        assert rig.pump.base == 2 * (number + 1 - number % 2)
    assert rig.counts == {0: 10}


def saved(rig: Rig) -> AuditNote:
    note = AuditNote.from_bytes(rig.pump.note)
    assert note is not None
    return note


@pytest.mark.parametrize("killed_at", [0, 1, 7, 40_000, PART_OFFSETS - 1, PART_OFFSETS, PART_OFFSETS + 9])
@pytest.mark.parametrize("is_heard", [True, False])
async def test_a_successor_counts_only_what_its_predecessor_had_not(killed_at: int, is_heard: bool) -> None:
    rig = Rig()
    for upto in (killed_at, 300_000):
        if count := upto - rig.log.next_offset:
            rig.log.append([5] * count)
        rig.feed()
        for report in rig.pump.reports(1, 1.0):
            rig.apply(report)
            if is_heard and upto == killed_at:
                rig.pump.acknowledged(report)
        if upto == killed_at:
            note, base = saved(rig), rig.pump.base
    assert (note.next_offset, base) == (killed_at, killed_at if is_heard else 0)
    for former in (note, AuditNote(note.counting, False, (new_part(0, 0),))):  # that is all it may know
        rig.begin(base, CountsFrom(former.next_offset, former, is_cut=False))
        rig.feed()
        await rig.report(rig.pump)
        assert rig.counts == {0: 300_000}
        assert rig.pump.base == 300_000


async def test_a_successor_reports_from_the_start_of_its_predecessors_part() -> None:
    rig = Rig()
    rig.log.next_offset = 30_000  # what came before had gone
    rig.begin(30_000, CountsFrom(30_000, None, is_cut=True))
    rig.log.append([WIDTH_MS * 5] * 10)
    rig.feed()

    note = saved(rig)
    assert (note.counting, note.is_cut) == (rig.plan.counting, True), "no report has marked it as cut"
    await rig.report(rig.pump)
    note = saved(rig)
    assert (note.is_cut, note.next_offset, note.state[0].since) == (False, 30_010, 30_000)
    (tier,) = rig.collector.tiers.values()
    assert tier.complete_ms == WIDTH_MS * 5 + rig.plan.bounds.lateness_ms
    rig.log.append([WIDTH_MS * 5] * 10)
    rig.begin(30_010, CountsFrom(30_010, note, is_cut=False))
    rig.feed()
    await rig.report(rig.pump)
    assert rig.counts == {WIDTH_MS * 5: 20}


async def test_a_successor_knows_of_losses_that_were_not_reported_yet() -> None:
    rig = Rig()
    rig.log.append([WIDTH_MS] * 10)
    rig.feed()
    rig.pump.skip(LogGap((), "orders", 3, 10, 20, "retention"))
    complete_ms = rig.pump.reader.complete_ms
    assert complete_ms > 0
    rig.begin(0, CountsFrom(20, saved(rig), is_cut=False))
    await rig.report(rig.pump)
    (tier,) = rig.collector.tiers.values()
    assert (tier.complete_ms, rig.counts) == (complete_ms, {WIDTH_MS: 10})


async def test_losses_between_two_owners_are_reported_also_after_an_earlier_cut() -> None:
    rig = Rig()
    rig.log.append([WIDTH_MS] * 10)
    rig.feed()
    note = AuditNote(rig.plan.counting, False, rig.pump.reader.state(), complete_ms=7)
    rig.log.next_offset = 20  # what came meanwhile has gone
    rig.log.append([WIDTH_MS] * 5)
    rig.begin(20, CountsFrom(20, note, is_cut=True))
    rig.feed()
    await rig.report(rig.pump)
    (tier,) = rig.collector.tiers.values()
    assert tier.complete_ms > 1_700_000_000_000
    assert (rig.counts, saved(rig).is_cut) == ({WIDTH_MS: 15}, False)


async def test_the_note_has_the_counts_of_as_many_windows_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MOST_BYTES", 2_000)
    now_ms = int(time.time() * 1000) // WIDTH_MS * WIDTH_MS
    rig = Rig(audit_plan(disorder="1h"))
    for number in range(20):
        at_ms = now_ms - (20 - number) * WIDTH_MS
        rig.log.append([at_ms + 300 * one for one in range(200)])
    rig.feed()
    await rig.report(rig.pump)
    note = saved(rig)
    (state,) = note.state
    assert 1 <= len(state.windows) < 16
    assert (note.next_offset, state.whole_ms) == (4_000, state.windows[0].start_ms)
    assert len(note.to_bytes()) <= notes.MOST_BYTES


async def test_a_pump_that_lacks_counts_reports_nothing_and_begins_again() -> None:
    rig, again = Rig(), list[str]()
    catalog: Any = SimpleNamespace(plan=lambda _: rig.plan)
    nothing: Any = None
    ports = JobPorts(
        "me", nothing, nothing, nothing, lambda *_: None, SchemaLoader(Path("schemas")), JobFailures()
    )
    consumers = AuditConsumers(catalog, {}, lambda *_: None, ports.schemas)
    jobs: Any = SimpleNamespace(restart_soon=lambda job, _: again.append(job))
    audits = AuditController(ports, jobs, catalog, consumers, None)
    audits.pumps["job"] = rig.pump
    rig.log.append([WIDTH_MS] * 10)
    rig.feed()
    audits.reconcile()
    assert (again, rig.pump.is_due(0.0, 5.0)) == ([], True)
    rig.pump.reader.is_lacking = True
    audits.reconcile()
    assert (again, rig.pump.is_due(0.0, 5.0), rig.pump.is_busy) == (["job"], False, False)
    await rig.report(rig.pump)
    assert rig.counts == {}


async def test_a_drained_pump_has_reported_everything() -> None:
    rig = Rig()
    rig.log.append([1] * 100)
    rig.feed()
    assert rig.pump.is_busy
    assert await rig.pump.drain(5.0)
    assert (rig.pump.base, rig.pump.is_busy, rig.counts) == (100, False, {0: 100})
    rig.log.append([1])
    assert rig.feed().budget is None
    assert rig.pump.reader.next_offset == 100, "it takes nothing new"


async def test_nothing_more_is_counted_while_many_reports_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumps, "MOST_PENDING", 2)
    monkeypatch.setattr(pumps, "PART_OFFSETS", 1 << 16)
    rig = Rig()
    for _ in range(12):
        rig.log.append([1] * 40_000)
    while rig.pump.reader.next_offset < 160_000:
        rig.feed(1)
    waiting = [rig.feed(1) for _ in range(1)]
    assert [fetched.budget is None for fetched in waiting] == [False]
    assert rig.pump.reader.next_offset == 160_000
    await rig.report(rig.pump)
    assert [fetched.budget is None for fetched in waiting] == [True]
    assert rig.pump.reader.next_offset == 200_000
    rig.pump.close()


async def test_a_gap_and_damage_are_passed_over_and_reported() -> None:
    rig = Rig()
    rig.pump.skip(LogGap((), "orders", 3, 0, 500, "retention"))
    assert rig.pump.reader.next_offset == 500
    rig.pump.accept(rig.fetched(b"x" * 70, 500, 600, damage="its checksum does not match"))
    assert (rig.pump.reader.next_offset, rig.incidents[0][0]) == (600, "audit-damage")
    await rig.report(rig.pump)
    assert (rig.counts, rig.pump.base) == ({}, 600)
    (tier,) = rig.collector.tiers.values()
    assert tier.complete_ms > 1_700_000_000_000, "windows of before may lack what the log lost"


async def test_batches_that_wait_before_a_gap_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumps, "MOST_PENDING", 1)
    monkeypatch.setattr(pumps, "PART_OFFSETS", 1 << 16)
    rig = Rig()
    for _ in range(3):
        rig.log.append([1] * 40_000)
        rig.feed(1)
    assert rig.pump.reader.next_offset == 80_000, "the third one waits: a report was not taken yet"
    rig.pump.skip(LogGap((), "orders", 3, 120_000, 130_000, "retention"))
    await rig.report(rig.pump)
    await rig.report(rig.pump)
    assert (rig.counts, rig.pump.reader.next_offset) == ({0: 120_000}, 130_000)
    rig.pump.close()


async def test_offsets_that_were_not_fetched_are_never_passed_over() -> None:
    rig = Rig()
    with pytest.raises(ValueError, match="was not fetched"):
        rig.pump.accept(rig.fetched(b"", 5, 6))


def test_reports_are_due_when_something_was_counted_and_now_and_then() -> None:
    rig = Rig()
    rig.log.append([1])
    rig.feed()
    assert rig.pump.is_due(0.0, 5.0)
    rig.pump.acknowledged(rig.pump.reports(0, 100.0)[-1])
    assert [rig.pump.is_due(at_s, 5.0) for at_s in (104.0, 106.0, 131.0)] == [False, False, True]
    rig.log.append([1])
    rig.feed()
    assert [rig.pump.is_due(at_s, 5.0) for at_s in (104.0, 106.0)] == [False, True]


@pytest.mark.parametrize(("otherwise", "window"), [("record", 2 * WIDTH_MS), ("none", UNTIMED)])
async def test_the_event_time_may_be_a_field_of_the_value(otherwise: str, window: int) -> None:
    rig = Rig(audit_plan(timestamp={"source": "json", "field": "at", "otherwise": otherwise}))
    values = [orjson.dumps({"at": 5}), orjson.dumps({"at": 3 * WIDTH_MS}), b"no json"]
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for index, value in enumerate(values):
        builder.append(index, timestamp=2 * WIDTH_MS, key=None, value=value, headers=[])
    rig.log.batches.append((0, bytes(builder.build()), [0, 0, 0]))
    rig.log.next_offset = 3
    rig.feed()
    await rig.report(rig.pump)
    assert rig.counts == {0: 1, 3 * WIDTH_MS: 1, window: 1}


async def test_message_ids_of_a_header_are_fingerprinted() -> None:
    rig = Rig(audit_plan(id={"header": "id"}))
    rig.log.append([1, 2], names=[b"a", b"b"])
    rig.feed()
    await rig.report(rig.pump)
    (record,) = rig.collector.windows.values()
    assert record.totals.identified == 2
