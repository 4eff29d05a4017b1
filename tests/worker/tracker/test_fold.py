"""Any reader of the tracker topic may answer a takeover: wherever it began and however late it is."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from app.kernel.fencing import (
    SnapshotItem,
    Snapshots,
    Takeover,
    TakeoverAnswer,
    TrackerEvent,
    TrackerRecord,
    on_snapshot,
    on_takeover,
)
from app.kernel.ranges import Snapshot
from app.worker.tracker.fold import FOLLOWERS, TrackerFold, followers
from tests.examples import as_profile

JOB = "dispatch:billing/orders:orders:0"
OTHER = "dispatch:billing/orders:orders:1"
JOBS = [JOB, OTHER]
WORKERS = ["a", "b", "c"]
END = 60  # offsets of the data topic
MARGIN = 3  # events
Table = dict[str, TrackerRecord]


@dataclass
class Owner:
    """A worker that was granted a job; a zombie does not know yet that it has lost it."""

    job: str
    worker: str
    epoch: int
    done: set[int]
    lineage: int = 0

    def snapshot(self) -> SnapshotItem:
        base = next(offset for offset in range(END + 2) if offset not in self.done)
        above = tuple((o, o + 1) for o in sorted(self.done) if o > base)
        note = f"{self.epoch} {self.lineage} {sorted(self.done)}".encode()
        return SnapshotItem(self.job, self.epoch, Snapshot(base, above).to_bytes(), self.lineage, note=note)


class Writer:
    """Writes the records that it has folded; they are in flight before they are in the changelog."""

    def __init__(self, fold: TrackerFold, committed: int) -> None:
        self.fold = fold
        self.next_offset = committed
        self.written = 0
        self.under_way: list[tuple[str, TrackerRecord | None]] = []

    def step(self, log: list[TrackerEvent]) -> None:
        self.next_offset += 1
        while self.fold.next_offset < self.next_offset:
            self.fold.apply(log[self.fold.next_offset], self.fold.next_offset)
        self.under_way += [(job, self.fold.record(job)) for job in sorted(self.fold.changed)]
        self.fold.changed.clear()
        self.written = self.next_offset


def finished(packed: bytes) -> set[int]:
    if not packed:
        return set()
    known = Snapshot.from_bytes(packed)
    return {o for start, end in [(0, known.base), *known.finished] for o in range(start, end)}


def truth_after(before: Table, event: TrackerEvent, offset: int) -> Table:
    """The table after an event, by the rules of `app.kernel.fencing`."""
    table = dict(before)
    if isinstance(event, Takeover):
        table[event.job] = replace(on_takeover(table.get(event.job), event)[0], offset=offset)
        return table
    for item in event.items:
        known = table.get(item.job)
        if known is not None and (known.epoch, known.worker) == (item.epoch, event.worker):
            changed = on_snapshot(known, item, worker=event.worker, at_ms=event.at_ms)
            table[item.job] = replace(changed or known, offset=offset)
    return table


class AnyReaderAnswers(RuleBasedStateMachine):
    """Workers take jobs over, finish offsets, save, and continue as zombies. The table's writer lags, loses
    records in flight, is replaced and is paused. Readers begin and read at any time."""

    @initialize()
    def begin(self) -> None:
        self.log: list[TrackerEvent] = []
        self.truth: list[dict[str, TrackerRecord]] = [{}]  # the fold of all events below each offset
        self.owners: list[Owner] = []
        self.takeovers = 0
        self.changelog: list[tuple[str, TrackerRecord | None]] = []
        self.arrived = 0  # the changelog has the records of all events below
        self.committed = 0  # at most `MARGIN` events above `arrived`
        self.writer = Writer(TrackerFold(), 0)
        self.paused: list[Writer] = []
        self.readers: list[TrackerFold] = []

    def append(self, event: TrackerEvent) -> None:
        self.truth.append(truth_after(self.truth[-1], event, len(self.log)))
        self.log.append(event)

    def new_reader(self) -> TrackerFold:
        fold = TrackerFold(max(0, self.committed - MARGIN))
        for job, record in self.changelog:
            assert record is not None
            fold.restore(job, record)
        return fold

    # -- workers -----------------------------------------------------------------------------------

    @rule(job=st.sampled_from(JOBS), worker=st.sampled_from(WORKERS), later=st.integers(0, 2))
    def ask(self, job: str, worker: str, later: int) -> None:
        record = self.truth[-1].get(job)
        self.takeovers += 1
        epoch = max(1, (record.epoch if record else 0) + later)
        event = Takeover(job=job, epoch=epoch, worker=worker, nonce=str(self.takeovers), at_ms=0)
        _, answer = on_takeover(record, event)  # the answer of a reader at the end of the log
        self.append(event)
        if answer.granted:  # a process that repeats a takeover has restarted the job
            new = Owner(job, worker, epoch, finished(answer.snapshot), answer.lineage)
            former = (job, worker, epoch)
            self.owners = [o for o in self.owners if (o.job, o.worker, o.epoch) != former] + [new]

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), offsets=st.sets(st.integers(0, END), min_size=1, max_size=8), save=st.booleans())
    def work(self, data: st.DataObject, offsets: set[int], save: bool) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        owner.done |= offsets
        if save:
            self.append(Snapshots(worker=owner.worker, at_ms=0, items=[owner.snapshot()]))

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        owner.lineage += 1
        owner.done = set()

    # -- the table's writer ------------------------------------------------------------------------

    @rule(count=st.integers(1, 5))
    def write(self, count: int) -> None:
        for _ in range(min(count, len(self.log) - self.writer.next_offset)):
            self.writer.step(self.log)
            if self.writer.next_offset - self.arrived > MARGIN:
                self.flush()

    @rule()
    def flush(self) -> None:
        self.changelog += self.writer.under_way
        self.writer.under_way = []
        self.arrived = max(self.arrived, self.writer.written)

    @rule()
    def commit(self) -> None:
        self.committed = max(self.committed, self.writer.next_offset)

    @rule(paused=st.booleans())
    def replace_writer(self, paused: bool) -> None:
        if paused:
            self.paused.append(self.writer)
        self.writer = Writer(self.new_reader(), self.committed)

    @precondition(lambda self: self.paused)
    @rule(count=st.integers(0, 3))
    def paused_writer_wakes(self, count: int) -> None:
        zombie = self.paused.pop()  # its commits are refused, its writes to the changelog are not
        for _ in range(min(count, len(self.log) - zombie.next_offset)):
            zombie.step(self.log)
        self.changelog += zombie.under_way

    # -- readers -----------------------------------------------------------------------------------

    @rule()
    def a_reader_begins(self) -> None:
        self.readers.append(self.new_reader())

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=st.integers(1, 10))
    def read(self, data: st.DataObject, count: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        for _ in range(count):
            if reader.next_offset < len(self.log):
                self.read_one(reader)

    def teardown(self) -> None:
        self.a_reader_begins()
        self.readers.append(TrackerFold())  # has read the log from its beginning
        for reader in self.readers:
            while reader.next_offset < len(self.log):
                self.read_one(reader)
        self.readers_at_the_end_have_the_same_records()

    def read_one(self, reader: TrackerFold) -> None:
        at = reader.next_offset
        event = self.log[at]
        answer = reader.apply(event, at)
        if isinstance(event, Takeover):
            assert answer is not None
            self.check(event, at, answer)
        else:
            assert answer is None

    def check(self, event: Takeover, at: int, answer: TakeoverAnswer) -> None:
        before = self.truth[at].get(event.job)
        _, right = on_takeover(before, event)
        if not answer.granted:
            # Refused: rightly, or because the reader knows a later owner already.
            assert not right.granted or answer.known_epoch > event.epoch
            return
        assert right.granted
        assert answer.lineage >= right.lineage
        if answer.lineage > right.lineage:
            return  # a later state of the same owner
        progress = finished(answer.snapshot)
        assert progress >= finished(right.snapshot), "the answer has all progress saved before the takeover"
        now = self.truth[-1][event.job]
        if answer.lineage == now.lineage:
            assert progress <= finished(now.snapshot), "the answer has no refused progress"

    @invariant()
    def readers_at_the_end_have_the_same_records(self) -> None:
        for reader in self.readers:
            if reader.next_offset == len(self.log):
                assert {job: reader.record(job) for job in JOBS} == {
                    job: self.truth[-1].get(job) for job in JOBS
                }


TestAnyReaderAnswers = AnyReaderAnswers.TestCase
TestAnyReaderAnswers.settings = settings(max_examples=as_profile(60), stateful_step_count=30)


@given(st.sets(st.text("abcdef", min_size=1), min_size=1, max_size=8), st.integers(0, 31))
def test_a_leaving_worker_changes_the_followers_of_its_own_partitions_only(
    workers: set[str], partition: int
) -> None:
    chosen = followers(partition, workers)
    assert len(chosen) == min(FOLLOWERS, len(workers))
    for gone in workers:
        left = followers(partition, workers - {gone})
        assert set(chosen) - {gone} <= set(left)
        if gone not in chosen:
            assert left == chosen


def test_partitions_are_spread_over_the_workers() -> None:
    workers = [f"vm-{number}-{number * 7}" for number in range(8)]
    counts = {worker: sum(worker in followers(p, workers) for p in range(64)) for worker in workers}
    assert min(counts.values()) > 0.3 * 64 * FOLLOWERS / len(workers)


def test_the_furthest_row_counts_among_rows_without_offsets() -> None:
    old = TrackerRecord(epoch=1, worker="a", base=1_000_000)
    after_reset = TrackerRecord(epoch=1, worker="a", base=500, lineage=1)
    now = TrackerRecord(epoch=2, worker="b", base=900, lineage=1)
    late = TrackerRecord(epoch=1, worker="a", base=1_000_000, offset=70)  # from a writer that was paused
    for records in ([old, after_reset, now, late], [late, now, after_reset, old]):
        fold = TrackerFold()
        for record in records:
            fold.restore(JOB, record)
        assert fold.record(JOB) == now


def test_a_corrupt_snapshot_changes_nothing() -> None:
    fold = TrackerFold()
    fold.apply(Takeover(job=JOB, epoch=1, worker="a", nonce="n", at_ms=0), 0)
    before = fold.record(JOB)
    assert before is not None
    fold.apply(Snapshots(worker="a", at_ms=1, items=[SnapshotItem(JOB, 1, b"\x01nonsense")]), 1)
    assert fold.record(JOB) == replace(before, offset=1)
