"""What other regions copy, and which cluster is which: so that routes do not loop across regions.

Rules
1. Other regions' routes are read in the copies of their control logs (`app.offsets.store.tables`): as far as
   they are known, and as they were. The leader looks every `LOOK_S`, whoever is asked to define a route then.
2. The id of a cluster that routes here name is what it says, or said when it was heard last; that of another
   region's, what the lines of the route say. `app.replicate.definition_checks.beside_of` has the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog import codec
from app.controllog.events import RoutePut
from app.kafka.client.cluster import ClusterUnreachable
from app.offsets.store.records import ROUTES, Store
from app.offsets.store.tables import Clusters, NotRead, Tables
from app.replicate.definition_checks import Elsewhere, beside_of
from app.replicate.model.copy_graph import ALONE, Beside

log = structlog.get_logger(__name__)

LOOK_S = 20.0
READ_S = 5.0


class Others(Service):
    """See the module. `beside`: as of the last look.

    Args:
        ends: the clusters that this region's routes name. may_act: whether this worker leads.
    """

    def __init__(
        self,
        tables: Tables,
        clusters: Clusters,
        ends: Callable[[], Collection[str]],
        may_act: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.beside = ALONE
        self.ids: dict[str, str] = {}
        self.routes: list[Elsewhere] = []
        self._tables = tables
        self._clusters = clusters
        self._ends = ends
        self._may_act = may_act

    @Service.task
    async def _rounds(self) -> None:
        while not self.should_stop:
            if self._may_act() and self._ends() and len(self._tables.atlas.regions) > 1:
                try:
                    await self.look()
                except Exception:
                    log.exception("other regions' routes could not be read, and are read again")
            await self.sleep(LOOK_S)

    async def look(self, also: Collection[str] = ()) -> Beside:
        """What is known now; `also` are clusters that a new route names. Never waits long."""
        tables, atlas = self._tables, self._tables.atlas
        names = {*self._ends(), *also} & self._clusters.specs.keys()
        await asyncio.gather(*(tables.reach(name) for name in names), return_exceptions=True)
        others = [region for region in atlas.regions if region != atlas.region]
        if others:
            try:
                await tables.read(READ_S, (ROUTES,))
            except (NotRead, ClusterUnreachable, KafkaError, OSError) as error:
                log.warning("other regions' routes are known as they were", error=str(error))

        def asked(store: Store) -> tuple[dict[str, str], list[Elsewhere]]:
            ids = {name: store.named(name) for name in sorted(self._clusters.specs)}
            return ids, [found for region in others for found in _routes(store, region)]

        try:
            self.ids, self.routes = await tables.ask(asked)
        except NotRead as error:
            log.warning("other regions' routes are known as they were", error=str(error))
        else:
            self.beside = await asyncio.to_thread(beside_of, self.ids, self.routes)
        return self.beside


def _routes(store: Store, region: str) -> list[Elsewhere]:
    found = []
    for key, value in store.records(ROUTES, region, "route/"):
        try:
            put = codec.control_event(value)
        except codec.BadEvent:
            continue
        if isinstance(put, RoutePut):
            name = key.removeprefix("route/")
            ids = [store.cluster_of(region, name, target=target) for target in (False, True)]
            found.append(Elsewhere(region, put.definition, *ids))
    return found
