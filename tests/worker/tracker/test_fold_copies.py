"""Another region never knows more of a job than the region itself, and as much as its copies hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from app.kernel.fencing import LogId, Snapshots, Takeover, TrackerEvent, TrackerRecord, on_takeover
from app.kernel.ranges import Snapshot
from app.worker.tracker.fold import CopyFold, RemoteJobRecord, together
from tests.examples import as_profile
from tests.worker.tracker.test_fold import END, JOBS, WORKERS, Owner, Table, finished, truth_after

SHIFT = 1_000  # a copy's offsets are others
OTHERS = "replicate:r:orders:0"


def owned(record: TrackerRecord) -> tuple[int, str, int]:
    """Epoch and owner of the job in a record, and the lineage of its log."""
    return record.epoch, record.worker, record.lineage


class Copies(RuleBasedStateMachine):
    """Workers of a region take jobs over, finish offsets, save, and continue as zombies. Another region has
    copies: of the changelog, of any age for each job, and of the topic's end, which may begin after that."""

    @initialize(before=st.integers(0, 6))
    def begin(self, before: int) -> None:
        self.log: list[TrackerEvent] = []
        self.truth: list[Table] = [{}]
        self.owners: list[Owner] = []
        self.takeovers = 0
        self.start = before  # the first event of the copied end
        self.read = 0  # events that were copied, or precede the copied end
        self.table: Table = {}
        self.table_at = dict.fromkeys(JOBS, 0)
        self.ends: Table = {}
        self.early: Table = {}

    def append(self, event: TrackerEvent) -> None:
        self.truth.append(truth_after(self.truth[-1], event, len(self.log)))
        self.log.append(event)

    @property
    def now(self) -> int:
        return len(self.log)

    # -- the region --------------------------------------------------------------------------------

    @rule(job=st.sampled_from(JOBS), worker=st.sampled_from(WORKERS), later=st.integers(-1, 2))
    def ask(self, job: str, worker: str, later: int) -> None:
        record = self.truth[-1].get(job)
        self.takeovers += 1
        epoch = max(1, (record.epoch if record else 0) + later)
        event = Takeover(job=job, epoch=epoch, worker=worker, nonce=str(self.takeovers), at_ms=self.now)
        _, answer = on_takeover(record, event)
        self.append(event)
        # A worker that asks for a takeover has stopped its pump: it saves only under a new grant.
        self.owners = [o for o in self.owners if (o.job, o.worker, o.epoch) != (job, worker, epoch)]
        if answer.granted:
            self.owners.append(Owner(job, worker, epoch, finished(answer.snapshot), answer.lineage))

    @precondition(lambda self: self.owners)
    @rule(
        data=st.data(),
        offsets=st.sets(st.integers(0, END), min_size=1, max_size=8),
        is_reset=st.booleans(),
    )
    def work(self, data: st.DataObject, offsets: set[int], is_reset: bool) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        if is_reset and not offsets & {0, 1, 2}:  # now and then
            owner.lineage, owner.done = owner.lineage + 1, set()
        owner.done |= offsets
        self.append(Snapshots(worker=owner.worker, at_ms=self.now, items=[owner.snapshot()]))

    # -- the other one -----------------------------------------------------------------------------

    @rule(job=st.sampled_from(JOBS), data=st.data())
    def changelog_comes(self, job: str, data: st.DataObject) -> None:
        at = data.draw(st.integers(self.table_at[job], self.now))
        self.table_at[job] = at
        if (record := self.truth[at].get(job)) is not None:
            self.table[job] = record

    @rule(count=st.integers(1, 8))
    def events_come(self, count: int) -> None:
        self.read = max(self.read, min(self.start, self.now))
        upto = min(self.now, self.read + count)
        fold = CopyFold("dispatch:", self.known, joined=self.is_joined)
        for offset in range(self.read, upto):
            fold.apply(self.log[offset], offset + SHIFT)
        self.ends |= fold.records()
        self.early |= fold.early()
        self.read = upto

    def known(self, job: str) -> RemoteJobRecord:
        return RemoteJobRecord(self.table.get(job), self.ends.get(job), self.early.get(job))

    def joined_record(self, job: str) -> TrackerRecord | None:
        return together(self.known(job), joined=self.is_joined)

    @property
    def is_joined(self) -> bool:
        return min(self.table_at.values()) >= self.start

    @invariant()
    def it_knows_nothing_that_the_region_would_not(self) -> None:
        for job in JOBS:
            known = self.joined_record(job)
            if known is None or not known.snapshot:
                continue
            newest = max(self.read, self.table_at[job])
            facts = [
                finished(at[job].snapshot)
                for at in self.truth[: newest + 1]
                if job in at and at[job].lineage == known.lineage
            ]
            assert any(finished(known.snapshot) <= of_then for of_then in facts)
            assert known.base == Snapshot.from_bytes(known.snapshot).base

    @precondition(lambda self: self.start == 0)
    @invariant()
    def what_has_come_of_a_whole_topic_is_known(self) -> None:
        for job in JOBS:
            newest = max(self.read, self.table_at[job])
            right = self.truth[newest].get(job)
            known = self.joined_record(job)
            assert (known is None) == (right is None)
            if known is not None and right is not None:
                assert owned(known) == owned(right)
                assert (finished(known.snapshot), known.note) == (finished(right.snapshot), right.note)

    @precondition(lambda self: self.is_joined and self.read >= self.start and self.read == self.now)
    @invariant()
    def whichever_came_first_of_what_has_come_all_is_known(self) -> None:
        for job in JOBS:
            known, right = self.joined_record(job), self.truth[-1].get(job)
            assert (known is None) == (right is None)
            if known is not None and right is not None:
                assert owned(known) == owned(right)
                assert finished(known.snapshot) == finished(right.snapshot)

    def teardown(self) -> None:
        """Once all of the changelog is copied, both regions know the same, and later saves count."""
        for job in JOBS:
            self.table_at[job] = self.now
            if job in self.truth[-1]:
                self.table[job] = self.truth[-1][job]
        self.start = min(self.start, self.now)
        for owner in self.owners:
            owner.done |= {0, 1, END}
            self.append(Snapshots(worker=owner.worker, at_ms=self.now, items=[owner.snapshot()]))
        self.events_come(self.now)
        for job in JOBS:
            known, right = self.joined_record(job), self.truth[-1].get(job)
            if right is not None:
                assert known is not None
                assert owned(known) == owned(right)
                assert finished(known.snapshot) == finished(right.snapshot)


TestCopies = Copies.TestCase
TestCopies.settings = settings(max_examples=as_profile(150), stateful_step_count=30)


def fold(*events: TrackerEvent, joined: bool, **table: TrackerRecord) -> Table:
    made = CopyFold(
        "dispatch:",
        lambda job: RemoteJobRecord(table.get("known") if job == JOBS[0] else None),
        joined=joined,
    )
    for offset, event in enumerate(events):
        made.apply(event, offset)
    return made.records()


def saved(worker: str, epoch: int, base: int, job: str = JOBS[0]) -> Snapshots:
    return Snapshots(
        worker=worker, at_ms=base, items=[Owner(job, worker, epoch, set(range(base))).snapshot()]
    )


def test_before_the_copies_overlap_only_takeovers_within_the_end_count() -> None:
    known = TrackerRecord(epoch=1, worker="a", base=3, snapshot=Snapshot(3).to_bytes(), offset=10**9)
    later = saved("a", 1, 7)
    assert fold(later, joined=False, known=known) == {}, "b may have taken the job over before the copied end"
    assert fold(later, joined=True, known=known)[JOBS[0]].base == 7
    granted = Takeover(job=JOBS[0], epoch=2, worker="b", nonce="", at_ms=0)
    refused = Takeover(job=JOBS[0], epoch=1, worker="b", nonce="", at_ms=0)
    assert fold(refused, saved("b", 1, 9), later, joined=False, known=known) == {}
    found = fold(granted, later, saved("b", 2, 5), joined=False, known=known)[JOBS[0]]
    assert (found.epoch, found.worker, found.base) == (2, "b", 5)


def test_an_early_snapshot_counts_once_the_table_knows_its_owner() -> None:
    job, early = JOBS[0], Table()
    for events in ([saved("a", 1, 7)], [saved("b", 2, 5), saved("a", 1, 9)], [saved("a", 1, 11)]):
        copied = RemoteJobRecord(early=early.get(job))
        fold = CopyFold("dispatch:", {job: copied}.__getitem__, joined=False)
        for offset, event in enumerate(events):
            fold.apply(event, offset)
        assert fold.records() == {}
        early |= fold.early()
    assert (early[job].epoch, early[job].worker, early[job].base) == (2, "b", 5), (
        "all former owners are deposed"
    )
    for epoch, worker, base in ((2, "b", 5), (1, "a", 3), (3, "c", 3), (2, "c", 3)):
        table = TrackerRecord(epoch=epoch, worker=worker, base=3, snapshot=Snapshot(3).to_bytes())
        known = together(RemoteJobRecord(table, early=early[job]), joined=True)
        assert known is not None
        assert (known.epoch, known.worker, known.base) == (epoch, worker, base)
        assert together(RemoteJobRecord(table, early=early[job]), joined=False) == table
    assert together(RemoteJobRecord(early=early[job]), joined=True) is None


def test_jobs_with_another_prefix_are_ignored() -> None:
    takeover = Takeover(job=OTHERS, epoch=1, worker="a", nonce="", at_ms=0)
    assert fold(takeover, saved("a", 1, 5, OTHERS), joined=True) == {}


@given(st.integers(0, 9), st.integers(0, 9))
def test_the_tables_row_counts_over_another_log_or_a_corrupt_snapshot(one: int, other: int) -> None:
    table = TrackerRecord(
        epoch=1, worker="a", base=one, snapshot=Snapshot(one).to_bytes(), cluster_id="c", topic_id="t"
    )
    end = replace(table, base=other, snapshot=Snapshot(other).to_bytes(), topic_id="another")
    for ignored_end in (end, replace(end, topic_id="t", snapshot=b"?")):
        known = together(RemoteJobRecord(table, ignored_end), joined=True)
        assert known is not None
        assert (known.base, known.log) == (one, LogId("c", "t"))
