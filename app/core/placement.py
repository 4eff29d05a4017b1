"""Which worker runs which job: the seam of the placement engine.

`place` is pure and sees everything it may decide by: the jobs there should be, the workers that live,
and who owns what. Its answer is a list of decisions, each with its reason. Today's rule is the
simplest correct one, by count:

1. A job that should not exist is released by its owner.
2. A job whose owner is dead goes to the live worker with the fewest jobs, at once.
3. A job without owner, likewise.
4. A draining worker is asked to release its jobs; they are placed once released, never before.
5. When a worker has at least two jobs more than another, it is asked to release one (bounded a
   round), so that a worker that joins gets its share. A released job loses nothing and doubles
   nothing.

Invariants: a decision never gives a job that has a live owner to somebody else without its release;
only live, not draining workers are given jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from app.core.control import Assignment

MOVES_PER_ROUND = 8  # planned moves at once: each stops one partition for a moment


class Member(msgspec.Struct, frozen=True):
    """A live worker: its id and whether it is leaving."""

    worker: str
    draining: bool = False


class Decision(msgspec.Struct, frozen=True):
    """What is to happen with `job`: be owned by `worker`, or (release) be let go by it."""

    job: str
    worker: str
    release: bool
    reason: str


def place(
    jobs: Iterable[str], members: Iterable[Member], assignments: Mapping[str, Assignment]
) -> list[Decision]:
    """Decides this round's changes; an empty list means that all is as it should be."""
    wanted = set(jobs)
    live = {member.worker: member for member in members}
    counts = {worker: 0 for worker, member in live.items() if not member.draining}
    decisions: list[Decision] = []
    homeless: list[tuple[str, str]] = []
    settled: dict[str, list[str]] = {worker: [] for worker in counts}
    moving = 0

    for job, held in sorted(assignments.items()):
        if not held.worker:
            continue
        if held.worker not in live:
            if job in wanted:
                homeless.append((job, f"{held.worker} is dead"))
            else:
                decisions.append(
                    Decision(job, "", release=False, reason="the job is gone, and so is its worker")
                )
            continue
        if held.release:
            moving += 1  # on its way: it counts for whoever gets it, not for whom it leaves
            continue
        if held.worker in counts:
            counts[held.worker] += 1
        if job not in wanted:
            decisions.append(Decision(job, held.worker, release=True, reason="the job is gone"))
        elif live[held.worker].draining:
            decisions.append(Decision(job, held.worker, release=True, reason=f"{held.worker} is draining"))
        else:
            settled[held.worker].append(job)

    homeless += [
        (job, "it had no owner")
        for job in sorted(wanted)
        if job not in assignments or not assignments[job].worker
    ]
    if not counts:
        return decisions
    arriving = sum(
        1 for job, held in assignments.items() if held.worker in live and held.release and job in wanted
    )

    for job, why in homeless:
        target = min(counts, key=lambda worker: (counts[worker], worker))
        counts[target] += 1
        decisions.append(Decision(job, target, release=False, reason=f"{why}; {target} had the fewest jobs"))

    for _ in range(arriving):
        counts[min(counts, key=lambda worker: (counts[worker], worker))] += 1
    while moving < MOVES_PER_ROUND:
        poorest = min(counts, key=lambda worker: (counts[worker], worker))
        richest = max(settled, key=lambda worker: (counts[worker] if settled[worker] else -1, worker))
        if not settled[richest] or counts[richest] - counts[poorest] < 2:
            break
        job = settled[richest].pop()
        reason = f"{richest} has {counts[richest]} jobs, {poorest} has {counts[poorest]}"
        counts[richest] -= 1
        counts[poorest] += 1
        moving += 1
        decisions.append(Decision(job, richest, release=True, reason=reason))
    return decisions


def shares(assignments: Mapping[str, Assignment], worker: str) -> dict[str, float]:
    """Which part (0 to 1) of each workload's owned jobs `worker` has, by the workload's key."""
    total: dict[str, int] = {}
    here: dict[str, int] = {}
    for job, held in assignments.items():
        if held.worker:
            key = job.split(":", 2)[1]  # not JobId.parse, which checks every character
            total[key] = total.get(key, 0) + 1
            here[key] = here.get(key, 0) + (held.worker == worker)
    return {key: here[key] / count for key, count in total.items()}
