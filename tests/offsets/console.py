"""A console over real clusters, with a copied topic, a group and their offset map."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from app.kafka.data_clusters import DataClusters
from app.offsets.sync.group_sync_schedule import PassiveWorkload, SyncedGroups
from app.offsets.sync.group_syncer import GroupOutcome
from app.offsets.sync.regions import GroupConsumers, MovingWorkloads, OwnRoutes, Regions
from tests.offsets.clusters import HERE, THERE, a_line, regions
from tests.offsets.clusters import Regions as TwoRegions
from tests.web.runtime_fake import FakeRuntime, put_route, route, serving

BARRIERS = [(n, n + 10) for n in range(0, 101, 10)]


class Clusters(DataClusters):
    """Clusters that run in the server's loop, and are stopped there."""

    loop: asyncio.AbstractEventLoop | None = None

    async def get(self, name: str) -> Any:
        self.loop = asyncio.get_running_loop()
        return await super().get(name)


@dataclass
class Served:
    """A console. The group is at 55 of the only partition; the copy lies ten offsets further on."""

    url: str
    fed: FakeRuntime
    topic: str
    group: str
    regions: TwoRegions


@contextmanager
def served(yard: Yard, path: Path, topic: str) -> Iterator[Served]:
    """Serves the console. Route `mirror` syncs groups, and workload p/t is passive."""
    group = f"g-{topic}"

    async def prepare() -> Any:
        async with regions(yard, path) as rig:
            for cluster, count in ((HERE, 100), (THERE, 110)):
                await rig.make(cluster, topic, 1)
                await rig.values(cluster, topic, 0, *(b"%d" % n for n in range(count)))
            ids = [await rig.log_id(cluster, topic) for cluster in (HERE, THERE)]
            await rig.make(
                HERE, ControlTopics(rig.other).control.name, 1
            )  # the copy of the other region's control log
            line = a_line(*ids, topic, 0, *BARRIERS)
            await rig.send(HERE, rig.topic(rig.own), {f"mirror/{topic}/0".encode(): line})
            committer = (await rig.clusters.get(HERE)).committer
            assert await committer.commit(group, {(topic, 0): 55}) == {}
            return rig

    rig = asyncio.run(prepare())
    fed = FakeRuntime()
    clusters = Clusters(rig.clusters.specs, rig.clusters._deliver, rig.clusters.budget)
    fed.clusters = clusters  # type: ignore[assignment]
    fed.apply(put_route(route("mirror", HERE, THERE, topic)))
    fed.regions = Regions(
        rig.atlas,
        clusters,
        path,
        OwnRoutes(routes=dict, jobs=list),
        GroupConsumers(busy=lambda *_: ""),
        MovingWorkloads(),
        may_act=lambda: False,
        report_incident=lambda *_: None,
    )
    kept = SyncedGroups("mirror", HERE, THERE, good_ms={"a": 5}, took_s=0.5, rounds=3)
    kept.outcomes = {"a": GroupOutcome("a", "unchanged", 5), "b": GroupOutcome("b", "refused", 5, "behind")}
    broken = SyncedGroups("other", HERE, THERE, error="it does not answer")
    fed.regions.sync.routes.update({"mirror": kept, "other": broken})
    passive = PassiveWorkload("p/t", "p", "t", "west", THERE, HERE)
    fed.regions.sync._passives = {passive.key: passive}
    fed.regions.sync.passive[THERE] = SyncedGroups(
        THERE, THERE, HERE, {passive.key: GroupOutcome("p", "live", 5, "<b>somebody</b>")}, {passive.key: 4}
    )
    with serving(fed) as url:
        try:
            yield Served(url, fed, topic, group, rig)
        finally:
            if clusters.loop is not None:
                for closing in (fed.regions.tables.close(), clusters.stop()):
                    asyncio.run_coroutine_threadsafe(closing, clusters.loop).result(30)
