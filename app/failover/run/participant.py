"""A region's part in failing over: definitions, roles, and what is heard of other regions, joined.

The leader makes a `step` with each of its rounds. Everybody asks `keeper` what runs here, and what receivers
are told; `runs` move roles as somebody has planned it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from mode import Service

from app.controllog.events import RolePut
from app.controllog.log import ControlLog
from app.dispatch.definition import Workload
from app.failover.run.derived_routes import DerivedRoutes
from app.failover.run.presence import Presence
from app.failover.run.region_bridge import RegionBridge
from app.failover.run.role_keeper import RoleKeeper
from app.failover.run.runner import FailoverRuns
from app.failover.topology import Layout
from app.kafka.client.cluster import ClusterClient
from app.kernel.clock import now_ms
from app.worker.jobs.start_position import ReportIncident


class FailoverParticipant(Service):
    """See the module. `leads`: whether this worker does; `on_news`: makes a round of the leader's soon;
    `presence`, `live`: see `RoleKeeper`."""

    def __init__(
        self,
        control: ControlLog,
        client: ClusterClient,
        kafka_options: dict[str, Any],
        layout: Layout | None,
        workload: Callable[[str], Workload | None],
        *,
        leads: Callable[[], bool],
        on_news: Callable[[], None],
        report_incident: ReportIncident,
        presence: Presence,
        live: Callable[[], Collection[str]] = tuple,
    ) -> None:
        super().__init__()
        self._control = control
        self.on_news = on_news
        self.derived_routes = DerivedRoutes(control, layout, report_incident)
        self.bridge = RegionBridge(
            client,
            kafka_options,
            lambda: self.derived_routes.others() if leads() else set(),
            on_news,
            report_incident,
        )
        self.keeper = RoleKeeper(
            control, self.derived_routes, self.bridge, workload, report_incident, presence=presence, live=live
        )
        self.runs = FailoverRuns(
            control, self.derived_routes, self.keeper, workload, report_incident, on_news
        )

    async def on_start(self) -> None:
        await self.add_runtime_dependency(self.bridge)

    async def on_stop(self) -> None:
        await self.runs.stop()

    async def step(self) -> None:
        """The leader's: writes what is to be written. Raises KafkaError, TimeoutError."""
        now_s = time.monotonic()
        events = [*self.derived_routes.steps(), *self.keeper.steps(now_s), *self.runs.steps(now_s)]
        if events:
            await self._control.append(*events)
        if any(isinstance(event, RolePut) for event in events):
            self.on_news()  # jobs come or go with the next round, and that is at once

    def last_pulse_ms(self) -> dict[str, int]:
        """Region -> when a pulse of it came here last, by this worker's clock. The leader knows it by itself,
        the others by what it wrote: if its clock is ahead of theirs, it is at least what it was then."""
        at_ms, own = now_ms(), self._control.view.pulses.get(self.keeper.own)
        told = {} if own is None else own.heard
        heard = {region: min(ms, at_ms - (own.at_ms - ms)) for region, ms in told.items() if own is not None}
        for region in self.bridge.pulses:
            if (age_s := self.bridge.age_s(region)) is not None:
                heard[region] = at_ms - round(age_s * 1000)
        return heard
