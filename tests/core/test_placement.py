"""Placement: every job has one owner, moves are few, and a live owner lets go before another takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.control import Assignment
from app.core.placement import MOVES_PER_ROUND, Decision, Member, place, shares


def held(job: str, worker: str, *, release: bool = False) -> Assignment:
    return Assignment(at_ms=0, job=job, worker=worker, epoch=1, term=1, reason="", release=release)


def carry_out(assignments: dict[str, Assignment], decisions: list[Decision]) -> dict[str, Assignment]:
    """The assignments after all decisions took effect, owners having released what they were asked to."""
    after = dict(assignments)
    for decision in decisions:
        after[decision.job] = held(decision.job, "" if decision.release else decision.worker)
    return after


jobs = st.sets(st.integers(0, 20).map(lambda n: f"job-{n:02}"), max_size=16)
members = st.dictionaries(st.sampled_from("abcd"), st.booleans(), max_size=4)


@given(
    jobs, members, st.dictionaries(st.integers(0, 20).map(lambda n: f"job-{n:02}"), st.sampled_from("abcdef"))
)
def test_every_job_ends_with_one_live_owner_and_nothing_else_is_owned(
    wanted: set[str], workers: dict[str, bool], owners: dict[str, str]
) -> None:
    live = [Member(worker, draining) for worker, draining in workers.items()]
    assignments = {job: held(job, owner) for job, owner in owners.items()}
    for _ in range(60):
        decisions = place(wanted, live, assignments)
        assert len({decision.job for decision in decisions}) == len(decisions)
        for decision in decisions:
            current = assignments.get(decision.job)
            if not decision.release and current is not None and current.worker in workers:
                raise AssertionError(f"{decision} takes a job from its live owner without its release")
            if not decision.release and decision.worker:
                assert not workers[decision.worker]
        if not decisions:
            break
        assignments = carry_out(assignments, decisions)
    else:
        raise AssertionError("placement never comes to rest")
    able = [worker for worker, draining in workers.items() if not draining]
    if able:
        counts = dict.fromkeys(able, 0)
        for job in wanted:
            counts[assignments[job].worker] += 1
        assert max(counts.values()) - min(counts.values()) <= 1
    assert not {
        job for job, a in assignments.items() if a.worker and job not in wanted and a.worker in workers
    }


def test_a_lost_worker_moves_only_its_own_jobs() -> None:
    assignments = {f"j{n}": held(f"j{n}", "ab"[n % 2]) for n in range(10)}
    decisions = place(assignments, [Member("a"), Member("c")], assignments)
    moved = {decision.job for decision in decisions if not decision.release}
    assert moved == {job for job, a in assignments.items() if a.worker == "b"}


def test_planned_moves_are_bounded_a_round() -> None:
    assignments = {f"j{n}": held(f"j{n}", "a") for n in range(100)}
    decisions = place(assignments, [Member("a"), Member("b")], assignments)
    assert len(decisions) == MOVES_PER_ROUND
    assert all(decision.release for decision in decisions)


def test_a_job_on_its_way_counts_as_a_move_until_it_has_arrived() -> None:
    assignments = {f"j{n}": held(f"j{n}", "a", release=n < MOVES_PER_ROUND) for n in range(100)}
    assert place(assignments, [Member("a"), Member("b")], assignments) == []


def test_jobs_on_their_way_are_no_reason_to_move_more() -> None:
    assignments = {f"j{n}": held(f"j{n}", "a", release=n < 4) for n in range(8)}
    assert place(assignments, [Member("a"), Member("b")], assignments) == []


def test_without_a_live_worker_nothing_is_decided() -> None:
    assert place(["j"], [], {}) == []
    assert place(["j"], [Member("a", draining=True)], {}) == []


def test_a_workers_share_is_of_the_jobs_that_somebody_owns() -> None:
    owners = {"d:g/t:t:0": "a", "d:g/t:t:1": "b", "d:g/t:t:2": "", "d:g/u:u:0": "b"}
    assignments = {job: held(job, owner) for job, owner in owners.items()}
    assert shares(assignments, "a") == {"g/t": 0.5, "g/u": 0.0}
