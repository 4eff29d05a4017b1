"""Routes of other regions and the ids of clusters, so that routes do not form loops across regions.

Rules
1. Routes of other regions come from the copies of their control logs (`app.offsets.store.tables`). A copy
   that cannot be read keeps its last known routes. The leader reads them every `REMOTE_ROUTES_INTERVAL_S`;
   a worker that defines a route reads them at once.
2. A cluster named by a route here has the id with which it answers, or last answered. A cluster named by
   another region's route has the id in the lines of that route.
   `app.replicate.definition_checks.beside_of` has the remaining rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog.events import RoutePut
from app.kafka.client.cluster import ClusterUnreachable
from app.offsets.store.records import ROUTES, RegionStore
from app.offsets.store.tables import NotRead, ReadableClusters, RegionTables
from app.replicate.definition_checks import RemoteRoute, beside_of
from app.replicate.model.copy_graph import ALONE, OtherRegions

log = structlog.get_logger(__name__)

REMOTE_ROUTES_INTERVAL_S = 20.0
ROUTES_READ_TIMEOUT_S = 5.0


class RemoteRoutes(Service):
    """The routes of other regions, as last read. `ends`: the clusters that this region's routes name."""

    def __init__(
        self,
        tables: RegionTables,
        clusters: ReadableClusters,
        ends: Callable[[], Collection[str]],
        may_act: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.other_regions = ALONE
        self.ids: dict[str, str] = {}
        self.routes: list[RemoteRoute] = []
        self._tables = tables
        self._clusters = clusters
        self._ends = ends
        self._may_act = may_act

    @Service.task
    async def _rounds(self) -> None:
        while not self.should_stop:
            if self._may_act() and self._ends() and len(self._tables.atlas.regions) > 1:
                try:
                    await self.refresh()
                except Exception:
                    log.exception("reading other regions' routes failed; the next round tries again")
            await self.sleep(REMOTE_ROUTES_INTERVAL_S)

    async def refresh(self, also: Collection[str] = ()) -> OtherRegions:
        """Reads the routes and ids again; `also`: clusters that a new route names. Never waits long."""
        tables, atlas = self._tables, self._tables.atlas
        names = {*self._ends(), *also} & self._clusters.specs.keys()
        await asyncio.gather(*(tables.reach(name) for name in names), return_exceptions=True)
        others = [region for region in atlas.regions if region != atlas.region]
        if others:
            try:
                await tables.read(ROUTES_READ_TIMEOUT_S, (ROUTES,))
            except (NotRead, ClusterUnreachable, KafkaError, OSError) as error:
                log.warning("other regions' routes cannot be read; the last ones count", error=str(error))

        def known(store: RegionStore) -> tuple[dict[str, str], list[RemoteRoute]]:
            ids = {name: store.cluster_id(name) for name in sorted(self._clusters.specs)}
            return ids, [found for region in others for found in _routes(store, region)]

        try:
            self.ids, self.routes = await tables.ask(known)
        except NotRead as error:
            log.warning("other regions' routes cannot be read; the last ones count", error=str(error))
        else:
            self.other_regions = await asyncio.to_thread(beside_of, self.ids, self.routes)
        return self.other_regions


def _routes(store: RegionStore, region: str) -> list[RemoteRoute]:
    found = []
    for key, put in store.definitions(region, RoutePut, "route/"):
        name = key.removeprefix("route/")
        ids = [store.cluster_of(region, name, target=target) for target in (False, True)]
        found.append(RemoteRoute(region, put.definition, *ids))
    return found
