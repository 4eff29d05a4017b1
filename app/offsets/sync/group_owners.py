"""The workload of another region that consumes a group in a cluster, by that region's control log.

It is found also when it is asleep or has committed nothing, so that the cluster does not show it. An
active-passive workload runs in the active region's own cluster, an active-active one in each region's own
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.controllog.events import WorkloadPut
from app.controllog.roles import ACTIVE_PASSIVE
from app.offsets.store.records import RegionStore
from app.offsets.store.tables import RegionTables

IsActive = Callable[[str, str], bool]


class GroupOwners:
    """`is_active(workload, region)`: whether the region has the role, or is about to get or lose it."""

    def __init__(self, tables: RegionTables, is_active: IsActive) -> None:
        self._tables = tables
        self._is_active = is_active

    async def describe_owners(self, group: str, cluster: str, topic: str | None = None) -> str:
        """The workload that consumes the group in the cluster, for people; "": none is known. `topic`: only a
        workload of this topic counts. Call `RegionTables.read` before. Raises NotRead."""
        atlas = self._tables.atlas

        def workloads(store: RegionStore) -> list[tuple[str, WorkloadPut]]:
            return [
                (region, put)
                for region in atlas.regions
                if region != atlas.region
                for _, put in store.definitions(region, WorkloadPut, f"workload/{group}/")
                if topic is None or put.key == f"{group}/{topic}"
            ]

        for region, put in await self._tables.ask(workloads):
            if self._runs(put.key, put.definition, region, cluster):
                return f"workload {put.key} of region {region} consumes it there"
        return ""

    def _runs(self, key: str, definition: Mapping[str, Any], region: str, cluster: str) -> bool:
        metadata, spec = definition.get("metadata"), definition.get("spec")
        if not isinstance(metadata, Mapping) or not isinstance(spec, Mapping):
            return False
        mode = spec.get("mode")
        if mode is None:
            return bool(metadata.get("cluster") == cluster)
        if self._tables.atlas.region_of.get(cluster) != region:
            return False
        return mode != ACTIVE_PASSIVE or self._is_active(key, region)
