"""Partitions and workers of workloads, and what fleets cost: by `app.sizing.recommendation`, with forecasts
for rates. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from app.kernel.load import Load, capacity_or_default, vector
from app.placement.model.plan import name_of, topic_of
from app.sizing.recommendation import Measured, SizingRules, recommend

HOURS_A_MONTH = 730.0
BYTES_A_GB = 1e9


class Prices(NamedTuple):
    """In whatever currency: a worker for an hour, a gigabyte over the network."""

    worker_hour: float = 0.0
    network_gb: float = 0.0


class JobNeed(NamedTuple):
    """What a job is forecast to take at its fleet's busiest; `arriving` at its own, None: not known."""

    region: str
    group: str
    job: str
    load: Load
    arriving: float | None
    ceiling: float | None


def workload_rows(needs: Iterable[JobNeed], worker: Load, rules: SizingRules) -> list[dict[str, Any]]:
    """A row a dispatched workload of a region: partitions and workers, each with its reason."""
    jobs: defaultdict[tuple[str, str], list[JobNeed]] = defaultdict(list)
    for need in needs:
        if need.job.startswith("dispatch:"):
            jobs[need.region, name_of(need.job)].append(need)
    rows = []
    for (region, key), its in sorted(jobs.items()):
        topic = key.rpartition("/")[2]
        main = [need for need in its if topic_of(need.job) == topic] or its
        rates = [need.arriving for need in main if need.arriving is not None]
        ceilings = [need.ceiling for need in main if need.ceiling]
        measured = Measured(
            rate=sum(rates) if rates else None,
            partitions=len(main),
            partition_ceiling=max(ceilings, default=None),
            load=total(need.load for need in its),
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
    """All together."""
    cpu = memory = network = 0.0
    for load in loads:
        cpu += load.cpu_cores
        memory += load.memory_bytes
        network += load.network_bytes_per_s
    return Load(cpu, memory, network)


def monthly(workers: int, network_bytes_per_s: float, prices: Prices) -> float:
    """What a fleet costs in a month."""
    gigabytes = network_bytes_per_s * 3600 * HOURS_A_MONTH / BYTES_A_GB
    return round(workers * HOURS_A_MONTH * prices.worker_hour + gigabytes * prices.network_gb, 2)


def cost_rows(
    needs: Iterable[JobNeed],
    workers: Mapping[tuple[str, str], int | None],
    worker: Mapping[tuple[str, str], Load],
    means: Mapping[tuple[str, str], float],
    prices: Prices,
    owners: Mapping[tuple[str, str], str],
) -> list[dict[str, Any]]:
    """A row a workload, route or audit of a region: its share of its fleet's workers, by the dimension of
    which it takes most, and its own traffic. The shares of a fleet are all of its workers.

    Args:
        workers, worker: recommended, and what one has, by region and group.
        means: by region and job, bytes a second over the time that is to come.
        owners: by region and name.
    """
    taken: defaultdict[tuple[str, str], defaultdict[str, list[JobNeed]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for need in needs:
        taken[need.region, need.group][name_of(need.job)].append(need)
    rows = []
    for fleet, names in sorted(taken.items()):
        have = vector(capacity_or_default(worker.get(fleet, Load())))
        shares = {
            name: max(
                amount / one
                for amount, one in zip(vector(total(need.load for need in its)), have, strict=True)
            )
            for name, its in names.items()
        }
        whole = sum(shares.values()) or 1.0
        for name, its in sorted(names.items()):
            part = (workers.get(fleet) or 0) * shares[name] / whole
            network = sum(means.get((need.region, need.job), 0.0) for need in its)
            gigabytes = network * 3600 * HOURS_A_MONTH / BYTES_A_GB
            rows.append(
                {
                    "region": fleet[0],
                    "group": fleet[1],
                    "name": name,
                    "kind": its[0].job.partition(":")[0],
                    "owner": owners.get((fleet[0], name), "(none)"),
                    "workers": round(part, 3),
                    "network_gb": round(gigabytes, 3),
                    "cost": round(
                        part * HOURS_A_MONTH * prices.worker_hour + gigabytes * prices.network_gb, 2
                    ),
                }
            )
    return sorted(rows, key=lambda row: (-row["cost"], row["region"], row["name"]))
