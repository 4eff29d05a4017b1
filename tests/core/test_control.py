"""The control log's fold: who leads and who owns what is decided by the log's order alone."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app import wire
from app.core.control import (
    ALL,
    AnyControlEvent,
    Assignment,
    Begun,
    Claim,
    ControlState,
    OperatorAct,
    Paused,
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


def put(key: str = "g/t", etag: str = "x") -> WorkloadPut:
    return WorkloadPut(at_ms=0, key=key, definition={}, etag=etag, actor="me")


def deleted(key: str = "g/t") -> WorkloadDeleted:
    return WorkloadDeleted(at_ms=0, key=key, actor="me")


def begun(*ends: int, etag: str = "x", topic_id: str = "") -> Begun:
    return Begun(at_ms=0, key="g/t", etag=etag, ends=list(ends), topic_id=topic_id)


def paused(partition: int, *, on: bool = True) -> Paused:
    return Paused(at_ms=0, key="g/t", partition=partition, paused=on, actor="me")


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
    state = fold(put(), deleted(), deleted())
    assert (state.workloads, state.refused) == ({}, 1)


def test_a_term_above_the_current_one_assigns_nothing_before_it_is_claimed() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 99))
    assert (state.assignments, state.refused) == ({}, 1)


def test_what_names_no_job_is_neither_assigned_nor_released() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 1, job="x"))
    assert not state.apply(Released(at_ms=0, job="dispatch:g/t:t:01", worker="a", epoch=1))
    assert (state.assignments, state.floor) == ({}, {})


def test_a_paused_partition_holds_up_neither_the_others_nor_the_retry_topics() -> None:
    state = fold(put(), paused(1))
    assert state.is_paused("g/t", 1)
    assert not state.is_paused("g/t", 0)
    assert not state.is_paused("g/t", None)
    assert not state.is_paused("other/t", 1)


def test_pausing_all_holds_up_everything_and_resuming_all_ends_every_pause() -> None:
    state = fold(put(), paused(1), paused(ALL))
    assert all(state.is_paused("g/t", partition) for partition in (0, 1, None))
    state.apply(paused(ALL, on=False))
    assert state.paused == {}


def test_a_partition_resumed_while_all_is_paused_stays_paused() -> None:
    state = fold(put(), paused(1), paused(ALL), paused(1, on=False))
    assert state.is_paused("g/t", 1)


def test_a_workload_that_is_deployed_again_is_not_paused() -> None:
    assert fold(put(), paused(ALL), deleted(), put()).paused == {}


def test_an_operators_act_is_told_and_changes_nothing() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 1))
    before = (state.assignments.copy(), state.term, state.paused.copy())
    act = OperatorAct(at_ms=0, subject=JOBS[0], action="skip", detail="offset 7", actor="me")
    assert state.apply(act)
    assert (state.assignments, state.term, state.paused) == before


def test_where_a_deployment_begins_stays_when_its_definition_changes_and_ends_with_it() -> None:
    state = fold(put(), begun(5, 6, topic_id="A"), put(etag="y"), begun(50, 60, 70, etag="y", topic_id="B"))
    assert (state.begun["g/t"].ends, state.begun["g/t"].topic_id) == ([5, 6], "A")
    assert state.begun["g/t"].etag == "y"
    state = fold(put(), begun(5, 6), deleted(), put(), begun(50))
    assert state.begun["g/t"].ends == [50]


def test_where_a_workload_begins_counts_for_a_deployment_that_is_there_only() -> None:
    # What compaction leaves of a deployment that was deleted: its beginning, before the next one.
    state = fold(begun(5), put())
    assert (state.begun, state.refused) == ({}, 1)


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
        if isinstance(event, Assignment) and event.term != term:
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
