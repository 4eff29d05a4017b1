"""Placement: every job has one owner, nothing moves without a reason, and a live owner releases a job
first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog.events import Assignment
from app.kernel.load import Load
from app.placement.model.bin_packing import plan
from app.placement.model.plan import MOVES_PER_ROUND, Member, PlacementRules, RoundPlan
from tests.placement.model.fleets import WORKER, assignment_of, assignments_of, carry_out, cpu, job, releases

jobs = st.sets(st.integers(0, 20).map(lambda n: f"job-{n:02}"), max_size=16)
members = st.dictionaries(st.sampled_from("abcd"), st.booleans(), max_size=4)

COUNTED = PlacementRules(even=2)


def fleet(names: str, group: str = "") -> list[Member]:
    return [Member(name, capacity=WORKER, group=group) for name in names]


# -- what moves, and what does not ---------------------------------------------------------------------


@given(
    jobs, members, st.dictionaries(st.integers(0, 20).map(lambda n: f"job-{n:02}"), st.sampled_from("abcdef"))
)
def test_every_job_ends_with_one_live_owner_and_by_count_evenly(
    wanted: set[str], workers: dict[str, bool], owners: dict[str, str]
) -> None:
    live = [Member(worker, draining) for worker, draining in workers.items()]
    assignments = assignments_of(owners)
    for _ in range(60):
        decisions = plan(wanted, live, assignments, rules=COUNTED).decisions
        if not decisions:
            break
        assignments = carry_out(assignments, decisions)
    else:
        raise AssertionError("placement never comes to rest")
    able = [worker for worker, draining in workers.items() if not draining]
    if able:
        counts = dict.fromkeys(able, 0)
        for one in wanted:
            counts[assignments[one].worker] += 1
        assert max(counts.values()) - min(counts.values()) <= 1
    assert not {
        one for one, a in assignments.items() if a.worker and one not in wanted and a.worker in workers
    }


def test_a_lost_worker_moves_only_its_own_jobs() -> None:
    assignments = assignments_of({job(n): "ab"[n % 2] for n in range(10)})
    decided = plan(assignments, fleet("ac"), assignments)
    assert {d.job: d.release for d in decided.decisions} == {
        one: False for one, a in assignments.items() if a.worker == "b"
    }
    assert all(d.worker == "c" for d in decided.decisions), "the empty worker takes all jobs of the lost one"
    why = decided.decisions[0].reason
    assert why.startswith("b is dead; with it c is at 0.5 % of its cpu, the emptiest of 2")


def test_a_worker_that_joins_moves_nothing_and_gets_new_jobs() -> None:
    assignments = assignments_of({job(n): "ab"[n % 2] for n in range(40)})
    assert plan(assignments, fleet("abc"), assignments).decisions == []
    decided = plan([*assignments, job(99)], fleet("abc"), assignments).decisions
    assert [(d.job, d.worker) for d in decided] == [(job(99), "c")]


def test_a_draining_worker_gives_its_jobs_away_a_few_at_a_time() -> None:
    assignments = assignments_of({job(n): "a" for n in range(30)})
    leaving, rounds = [Member("a", draining=True), Member("b")], 0
    while decided := plan(assignments, leaving, assignments).decisions:
        released = [decision for decision in decided if decision.release]
        assert len(released) <= MOVES_PER_ROUND
        assert len(released) == MOVES_PER_ROUND or rounds, "each round moves as many jobs as it may"
        assignments, rounds = carry_out(assignments, decided), rounds + 1
    assert {assignment.worker for assignment in assignments.values()} == {"b"}
    assert rounds > 30 // MOVES_PER_ROUND


def test_a_draining_worker_releases_its_jobs_before_they_are_placed() -> None:
    assignments = assignments_of({job(0): "a", job(1): "b"})
    leaving = [Member("a", draining=True), Member("b")]
    decided = plan(assignments, leaving, assignments).decisions
    assert [(d.job, d.worker, d.release, d.reason) for d in decided] == [(job(0), "a", True, "a is draining")]
    assert (
        plan(
            assignments, leaving, {**assignments, job(0): assignment_of(job(0), "a", release=True)}
        ).decisions
        == []
    )
    decided = plan(assignments, leaving, carry_out(assignments, decided)).decisions
    assert [(d.job, d.worker, d.release) for d in decided] == [(job(0), "b", False)]


def test_a_worker_over_capacity_gives_up_the_smallest_job_that_is_enough() -> None:
    loads = {job(0): cpu(0.3), job(1): cpu(0.2), job(2): cpu(0.12), job(3): cpu(0.25), job(4): cpu(0.13)}
    assignments = assignments_of(dict.fromkeys(loads, "a"))
    decided = plan(loads, fleet("ab"), assignments, loads)
    assert [(d.job, d.worker, d.target) for d in decided.decisions] == [(job(2), "a", "b")]
    assert decided.decisions[0].reason == (
        "a is at 100 % of its cpu, above 90 %; b is at 0 % of its cpu and has room"
    )


def test_between_the_marks_nothing_moves_and_nothing_is_added() -> None:
    loads = {job(0): cpu(0.4), job(1): cpu(0.4), job(2): cpu(0.3), job(3): cpu(0.4)}
    assignments = assignments_of({job(0): "a", job(1): "a", job(2): "b"})
    decided = plan(loads, fleet("ab"), assignments, loads).decisions
    assert [(d.job, d.worker) for d in decided] == [(job(3), "b")]


@pytest.mark.parametrize(
    "load", [Load(0.31, 1 << 20, 1e4), Load(0.01, 330 << 20, 1e4), Load(0.01, 1 << 20, 32e6)]
)
def test_each_dimension_alone_can_be_over_capacity(load: Load) -> None:
    assignments = assignments_of({job(n): "a" for n in range(3)})
    decided = plan(assignments, fleet("ab"), assignments, dict.fromkeys(assignments, load))
    assert len(decided.decisions) == 1


def test_planned_moves_are_bounded_and_those_on_their_way_count() -> None:
    loads = {job(n): cpu(0.02) for n in range(100)}
    assignments = assignments_of(dict.fromkeys(loads, "a"))
    decided = plan(loads, fleet("abc"), assignments, loads)
    assert len(releases(decided)) == len(decided.decisions) == MOVES_PER_ROUND
    leaving = {one: assignment_of(one, "a", release=one in releases(decided)) for one in assignments}
    assert plan(loads, fleet("abc"), leaving, loads).decisions == []


def test_a_job_too_large_for_every_worker_goes_to_the_least_loaded_and_is_reported() -> None:
    loads = {job(0): cpu(0.8), job(1): cpu(0.7), job(2): cpu(0.5)}
    assignments = assignments_of({job(0): "a", job(1): "b"})
    decided = plan(loads, fleet("ab"), assignments, loads)
    assert [(d.job, d.worker) for d in decided.decisions] == [(job(2), "b")]
    assert "no worker has room" in decided.decisions[0].reason
    assert {notice.kind for notice in decided.notices} == {"no-room", "overloaded"}


def test_an_overloaded_worker_gives_jobs_to_a_full_one_only_for_a_large_gain() -> None:
    loads = {job(n): cpu(0.1) for n in range(30)}
    assignments = assignments_of({job(n): "a" if n < 20 else "b" for n in range(30)})
    for _ in range(20):
        decided = plan(loads, fleet("ab"), assignments, loads)
        if not decided.decisions:
            break
        assignments = carry_out(assignments, decided.decisions)
    counts = [sum(a.worker == name for a in assignments.values()) for name in "ab"]
    assert sorted(counts) == [15, 15]
    assert decided.notices[0].kind == "overloaded"


def test_two_hot_partitions_of_one_topic_keep_apart_where_there_is_room() -> None:
    hot = {job(n): cpu(0.2) for n in range(3)}
    small = {job(n, "small"): cpu(0.05) for n in range(10)}
    assignments = assignments_of(dict.fromkeys(small, "c"))
    decided = plan([*hot, *small], fleet("abc"), assignments, {**hot, **small})
    assert {d.worker for d in decided.decisions} == {"a", "b", "c"}
    assert {d.worker for d in plan(hot, fleet("ab"), {}, hot).decisions} == {"a", "b"}, "soft: all are placed"


def test_a_released_job_goes_where_it_was_planned_to_go() -> None:
    loads = {job(n): cpu(0.25) for n in range(4)}
    assignments = assignments_of(dict.fromkeys(loads, "a"))
    decided = plan(loads, fleet("abc"), assignments, loads)
    (one,) = decided.decisions
    after = carry_out(assignments, decided.decisions)
    joined = [*fleet("aabc"[1:]), Member("aa", capacity=WORKER)]
    then = plan(loads, joined, after, loads, planned={one.job: one}).decisions
    assert [(d.job, d.worker) for d in then] == [(one.job, one.target)]
    assert then[0].reason == f"moved to {one.target} as planned: {one.reason}"


# -- operators, isolation, hibernation -----------------------------------------------------------------


def test_an_operators_wish_moves_a_job_and_keeps_it_there() -> None:
    loads = {job(n): cpu(0.2) for n in range(6)}
    assignments = assignments_of({one: "a" if n < 4 else "b" for n, one in enumerate(loads)})
    wishes = {job(0): "b"}
    decided = plan(loads, fleet("ab"), assignments, loads, wishes=wishes).decisions
    assert [(d.job, d.release, d.target) for d in decided] == [(job(0), True, "b")]
    assignments = carry_out(assignments, decided)
    decided = plan(loads, fleet("ab"), assignments, loads, wishes=wishes).decisions
    assert [(d.job, d.worker) for d in decided] == [(job(0), "b")]
    assert "an operator wants it on b" in decided[0].reason
    assignments = carry_out(assignments, decided)
    crowded = {**loads, job(0): cpu(0.6)}
    moved = plan(crowded, fleet("abc"), assignments, crowded, wishes=wishes).decisions
    assert [d.job for d in moved] == [job(4)], "the pinned one stays, another leaves"


@pytest.mark.parametrize(
    ("wish", "why"), [("z", "is not alive"), ("d", "is draining"), ("x", "isolation group 'secret'")]
)
def test_an_impossible_wish_is_reported_and_moves_nothing(wish: str, why: str) -> None:
    members = [*fleet("ab"), Member("d", draining=True), *fleet("x", "secret")]
    assignments = assignments_of({job(0): "a"})
    decided = plan(assignments, members, assignments, wishes={job(0): wish})
    assert decided.decisions == []
    assert why in decided.notices[0].message


def test_a_wish_for_a_dead_worker_pins_nothing() -> None:
    loads = {job(0): cpu(0.2), job(1): cpu(0.8)}
    assignments, wishes = assignments_of(dict.fromkeys(loads, "a")), {job(0): "dead"}
    decided = plan(loads, fleet("ab"), assignments, loads, wishes=wishes).decisions
    assert [(d.job, d.target) for d in decided] == [(job(0), "b")], "the loaded worker gives the job away"
    placed = plan(
        loads, fleet("b"), assignments_of({job(0): "gone", job(1): "b"}), loads, wishes=wishes
    ).decisions
    assert [(d.job, d.worker) for d in placed] == [(job(0), "b")]
    small = {job(n): cpu(0.01) for n in range(2)}
    even = plan(small, fleet("ab"), assignments_of(dict.fromkeys(small, "a")), small, rules=COUNTED,
                wishes=dict.fromkeys(small, "dead"))  # fmt: skip
    assert len(even.decisions) == 1, "such a wish does not stop even counts either"


def test_a_draining_worker_keeps_jobs_that_no_other_may_run_and_the_leader_reports_it_once() -> None:
    closed, open_ = [job(n, "closed") for n in range(3)], [job(n, "open") for n in range(2)]
    assignments = assignments_of(dict.fromkeys([*closed, *open_], "x"))
    leaving = [Member("x", draining=True, group="secret"), *fleet("a")]
    groups = {"g/closed": "secret"}
    decided = plan(assignments, leaving, assignments, groups=groups)
    assert {d.job for d in decided.decisions} == set(open_)
    (notice,) = decided.notices
    assert (notice.kind, notice.subject) == ("no-worker", "x")
    assert "keeps 3 jobs" in notice.message
    # A worker of the group joins, so the jobs may move.
    decided = plan(assignments, [*leaving, *fleet("y", "secret")], assignments, groups=groups)
    assert {d.job for d in decided.decisions if d.release} == {*closed, *open_}
    assert decided.notices == []


def test_an_isolated_workload_runs_only_on_workers_of_its_group() -> None:
    members = [*fleet("ab"), *fleet("x", "secret")]
    wanted = [*(job(n, "open") for n in range(4)), *(job(n, "closed") for n in range(4))]
    decided = plan(wanted, members, {}, groups={"g/closed": "secret"}).decisions
    assert all((d.worker == "x") == ("closed" in d.job) for d in decided)
    assert len(decided) == 8


def test_a_group_without_workers_is_reported_and_its_jobs_wait_or_stay() -> None:
    assignments = assignments_of({job(0, "closed"): "a"})
    wanted = [job(0, "closed"), job(1, "closed")]
    decided = plan(wanted, fleet("ab"), assignments, groups={"g/closed": "secret"})
    assert decided.decisions == []
    assert len(decided.notices) == 2
    assert "start a worker of the isolation group 'secret'" in {n.remedy for n in decided.notices}


def test_a_job_whose_group_changed_moves_to_a_worker_of_it() -> None:
    assignments = assignments_of({job(0, "closed"): "a"})
    members = [*fleet("a"), *fleet("x", "secret")]
    decided = plan(assignments, members, assignments, groups={"g/closed": "secret"}).decisions
    assert [(d.worker, d.release, d.target) for d in decided] == [("a", True, "x")]


def test_a_hibernated_workload_is_let_go_with_its_reason_and_not_placed() -> None:
    assignments = assignments_of({job(0): "a", job(1): ""})
    asleep = {"g/t": "nothing arrived for 30 minutes"}
    decided = plan(assignments, fleet("a"), assignments, asleep=asleep).decisions
    assert [(d.job, d.release, d.reason) for d in decided] == [
        (job(0), True, "hibernated: nothing arrived for 30 minutes")
    ]


# -- edges -----------------------------------------------------------------------------------------------


def test_without_a_live_worker_nothing_is_decided_and_the_leader_reports_it() -> None:
    assert plan(["j"], [], {}, rules=COUNTED).decisions == []
    decided = plan(["j"], [Member("a", draining=True)], {})
    assert decided.decisions == []
    assert decided.notices[0].kind == "no-worker"


def test_a_job_that_is_no_longer_wanted_is_released_by_its_owner_or_forgotten_with_it() -> None:
    assignments = assignments_of({job(0): "a", job(1): "z"})
    decided = plan([], fleet("a"), assignments).decisions
    assert {(d.job, d.worker, d.release) for d in decided} == {(job(0), "a", True), (job(1), "", False)}


def test_a_round_places_the_largest_first_and_the_others_come_in_the_next_ones() -> None:
    loads = {job(n): Load(0.01 * (n + 1), 1e6, 1e3) for n in range(8)}
    stray = "dispatch:of/nobody:nobody:0"  # no worker may run it, and the other jobs do not wait for it
    assignments: dict[str, Assignment] = {}
    placed = []
    for _ in range(3):
        decided = plan(
            [*loads, stray], fleet("ab"), assignments, loads,
            groups={"of/nobody": "nobodys"}, rules=PlacementRules(placements=3),
        )  # fmt: skip
        placed.append([one.job for one in decided.decisions])
        assignments = carry_out(assignments, decided.decisions)
    assert placed == [[job(7), job(6), job(5)], [job(4), job(3), job(2)], [job(1), job(0)]]


@given(st.integers(0, 2**32))
def test_the_answer_does_not_depend_on_any_order(seed: int) -> None:
    dice = random.Random(seed)
    loads = {job(n, dice.choice("tu")): cpu(dice.uniform(0, 0.3)) for n in range(30)}
    owners = {one: dice.choice("abcde") for one in loads if dice.random() < 0.8}
    members = fleet("abcd")

    def shuffled() -> RoundPlan:
        order = list(owners)
        dice.shuffle(order)
        names = dice.sample(members, len(members))
        wanted = dice.sample(sorted(loads), len(loads))
        return plan(wanted, names, {one: assignment_of(one, owners[one]) for one in order}, loads)

    assert shuffled() == shuffled()


@given(
    st.dictionaries(st.integers(0, 9).map(job), st.builds(Load, st.floats(), st.floats(), st.floats())),
    st.lists(st.builds(Load, st.floats(), st.floats(), st.floats()), min_size=1, max_size=3),
)
def test_absurd_loads_and_capacities_still_place_every_job(loads: dict[str, Load], has: list[Load]) -> None:
    members = [Member(f"w{n}", capacity=load) for n, load in enumerate(has)]
    assignments: dict[str, Assignment] = {}
    for _ in range(50):
        decided = plan([job(n) for n in range(10)], members, assignments, loads)
        if not decided.decisions:
            break
        assignments = carry_out(assignments, decided.decisions)
    else:
        raise AssertionError("placement never comes to rest")
    assert all(a.worker for a in assignments.values())
    assert len(assignments) == 10


@pytest.mark.parametrize(
    "wrong", [{"fill": 0.95}, {"high": 1.1}, {"gain": 0}, {"moves": 0}, {"even": 1}, {"region_share": 2}]
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="placement"):
        PlacementRules(**wrong)  # type: ignore[arg-type]


def test_job_counts_are_evened_only_on_request() -> None:
    assignments = assignments_of({job(n): "a" for n in range(20)})
    assert plan(assignments, fleet("ab"), assignments).decisions == []
    decided = plan(assignments, fleet("ab"), assignments, rules=COUNTED).decisions
    assert len(decided) == MOVES_PER_ROUND
    assert decided[0].reason == "a has 20 jobs, b has 0"
