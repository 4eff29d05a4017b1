"""Successive owners of a dispatch job, killed at any moment: what the group has finished counts once, and
nothing else.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.audit.counts import consumer_counter, partition_counter
from app.audit.counts import handover as notes
from app.audit.counts.handover import CountsFrom
from app.audit.folds.collector import Collector
from app.audit.folds.counted_parts import ReportOutcome
from app.audit.jobs.consumer_counts import AuditConsumers
from app.audit.pump import consumer_tap
from app.audit.pump.consumer_tap import ConsumerTap
from app.audit.pump.counting_spec import how_of
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.kernel.tracker import Tracker
from app.kernel.troubles import Troubles
from app.offsets.model.producer_progress import with_audit
from app.payload.schema_loader import SchemaLoader
from app.worker.jobs.start_position import StartPosition
from switchyard.audit.model.fingerprint import NOTHING, FingerprintSource, of_offsets
from switchyard.audit.model.reports import Report, Scope
from tests.audit.counts.logs import Log
from tests.audit.query.test_view import audit_plan
from tests.examples import as_profile

WIDTH_MS = 60_000
PART = 16  # offsets, so that many parts are begun and ended
JOB = JobId.parse("dispatch:billing/orders:orders:3")
LOG = LogId("c", "t")
PLAN = audit_plan(disorder="1h")  # times in no order at all
SCOPE = Scope("orders", "consumer", "east:billing", WIDTH_MS)
SOURCE = FingerprintSource("c", "t", 3)


class Owner:
    """The part of a pump that its audit uses: a tracker, and whether its snapshot was saved."""

    def __init__(self, epoch: int, snapshot: Snapshot) -> None:
        self.job, self.closed, self.troubles, self.epoch = JOB, False, Troubles(), epoch
        self.tracker = Tracker(snapshot.base, 1_000, snapshot)
        self.snapshot_version = -1
        self.audit: ConsumerTap
        self.reads_from = 0

    @property
    def base(self) -> int:
        return self.tracker.base

    @property
    def version(self) -> int:
        return self.tracker.version + self.audit.version


class Known:
    """The plan that counts the topic, the log's start, and the workload."""

    def __init__(self, region: Region) -> None:
        self.region, self.fetch, self.metadata = region, self, self
        self.cluster, self.group, self.topic = "east", "billing", "orders"

    def plan_of(self, *_: str) -> Any:
        return self.region.plan

    async def offsets_at(self, *_: object) -> int:
        return self.region.first


class Region:
    """A log that begins at `first`, the tracker table's record of it, and its owners; former ones are
    zombies."""

    def __init__(self, chance: random.Random, plan: Any = PLAN) -> None:
        self.chance, self.plan, self.log = chance, plan, Log()
        self.first = self.log.next_offset = chance.choice([0, 0, 40, 100])
        self.collector, self.position = Collector(), 0
        self.saved: tuple[Snapshot, bytes] | None = None
        self.finished: set[int] = set()  # by any owner
        self.verdicts: Counter[ReportOutcome] = Counter()
        self.owners: list[Owner] = []

    async def start(self) -> None:
        """Starts another owner from the saved state."""
        snapshot, note = self.saved or (Snapshot(self.first), b"")
        answer = TakeoverAnswer(
            job=str(JOB), epoch=2, worker="me", nonce="", granted=True, known_epoch=2,
            snapshot=snapshot.to_bytes(), log=LOG, note=note,
        )  # fmt: skip
        known = self.catalog
        consumers = AuditConsumers(known, {}, lambda *_: None, SchemaLoader(Path("schemas")))
        counts = await consumers.counts_from(
            JOB, known, known, answer, StartPosition(snapshot, 0, LOG, known=True)
        )
        assert counts is not None
        owner = Owner(len(self.owners), snapshot)
        self.audit(owner, counts)
        owner.reads_from = counts.next_offset
        self.owners = [*self.owners[-1:], owner]

    def audit(self, owner: Owner, counts: CountsFrom) -> None:
        spec = how_of(self.plan, SOURCE)
        owner.audit = ConsumerTap(owner, self.plan, SCOPE, SOURCE, spec, counts, lineage=0)

    @property
    def catalog(self) -> Any:
        """The plan that counts the topic, the log's start, and the workload."""
        return Known(self)

    @property
    def owner(self) -> Owner:
        return self.owners[-1]

    def append(self) -> None:
        count = self.chance.choice([1, 5, 30])
        self.log.append([self.chance.randrange(4 * WIDTH_MS) for _ in range(count)])

    def feed(self, owner: Owner, batches: int) -> None:
        """Counts a response, and shows it to the tracker."""
        data, end = self.log.fetch(owner.reads_from, batches)
        owner.audit._count(data, owner.reads_from, end, [])
        assert not owner.audit.broken
        if end > owner.tracker.end:
            owner.tracker.fetched(owner.tracker.end, end)
        owner.reads_from = end

    def finish(self, owner: Owner) -> None:
        """Some messages are acknowledged, in any order."""
        waiting = [at for at in range(owner.tracker.base, owner.tracker.end) if at not in self.finished]
        for offset in self.chance.sample(waiting, min(len(waiting), self.chance.choice([1, 5, 40]))):
            owner.tracker.ack(offset)
            self.finished.add(offset)
        for offset in range(owner.tracker.base, owner.tracker.end):  # delivered again by this one
            if offset in self.finished and self.chance.random() < 0.5:
                owner.tracker.ack(offset)

    def save(self, owner: Owner) -> None:
        """A snapshot with its note, in the table, if it is the owner's."""
        if owner is not self.owner:
            return
        version, snapshot = owner.version, owner.tracker.snapshot()
        note = with_audit(b"", owner.base, owner.audit.note())
        known = self.saved[0].merge(snapshot) if self.saved else snapshot
        self.saved = known, note
        owner.snapshot_version = version

    def apply(self, report: Report) -> None:
        written = self.collector.apply(report, self.position)
        self.verdicts.update(verdict for _, verdict in written.verdicts)
        self.position += 1

    def report(self, owner: Owner, *, heard: float, arrives: float = 1.0) -> None:
        """Some of the reports arrive, and of some of these the owner hears."""
        if not owner.audit.is_due(1e9, 0.0):
            return
        for report in owner.audit.reports(1, 1.0):
            if self.chance.random() >= arrives:
                break
            self.apply(report)
            if self.chance.random() < heard:
                owner.audit.acknowledged(report)

    @property
    def counts(self) -> dict[int, int]:
        found = {key.start_ms: record.totals.count for key, record in self.collector.windows.items()}
        return dict(sorted(found.items()))

    def expected(self, end: int = 1 << 62) -> dict[int, int]:
        records = self.log.records(end=end)
        return dict(sorted(Counter(at_ms - at_ms % WIDTH_MS for _, at_ms in records).items()))


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=as_profile(200), deadline=None)
@pytest.mark.parametrize(
    ("most_bytes", "most_windows"),
    [
        (4 * 1024, 16),
        pytest.param(64, 16, marks=pytest.mark.deep(minutes=0.1)),
        pytest.param(4 * 1024, 1, marks=pytest.mark.deep(minutes=0.1)),
    ],
)
def test_finished_messages_count_once_whichever_owner_is_killed_at_any_moment(
    seed: int, most_bytes: int, most_windows: int
) -> None:
    with (
        patch.object(consumer_counter, "PART_OFFSETS", PART),
        patch.object(consumer_tap, "NOTE_INTERVAL_S", 0.0),
        patch.object(notes, "MOST_BYTES", most_bytes),
        patch.object(consumer_counter, "MOST_PIECES", 3),
        patch.object(partition_counter, "MOST_WINDOWS", most_windows),
    ):
        asyncio.run(_story(random.Random(seed)))


async def _story(chance: random.Random) -> None:
    region = Region(chance)
    await region.start()
    for _ in range(60):
        owner = chance.choice(region.owners) if chance.random() < 0.3 else region.owner
        match chance.randrange(12):
            case 0 | 1:
                region.append()
            case 2 | 3 | 4:
                region.feed(owner, chance.choice([1, 4]))
            case 5 | 6:
                region.finish(owner)
            case 7:
                region.report(owner, heard=1.0)
            case 8:
                region.report(owner, heard=0.5, arrives=0.7)
            case 9 | 10:
                region.save(owner)
            case _:
                await region.start()
        assert sum(region.counts.values()) <= len(region.finished), "unfinished records are not counted"
    await _to_the_end(region)
    assert region.counts == region.expected()
    assert not region.verdicts[ReportOutcome.OVERLAPS]
    offsets, found = [offset for offset, _ in region.log.records()], NOTHING
    for record in region.collector.windows.values():
        found = found.plus(record.totals.offsets)
    assert found == of_offsets(SOURCE, np.array(offsets, dtype=np.int64))


async def _to_the_end(region: Region) -> None:
    owner = region.owner
    while owner.reads_from < region.log.next_offset:
        region.feed(owner, 1_000)
    for offset in range(owner.tracker.base, owner.tracker.end):
        owner.tracker.ack(offset)
    owner.audit.ended(region.log.next_offset, 1)
    for _ in range(3):
        region.save(owner)
        region.report(owner, heard=1.0)
    assert owner.audit.next_offset == region.log.next_offset


class CountedRegion(Region):
    """Where nothing is left to chance; `count` records, read and finished up to there."""

    def __init__(self, count: int) -> None:
        super().__init__(random.Random(0))
        self.first = self.log.next_offset = 0
        self.log.append([5] * count)

    def pass_on(self, finished: int) -> None:
        self.feed(self.owner, 1_000)
        for offset in range(self.owner.base, finished):
            self.owner.tracker.ack(offset)


async def test_nothing_is_reported_before_a_successor_would_know_where_counting_began() -> None:
    region = CountedRegion(30)
    await region.start()
    region.pass_on(10)
    region.log.append([7] * 10)
    region.audit(region.owner, CountsFrom(30, None, is_cut=True))  # a plan comes while the job flows
    region.pass_on(40)
    region.report(region.owner, heard=1.0)
    assert region.counts == {}
    region.save(region.owner)
    region.report(region.owner, heard=0.0)
    assert region.counts == {0: 10}
    await region.start()
    await _to_the_end(region)
    assert region.counts == {0: 10}, "its successor says the same"


async def test_messages_count_once_all_before_them_are_finished() -> None:
    region = CountedRegion(30)
    region.log.append([7] * 10)
    await region.start()
    region.feed(region.owner, 1_000)
    region.save(region.owner)
    region.owner.tracker.ack_range(1, 40)
    region.report(region.owner, heard=1.0)
    assert region.counts == {}
    region.owner.tracker.ack(0)
    region.report(region.owner, heard=1.0)
    assert region.counts == {0: 40}


async def test_counts_before_expired_messages_stay_and_the_cut_is_reported() -> None:
    with patch.object(consumer_tap, "NOTE_INTERVAL_S", 0.0):
        region = CountedRegion(30)
        await region.start()
        region.pass_on(30)
        region.save(region.owner)  # 30 are counted, and in the note; none is reported
        region.log.append([7] * 20)
        region.saved = Snapshot(40), region.saved[1] if region.saved else b""
        region.first = 35  # retention took what lay between
        await region.start()
        await _to_the_end(region)
        assert region.counts == {0: 40}, "30 of the former owner, and 10 from its base on"
        assert max(record.complete_ms for record in region.collector.tiers.values()) > 7


async def test_an_error_in_the_audit_stops_nothing_else() -> None:
    region = CountedRegion(30)
    await region.start()
    region.owner.audit._count(bytes(100), 0, 5, [])
    assert region.owner.audit.broken
    region.report(region.owner, heard=1.0)
    assert (region.owner.audit.note(), region.counts) == (b"", {})
