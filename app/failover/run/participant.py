"""A region's part in failovers: joins derived routes, roles, failover runs, and the reports of other regions.

Every worker reads from `keeper` what runs here and which role receivers learn. The leader also calls `step`
in each of its rounds, and `runs` moves roles as planned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from mode import Service

from app.controllog.events import RolePut
from app.controllog.log import ControlLog
from app.dispatch.definition import Workload
from app.failover.run.derived_routes import DerivedRoutes
from app.failover.run.presence import Presence
from app.failover.run.region_bridge import RegionBridge
from app.failover.run.role_keeper import RoleKeeper
from app.failover.run.runner import Arrived, FailoverRuns
from app.failover.topology import Layout
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.cluster import ClusterClient
from app.kernel.clock import now_ms
from app.kernel.incidents import ReportIncident


@dataclass(frozen=True, slots=True)
class FailoverPorts:
    """What failovers need of the worker.

    Attributes:
        leads: Whether this worker is the leader.
        on_news: Starts a round of the leader soon.
        arrived: As for `FailoverRuns`.
    """

    leads: Callable[[], bool]
    on_news: Callable[[], None]
    report_incident: ReportIncident
    arrived: Arrived | None = None


class FailoverParticipant(Service):
    """Joins the parts, and writes their events. `presence` and `live` are as for `RoleKeeper`."""

    def __init__(
        self,
        control: ControlLog,
        client: ClusterClient,
        kafka_options: ClientOptions,
        layout: Layout | None,
        workload: Callable[[str], Workload | None],
        ports: FailoverPorts,
        *,
        presence: Presence,
        live: Callable[[], Collection[str]] = tuple,
    ) -> None:
        super().__init__()
        self._control = control
        self.on_news = ports.on_news
        report_incident = ports.report_incident
        self.derived_routes = DerivedRoutes(control, layout, report_incident)
        self.bridge = RegionBridge(
            client,
            kafka_options,
            lambda: self.derived_routes.others() if ports.leads() else set(),
            ports.on_news,
            report_incident,
        )
        self.keeper = RoleKeeper(
            control, self.derived_routes, self.bridge, workload, report_incident, presence=presence, live=live
        )
        self.runs = FailoverRuns(
            control,
            self.derived_routes,
            self.keeper,
            workload,
            report_incident,
            ports.on_news,
            ports.arrived,
        )

    async def on_start(self) -> None:
        await self.add_runtime_dependency(self.bridge)

    async def on_stop(self) -> None:
        await self.runs.stop()

    async def step(self) -> None:
        """The leader's step: appends the events that are due. Raises KafkaError, TimeoutError."""
        now_s = time.monotonic()
        events = [*self.derived_routes.steps(), *self.keeper.steps(now_s), *self.runs.steps(now_s)]
        if events:
            await self._control.append(*events)
        if any(isinstance(event, RolePut) for event in events):
            self.on_news()  # the next round places or stops jobs, so it begins at once

    def last_pulse_ms(self) -> dict[str, int]:
        """Region -> when its last pulse arrived here, by this worker's clock.

        The leader measures it. Other workers compute it from the leader's last pulse. If the leader's clock
        is ahead of theirs, they report at least the age at that pulse.
        """
        at_ms, own = now_ms(), self._control.view.pulses.get(self.keeper.own)
        pulses = {} if own is None else own.heard
        heard = {
            region: min(ms, at_ms - (own.at_ms - ms)) for region, ms in pulses.items() if own is not None
        }
        for region in self.bridge.pulses:
            if (age_s := self.bridge.age_s(region)) is not None:
                heard[region] = at_ms - round(age_s * 1000)
        return heard
