"""How long a round of placement takes and how much it moves: 100,000 jobs on 2,000 workers, pure Python.

Ours is one call of `app.placement.model.bin_packing.plan`, which sees all jobs each time. The naive
re-balance deals all jobs out again at each change, round robin over the sorted workers (as Kafka's
RoundRobinAssignor does). A second peer keeps placements where it can but evens the counts out, as Kafka's
sticky assignors do (KIP-54). Neither knows load: a spike moves nothing there, and stays where it is. A
further figure has the moves of packing all jobs by load again.

Jobs' loads are heavy-tailed (Pareto); the fleet is a little more than half full. The value is the slowest of
the scenarios in seconds; the ratio is of the moves in all scenarios together. Seconds are of CPU time,
because a round is one thread's computation. Relief of a spike takes several rounds: its moves are counted
until rest, and its time is the slowest round's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from app.controllog.events import Assignment
from app.kernel.load import Load
from app.placement.model.bin_packing import plan
from app.placement.model.plan import Member, PlacementDecision
from tests.bench.run import MIN_ROUNDS, Progress

JOBS = 100_000
WORKERS = 2_000
PARTITIONS = 50  # of a topic
SPIKES = 20  # topics whose load triples
SEED = 1
REST_ROUNDS = 100

Owners = dict[str, str]


def make_loads(count: int, seed: int) -> dict[str, Load]:
    """Jobs by topics of `PARTITIONS`, with heavy-tailed loads."""
    dice = random.Random(seed)
    return {
        f"dispatch:group/topic-{n // PARTITIONS}:topic-{n // PARTITIONS}:{n % PARTITIONS}": Load(
            min(0.4, dice.paretovariate(1.5) * 0.004), dice.uniform(1e6, 3e7), dice.uniform(1e3, 2e6)
        )
        for n in range(count)
    }


def assigned(owners: Mapping[str, str]) -> dict[str, Assignment]:
    """The owners as assignments of the control log."""
    return {
        job: Assignment(at_ms=0, job=job, worker=worker, epoch=1, term=1, reason="")
        for job, worker in owners.items()
    }


def until_rest(loads: Mapping[str, Load], workers: Sequence[str], owners: Owners) -> tuple[float, Owners]:
    """Plans rounds until nothing moves: the slowest round's seconds, and the final owners."""
    members = [Member(worker) for worker in workers]
    planned: dict[str, PlacementDecision] = {}
    slowest_s, now = 0.0, assigned(owners)
    for _ in range(REST_ROUNDS):
        began_s = time.thread_time()
        decided = plan(loads, members, now, loads, planned=planned)
        slowest_s = max(slowest_s, time.thread_time() - began_s)
        if not decided.decisions:
            return slowest_s, {job: one.worker for job, one in now.items()}
        planned = {one.job: one for one in decided.decisions if one.release}
        now |= assigned({one.job: "" if one.release else one.worker for one in decided.decisions})
    raise AssertionError(f"placement does not come to rest in {REST_ROUNDS} rounds")


def round_robin(loads: Mapping[str, Load], workers: Sequence[str], _owners: Owners) -> Owners:
    """Deals all jobs out again, round robin."""
    names = sorted(workers)
    return {job: names[at % len(names)] for at, job in enumerate(sorted(loads))}


def sticky_by_count(loads: Mapping[str, Load], workers: Sequence[str], owners: Owners) -> Owners:
    """Keeps what it can, and evens the counts out."""
    quota, rest = divmod(len(loads), len(workers))
    jobs_by_worker: dict[str, list[str]] = {worker: [] for worker in sorted(workers)}
    homeless: list[str] = []
    for job in sorted(loads):
        jobs_by_worker.get(owners.get(job, ""), homeless).append(job)
    by_count = sorted(jobs_by_worker, key=lambda worker: (-len(jobs_by_worker[worker]), worker))
    wanted = {worker: quota + (at < rest) for at, worker in enumerate(by_count)}
    for worker, jobs in jobs_by_worker.items():
        homeless += jobs[wanted[worker] :]
        del jobs[wanted[worker] :]
    for worker, kept in jobs_by_worker.items():
        missing = wanted[worker] - len(kept)
        kept.extend(homeless[len(homeless) - missing :])
        del homeless[len(homeless) - missing :]
    return {job: worker for worker, jobs in jobs_by_worker.items() for job in jobs}


def moved(before: Mapping[str, str], after: Mapping[str, str]) -> int:
    """Jobs that changed their worker; a first placement moves nothing."""
    return sum(1 for job, worker in after.items() if before.get(job, worker) != worker)


def run(progress: Progress) -> dict[str, Any]:
    """Runs all scenarios."""
    loads = make_loads(JOBS, SEED)
    spiked = {
        job: Load(3 * load.cpu_cores, load.memory_bytes, load.network_bytes_per_s)
        if int(job.rpartition("-")[2].partition(":")[0]) < SPIKES
        else load
        for job, load in loads.items()
    }
    workers = [f"worker-{n:04}" for n in range(WORKERS)]
    progress(f"{JOBS:,} jobs, {WORKERS:,} workers: first placement")
    _, ours = until_rest(loads, workers, {})
    robin = round_robin(loads, workers, {})
    sticky = sticky_by_count(loads, workers, {})
    scenarios: dict[str, tuple[Mapping[str, Load], list[str], Owners]] = {
        "initial": (loads, workers, {}),
        "steady": (loads, workers, ours),
        "worker-lost": (loads, workers[:777] + workers[778:], ours),
        "worker-added": (loads, [*workers, "worker-new"], ours),
        "load-spike": (spiked, workers, ours),
    }
    rows, slowest_s, all_ours, all_naive = [], 0.0, 0, 0
    for name, (loads_now, fleet, before) in scenarios.items():
        times, after = [], before
        for _ in range(MIN_ROUNDS):
            took_s, after = until_rest(loads_now, fleet, before)
            times.append(took_s)
        moves = moved(before, after)
        naive = moved(robin, round_robin(loads_now, fleet, robin)) if before else 0
        kept = moved(sticky, sticky_by_count(loads_now, fleet, sticky)) if before else 0
        moves_when_repacked = moved(before, until_rest(loads_now, fleet, {})[1]) if loads_now is spiked else 0
        took_s = median(times)
        progress(
            f"{name}: {took_s:.3f} s a round; moves: ours {moves:,}, round robin {naive:,}, sticky {kept:,}"
        )
        slowest_s, all_ours, all_naive = max(slowest_s, took_s), all_ours + moves, all_naive + naive
        if name == "worker-lost" and moves != sum(worker == "worker-0777" for worker in before.values()):
            raise AssertionError("a lost worker moved jobs that were not its own")
        rows.append(
            {
                "bench": f"placement-{name}",
                "value": round(took_s, 4),
                "unit": "s per round",
                "peer": "round robin anew: moves",
                "peer_value": naive,
                "ratio": round(moves / naive, 5) if naive else None,
                "setup": {
                    "moves": moves,
                    "moves_round_robin": naive,
                    "moves_sticky_by_count": kept,
                }
                | ({"moves_packed_anew": moves_when_repacked} if moves_when_repacked else {}),
            }
        )
    return {
        "value": round(slowest_s, 4),
        "unit": "s per round",
        "peer": "naive re-balance (round robin anew): moves in all scenarios",
        "peer_value": all_naive,
        "ratio": round(all_ours / all_naive, 5),
        "setup": {"jobs": JOBS, "workers": WORKERS, "moves": all_ours, "rounds": MIN_ROUNDS, "seed": SEED},
        "rows": rows,
    }
