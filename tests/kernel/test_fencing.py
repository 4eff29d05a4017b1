"""The tracker table's single writer: older epochs are fenced, and nothing finished becomes unfinished."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog import codec
from app.kernel.fencing import (
    LogId,
    SnapshotItem,
    Takeover,
    TakeoverAnswer,
    TrackerRecord,
    on_snapshot,
    on_takeover,
)
from app.kernel.ranges import CorruptSnapshot, Snapshot

JOB = "dispatch:billing/orders:orders:0"
Event = Takeover | tuple[str, SnapshotItem]  # a snapshot comes with its worker


def takeover(epoch: int, worker: str, *, nonce: str = "n", at_ms: int = 0) -> Takeover:
    return Takeover(job=JOB, epoch=epoch, worker=worker, nonce=nonce, at_ms=at_ms)


def snapshot(epoch: int, worker: str, base: int, *finished: tuple[int, int]) -> tuple[str, SnapshotItem]:
    return worker, SnapshotItem(JOB, epoch, Snapshot(base, finished).to_bytes(), note=worker.encode())


def apply(record: TrackerRecord | None, event: Event) -> tuple[TrackerRecord | None, TakeoverAnswer | None]:
    """Applies the event as the agent does."""
    if isinstance(event, Takeover):
        return on_takeover(record, event)
    worker, item = event
    return on_snapshot(record, item, worker=worker, at_ms=0) or record, None


def fold(*events: Event) -> TrackerRecord:
    record: TrackerRecord | None = None
    for event in events:
        record, _ = apply(record, event)
    assert record is not None
    return record


def offsets(packed: bytes) -> set[int]:
    """All finished offsets below 100."""
    if not packed:
        return set()
    known = Snapshot.from_bytes(packed)
    return {o for start, end in [(0, known.base), *known.finished] for o in range(start, min(end, 100))}


# -- any history -----------------------------------------------------------------------------------

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)).map(lambda p: (p[0], sum(p))), max_size=3)
takeovers = st.builds(takeover, st.integers(1, 4), st.sampled_from("ab"), at_ms=st.integers(0, 99))
snapshots = st.builds(
    lambda epoch, worker, base, finished: snapshot(epoch, worker, base, *finished),
    st.integers(1, 4), st.sampled_from("ab"), st.integers(0, 40), spans,
)  # fmt: skip
histories = st.lists(takeovers | snapshots, max_size=20)


@st.composite
def honest_histories(draw: st.DrawFn) -> list[Event]:
    """Workers send snapshots only under granted epochs: zombies, but no liars."""
    events: list[Event] = []
    owners: list[tuple[int, str]] = []
    record: TrackerRecord | None = None
    for _ in range(draw(st.integers(0, 15))):
        event: Event
        if draw(st.booleans()) and owners:
            epoch, worker = draw(st.sampled_from(owners))
            event = snapshot(epoch, worker, draw(st.integers(0, 40)), *draw(spans))
        else:
            event = draw(takeovers)
        record, answer = apply(record, event)
        if answer is not None and answer.granted:
            owners.append((answer.epoch, answer.worker))
        events.append(event)
    return events


@given(histories)
def test_epoch_and_base_never_go_back_and_nothing_finished_is_lost(events: list[Event]) -> None:
    record: TrackerRecord | None = None
    for event in events:
        before = record or TrackerRecord()
        record, _ = apply(record, event)
        after = record or TrackerRecord()
        assert after.epoch >= before.epoch
        assert after.base >= before.base
        assert offsets(after.snapshot) >= offsets(before.snapshot)
        assert after.at_ms >= before.at_ms


@given(histories)
def test_one_epoch_has_one_owner_for_ever(events: list[Event]) -> None:
    owners: dict[int, str] = {}
    record: TrackerRecord | None = None
    for event in events:
        record, answer = apply(record, event)
        if answer is not None and answer.granted:
            assert owners.setdefault(answer.epoch, answer.worker) == answer.worker


@given(histories)
def test_only_the_owner_of_the_latest_epoch_moves_the_record(events: list[Event]) -> None:
    record: TrackerRecord | None = None
    for event in events:
        before = record
        record, _ = apply(record, event)
        if not isinstance(event, Takeover):
            worker, item = event
            if before is None or (before.epoch, before.worker) != (item.epoch, worker):
                assert record == before


@given(honest_histories(), st.data())
def test_replaying_the_last_events_again_gives_the_same_record(
    events: list[Event], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(events)))
    if events:
        assert fold(*events, *events[start:]) == fold(*events)


@given(honest_histories())
def test_a_new_owner_gets_all_that_earlier_owners_saved(events: list[Event]) -> None:
    saved: set[int] = set()
    record: TrackerRecord | None = None
    for event in events:
        before = record
        record, _ = apply(record, event)
        if not isinstance(event, Takeover) and record != before:
            saved |= offsets(event[1].snapshot)
    _, answer = on_takeover(record, takeover(99, "new"))

    assert answer.granted
    assert offsets(answer.snapshot) == saved


# -- which log -------------------------------------------------------------------------------------

ids = st.sampled_from(["", "A", "B"])
logs = st.builds(LogId, ids, ids)


def of_log(log: LogId, lineage: int = 0, base: int = 5) -> tuple[str, SnapshotItem]:
    return "a", SnapshotItem(JOB, 1, Snapshot(base).to_bytes(), lineage, log)


@given(st.lists(st.tuples(logs, st.integers(0, 2)), max_size=12))
def test_within_a_lineage_the_log_is_only_filled_in_and_a_later_one_is_never_left(
    sent: list[tuple[LogId, int]],
) -> None:
    record: TrackerRecord | None = fold(takeover(1, "a"))
    for log, lineage in sent:
        before = record
        record, _ = apply(record, of_log(log, lineage))
        assert before is not None
        assert record is not None
        assert record.lineage >= before.lineage
        if record.lineage == before.lineage:
            assert not before.log.is_another(record.log)
            assert record.log == before.log.filled_in(record.log)


@given(logs, logs)
def test_another_log_is_one_whose_known_ids_differ(one: LogId, other: LogId) -> None:
    differ = {one.cluster_id, other.cluster_id} == {"A", "B"} or {one.topic_id, other.topic_id} == {"A", "B"}
    assert one.is_another(other) == other.is_another(one) == differ


def test_a_record_written_before_ids_were_adopts_the_present_ones() -> None:
    old = codec.tracker_record(b'{"epoch":1,"worker":"a","base":5,"snapshot":"","lineage":0,"at_ms":0}')
    record, answer = on_takeover(old, takeover(2, "b"))
    assert not answer.log.is_another(LogId("A", "B"))
    after = on_snapshot(
        record, SnapshotItem(JOB, 2, Snapshot(5).to_bytes(), 0, LogId("A", "B")), worker="b", at_ms=0
    )
    assert after is not None
    assert on_takeover(after, takeover(3, "c"))[1].log == LogId("A", "B")


def test_a_snapshot_of_another_log_is_refused_in_the_same_lineage_and_replaces_all_in_the_next() -> None:
    record = fold(takeover(1, "a"), of_log(LogId("A", "A"), base=90))
    assert on_snapshot(record, of_log(LogId("A", "B"), base=95)[1], worker="a", at_ms=0) is None
    replaced = on_snapshot(record, of_log(LogId("A", "B"), 1, base=3)[1], worker="a", at_ms=0)
    assert replaced is not None
    assert (replaced.base, replaced.lineage, replaced.log) == (3, 1, LogId("A", "B"))


def test_a_snapshot_of_a_worker_that_knows_no_ids_is_read() -> None:
    event = codec.tracker_event(
        b'{"event":"snapshots","worker":"a","at_ms":0,"items":[["%s",1,"AQ==",2]]}' % JOB.encode()
    )
    assert not isinstance(event, Takeover)
    assert event.items == [SnapshotItem(JOB, 1, b"\x01", 2, LogId())]


# -- one at a time ---------------------------------------------------------------------------------


def test_the_first_takeover_is_granted_with_nothing_to_skip() -> None:
    record, answer = on_takeover(None, takeover(1, "a", nonce="x"))

    assert (answer.granted, answer.snapshot, answer.nonce, answer.known_epoch) == (True, b"", "x", 1)
    assert (record.epoch, record.worker, record.base) == (1, "a", -1)


def test_an_old_epoch_can_neither_take_over_nor_save_and_learns_the_newer_epoch() -> None:
    record = fold(takeover(3, "new"), snapshot(3, "new", 5))

    after, answer = on_takeover(record, takeover(2, "zombie"))

    assert after == record
    assert (answer.granted, answer.known_epoch, answer.snapshot) == (False, 3, b"")
    assert fold(takeover(3, "new"), snapshot(3, "new", 5), snapshot(2, "zombie", 90)) == record


def test_the_same_takeover_again_is_granted_again_since_its_answer_may_have_been_lost() -> None:
    record, first = on_takeover(fold(takeover(1, "a"), snapshot(1, "a", 7)), takeover(2, "b"))

    repeated, second = on_takeover(record, takeover(2, "b"))

    assert repeated == record
    assert second == first


def test_another_worker_under_the_same_epoch_is_refused() -> None:
    _, answer = on_takeover(fold(takeover(2, "a")), takeover(2, "b"))

    assert (answer.granted, answer.known_epoch) == (False, 2)


@pytest.mark.parametrize("item", [snapshot(1, "a", 9), snapshot(3, "a", 9), snapshot(2, "b", 9)])
def test_a_snapshot_counts_only_under_the_records_epoch_by_its_owner(item: tuple[str, SnapshotItem]) -> None:
    assert fold(takeover(2, "a"), item) == fold(takeover(2, "a"))


def test_a_snapshot_before_any_takeover_makes_no_record() -> None:
    worker, item = snapshot(1, "a", 9)

    assert on_snapshot(None, item, worker=worker, at_ms=0) is None


def test_the_successor_gets_the_note_of_the_last_snapshot_that_counted() -> None:
    def noted(epoch: int, worker: str, base: int, note: bytes, lineage: int = 0) -> tuple[str, SnapshotItem]:
        return worker, SnapshotItem(JOB, epoch, Snapshot(base).to_bytes(), lineage, note=note)

    first = fold(takeover(1, "a"), noted(1, "a", 5, b"one"), noted(1, "a", 5, b"two"))
    assert on_takeover(first, takeover(2, "b"))[1].note == b"two"
    assert on_takeover(first, takeover(0, "b"))[1].note == b"", "a refused worker gets no note"
    late = fold(takeover(1, "a"), noted(1, "a", 5, b"two"), takeover(2, "b"), noted(1, "a", 9, b"late"))
    assert late.note == b"two", "a fenced owner's note is refused with its snapshot"
    next_lineage = fold(takeover(1, "a"), noted(1, "a", 5, b"two"), noted(1, "a", 0, b"", 1))
    assert next_lineage.note == b"", "a new lineage replaces it"
    assert codec.takeover_answer(codec.encode(on_takeover(first, takeover(2, "b"))[1])).note == b"two"


def test_a_snapshot_that_says_nothing_new_writes_nothing() -> None:
    record = fold(takeover(1, "a"), snapshot(1, "a", 5, (7, 9)))

    assert on_snapshot(record, snapshot(1, "a", 4, (8, 9))[1], worker="a", at_ms=9) is None


def test_a_corrupt_snapshot_is_reported_and_a_corrupt_record_gives_way_to_a_good_one() -> None:
    record = fold(takeover(1, "a"), snapshot(1, "a", 5))
    with pytest.raises(CorruptSnapshot):
        on_snapshot(record, SnapshotItem(JOB, 1, b"\x01nonsense"), worker="a", at_ms=0)

    damaged = TrackerRecord(epoch=1, worker="a", base=5, snapshot=b"\x01nonsense")
    mended = on_snapshot(damaged, snapshot(1, "a", 6)[1], worker="a", at_ms=0)
    assert mended is not None
    assert mended.base == 6
