"""Decides which pumps of workloads pause on this worker while it keeps their jobs.

Rules (tests/dispatch/jobs/test_pause_controller.py)
1. A pump pauses while an operator has paused it (`workload pause`).
2. A pump on a cluster that its workload has left pauses until it is closed: its messages would be delivered
   again in the new cluster.
3. A pump pauses while this region does not act for its workload, as far as this worker knows. Either another
   region has the role, or this region was down and does not know the present role yet
   (`app.failover.run.role_keeper`). The leader then takes the jobs away in order, with their progress, or
   they continue.
4. If an error prevents the decision, the pump pauses and an incident is reported. Other pumps continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import structlog

from app.controllog.log import ControlLog
from app.controllog.roles import ACTIVE
from app.dispatch.definition import Workload
from app.dispatch.model.throughput_diagnosis import RESTS
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.topics.catalog import WorkloadsCatalog
from app.kernel.incidents import ReportIncident
from app.kernel.troubles import TroubleSource

log = structlog.get_logger(__name__)


class _Known(NamedTuple):
    """A workload's definition, and why it pauses by rule 3."""

    defined: Workload | None
    why_passive: str


class PauseController:
    """Applies the rules to `pumps` of this worker, by job."""

    def __init__(
        self,
        control: ControlLog,
        catalog: WorkloadsCatalog,
        pumps: Mapping[str, DispatchPump],
        report_incident: ReportIncident,
    ) -> None:
        self._control = control
        self._catalog = catalog
        self._pumps = pumps
        self._failing: set[str] = set()  # jobs (rule 4)
        self._report_incident = report_incident

    def reconcile(self) -> None:
        """Pauses and resumes all pumps by what the worker knows now."""
        known: dict[str, _Known] = {}
        self._failing &= self._pumps.keys()
        for pump in self._pumps.values():
            self._decide(pump, known)

    def attach(self, pump: DispatchPump) -> None:
        """Pauses a pump that begins, if it must pause."""
        self._decide(pump, {})

    def _decide(self, pump: DispatchPump, known: dict[str, _Known]) -> None:
        """Pauses or resumes one pump. `known`: of the workloads of pumps that were decided before."""
        job, key = str(pump.job), pump.job.name
        try:
            if key not in known:
                known[key] = _Known(self._catalog.workload(key), self._why_passive(key))
            self._set(pump, known[key])
        except Exception as error:
            _rest(pump, "this worker cannot determine whether to pause it, see its log")
            if job not in self._failing:
                self._failing.add(job)
                log.exception("a job pauses, because an error prevented the decision", job=job)
                self._report_incident(
                    "workload-trouble", key,
                    f"{job} pauses, because this worker cannot determine whether it must: {error!r}",
                    "deploy the workload again; if it stays paused, report a bug with this worker's log",
                    lambda: job not in self._failing,
                )  # fmt: skip
        else:
            self._failing.discard(job)

    def _why_passive(self, key: str) -> str:
        """Why the workload pauses by rule 3; "": this region acts, or the worker does not know of it."""
        defined = self._catalog.workload(key)
        if defined is None or self._catalog.runs_here(defined) is not False:
            return ""
        here, role = self._catalog.sender_role(defined), self._control.view.roles.of(key)
        if role is None or here is None:
            return "this region does not act for it, see failover status"
        if role.region == here.region and role.state == ACTIVE:
            return f"region {here.region} has just returned, see failover status"
        return f"region {role.region} has it (epoch {role.epoch}, {role.state}), see failover status"

    def _set(self, pump: DispatchPump, known: _Known) -> None:
        runs, (defined, why) = pump.runtime.settings.workload, known
        if defined is not None and defined.metadata.cluster != runs.metadata.cluster:
            why = f"the workload has left cluster {runs.metadata.cluster} for {defined.metadata.cluster}"
        if why:
            _rest(pump, why)
            return
        _show(pump, "")
        partition = pump.job.partition if pump.job.topic == runs.metadata.topic else None
        pump.pause(self._control.view.is_paused(pump.job.name, partition))


def _rest(pump: DispatchPump, why: str) -> None:
    """Pauses the pump by a rule other than the first, so that no operator can resume it."""
    pump.pause(True)
    _show(pump, f"{RESTS}{why}")


def _show(pump: DispatchPump, trouble: str) -> None:
    for part in (pump, pump.backlog.pump) if pump.backlog is not None else (pump,):
        part.troubles.show(TroubleSource.PAUSE, trouble)
