"""What a worker does about other regions: the offset map of all of them, and groups kept in step by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mode import Service

from app.dispatch.definition import Workload
from app.kernel.clock import now_ms
from app.offsets.store.tables import ReadableClusters, RegionAtlas, RegionTables
from app.offsets.sync.group_owners import IsActive
from app.offsets.sync.group_sync_schedule import (
    GroupSyncSchedule,
    PassiveWorkload,
    ReportIncident,
    SyncedRoutes,
)
from app.offsets.sync.group_syncer import Busy, GroupSyncer
from app.offsets.sync.mapper import OffsetMapper
from app.offsets.sync.remote_progress import RemoteProgress
from app.offsets.sync.remote_routes import RemoteRoutes


class Regions(Service):
    """See the module.

    Args:
        directory: of this worker; the store is a folder of it.
        routes: this region's that can be read, by name. jobs: all that are assigned.
        busy, is_active: who consumes a group (`GroupSyncer`).
        may_act: whether this worker keeps groups in step: the leader, while its lease holds.
        passive: workloads that are passive here.
        regions_of, may_come: the regions of a workload, and whether one may come here (`RemoteProgress`).

    Attributes: `tables`, `mapper`, `remote_routes` (routes of other regions), `syncer`
        (one group, when somebody asks), `sync` (routes' groups, and those of passive workloads),
        `remote_progress` (what other regions' readers have finished).
    """

    def __init__(
        self,
        atlas: RegionAtlas,
        clusters: ReadableClusters,
        directory: Path,
        *,
        routes: SyncedRoutes,
        jobs: Callable[[], Iterable[str]],
        busy: Busy,
        may_act: Callable[[], bool],
        report_incident: ReportIncident,
        is_active: IsActive = lambda *_: True,
        passive: Callable[[], Sequence[PassiveWorkload]] = lambda: (),
        regions_of: Callable[[Workload], Sequence[str]] = lambda _: (),
        may_come: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.tables = RegionTables(atlas, clusters, directory / "regions")
        self.mapper = OffsetMapper(
            self.tables, clusters, lambda: {name: found for name, (found, _) in routes().items()}, jobs
        )
        self.remote_progress = RemoteProgress(self.tables, self.mapper, regions_of, may_come)
        self.syncer = GroupSyncer(self.mapper, clusters, busy, is_active)
        self.remote_routes = RemoteRoutes(
            self.tables, clusters,
            lambda: {end for _, route in routes().values() for end in (route.source, route.target)}, may_act,
        )  # fmt: skip
        self.sync = GroupSyncSchedule(self.syncer, clusters, routes, may_act, report_incident, passive)

    async def on_start(self) -> None:
        await self.add_runtime_dependency(self.sync)
        await self.add_runtime_dependency(self.remote_routes)
        await self.add_runtime_dependency(self.remote_progress)

    def passive_sync_fields(self, key: str) -> dict[str, Any] | None:
        """How the positions of a workload that is passive here follow the active region's, for people
        (`PassiveSyncStatus`; lag_s: how long ago they were in step); None: it is not passive here, or this
        worker does not lead."""
        told = self.sync.passive_status(key)
        if told is None:
            return None
        of = {"region": told.of.region, "from": told.of.source, "to": told.of.target}
        return {**of, "state": told.state, "why": told.why, "lag_s": told.lag_s(now_ms())}

    async def on_shutdown(self) -> None:
        """Once nobody asks any more."""
        await self.tables.close()
