"""A fleet under a question, placed by the controller's own code. Pure: a task runs it for one scenario.

Rules
1. A fleet is the jobs of one isolation group of one region. Its workers are alike; they are dealt to zones
   by turns, so that zones differ by one at most.
2. A number of workers is enough when placement (`app.placement.model.bin_packing.plan`, round by round until
   it has nothing more to do) leaves nobody above its fill mark, and, with `spare` of them dead, or a whole
   zone, nobody above the high mark. The least such number is found by doubling and halving.
3. What no number of workers can carry (one job alone is above a worker) is told, not sought for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from app.controllog.events import Assignment
from app.kernel.load import Load, capacity_or_default, vector
from app.placement.model.bin_packing import plan
from app.placement.model.fleet import DIMENSIONS, ROUNDING
from app.placement.model.plan import Member, PlacementRules

MOST_WORKERS = 10_000
MOST_ROUNDS = 200  # rounds until a fleet is at rest: planned moves are a few a round


class Scenario(NamedTuple):
    """A question.

    Attributes:
        name: for people.
        kind: as-is | topic | region | zone.
        subject: the topic, or the region that the new one is like.
        factor: what a topic's load is multiplied by.
        zones: how many there are; of `zone` one is lost.
    """

    name: str
    kind: str = "as-is"
    subject: str = ""
    factor: float = 1.0
    zones: int = 0


class Fleet(NamedTuple):
    """What is to be placed: the loads of a region's jobs, on workers that have `worker` each, of which there
    are `workers` now."""

    region: str
    group: str
    jobs: Mapping[str, Load]
    worker: Load
    workers: int


class ScenarioResult(NamedTuple):
    """What it comes to.

    Attributes:
        workers: that are enough, None: no number is.
        now: that there are.
        level: the fullest worker's, at rest, with that many.
        level_lost: the fullest one's after the loss that the fleet must bear.
        moved: jobs that such a loss moves.
        why: in words.
    """

    workers: int | None
    now: int
    level: float
    level_lost: float
    moved: int
    why: str


def changed(scenario: Scenario, fleets: Iterable[Fleet]) -> list[Fleet]:
    """The fleets as the scenario has them.

    A doubled topic's jobs take `factor` times the cpu and network. A new region is another one of the
    subject's kind, and each region copies the other's dispatched topics: one job more a partition and pair of
    regions, with the partition's network load and the median cpu of copying jobs that there are, or that of
    dispatching it.

    Raises:
        ValueError: there is no such topic or region.
    """
    given = list(fleets)
    if scenario.kind == "topic":
        if not any(_topic(job) == scenario.subject for fleet in given for job in fleet.jobs):
            raise ValueError(f"no load of topic {scenario.subject!r} is known")
        return [fleet._replace(jobs=_scaled(fleet.jobs, scenario)) for fleet in given]
    if scenario.kind == "region":
        like = [fleet for fleet in given if fleet.region == scenario.subject]
        if not like:
            raise ValueError(f"no load of region {scenario.subject!r} is known")
        new = "new-" + scenario.subject
        found = []
        for fleet in given:  # each copies what the new region has; the new one copies what each has
            copies = _copies(fleet, like, new) if not fleet.group else {}
            found.append(fleet._replace(jobs={**fleet.jobs, **copies}))
        for fleet in like:
            copies = _copies(fleet, given, new) if not fleet.group else {}
            found.append(fleet._replace(region=new, workers=0, jobs={**fleet.jobs, **copies}))
        return found
    return given


def answer(
    fleet: Fleet,
    scenario: Scenario,
    rules: PlacementRules = PlacementRules(),  # noqa: B008
    spare: int = 1,
) -> ScenarioResult:
    """How many workers are enough (rule 2)."""
    capacity = vector(capacity_or_default(fleet.worker))
    for job, load in sorted(fleet.jobs.items()):
        shares = [need / have for need, have in zip(vector(load), capacity, strict=True)]
        if max(shares) > rules.fill:
            what = DIMENSIONS[shares.index(max(shares))]
            why = f"{job} alone takes {max(shares):.0%} of a worker's {what}: larger workers, more partitions"
            return ScenarioResult(None, fleet.workers, 0.0, 0.0, 0, why)
    lost_zones = scenario.zones if scenario.kind == "zone" else 0
    if not fleet.jobs:
        return ScenarioResult(0, fleet.workers, 0.0, 0.0, 0, "no jobs")
    most = 1 + max(spare, lost_zones - 1)
    while not _is_enough(fleet, most, lost_zones, rules, spare):
        if most >= MOST_WORKERS:
            return ScenarioResult(None, fleet.workers, 0.0, 0.0, 0, f"not even {most} workers are enough")
        most = min(MOST_WORKERS, 2 * most)
    least = max(1, most // 2)
    while least < most:
        middle = (least + most) // 2
        if _is_enough(fleet, middle, lost_zones, rules, spare):
            most = middle
        else:
            least = middle + 1
    level, held = _placed(fleet, most, rules)
    level_lost, moved = _after_loss(fleet, most, held, lost_zones, rules, spare)
    lost = f"one of {lost_zones} zones" if lost_zones else f"{spare} of them" if spare else "none"
    why = f"{most} workers are at {level:.0%} at most; with {lost} lost at {level_lost:.0%}"
    return ScenarioResult(most, fleet.workers, level, level_lost, moved, why)


def _is_enough(fleet: Fleet, workers: int, zones: int, rules: PlacementRules, spare: int) -> bool:
    lost = _lost(workers, zones, spare)
    if workers <= len(lost):
        return False
    level, held = _placed(fleet, workers, rules)
    if level > rules.fill + ROUNDING:
        return False
    return _after_loss(fleet, workers, held, zones, rules, spare)[0] <= rules.high + ROUNDING


def _placed(fleet: Fleet, workers: int, rules: PlacementRules) -> tuple[float, dict[str, Assignment]]:
    """Everything placed on that many: the fullest level, and who has what."""
    return _at_rest(fleet, [_name(number) for number in range(workers)], {}, rules)


def _after_loss(
    fleet: Fleet, workers: int, held: Mapping[str, Assignment], zones: int, rules: PlacementRules, spare: int
) -> tuple[float, int]:
    """The fullest level without those that are lost, and how many jobs have moved."""
    lost = _lost(workers, zones, spare)
    left = [name for number in range(workers) if (name := _name(number)) not in lost]
    level, after = _at_rest(fleet, left, held, rules)
    return level, sum(after[job].worker != one.worker for job, one in held.items())


def _lost(workers: int, zones: int, spare: int) -> set[str]:
    """The largest zone, or the first `spare` workers."""
    numbers = range(0, workers, zones) if zones else range(min(spare, workers))
    return {_name(number) for number in numbers}


def _at_rest(
    fleet: Fleet, workers: list[str], held: Mapping[str, Assignment], rules: PlacementRules
) -> tuple[float, dict[str, Assignment]]:
    """Rounds of placement until nothing is to be done; a release is answered at once."""
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


def _scaled(jobs: Mapping[str, Load], scenario: Scenario) -> dict[str, Load]:
    by = scenario.factor
    return {
        job: Load(load.cpu_cores * by, load.memory_bytes, load.network_bytes_per_s * by)
        if _topic(job) == scenario.subject
        else load
        for job, load in jobs.items()
    }


def _copies(into: Fleet, sources: Iterable[Fleet], new: str) -> dict[str, Load]:
    """Jobs that copy what the sources dispatch."""
    known = sorted(load.cpu_cores for job, load in into.jobs.items() if job.startswith("replicate:"))
    cpu = known[len(known) // 2] if known else None
    found: dict[str, Load] = {}
    for source in sources:
        for job, load in source.jobs.items():
            if job.startswith("dispatch:"):
                _, _, topic, partition = job.split(":")
                name = f"replicate:{new}-{source.region}:{topic}:{partition}"
                known_load = found.get(name)
                cores = load.cpu_cores if cpu is None else cpu
                network = load.network_bytes_per_s
                if known_load is None or known_load.network_bytes_per_s < network:
                    found[name] = Load(cores, load.memory_bytes, network)
    return found


def _topic(job: str) -> str:
    return job.rpartition(":")[0].rpartition(":")[2]


def _name(number: int) -> str:
    return f"w-{number:05}"
