"""What a worker's heartbeat says of its jobs and of the receivers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from app.control.leftovers import is_left
from app.core.control import Assignment
from app.pump.dispatch import DispatchPump
from app.pump.workload import WorkloadRuntime
from app.wire import JobStatus, WorkloadStatus

MAX_TROUBLE_CHARS = 500  # in every heartbeat
EMPTYING = "its retry tier is no longer defined: what waits here is delivered, then the job ends"


def job_statuses(
    pumps: Iterable[DispatchPump], mine: Mapping[str, Assignment], troubles: Mapping[str, str]
) -> list[JobStatus]:
    """Every job of the worker; `troubles` says what keeps those without a pump from starting."""
    found = {str(pump.job): _status(pump) for pump in pumps}
    for job, held in mine.items():
        if job not in found:
            trouble = troubles.get(job, "")[:MAX_TROUBLE_CHARS]
            found[job] = JobStatus(job=job, epoch=held.epoch, state="starting", trouble=trouble)
    return list(found.values())


def _status(pump: DispatchPump) -> JobStatus:
    status = pump.status()
    if status.state == "flowing" and is_left(pump.runtime.workload, pump.job.topic):
        status = msgspec.structs.replace(status, state="emptying", trouble=status.trouble or EMPTYING)
    if len(status.trouble) > MAX_TROUBLE_CHARS:
        status = msgspec.structs.replace(status, trouble=status.trouble[:MAX_TROUBLE_CHARS])
    return status


def workload_statuses(runtimes: Mapping[str, WorkloadRuntime]) -> list[WorkloadStatus]:
    """The receivers as seen from here."""
    return [
        WorkloadStatus(
            key=key,
            breaker=str(runtime.link.breaker.state),
            in_flight=runtime.in_flight,
            limit=runtime.link.limit,
            held=len(runtime.link.held),
        )
        for key, runtime in runtimes.items()
    ]
