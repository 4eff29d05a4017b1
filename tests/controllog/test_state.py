"""The control log's fold: the order of the log alone decides the leader and the owners."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.controllog import codec
from app.controllog.events import (
    ALL,
    AnyControlEvent,
    Assignment,
    Claim,
    Drain,
    MoveWish,
    Moving,
    OperatorAct,
    Paused,
    Released,
    RouteDeleted,
    RoutePut,
    StartOffsets,
    StartRecorded,
    WorkloadDeleted,
    WorkloadPut,
    compaction_key,
)
from app.controllog.state import ControlState

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


def route(etag: str = "x", expected: str | None = None) -> RoutePut:
    return RoutePut(at_ms=0, key="r", definition={}, etag=etag, actor="me", expected=expected)


def route_deleted(expected: str | None = None) -> RouteDeleted:
    return RouteDeleted(at_ms=0, key="r", actor="me", expected=expected)


def start_at(*ends: int, deployment: str = "", topic_id: str = "", nonce: str = "") -> StartRecorded:
    return StartRecorded(
        at_ms=0, key="g/t", deployment=deployment, nonce=nonce, ends=list(ends), topic_id=topic_id
    )  # fmt: skip


def paused(partition: int, *, on: bool = True, key: str = "g/t") -> Paused:
    return Paused(at_ms=0, key=key, partition=partition, paused=on, actor="me")


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


def test_an_epoch_once_given_is_never_given_to_another_worker() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 1), assign("b", 1, 1))
    owner = state.owner(JOBS[0])
    assert owner is not None
    assert owner.worker == "a"


def test_a_release_counts_only_for_the_epoch_it_names() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 1), assign("b", 2, 1), released("a", 1))
    owner = state.owner(JOBS[0])
    assert owner is not None
    assert (owner.worker, owner.epoch) == ("b", 2)


def test_after_a_release_the_next_epoch_is_above_all_known_epochs() -> None:
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


def test_an_event_that_names_no_job_neither_assigns_nor_releases() -> None:
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


def test_of_two_changes_of_the_same_definition_one_is_refused() -> None:
    state = fold(put(etag="x"), expecting("x", etag="y"), expecting("x", etag="z"))
    assert (state.workloads["g/t"].etag, state.refused) == ("y", 1)
    gone = WorkloadDeleted(at_ms=0, key="g/t", actor="me", expected="x")
    assert not state.apply(gone)
    assert state.apply(msgspec.structs.replace(gone, expected="y"))


def test_a_definition_that_must_be_new_is_refused_if_one_exists() -> None:
    state = fold(expecting("", etag="x"), expecting("", etag="y"))
    assert (state.workloads["g/t"].etag, state.refused) == ("x", 1)


def test_a_route_is_defined_changed_and_deleted_like_a_workload() -> None:
    state = fold(route(), route("y", expected="x"), route("z", expected="x"))
    assert (state.routes["r"].etag, state.refused, state.workloads) == ("y", 1, {})
    assert not state.apply(route_deleted(expected="x"))
    assert state.apply(route_deleted(expected="y"))
    assert not state.apply(route_deleted())
    assert not state.apply(route("z", expected="y")), "the fold knows that it was deleted"
    assert state.apply(route("z", expected=""))


def test_a_pause_of_a_route_holds_it_up_and_ends_with_it() -> None:
    state = fold(route(), paused(ALL, key="r"))
    assert state.is_paused("r", 3)
    state.apply(route("y"))
    assert state.is_paused("r", 3), "a changed definition stays paused"
    state.apply(route_deleted())
    assert not state.is_paused("r", 3)


def expecting(expected: str, *, etag: str) -> WorkloadPut:
    return msgspec.structs.replace(put(etag=etag), expected=expected)


def test_a_wish_stands_until_its_job_is_assigned() -> None:
    wish = MoveWish(at_ms=0, job=JOBS[0], worker="b", epoch=1, actor="me")
    state = fold(claim(1, "a"), assign("a", 1, 1), wish, assign("a", 1, 1, release=True), released("a", 1))
    assert state.wishes == {JOBS[0]: wish}
    state.apply(assign("c", 2, 1))
    assert state.wishes == {}
    assert not state.apply(wish)
    assert not state.apply(msgspec.structs.replace(wish, job="no job"))


def test_a_worker_drains_until_the_drain_is_cancelled() -> None:
    drain = Drain(at_ms=0, worker="a", draining=True, actor="me")
    assert fold(drain).draining == {"a": drain}
    assert fold(drain, msgspec.structs.replace(drain, draining=False)).draining == {}


def test_an_operators_act_is_recorded_and_changes_no_state() -> None:
    state = fold(claim(1, "a"), assign("a", 1, 1))
    before = (state.assignments.copy(), state.term, state.paused.copy())
    act = OperatorAct(at_ms=0, subject=JOBS[0], action="skip", detail="offset 7", actor="me")
    assert state.apply(act)
    assert (state.assignments, state.term, state.paused) == before


def test_a_deployments_start_outlasts_changes_of_its_definition_and_ends_with_it() -> None:
    first = start_at(5, 6, topic_id="A")
    assert fold(put(), first, put(etag="y"), start_at(50, 60, 70, topic_id="B")).start_of("g/t") == first
    state = fold(put(), first, deleted(), deployed("two"), start_at(50, deployment="two"))
    assert state.start_of("g/t") == start_at(50, deployment="two")
    assert list(state.stale) == [compaction_key(first)]


def deployed(deployment: str, etag: str = "x") -> WorkloadPut:
    return msgspec.structs.replace(put(etag=etag), deployment=deployment)


def test_a_start_counts_only_for_its_own_deployment_in_any_compacted_log() -> None:
    # A changed definition; compaction has dropped the first one.
    assert fold(start_at(5, deployment="one"), deployed("one", "y")).start_of("g/t") == start_at(
        5, deployment="one"
    )
    # Compaction leaves the start of a deleted deployment, before the next deployment.
    state = fold(start_at(5, deployment="one"), deployed("two"))
    assert (state.start_of("g/t"), len(state.stale)) == (None, 1)


def test_of_two_recorded_starts_of_a_workload_the_first_counts_for_ever() -> None:
    first, second = (start_at(ends, deployment="one", nonce=str(ends)) for ends in (5, 8))
    state = fold(deployed("one"), first, second)
    assert (state.start_of("g/t"), state.refused) == (first, 1)
    assert compaction_key(first) != compaction_key(second), "with one key, compaction would keep the second"


def test_a_change_of_a_deployment_that_is_over_changes_nothing() -> None:
    state = fold(deployed("one"), deleted(), deployed("two"))
    assert not state.apply(deployed("one", "y"))
    assert state.workloads["g/t"].deployment == "two"
    change = state.replacing(put(etag="z"), "three")
    assert (change.deployment, change.expected) == ("two", "x")
    state.apply(deleted())
    again = state.replacing(put(etag="z"), "three")
    assert (again.deployment, again.expected) == ("three", "")


def route_start_at(offset: int, nonce: str = "", part: int = 0, parts: int = 2) -> StartRecorded:
    """One part of a route's start; part 0 has topic `t0`, part 1 has `t1`."""
    others = {f"t{part}": StartOffsets("A", [offset, -1])}
    return StartRecorded(at_ms=0, key="r", nonce=nonce, ends=[], others=others, part=part, parts=parts)


def test_a_routes_start_is_the_first_one_that_was_recorded_in_all_parts() -> None:
    state = fold(route("x", None), route_start_at(8, part=1))
    assert state.begins_at("r", "t1", 0, "A") is None, "part 0 is missing"
    state = fold(route("x", None), route_start_at(1, "lost", part=1), route_start_at(8, "a", part=1),
                 route_start_at(50, "b"), route_start_at(5, "a"), route("y", None),
                 route_start_at(80, "b", part=1))  # fmt: skip
    found = [state.begins_at("r", f"t{part}", 0, "A") for part in (0, 1)]
    assert (found, [start.nonce for start in state.start_parts_of("r")]) == ([5, 8], ["a", "a"])
    later = [
        ("t0", 1, "A"),
        ("t0", 2, "A"),
        ("t0", 0, "B"),
        ("t2", 0, "A"),
    ]  # no offset known, new partition, new topic id, new topic
    assert [state.begins_at("r", *one) for one in later] == [None] * 4
    state = fold(route("x", None), route_start_at(8, part=1), route_start_at(5), route_deleted(None),
                 route("x", None), route_start_at(6, "again", parts=1))  # fmt: skip
    assert [state.begins_at("r", f"t{part}", 0, "A") for part in (0, 1)] == [6, None]


def moving(move: str) -> Moving:
    return Moving(at_ms=0, key="g/t", move=move, to="west", actor="me")


def moved(move: str, *ends: int, etag: str = "w", **rest: str) -> WorkloadPut:
    """The definition that ends a move."""
    at = StartRecorded(at_ms=0, key="g/t", ends=list(ends), topic_id="W", cluster_id="west",
               others={"t__g__retry_1": StartOffsets("R", [3])})  # fmt: skip
    return msgspec.structs.replace(put(etag=etag), move=move, begun=at, **rest)


def test_a_move_pauses_its_workload_until_the_new_definition_has_its_start() -> None:
    state = fold(put(), start_at(5, topic_id="A"), moving("m"))
    assert all(state.is_paused("g/t", partition) for partition in (0, None))
    assert state.apply(moved("m", 7))
    assert not state.is_paused("g/t", 0)
    at = state.start_of("g/t")
    assert at is not None
    assert [at.mapped("t", p, "west", "W") for p in (0, 1)] == [7, None]
    assert at.mapped("t__g__retry_1", 0, "west", "R") == 3
    assert (at.mapped("t", 0, "east", "W"), at.mapped("t", 0, "west", "new")) == (None, None)
    # A leader's late record of the old start changes nothing, also after a change of the definition.
    state.apply(start_at(5, topic_id="A"))
    change = state.replacing(put(etag="y"), "another")
    assert state.apply(change)
    assert state.start_of("g/t") == at
    assert fold(start_at(5, topic_id="A"), change).start_of("g/t") == at, "compaction leaves these two events"


def test_an_operators_own_pause_outlasts_a_move() -> None:
    state = fold(put(), paused(2), moving("m"), moved("m", 7))
    assert state.paused == {"g/t": {2}}


def test_a_move_that_was_overtaken_moves_nothing() -> None:
    for meanwhile in (paused(ALL, on=False), paused(ALL), moving("other"), moving(""), put(etag="y")):
        state = fold(put(), moving("m"), meanwhile)
        before = state.workloads["g/t"]
        assert not state.apply(moved("m", 7)), meanwhile
        assert (state.workloads["g/t"], state.start_of("g/t")) == (before, None)
    state = fold(put(), moving("m"), deleted())
    assert not state.apply(moved("m", 7)), "a deleted workload stays deleted"
    assert not fold(put(), moving("m")).apply(moved("m", 7, expected="another"))


def test_the_definition_of_a_move_counts_again_as_a_repair() -> None:
    state = fold(put(), moving("m"), moved("m", 7))
    state.apply(moved("late", 9))
    assert state.apply(repair(state))
    assert state.start_of("g/t") == moved("m", 7).begun


def repair(state: ControlState) -> WorkloadPut | WorkloadDeleted:
    """The event that the leader writes after a workload's definition was refused."""
    current = state.workloads.get("g/t")
    if current is None:
        return WorkloadDeleted(at_ms=0, key="g/t", actor="repair", expected="")
    return msgspec.structs.replace(current, expected=current.etag)


def test_a_repair_never_overwrites_what_an_operator_changed_meanwhile() -> None:
    state = fold(put(etag="x"))
    late = repair(state)
    state.apply(put(etag="y"))
    assert not state.apply(late)
    state.apply(deleted())
    assert not state.apply(late)
    late = repair(state)
    assert state.apply(late), "the deletion counts, or the leader would repair it for ever"
    state.apply(put(etag="z"))
    assert not state.apply(late)
    assert state.workloads["g/t"].etag == "z"


def route_repair(state: ControlState) -> RoutePut | RouteDeleted:
    """The event that the leader writes after a route's definition was refused."""
    current = state.routes.get("r")
    if current is None:
        return RouteDeleted(at_ms=0, key="r", actor="repair", expected="")
    return msgspec.structs.replace(current, expected=current.etag)


conditions = st.sampled_from([None, "", "x", "y"])
route_steps = st.one_of(
    st.builds(route, st.sampled_from("xyz"), conditions),
    st.builds(route_deleted, conditions),
    st.builds(paused, st.just(ALL), on=st.booleans(), key=st.just("r")),
)


@given(st.lists(route_steps, max_size=25), st.integers(0, 30))
def test_whatever_was_compacted_a_fresh_reader_knows_which_routes_there_are(
    log: list[AnyControlEvent], cleaned: int
) -> None:
    state, written, marks = ControlState(), list[AnyControlEvent](), [0]
    for event in log:
        written.append(event)
        counted = state.apply(event)
        if not counted and isinstance(event, RoutePut | RouteDeleted) and event.expected is not None:
            written.append(route_repair(state))
            assert state.apply(written[-1])
        if isinstance(event, RouteDeleted) and "r" not in state.routes:
            written.append(paused(ALL, on=False, key="r"))  # as the API does
            state.apply(written[-1])
        marks.append(len(written))
    clean = marks[min(cleaned, len(marks) - 1)]
    last = {compaction_key(event): index for index, event in enumerate(written[:clean])}
    fresh = fold(*(e for n, e in enumerate(written) if n >= clean or last[compaction_key(e)] == n))
    assert {key: put.etag for key, put in fresh.routes.items()} == {
        key: put.etag for key, put in state.routes.items()
    }
    assert fresh.paused == state.paused


steps = st.one_of(
    st.builds(put, etag=st.sampled_from("xyz")),
    st.builds(expecting, st.sampled_from(["", "x", "y", "w"]), etag=st.sampled_from("xyz")),
    st.just(deleted()),
    st.builds(moving, st.sampled_from(["", "m", "n"])),
    st.builds(moved, st.sampled_from("mn"), st.integers(0, 9)),
    st.builds(paused, st.sampled_from([ALL, 0]), on=st.booleans()),
)


@given(st.lists(st.tuples(steps, st.booleans()), max_size=25), st.integers(0, 30))
def test_whatever_was_compacted_a_fresh_reader_knows_where_each_workload_is_and_begins(
    log: list[tuple[AnyControlEvent, bool]], cleaned: int
) -> None:
    state, written, marks = ControlState(), list[AnyControlEvent](), [0]
    repairs: WorkloadPut | WorkloadDeleted | None = None  # decided, but not in the log yet

    def write(event: AnyControlEvent) -> bool:
        written.append(event)
        return state.apply(event)

    for event, late in log:
        counted = write(event)
        if not counted and isinstance(event, WorkloadPut):
            repairs = repairs or repair(state)
        if not late:
            while repairs is not None:
                before = state.workloads.get("g/t")
                repairs = None if write(repairs) else repair(state)
                after = state.workloads.get("g/t")
                assert (before and before.etag) == (after and after.etag), "a repair changes nothing"
        if isinstance(event, WorkloadDeleted):
            write(paused(ALL, on=False))  # as the API does
        if repairs is None:
            marks.append(len(written))
    # The cleaner has compacted the oldest part, which never ends between an event and the leader's repair.
    clean = marks[min(cleaned, len(marks) - 1)]
    last = {compaction_key(event): index for index, event in enumerate(written[:clean])}
    fresh = fold(*(e for n, e in enumerate(written) if n >= clean or last[compaction_key(e)] == n))
    assert fresh.workloads.keys() == state.workloads.keys()
    for key, held in state.workloads.items():
        assert fresh.workloads[key].etag == held.etag
    assert fresh.paused == state.paused
    assert {key: move.move for key, move in fresh.moves.items() if key in fresh.workloads} == {
        key: move.move for key, move in state.moves.items() if key in state.workloads
    }
    assert fresh.start_parts_of("g/t") == state.start_parts_of("g/t")


events = st.one_of(
    st.builds(claim, st.integers(1, 4), st.sampled_from(WORKERS)),
    st.builds(
        assign, st.sampled_from([*WORKERS, ""]), st.integers(1, 6), st.integers(0, 4),
        job=st.sampled_from(JOBS), release=st.booleans(),
    ),
    st.builds(released, st.sampled_from(WORKERS), st.integers(1, 6), known_epoch=st.integers(0, 8)),
    st.builds(
        MoveWish, at_ms=st.just(0), job=st.sampled_from(JOBS), worker=st.sampled_from(WORKERS),
        epoch=st.integers(0, 6), actor=st.just("me"),
    ),
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
    first, second = fold(*log), fold(*[codec.control_event(codec.encode(event)) for event in log])
    assert (first.term, first.leader, first.assignments, first.floor, first.wishes) == (
        second.term,
        second.leader,
        second.assignments,
        second.floor,
        second.wishes,
    )


@given(st.lists(events, max_size=40))
def test_compaction_of_counted_events_changes_neither_leader_nor_owners(log: list[AnyControlEvent]) -> None:
    state = ControlState()
    counted = [event for event in log if state.apply(event)]
    last = {compaction_key(event): index for index, event in enumerate(counted)}
    compacted = fold(*(event for index, event in enumerate(counted) if last[compaction_key(event)] == index))
    assert (compacted.term, compacted.leader) == (state.term, state.leader)
    assert compacted.wishes == state.wishes
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
            codec.control_event(data)
        except codec.BadEvent:
            continue
        raise AssertionError(data)


def test_an_event_reads_back_as_it_was_written() -> None:
    event = assign("a", 3, 2, release=True)
    assert codec.control_event(codec.encode(event)) == event
    assert msgspec.json.decode(codec.encode(event))["event"] == "assignment"
