"""Placement: which worker runs which job, and why. Sticky bin packing over cpu, memory and network.

`plan` is pure and gets all its inputs: the jobs, the live workers, the owners, and each job's load. It
returns decisions with reasons, and notices: problems with remedies. Without decisions, nothing can or may be
changed now; the notices say what is still wrong. This module has the rules; `round.py` carries them out.

    no owner ──place──▶ owned ──release requested──▶ leaving ──released──▶ no owner ──place──▶ another owner
                          └───── its worker is dead ─────────────────────────┘

Jobs move only for these reasons:
1. Its worker is dead: the job is placed at once (beyond the first `placements`, in the next round). A lost
   worker moves no other jobs, unless its own fill a worker above `high` (4).
2. The job should not exist any more, or its worker drains (bounded): the owner is requested to release it.
3. An operator wants it on another worker (`wishes`), or its isolation group has other workers: likewise,
   bounded.
4. Its worker is above the mark `high`: as few jobs as bring it back to the mark leave, bounded. They go only
   to workers that stay below the lower mark `fill` (hysteresis), so that those are not relieved next. If
   there is no such worker, a worker above its whole capacity still gives jobs away. They go to the worker
   that ends lowest, if that level is `gain` below the giver's.

A job never moves for evenness. A worker that joins gets new jobs, jobs without an owner, and jobs that
other workers are too small for. An imbalance, however large, is resolved when a worker is over capacity by
measured load. `PlacementRules.even` adds evenness by count: for an operator's own plan, or a fleet without
measurements.

Where a job goes (`app.placement.model.fleet`): to the emptiest worker with room, the largest jobs first, hot
partitions of one topic apart if possible. Without room, it goes to the least loaded worker, with a notice if
that ends above `high`. A job waits only in three cases: no usable worker has its isolation group, its
definition cannot be read, or the round's `placements` are used up.

How few moves: while no single job is enough, the one that takes most of the excess; then the smallest that is
enough. With one dimension in excess and room on other workers this is the minimum. In general the minimum is
NP-hard; tests/placement/model/test_bin_packing_optimum.py shows how near this comes.

Invariants (`tests/placement/model/`)
- No decision gives a job with a live owner to another worker without its release.
- Only live workers that do not drain get jobs.
- A job has one decision at most; the same input gives the same plan, in any order.
- Rounds come to rest, because every planned move makes the sorted list of levels smaller.
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
    """Decides a round's changes.

    Args:
        jobs: All jobs that should exist.
        loads: Each job's load (`app.kernel.load.with_estimates`); others count as `DEFAULT_JOB`.
        groups: Workload or route (the job's name) -> its isolation group. Jobs of `UNREAD` stay where they
            are, or wait without a worker.
        wishes: Job -> the worker that an operator wants it on; the job stays there while the wish lasts.
        planned: Job -> the release decided in an earlier round, for its target and reason.
        asleep: Workload -> why it is hibernated; its jobs have no owner.
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
