"""A worker's services for other regions: their tables and routes, offset sync, imported progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mode import Service

from app.dispatch.definition import Workload
from app.kernel.clock import now_ms
from app.kernel.incidents import ReportIncident
from app.kernel.json_types import JsonObject
from app.offsets.store.tables import ReadableClusters, RegionAtlas, RegionTables
from app.offsets.sync.group_owners import IsActive
from app.offsets.sync.group_sync_schedule import GroupSyncSchedule, PassiveWorkload, SyncedRoutes
from app.offsets.sync.group_syncer import Busy, GroupSyncer
from app.offsets.sync.mapper import OffsetMapper
from app.offsets.sync.remote_progress import RemoteProgress
from app.offsets.sync.remote_routes import RemoteRoutes


@dataclass(frozen=True, slots=True)
class OwnRoutes:
    """This region's readable routes by name, and all assigned jobs."""

    routes: SyncedRoutes
    jobs: Callable[[], Iterable[str]]


@dataclass(frozen=True, slots=True)
class GroupConsumers:
    """Which workload consumes a group, here and in other regions (`GroupSyncer`)."""

    busy: Busy
    is_active: IsActive = lambda *_: True


@dataclass(frozen=True, slots=True)
class MovingWorkloads:
    """The workloads that move between regions.

    Attributes:
        passive: Those that are passive here.
        regions_of: A workload's regions; none: it does not move.
        may_come: Whether one may become active here (`RemoteProgress`).
    """

    passive: Callable[[], Sequence[PassiveWorkload]] = lambda: ()
    regions_of: Callable[[Workload], Sequence[str]] = lambda _: ()
    may_come: Callable[[], bool] = lambda: False


class Regions(Service):
    """The services, wired to the worker.

    Args:
        directory: The worker's; the store is a folder in it.
        may_act: Whether this worker syncs groups: it leads, and its lease holds.

    `syncer` syncs one group on request, `sync` the groups of routes and of passive workloads.
    """

    def __init__(
        self,
        atlas: RegionAtlas,
        clusters: ReadableClusters,
        directory: Path,
        own: OwnRoutes,
        consumers: GroupConsumers,
        workloads: MovingWorkloads,
        *,
        may_act: Callable[[], bool],
        report_incident: ReportIncident,
    ) -> None:
        super().__init__()
        routes = own.routes
        self.tables = RegionTables(atlas, clusters, directory / "regions")
        self.mapper = OffsetMapper(
            self.tables, clusters, lambda: {name: found for name, (found, _) in routes().items()}, own.jobs
        )
        self.remote_progress = RemoteProgress(
            self.tables, self.mapper, workloads.regions_of, workloads.may_come
        )
        self.syncer = GroupSyncer(self.mapper, clusters, consumers.busy, consumers.is_active)
        self.remote_routes = RemoteRoutes(
            self.tables, clusters,
            lambda: {end for _, route in routes().values() for end in (route.source, route.target)}, may_act,
        )  # fmt: skip
        self.sync = GroupSyncSchedule(
            self.syncer, clusters, routes, may_act, report_incident, workloads.passive
        )

    async def on_start(self) -> None:
        await self.add_runtime_dependency(self.sync)
        await self.add_runtime_dependency(self.remote_routes)
        await self.add_runtime_dependency(self.remote_progress)

    def passive_sync_fields(self, key: str) -> JsonObject | None:
        """A passive workload's offset sync (`PassiveSync`); None: it is not passive here, or another
        worker leads."""
        status = self.sync.passive_status(key)
        if status is None:
            return None
        workload = status.workload
        return {"region": workload.region, "from": workload.source, "to": workload.target,
                "state": status.state, "why": status.why, "lag_s": status.lag_s(now_ms())}  # fmt: skip

    async def on_shutdown(self) -> None:
        await self.tables.close()
