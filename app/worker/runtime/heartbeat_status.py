"""The status of a worker's jobs in its heartbeat, and of the workloads that have a problem as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Never

import msgspec

from app.controllog.codec import JobStatus, WorkloadTrouble
from app.controllog.events import Assignment
from app.kernel.load import Load
from app.kernel.rates import JobRates

MAX_TROUBLE_CHARS = 800  # in every heartbeat
MAX_TROUBLES = 1_000  # in every heartbeat, of workloads
UNMEASURED: Mapping[str, Never] = {}


def job_statuses(
    statuses: Iterable[JobStatus],
    mine: Mapping[str, Assignment],
    troubles: Mapping[str, str],
    loads: Mapping[str, Load] = UNMEASURED,
    rates: Mapping[str, JobRates] = UNMEASURED,
) -> list[JobStatus]:
    """Every job of the worker. `statuses`: of those with a pump; `troubles`: job -> why it has none yet."""
    found = {
        status.job: _measured(_shortened(status), loads.get(status.job), rates.get(status.job))
        for status in statuses
    }
    for job, held in mine.items():
        if job not in found:
            trouble = troubles.get(job, "")[:MAX_TROUBLE_CHARS]
            found[job] = JobStatus(job=job, epoch=held.epoch, state="starting", trouble=trouble)
    return list(found.values())


def _measured(status: JobStatus, load: Load | None, rate: JobRates | None) -> JobStatus:
    if load is None and rate is None:
        return status
    arriving, ceiling, copying = status.arriving, status.ceiling, status.copying
    if rate is not None:
        arriving, ceiling = _rate(rate.arriving), _rate(rate.ceiling)
        copying = copying and msgspec.structs.replace(copying, rate=_rate(rate.finishing))
    return msgspec.structs.replace(status, load=load, arriving=arriving, ceiling=ceiling, copying=copying)


def _rate(per_s: float | None) -> float:
    return -1 if per_s is None else round(per_s, 2)


def _shortened(status: JobStatus) -> JobStatus:
    if len(status.trouble) > MAX_TROUBLE_CHARS:
        status = msgspec.structs.replace(status, trouble=status.trouble[:MAX_TROUBLE_CHARS])
    copying = status.copying
    if copying is not None and len(copying.halted) > MAX_TROUBLE_CHARS:
        copying = msgspec.structs.replace(copying, halted=copying.halted[:MAX_TROUBLE_CHARS])
        status = msgspec.structs.replace(status, copying=copying)
    return status


def workload_troubles(troubles: Mapping[str, str]) -> list[WorkloadTrouble]:
    some = sorted(troubles.items())[:MAX_TROUBLES]
    return [WorkloadTrouble(key=key, why=why[:MAX_TROUBLE_CHARS]) for key, why in some]
