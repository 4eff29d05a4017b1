"""Partitions and workers of workloads, by `app.sizing.recommendation`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from app.kernel.json_types import JsonObject
from app.kernel.load import Load
from app.placement.model.plan import name_of, topic_of
from app.sizing.recommendation import Measured, SizingRules, recommend


class JobNeed(NamedTuple):
    """A job's load in its fleet's busiest hours; `arriving` and `ceiling` (messages/s) are its own maxima."""

    region: str
    group: str
    job: str
    load: Load
    arriving: float | None
    ceiling: float | None


def workload_rows(needs: Iterable[JobNeed], worker: Load, rules: SizingRules) -> list[JsonObject]:
    """A row for each dispatched workload of a region: partitions and workers, each with its reason."""
    workloads: defaultdict[tuple[str, str], dict[str, JobNeed]] = defaultdict(dict)
    # A job that moved between isolation groups has a need in both; the larger one counts.
    for need in sorted(needs, key=lambda one: one.load.cpu_cores):
        if need.job.startswith("dispatch:"):
            workloads[need.region, name_of(need.job)][need.job] = need
    rows = []
    for (region, key), jobs in sorted(workloads.items()):
        topic = key.rpartition("/")[2]
        main = [need for need in jobs.values() if topic_of(need.job) == topic] or list(jobs.values())
        rates = [need.arriving for need in main if need.arriving is not None]
        measured = Measured(
            rate=sum(rates) if rates else None,
            partitions=len(main),
            partition_ceiling=max((need.ceiling for need in main if need.ceiling), default=None),
            load=total(need.load for need in jobs.values()),
        )
        found = recommend(measured, worker, rules)
        rows.append(
            {
                "region": region,
                "workload": key,
                "partitions_now": len(main),
                "partitions": found.partitions.value,
                "partitions_why": found.partitions.why,
                "workers": found.workers.value,
                "workers_why": found.workers.why,
            }
        )
    return rows


def total(loads: Iterable[Load]) -> Load:
    """The sum of the loads."""
    cpu = memory = network = 0.0
    for load in loads:
        cpu += load.cpu_cores
        memory += load.memory_bytes
        network += load.network_bytes_per_s
    return Load(cpu, memory, network)
