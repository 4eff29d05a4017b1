"""Which worker runs which job, and why: sticky bin packing over cpu, memory and network.

`plan` is pure and sees everything it may decide by: the jobs there should be, the workers that live, who
owns what, what every job takes. Its answer is a list of decisions, each with its reason, and of notices: what
could not be done, and what would help. An empty list means that all is as it should be.

    nobody ──place──▶ owned ──asked to release──▶ leaving ──released──▶ nobody ──place──▶ owned elsewhere
                        └───── its worker is dead ─────────────────────────┘

When a job moves, and only then
1. Its worker is dead: it is placed at once (those beyond the first `placements` in the next round). A worker
   lost moves its own jobs and no others.
2. It should not exist any more, or (bounded) its worker is draining: its owner is asked to release it.
3. An operator wants it elsewhere (`wishes`), or its isolation group has other workers: likewise, bounded.
4. Its worker is over capacity, above the mark `high`: as few jobs as bring it back to the mark, bounded. They
   go only to workers that stay below the lower mark `fill` with them (hysteresis), so that whoever takes them
   is not the next to be relieved. Nobody has such room: a worker above all that it has still gives to the one
   that ends lowest, when that leaves it `gain` better off than the giver was.
A job is never moved for evenness. A worker that joins gets what is homeless, what is new, and what others are
too small for; an imbalance, however large, is resolved when somebody is over capacity by measured load and
not before. Who wants evenness by count all the same asks for it (`PlacementRules.even`): an operator's own
plan, or a fleet in which nothing is measured yet.

How a place is chosen (`app.placement.model.fleet`): the emptiest that has room, the largest jobs first, two
hot partitions of one topic apart if possible. What nobody has room for goes to the least loaded all the same,
and is told: a job is never left lying, except when no live worker is of its isolation group.

How few moves are found: while no single job is enough, the one that takes most of what is too much; then the
smallest that is enough. With one dimension too high and room elsewhere this is the least possible number; in
general that is NP-hard, and tests/placement/model/test_bin_packing_optimum.py shows how near it comes.

Invariants: a decision never gives a job that has a live owner to somebody else without its release; only
live, not draining workers are given jobs; one decision a job; the same input gives the same answer, in
whatever order. Rounds come to rest: with every planned move the sorted list of levels becomes smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.controllog.events import Assignment
from app.kernel.load import Load
from app.placement.model.plan import (
    MOVES_PER_ROUND,
    UNREAD,
    Member,
    Notice,
    PlacementDecision,
    PlacementRules,
    RoundPlan,
    name_of,
)
from app.placement.model.round import PlacementRound

__all__ = [
    "MOVES_PER_ROUND",
    "UNREAD",
    "Member",
    "Notice",
    "PlacementDecision",
    "PlacementRules",
    "RoundPlan",
    "name_of",
    "plan",
]  # fmt: skip


def plan(
    jobs: Iterable[str],
    members: Iterable[Member],
    assignments: Mapping[str, Assignment],
    loads: Mapping[str, Load] | None = None,
    *,
    groups: Mapping[str, str] | None = None,
    wishes: Mapping[str, str] | None = None,
    planned: Mapping[str, PlacementDecision] | None = None,
    asleep: Mapping[str, str] | None = None,
    rules: PlacementRules = PlacementRules(),  # noqa: B008  frozen
) -> RoundPlan:
    """Decides this round's changes.

    Args:
        jobs: all jobs there should be.
        loads: what each takes (`app.kernel.load.with_estimates`); without one, `DEFAULT_JOB`.
        groups: workload or route (the job's name) -> its isolation group; `UNREAD`: its jobs stay where they
            are, and those without a worker wait.
        wishes: job -> the worker on which an operator wants it; while the wish stands, it stays there.
        planned: job -> the release that was decided for it in an earlier round, for its target and reason.
        asleep: workload -> why it is hibernated: its jobs have no owner.
    """
    return PlacementRound(
        jobs,
        members,
        assignments,
        loads or {},
        groups or {},
        wishes or {},
        planned or {},
        asleep or {},
        rules,
    ).run()
