"""Which pumps of workloads rest here, without being given back.

Rules
1. Those that an operator has paused (`workload pause`).
2. Those of a cluster that the workload has left: they are about to be closed, and what they began now would
   be delivered there again.
3. Those of a workload that this region does not act for, as far as is known here (`app.control.role_keeper`):
   another one was decided on, or the region lay still and has not heard what was decided. The leader then
   lets them go in order, with what they have finished, or they go on where they were.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.control.catalog import Catalog
from app.control.log import ControlLog
from app.pump.dispatch import DispatchPump


class Pauses:
    """See the module. `pumps`: this worker's, by job."""

    def __init__(self, control: ControlLog, catalog: Catalog, pumps: Mapping[str, DispatchPump]) -> None:
        self._control = control
        self._catalog = catalog
        self._pumps = pumps

    def look(self) -> None:
        """Pauses what is to rest by what is known now, and lets the others go on."""
        acts: dict[str, bool] = {}
        for pump in self._pumps.values():
            key = pump.job.name
            if key not in acts:
                acts[key] = self._acts_for(key)
            self._set(pump, acts=acts[key])

    def begin(self, pump: DispatchPump) -> None:
        """The same, of one that begins."""
        self._set(pump, acts=self._acts_for(pump.job.name))

    def _acts_for(self, key: str) -> bool:
        """Rule 3; what is not known stays as it is."""
        defined = self._catalog.workload(key)
        return defined is None or self._catalog.runs_here(defined) is not False

    def _set(self, pump: DispatchPump, *, acts: bool) -> None:
        runs, defined = pump.runtime.workload, self._catalog.workload(pump.job.name)
        partition = pump.job.partition if pump.job.topic == runs.metadata.topic else None
        left = defined is not None and defined.metadata.cluster != runs.metadata.cluster
        pump.pause(left or not acts or self._control.view.is_paused(pump.job.name, partition))
