"""The dispatch jobs, workloads and receivers in a worker's heartbeat."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from app.controllog.codec import HeadStatus, JobStatus, WorkloadStatus
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.scheduler.workload import WorkloadRuntime
from app.dispatch.topics.leftovers import is_left
from app.kafka.fetch.deliveries import ByteBudget

EMPTYING = "its retry tier is no longer defined: it delivers the waiting messages, then the job ends"
MAX_HEADS = 100  # in every heartbeat, of all workloads: the oldest ones
MAX_ENDPOINTS = 500  # in every heartbeat, of all receivers


def job_status(pump: DispatchPump) -> JobStatus:
    """The pump's status, and whether it only empties a removed retry tier."""
    status = pump.status()
    if status.state == "flowing" and is_left(pump.runtime.settings.workload, pump.job.topic):
        status = msgspec.structs.replace(status, state="emptying", trouble=status.trouble or EMPTYING)
    return status


def workload_statuses(
    runtimes: Mapping[str, WorkloadRuntime], pumps: Iterable[DispatchPump], budget: ByteBudget,
    cpu_throttled: float,
) -> list[WorkloadStatus]:  # fmt: skip
    """The workloads and receivers as this worker sees them; `budget`: the memory for fetched batches.
    `cpu_throttled`: as in `WorkloadStatus`."""
    now_s, budget_used = time.monotonic(), budget.used_bytes / max(1, budget.capacity_bytes)
    heads, more = _heads(pumps, now_s)
    found = [
        _workload(key, runtime, heads.get(key, []), more.get(key, 0), now_s, budget_used, cpu_throttled)
        for key, runtime in runtimes.items()
    ]
    if sum(len(target.endpoints) for workload in found for target in workload.targets) > MAX_ENDPOINTS:
        _shorten(found)
    return found


def _shorten(workloads: Iterable[WorkloadStatus]) -> None:
    """Leaves `MAX_ENDPOINTS` endpoints, and counts the others."""
    left = MAX_ENDPOINTS
    for workload in workloads:
        for number, target in enumerate(workload.targets):
            shown = target.endpoints[:left]
            left -= len(shown)
            others = target.more_endpoints + len(target.endpoints) - len(shown)
            workload.targets[number] = msgspec.structs.replace(target, endpoints=shown, more_endpoints=others)


def _workload(
    key: str, runtime: WorkloadRuntime, heads: list[HeadStatus], more: int, now_s: float, budget_used: float,
    cpu_throttled: float,
) -> WorkloadStatus:  # fmt: skip
    limits, receivers, lease, withheld = runtime.limits, runtime.receivers, runtime.lease, runtime.withheld
    targets = [queues.status(now_s) for queues in receivers.by_address.values()]
    messages, size, main = limits.messages, limits.bytes, receivers.main.receiver
    blocked = "" if lease.may_push(now_s) else "snapshots" if lease.holds(now_s) else "lease"
    return WorkloadStatus(
        key=key,
        breaker=main.breaker_state,
        in_flight=receivers.in_flight,
        limit=main.limit,
        held=sum(target.held for target in targets),
        targets=targets,
        rate_messages=0 if messages is None else round(messages.rate_per_s, 3),
        rate_bytes=0 if size is None else round(size.rate_per_s, 3),
        tokens_messages=0 if messages is None else round(messages.available(now_s), 1),
        tokens_bytes=0 if size is None else round(size.available(now_s), 1),
        blocked=blocked,
        budget_used=round(budget_used, 2) or 0,
        cpu_throttled=cpu_throttled or 0,
        stashed=runtime.decisions.count,
        decisions=list(runtime.decisions.last),
        heads=heads,
        more_heads=more,
        withheld=withheld.count,
        withheld_by=dict(withheld.by_code),
        withheld_last=withheld.last,
        letters=-1 if limits.dead_letters.unlimited else round(limits.dead_letters.available(now_s), 1),
    )


def _heads(pumps: Iterable[DispatchPump], now_s: float) -> tuple[dict[str, list[HeadStatus]], dict[str, int]]:
    """Workload -> the heads that hold a partition back, the oldest first, and how many are omitted."""
    found = [(pump.job.name, head) for pump in pumps if (head := pump.head_candidate(now_s)) is not None]
    found.sort(key=lambda entry: -1.0 if entry[1].age_s is None else entry[1].age_s, reverse=True)
    kept: dict[str, list[HeadStatus]] = {}
    for key, head in found[:MAX_HEADS]:
        kept.setdefault(key, []).append(head)
    return kept, Counter(key for key, _ in found[MAX_HEADS:])
