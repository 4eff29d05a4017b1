"""Which pumps of workloads rest here, without being given back.

Rules
1. Those that an operator has paused (`workload pause`).
2. Those of a cluster that the workload has left: they are about to be closed, and what they began now would
   be delivered there again.
3. Those of a workload that this region does not act for, as far as is known here
   (`app.failover.run.role_keeper`): another one was decided on, or the region lay still and has not heard
   what was decided. The leader then lets them go in order, with what they have finished, or they go on where
   they were.
4. One of which that cannot be found out, for whatever reason. It is told, and the others do not suffer by it.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from app.controllog.log import ControlLog
from app.controllog.roles import ACTIVE
from app.dispatch.model.throughput_diagnosis import RESTS
from app.dispatch.pump.partition import DispatchPump
from app.worker.catalog import Catalog
from app.worker.jobs.start_position import ReportIncident

log = structlog.get_logger(__name__)


class PauseController:
    """See the module. `pumps`: this worker's, by job. `report_incident` may be set: to whom troubles are
    told."""

    def __init__(self, control: ControlLog, catalog: Catalog, pumps: Mapping[str, DispatchPump]) -> None:
        self._control = control
        self._catalog = catalog
        self._pumps = pumps
        self._failing: set[str] = set()  # jobs (rule 4)
        self.report_incident: ReportIncident = lambda *_: None

    def reconcile(self) -> None:
        """Pauses what is to rest by what is known now, and lets the others go on."""
        why: dict[str, str] = {}
        self._failing &= self._pumps.keys()
        for job, pump in self._pumps.items():
            key = pump.job.name
            try:
                if key not in why:
                    why[key] = self._why_passive(key)
                self._set(pump, why[key])
            except Exception as error:
                _rest(pump, "whether it is to rest cannot be found out, see this worker's log")
                if job not in self._failing:
                    self._failing.add(job)
                    log.exception("whether a job is to rest cannot be found out: it rests", job=job)
                    self.report_incident(
                        "workload-trouble", key, f"{job} rests; whether it is to is not known: {error!r}",
                        "deploy the workload again; if it stays so, report it with this worker's log",
                    )  # fmt: skip
            else:
                self._failing.discard(job)

    def attach(self, pump: DispatchPump) -> None:
        """The same, of one that begins."""
        self._set(pump, self._why_passive(pump.job.name))

    def _why_passive(self, key: str) -> str:
        """Rule 3; "" of what acts, and of what is not known: that stays as it is."""
        defined = self._catalog.workload(key)
        if defined is None or self._catalog.runs_here(defined) is not False:
            return ""
        here, role = self._catalog.sender_role(defined), self._control.view.roles.of(key)
        if role is None or here is None:
            return "this region does not act for it, see failover status"
        if role.region == here.region and role.state == ACTIVE:
            return f"region {here.region} has just returned, see failover status"
        return f"region {role.region} has it (epoch {role.epoch}, {role.state}), see failover status"

    def _set(self, pump: DispatchPump, why_passive: str) -> None:
        runs, defined = pump.runtime.workload, self._catalog.workload(pump.job.name)
        why = why_passive
        if defined is not None and defined.metadata.cluster != runs.metadata.cluster:
            why = f"the workload has left cluster {runs.metadata.cluster} for {defined.metadata.cluster}"
        if why:
            _rest(pump, why)
            return
        _show_trouble(pump, "")
        partition = pump.job.partition if pump.job.topic == runs.metadata.topic else None
        pump.pause(self._control.view.is_paused(pump.job.name, partition))


def _rest(pump: DispatchPump, why: str) -> None:
    """Pauses it by another rule than the first: no operator can have it go on."""
    pump.pause(True)
    _show_trouble(pump, f"{RESTS}{why}")


def _show_trouble(pump: DispatchPump, trouble: str) -> None:
    """With the job's status; another trouble that it has stays."""
    for one in (pump, pump.backlog.pump) if pump.backlog is not None else (pump,):
        if not one.trouble or one.trouble.startswith(RESTS):
            one.trouble = trouble
