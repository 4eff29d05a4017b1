"""Connects the services of other regions (`app.offsets`) with this worker's routes, jobs and consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from app.controllog.log import ControlLog
from app.controllog.roles import ACTIVE_PASSIVE, MOVING
from app.dispatch.definition import Workload
from app.kafka.data_clusters import DataClusters
from app.offsets.store.tables import RegionAtlas
from app.offsets.sync.group_sync_schedule import PassiveWorkload
from app.offsets.sync.regions import Regions
from app.replicate.definition import RouteDefinition
from app.replicate.model.route import Route
from app.worker.catalog import Catalog
from app.worker.jobs.start_position import ReportIncident


def make_regions(
    atlas: RegionAtlas,
    directory: Path,
    control: ControlLog,
    catalog: Catalog,
    clusters: DataClusters,
    may_act: Callable[[], bool],
    report_incident: ReportIncident,
    passive: Callable[[], Sequence[PassiveWorkload]],
    regions_of: Callable[[Workload], Sequence[str]],
) -> Regions:
    """The region services of a worker; `directory` is the worker's own."""

    def routes() -> dict[str, tuple[RouteDefinition, Route]]:
        found = {}
        for name in list(control.view.routes):
            definition, route = catalog.routes.definition(name), catalog.routes.route(name)
            if definition is not None and route is not None:
                found[name] = definition, route
        return found

    def busy(group: str, cluster: str, topic: str | None) -> str:
        for key in list(control.view.workloads) if topic is None else [f"{group}/{topic}"]:
            if key.startswith(f"{group}/") and (workload := catalog.workloads.workload(key)) is not None:
                metadata = workload.metadata
                if catalog.workloads.runs_here(workload) is False:
                    continue  # another region's: this region keeps its group in step
                if (metadata.group, metadata.cluster) == (group, cluster):
                    return f"workload {key} consumes it there"
        return ""

    def is_active(key: str, region: str) -> bool:
        role = control.view.roles.of(key)
        if role is None:  # not known yet, so it may be active
            return True
        return role.region == region or (role.state == MOVING and role.previous == region)

    def may_come() -> bool:
        workloads = (catalog.workloads.workload(key) for key in list(control.view.workloads))
        return any(
            one.spec.mode == ACTIVE_PASSIVE
            and regions_of(one)
            and catalog.workloads.runs_here(one) is not True
            for one in workloads
            if one is not None
        )

    return Regions(
        atlas,
        clusters,
        directory,
        routes=routes,
        jobs=lambda: list(control.view.assignments),
        busy=busy,
        may_act=may_act,
        report_incident=report_incident,
        is_active=is_active,
        passive=passive,
        regions_of=regions_of,
        may_come=may_come,
    )
