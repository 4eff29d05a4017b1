"""Small fleets for placement tests: jobs, loads, and the effect of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.controllog.events import Assignment
from app.kernel.load import Load
from app.placement.model.plan import PlacementDecision, RoundPlan

WORKER = Load(1.0, 1 << 30, 100e6)


def assignment_of(job: str, worker: str, *, release: bool = False) -> Assignment:
    return Assignment(at_ms=0, job=job, worker=worker, epoch=1, term=1, reason="", release=release)


def assignments_of(owners: Mapping[str, str]) -> dict[str, Assignment]:
    return {job: assignment_of(job, worker) for job, worker in owners.items()}


def cpu(cores: float) -> Load:
    return Load(cores, 1 << 20, 1e4)


def job(number: int, topic: str = "t") -> str:
    return f"dispatch:g/{topic}:{topic}:{number}"


def carry_out(
    assignments: Mapping[str, Assignment], decisions: Iterable[PlacementDecision]
) -> dict[str, Assignment]:
    """The assignments once all decisions took effect and owners have released the jobs."""
    after = dict(assignments)
    for decision in decisions:
        after[decision.job] = assignment_of(decision.job, "" if decision.release else decision.worker)
    return after


def releases(plan: RoundPlan) -> dict[str, PlacementDecision]:
    return {decision.job: decision for decision in plan.decisions if decision.release}
