"""What the console shows, from what workers say of themselves: pure.

Unknown stays unknown (None), it never becomes 0: a lag that nobody has measured is not a lag of none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.core.control import Assignment, ControlState, WorkloadPut
from app.core.job import JobId
from app.wire import Heartbeat, Incident, JobStatus, WorkloadStatus

BREAKER_ORDER = {"closed": 0, "half-open": 1, "open": 2}


def lag_messages(status: JobStatus) -> int | None:
    """Messages between the commit and the high watermark; None when either is unknown."""
    if status.committed < 0 or status.high_watermark < 0:
        return None
    return max(0, status.high_watermark - status.committed)


def lag_s(status: JobStatus, now_ms: int) -> float | None:
    """Age of the oldest unfinished message; 0 when there is none, None when unknown."""
    if status.oldest_ms >= 0:
        return max(0.0, (now_ms - status.oldest_ms) / 1000)
    return 0.0 if lag_messages(status) == 0 else None


def partition(status: JobStatus, worker: str, held: Assignment | None, now_ms: int) -> dict[str, Any]:
    """One job as the console shows it."""
    job = JobId.parse(status.job)
    return {
        "job": status.job,
        "topic": job.topic,
        "partition": job.partition,
        "worker": worker,
        "epoch": status.epoch,
        "state": status.state,
        "committed": _known(status.committed),
        "fetched": _known(status.fetched),
        "high_watermark": _known(status.high_watermark),
        "lag_messages": lag_messages(status),
        "lag_s": lag_s(status, now_ms),
        "in_flight": status.in_flight,
        "unfinished": status.unfinished,
        "delivered": status.delivered,
        "retried": status.retried,
        "dead_lettered": status.dead_lettered,
        "trouble": status.trouble,
        "reason": held.reason if held else "",
    }


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None


def _sum(values: Iterable[float | int | None]) -> Any:
    """The sum, or None when a part of it is unknown or there is no part."""
    listed = list(values)
    return (
        None
        if not listed or any(value is None for value in listed)
        else sum(v for v in listed if v is not None)
    )


def partitions(
    key: str, state: ControlState, live: Mapping[str, Heartbeat], now_ms: int
) -> list[dict[str, Any]]:
    """Every job of a workload, those without a live owner too."""
    found: dict[str, dict[str, Any]] = {}
    for worker, beat in live.items():
        for status in beat.jobs:
            held = state.assignments.get(status.job)
            if JobId.parse(status.job).name == key and held is not None and held.worker == worker:
                found[status.job] = partition(status, worker, held, now_ms)
    for job, held in state.assignments.items():
        if JobId.parse(job).name == key and job not in found:
            lost = JobStatus(job=job, epoch=held.epoch, state="waiting", trouble="no live worker runs it")
            found[job] = partition(lost, held.worker, held, now_ms)
    return [found[job] for job in sorted(found, key=JobId.parse)]


def workload(
    put: WorkloadPut, state: ControlState, live: Mapping[str, Heartbeat], now_ms: int
) -> dict[str, Any]:
    """One workload as the console shows it; sums over its partitions and retry tiers."""
    jobs = partitions(put.key, state, live, now_ms)
    receivers = [r for beat in live.values() for r in beat.workloads if r.key == put.key]
    metadata = put.definition.get("metadata", {})
    ages = [job["lag_s"] for job in jobs]
    return {
        "key": put.key,
        "group": metadata.get("group"),
        "topic": metadata.get("topic"),
        "cluster": metadata.get("cluster"),
        "owner": metadata.get("owner", ""),
        "etag": put.etag,
        "partitions": len(jobs),
        "lag_messages": _sum(job["lag_messages"] for job in jobs),
        "lag_s": None if not ages or any(age is None for age in ages) else max(ages),
        "in_flight": sum(job["in_flight"] for job in jobs),
        "delivered": sum(job["delivered"] for job in jobs),
        "retried": sum(job["retried"] for job in jobs),
        "dead_lettered": sum(job["dead_lettered"] for job in jobs),
        "breaker": _worst(receivers),
        "held": sum(receiver.held for receiver in receivers),
        "troubles": sorted({job["trouble"] for job in jobs if job["trouble"]}),
    }


def _worst(receivers: Sequence[WorkloadStatus]) -> str:
    return max((r.breaker for r in receivers), key=lambda b: BREAKER_ORDER.get(b, 3), default="unknown")


def workers(
    state: ControlState, heard: Mapping[str, tuple[float, Heartbeat]], live: Iterable[str], now_s: float
) -> list[dict[str, Any]]:
    """Every worker heard lately, the dead too."""
    alive = set(live)
    return [
        {
            "worker": worker,
            "url": beat.url,
            "state": beat.state if worker in alive or beat.state == "stopped" else "dead",
            "silent_s": round(now_s - heard_s, 1),
            "started_ms": beat.started_ms,
            "jobs": len(beat.jobs) if worker in alive else 0,
            "leader": worker == state.leader and worker in alive,
        }
        for worker, (heard_s, beat) in sorted(heard.items())
    ]


def overview(
    region: str,
    state: ControlState,
    heard: Mapping[str, tuple[float, Heartbeat]],
    live: Mapping[str, Heartbeat],
    incidents: Sequence[Incident],
    now_ms: int,
    now_s: float,
) -> dict[str, Any]:
    """Everything the first page shows."""
    listed = [workload(put, state, live, now_ms) for _, put in sorted(state.workloads.items())]
    return {
        "region": region,
        "at_ms": now_ms,
        "term": state.term,
        "leader": state.leader if state.leader in live else None,
        "workers": workers(state, heard, live, now_s),
        "workloads": listed,
        "totals": {
            "workloads": len(listed),
            "workers": len(live),
            "lag_messages": _sum(w["lag_messages"] for w in listed) if listed else 0,
            "in_flight": sum(w["in_flight"] for w in listed),
            "dead_lettered": sum(w["dead_lettered"] for w in listed),
        },
        "incidents": [incident(i) for i in reversed(list(incidents)[-20:])],
    }


def incident(told: Incident) -> dict[str, Any]:
    """An incident as JSON."""
    return {
        "at_ms": told.at_ms,
        "worker": told.worker,
        "kind": told.kind,
        "subject": told.subject,
        "message": told.message,
        "remedy": told.remedy,
    }
