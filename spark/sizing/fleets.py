"""The workers that a fleet needs, placed by the controller's own code. Pure: a Spark task runs it.

Rules
1. A fleet is the jobs of one isolation group of one region. Its workers are alike.
2. A number of workers is enough if placement leaves no worker above its fill mark. After the loss of `spare`
   workers, none may be above the high mark. Placement is `app.placement.model.bin_packing.plan`, in rounds
   until it decides nothing more. Doubling and bisection find the number.
3. If one job alone exceeds a worker's fill mark, no number is enough; the reason names the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from app.controllog.events import Assignment
from app.kernel.load import Load, capacity_or_default, vector
from app.placement.model.bin_packing import plan
from app.placement.model.fleet import DIMENSIONS, ROUNDING
from app.placement.model.plan import Member, PlacementRules

MOST_WORKERS = 10_000
MOST_ROUNDS = 200  # until a fleet is at rest; each round plans only a few moves


class Fleet(NamedTuple):
    """The loads of a region's jobs, and the capacity of one `worker`. `workers`: the number that ran."""

    region: str
    group: str
    jobs: Mapping[str, Load]
    worker: Load
    workers: int


class FleetNeed(NamedTuple):
    """The workers that a fleet needs.

    Attributes:
        workers: The least number that is enough; None if no number is.
        level: The fullest worker's share in use.
        level_lost: The same after the loss of the spare workers.
        moved: The number of jobs that such a loss moves.
        why: The reason, for people.
    """

    workers: int | None
    level: float
    level_lost: float
    moved: int
    why: str


def need_of(
    fleet: Fleet,
    rules: PlacementRules = PlacementRules(),  # noqa: B008
    spare: int = 1,
) -> FleetNeed:
    """The number of workers that is enough (rule 2)."""
    capacity = vector(capacity_or_default(fleet.worker))
    for job, load in sorted(fleet.jobs.items()):
        shares = [need / have for need, have in zip(vector(load), capacity, strict=True)]
        if max(shares) > rules.fill:
            what = DIMENSIONS[shares.index(max(shares))]
            why = (
                f"{job} alone takes {max(shares):.0%} of a worker's {what}, more than the fill mark of "
                f"{rules.fill:.0%}: larger workers or more partitions"
            )
            return FleetNeed(None, 0.0, 0.0, 0, why)
    if not fleet.jobs:
        return FleetNeed(0, 0.0, 0.0, 0, "no jobs")
    most = 1 + spare
    while not _is_enough(fleet, most, rules, spare):
        if most >= MOST_WORKERS:
            return FleetNeed(None, 0.0, 0.0, 0, f"not even {most} workers are enough")
        most = min(MOST_WORKERS, 2 * most)
    least = max(1, most // 2)
    while least < most:
        middle = (least + most) // 2
        if _is_enough(fleet, middle, rules, spare):
            most = middle
        else:
            least = middle + 1
    level, held = _placed(fleet, most, rules)
    level_lost, moved = _after_loss(fleet, most, held, rules, spare)
    lost = f"{spare} of them" if spare else "none"
    why = f"{most} workers are at most {level:.0%} full; with {lost} lost {level_lost:.0%}"
    return FleetNeed(most, level, level_lost, moved, why)


def _is_enough(fleet: Fleet, workers: int, rules: PlacementRules, spare: int) -> bool:
    if workers <= spare:
        return False
    level, held = _placed(fleet, workers, rules)
    if level > rules.fill + ROUNDING:
        return False
    return _after_loss(fleet, workers, held, rules, spare)[0] <= rules.high + ROUNDING


def _placed(fleet: Fleet, workers: int, rules: PlacementRules) -> tuple[float, dict[str, Assignment]]:
    """Places all jobs; returns the fullest worker's level, and each job's assignment."""
    return _at_rest(fleet, [_name(number) for number in range(workers)], {}, rules)


def _after_loss(
    fleet: Fleet, workers: int, held: Mapping[str, Assignment], rules: PlacementRules, spare: int
) -> tuple[float, int]:
    """The fullest worker's level without the first `spare` workers, and the number of moved jobs."""
    left = [_name(number) for number in range(spare, workers)]
    level, after = _at_rest(fleet, left, held, rules)
    return level, sum(after[job].worker != one.worker for job, one in held.items())


def _at_rest(
    fleet: Fleet, workers: list[str], held: Mapping[str, Assignment], rules: PlacementRules
) -> tuple[float, dict[str, Assignment]]:
    """Runs rounds of placement until one decides nothing. A released job can be placed in the next round."""
    members = [Member(name, capacity=fleet.worker) for name in workers]
    found = dict(held)
    levels: dict[str, float] = {}
    for _ in range(MOST_ROUNDS):
        round_ = plan(fleet.jobs, members, found, fleet.jobs, rules=rules)
        levels = round_.levels
        if not round_.decisions:
            break
        for one in round_.decisions:
            before = found.get(one.job)
            epoch = (before.epoch if before else 0) + 1
            worker = "" if one.release else one.worker
            found[one.job] = Assignment(
                at_ms=0, job=one.job, worker=worker, epoch=epoch, term=1, reason=one.reason
            )
    return max(levels.values(), default=0.0), found


def _name(number: int) -> str:
    return f"w-{number:05}"
