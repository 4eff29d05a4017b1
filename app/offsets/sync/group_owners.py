"""The workload of another region that consumes a group in a cluster, by that region's control log.

It is found also when it is asleep or has committed nothing, so that the cluster does not show it. An
active-passive workload runs in the active region's own cluster, an active-active one in each region's own
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.controllog.events import WorkloadPut
from app.controllog.roles import ACTIVE_PASSIVE
from app.offsets.store.records import RegionStore
from app.offsets.store.tables import RegionAtlas, RegionTables

IsActive = Callable[[str, str], bool]  # workload and region: it has the role, or is about to get or lose it


async def describe_owner(
    tables: RegionTables, is_active: IsActive, group: str, cluster: str, topic: str | None
) -> str:
    """The workload that consumes the group in the cluster, for people; "": none is known. `topic`: only a
    workload of this topic counts. Call `RegionTables.read` before. Raises NotRead."""
    atlas = tables.atlas

    def workloads(store: RegionStore) -> list[tuple[str, WorkloadPut]]:
        return [
            (region, put)
            for region in atlas.regions
            if region != atlas.region
            for _, put in store.definitions(region, WorkloadPut, f"workload/{group}/")
            if topic is None or put.key == f"{group}/{topic}"
        ]

    for region, put in await tables.ask(workloads):
        if _runs(put, region, cluster, atlas, is_active):
            return f"workload {put.key} of region {region} consumes it there"
    return ""


def _runs(put: WorkloadPut, region: str, cluster: str, atlas: RegionAtlas, is_active: IsActive) -> bool:
    metadata, spec = put.definition.get("metadata"), put.definition.get("spec")
    if not isinstance(metadata, Mapping) or not isinstance(spec, Mapping):
        return False
    mode = spec.get("mode")
    if mode is None:
        return bool(metadata.get("cluster") == cluster)
    if atlas.region_of.get(cluster) != region:
        return False
    return mode != ACTIVE_PASSIVE or is_active(put.key, region)
