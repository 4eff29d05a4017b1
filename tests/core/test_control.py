"""The control log's fold: who leads and who owns what is decided by the log's order alone."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app import wire
from app.core.control import (
    AnyControlEvent,
    Assignment,
    Claim,
    ControlState,
    Released,
    WorkloadDeleted,
    WorkloadPut,
    compaction_key,
)

WORKERS = ["a", "b", "c"]
JOBS = ["dispatch:g/t:t:0", "dispatch:g/t:t:1"]


def claim(term: int, worker: str) -> Claim:
    return Claim(at_ms=0, term=term, worker=worker)


def assign(worker: str, epoch: int, term: int, *, job: str = JOBS[0], release: bool = False) -> Assignment:
    return Assignment(at_ms=0, job=job, worker=worker, epoch=epoch, term=term, reason="", release=release)


def released(worker: str, epoch: int, *, known_epoch: int = 0) -> Released:
    return Released(at_ms=0, job=JOBS[0], worker=worker, epoch=epoch, known_epoch=known_epoch)


def fold(*events: AnyControlEvent) -> ControlState:
    state = ControlState()
    for event in events:
        state.apply(event)
    return state


def test_of_two_claims_for_one_term_the_first_in_the_log_wins() -> None:
    state = fold(claim(1, "a"), claim(1, "b"))
    assert (state.leader, state.term, state.refused) == ("a", 1, 1)


def test_a_deposed_leader_cannot_assign() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 1), claim(2, "b"), assign("c", 2, 1))
    owner = state.owner(JOBS[0])
    assert owner is not None
    assert owner.worker == "a"


def test_an_epoch_once_given_is_never_given_to_somebody_else() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 1), assign("b", 1, 1))
    owner = state.owner(JOBS[0])
    assert owner is not None
    assert owner.worker == "a"


def test_a_release_counts_only_for_the_epoch_it_names() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 1), assign("b", 2, 1), released("a", 1))
    owner = state.owner(JOBS[0])
    assert owner is not None
    assert (owner.worker, owner.epoch) == ("b", 2)


def test_after_a_release_the_next_epoch_is_above_all_that_anybody_knows() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 1), released("a", 1, known_epoch=41))
    assert state.owner(JOBS[0]) is None
    assert state.next_epoch(JOBS[0]) == 42
    assert not state.apply(assign("b", 41, 1))
    assert state.apply(assign("b", 42, 1))


def test_the_same_epoch_again_may_only_ask_its_owner_for_the_release() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 1), assign("a", 1, 1, release=True))
    assert state.assignments[JOBS[0]].release


def test_a_deleted_workload_is_gone_and_deleting_it_again_counts_for_nothing() -> None:
    put = WorkloadPut(at_ms=0, key="g/t", definition={}, etag="x", actor="me")
    gone = WorkloadDeleted(at_ms=0, key="g/t", actor="me")
    state = fold(put, gone, gone)
    assert (state.workloads, state.refused) == ({}, 1)


events = st.one_of(
    st.builds(claim, st.integers(1, 4), st.sampled_from(WORKERS)),
    st.builds(
        assign, st.sampled_from([*WORKERS, ""]), st.integers(1, 6), st.integers(0, 4),
        job=st.sampled_from(JOBS), release=st.booleans(),
    ),
    st.builds(released, st.sampled_from(WORKERS), st.integers(1, 6), known_epoch=st.integers(0, 8)),
)  # fmt: skip


@given(st.lists(events, max_size=40))
def test_terms_and_epochs_never_decrease_and_stale_terms_change_nothing(log: list[AnyControlEvent]) -> None:
    state = ControlState()
    for event in log:
        term, epochs = state.term, {job: held.epoch for job, held in state.assignments.items()}
        before = dict(state.assignments)
        counted = state.apply(event)
        assert state.term >= term
        for job, epoch in epochs.items():
            assert state.assignments[job].epoch >= epoch
        if isinstance(event, Assignment) and term and event.term < term:
            assert not counted
        if not counted:
            assert state.assignments == before


@given(st.lists(events, max_size=40))
def test_reading_the_log_again_gives_the_same_state(log: list[AnyControlEvent]) -> None:
    first, second = fold(*log), fold(*[wire.control_event(wire.encode(event)) for event in log])
    assert (first.term, first.leader, first.assignments, first.floor) == (
        second.term,
        second.leader,
        second.assignments,
        second.floor,
    )


@given(st.lists(events, max_size=40))
def test_compaction_of_counted_events_changes_neither_leader_nor_owners(log: list[AnyControlEvent]) -> None:
    state = ControlState()
    counted = [event for event in log if state.apply(event)]
    last = {compaction_key(event): index for index, event in enumerate(counted)}
    compacted = fold(*(event for index, event in enumerate(counted) if last[compaction_key(event)] == index))
    assert (compacted.term, compacted.leader) == (state.term, state.leader)
    for job, held in state.assignments.items():
        other = compacted.assignments.get(job)
        owner = held.worker
        assert (other.worker if other else "") == owner or (
            # A release whose assignment was compacted away leaves no owner either way.
            not owner and other is not None and not other.worker
        )


def test_bytes_that_are_no_event_are_one_kind_of_error() -> None:
    for data in (None, b"", b"{", b"[]", b'{"event":"claim"}', b"\xff\xfe", b'{"event":"no-such"}'):
        try:
            wire.control_event(data)
        except wire.BadEvent:
            continue
        raise AssertionError(data)


def test_an_event_reads_back_as_it_was_written() -> None:
    event = assign("a", 3, 2, release=True)
    assert wire.control_event(wire.encode(event)) == event
    assert msgspec.json.decode(wire.encode(event))["event"] == "assignment"
