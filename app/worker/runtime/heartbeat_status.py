"""A worker's heartbeat: the status of its jobs, its workloads and their receivers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from app.controllog.codec import TRACKER_CAPACITY, HeadStatus, JobStatus, WorkloadStatus, WorkloadTrouble
from app.controllog.events import Assignment
from app.dispatch.pump.line_head import candidate
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.scheduler.workload import WorkloadRuntime
from app.dispatch.topics.leftovers import is_left
from app.kafka.fetch.deliveries import ByteBudget
from app.kafka.fetch.service import FetchService
from app.kernel.load import Load
from app.kernel.rates import JobRates
from app.replicate.pump.partition import ReplicaPump
from app.worker.jobs.pump import Pump

MAX_TROUBLE_CHARS = 800  # in every heartbeat
MAX_TROUBLES = 1_000  # in every heartbeat, of workloads
MAX_HEADS = 100  # in every heartbeat, of all workloads: the oldest ones
UNMEASURED: Mapping[str, Any] = {}
EMPTYING = "its retry tier is no longer defined: it delivers the waiting messages, then the job ends"


def apply_fetch_state(pumps: Iterable[Pump], services: Sequence[FetchService]) -> None:
    """Takes the ends of partitions from the fetch services, and clears the fetch troubles that are over."""
    for pump in pumps:
        key = str(pump.job), pump.epoch
        for service in services:
            pump.high_watermark = max(pump.high_watermark, service.high_watermark(key))
            if pump.trouble.startswith("fetch: ") and service.trouble(key) == "":
                pump.trouble = ""


def job_statuses(
    pumps: Iterable[Pump],
    mine: Mapping[str, Assignment],
    troubles: Mapping[str, str],
    loads: Mapping[str, Load] = UNMEASURED,
    rates: Mapping[str, JobRates] = UNMEASURED,
) -> list[JobStatus]:
    """Every job of the worker; `troubles`: job -> why it has no pump yet."""
    found = {str(pump.job): _status(pump) for pump in pumps}
    for job in found.keys() & loads.keys():
        found[job] = msgspec.structs.replace(found[job], load=loads[job])
    for job, rate in rates.items():
        if (status := found.get(job)) is not None:
            copying = status.copying and msgspec.structs.replace(status.copying, rate=_rate(rate.finishing))
            arriving, ceiling = _rate(rate.arriving), _rate(rate.ceiling)
            found[job] = msgspec.structs.replace(status, arriving=arriving, ceiling=ceiling, copying=copying)
    for job, held in mine.items():
        if job not in found:
            trouble = troubles.get(job, "")[:MAX_TROUBLE_CHARS]
            found[job] = JobStatus(job=job, epoch=held.epoch, state="starting", trouble=trouble)
    return list(found.values())


def _rate(per_s: float | None) -> float:
    return -1 if per_s is None else round(per_s, 2)


def _status(pump: Pump) -> JobStatus:
    if isinstance(pump, DispatchPump):
        status = _dispatch_status(pump)
    elif isinstance(pump, ReplicaPump):
        status = _replica_status(pump)
    else:
        status = pump.status()
    if len(status.trouble) > MAX_TROUBLE_CHARS:
        status = msgspec.structs.replace(status, trouble=status.trouble[:MAX_TROUBLE_CHARS])
    return status


def _replica_status(pump: ReplicaPump) -> JobStatus:
    status, copying = pump.status(), pump.copying()
    copying = msgspec.structs.replace(copying, halted=copying.halted[:MAX_TROUBLE_CHARS])
    # A halted copy comes before any other trouble.
    return msgspec.structs.replace(status, trouble=copying.halted or status.trouble, copying=copying)


def _dispatch_status(pump: DispatchPump) -> JobStatus:
    tracker = pump.tracker
    used = tracker.capacity - tracker.room
    # msgspec leaves out what *is* the default, not what equals it.
    capacity = TRACKER_CAPACITY if tracker.capacity == TRACKER_CAPACITY else tracker.capacity
    status = msgspec.structs.replace(pump.status(), used=used, capacity=capacity)
    if status.state == "flowing" and is_left(pump.runtime.workload, pump.job.topic):
        status = msgspec.structs.replace(status, state="emptying", trouble=status.trouble or EMPTYING)
    return status


def workload_statuses(
    runtimes: Mapping[str, WorkloadRuntime], pumps: Iterable[DispatchPump], budget: ByteBudget
) -> list[WorkloadStatus]:
    """The workloads and receivers as this worker sees them; `budget`: the memory for fetched batches."""
    now_s, budget_used = time.monotonic(), budget.used_bytes / max(1, budget.capacity_bytes)
    heads, more = _heads(pumps, now_s)
    return [
        _workload(key, runtime, heads.get(key, []), more.get(key, 0), now_s, budget_used)
        for key, runtime in runtimes.items()
    ]


def workload_troubles(troubles: Mapping[str, str]) -> list[WorkloadTrouble]:
    some = sorted(troubles.items())[:MAX_TROUBLES]
    return [WorkloadTrouble(key=key, why=why[:MAX_TROUBLE_CHARS]) for key, why in some]


def _workload(
    key: str, runtime: WorkloadRuntime, heads: list[HeadStatus], more: int, now_s: float, budget_used: float
) -> WorkloadStatus:
    targets = [link.status(now_s) for link in runtime.links.values()]
    messages, size, lease, withholding = runtime.messages, runtime.bytes, runtime.lease, runtime.withholding
    blocked = "" if lease.may_push(now_s) else "snapshots" if lease.holds(now_s) else "lease"
    return WorkloadStatus(
        key=key,
        breaker=str(runtime.link.breaker.state),
        in_flight=runtime.in_flight,
        limit=runtime.link.limit,
        held=sum(target.held for target in targets),
        targets=targets,
        rate_messages=0 if messages is None else round(messages.rate_per_s, 3),
        rate_bytes=0 if size is None else round(size.rate_per_s, 3),
        tokens_messages=0 if messages is None else round(messages.available(now_s), 1),
        tokens_bytes=0 if size is None else round(size.available(now_s), 1),
        blocked=blocked,
        budget_used=round(budget_used, 2) or 0,
        stashed=runtime.decisions.count,
        decisions=list(runtime.decisions.last),
        heads=heads,
        more_heads=more,
        withheld=withholding.count,
        withheld_by=dict(withholding.by_code),
        withheld_last=withholding.last,
        letters=-1 if runtime.dead_letters.unlimited else round(runtime.dead_letters.available(now_s), 1),
    )


def _heads(pumps: Iterable[DispatchPump], now_s: float) -> tuple[dict[str, list[HeadStatus]], dict[str, int]]:
    """Workload -> the heads that hold a partition back, the oldest first, and how many are omitted."""
    found = [(pump.job.name, head) for pump in pumps if (head := candidate(pump, now_s)) is not None]
    found.sort(key=lambda entry: -1.0 if entry[1].age_s is None else entry[1].age_s, reverse=True)
    kept: dict[str, list[HeadStatus]] = {}
    for key, head in found[:MAX_HEADS]:
        kept.setdefault(key, []).append(head)
    return kept, Counter(key for key, _ in found[MAX_HEADS:])
