"""Connects the services of other regions (`app.offsets`) with this worker's routes, jobs and consumers."""

from __future__ import annotations

from pathlib import Path

from app.controllog.log import ControlLog
from app.controllog.roles import ACTIVE_PASSIVE, MOVING
from app.failover.run.participant import FailoverParticipant
from app.kafka.data_clusters import DataClusters
from app.kernel.incidents import ReportIncident
from app.offsets.store.tables import RegionAtlas
from app.offsets.sync.regions import GroupConsumers, MovingWorkloads, OwnRoutes, Regions
from app.worker.members.leadership import Leadership
from app.worker.readable_definitions import ReadableDefinitions


def make_regions(
    atlas: RegionAtlas,
    directory: Path,
    control: ControlLog,
    definitions: ReadableDefinitions,
    clusters: DataClusters,
    failover: FailoverParticipant,
    leadership: Leadership,
    report_incident: ReportIncident,
) -> Regions:
    """The region services of a worker; `directory` is the worker's own."""
    keeper, regions_of = failover.keeper, failover.derived_routes.regions_of

    def busy(group: str, cluster: str, topic: str | None) -> str:
        for key in list(control.view.workloads) if topic is None else [f"{group}/{topic}"]:
            if key.startswith(f"{group}/") and (workload := definitions.workloads.get(key)) is not None:
                metadata = workload.metadata
                if keeper.runs_here(workload) is False:
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
        workloads = (definitions.workloads.get(key) for key in list(control.view.workloads))
        return any(
            one.spec.mode == ACTIVE_PASSIVE and regions_of(one) and keeper.runs_here(one) is not True
            for one in workloads
            if one is not None
        )

    return Regions(
        atlas,
        clusters,
        directory,
        OwnRoutes(definitions.routes.all, lambda: list(control.view.assignments)),
        GroupConsumers(busy, is_active),
        MovingWorkloads(keeper.passive, regions_of, may_come),
        may_act=leadership.may_lead,
        report_incident=report_incident,
    )
