"""The unmoved positions of groups in real clusters are published, and kept in the lines of the offset map."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from app.controllog.events import Assignment, Claim
from app.controllog.state import ControlState
from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import NeedItem, PinnedOffsets
from app.replicate.jobs.pinned_offset_syncs import PinnedOffsetSyncs
from app.replicate.topics.catalog import RoutesCatalog
from app.replicate.topics.readable_routes import ReadableRoutes
from tests.web.runtime_fake import put_route, route


async def test_the_leader_publishes_the_unmoved_positions_of_groups_in_a_copy_and_in_its_source(
    yard: Yard, topic_name: str
) -> None:
    names = {"east": "east-regional", "west": "east-aggregate"}
    specs = {name: ClusterSpec(name, (yard.bootstrap(at),)) for name, at in names.items()}
    specs["away"] = ClusterSpec("away", ("127.0.0.1:1",))

    async def nowhere(_: Any) -> None: ...

    clusters = DataClusters(specs, nowhere, ByteBudget(1 << 20))
    view, published = ControlState(), list[NeedItem]()
    control: Any = SimpleNamespace(view=view)

    async def ask(items: Iterable[NeedItem]) -> list[asyncio.Future[Any]]:
        published.extend(items)
        return []

    sender: Any = SimpleNamespace(ask=ask)
    routes = ReadableRoutes(control, lambda *_: None)
    catalog = RoutesCatalog(control, clusters, lambda *_: None, routes)
    needed = PinnedOffsetSyncs(control, catalog, clusters, sender, lambda: True)

    async def published_needs() -> list[PinnedOffsets]:
        published.clear()
        await needed.publish_changes()
        return [item.needs for item in sorted(published, key=lambda item: item.partition)]

    try:
        east, west = [await clusters.get(name) for name in ("east", "west")]
        for cluster in (east, west):
            await ensure_topics(cluster.client, [TopicSpec(topic_name, 2)])
        view.apply(put_route(route("mirror", "east", "west", topic_name)))
        view.apply(Claim(at_ms=0, term=1, worker="w"))
        for partition in range(2):
            job = f"replicate:mirror:{topic_name}:{partition}"
            view.apply(Assignment(at_ms=0, job=job, worker="w", epoch=1, term=1, reason=""))
        still, moving = f"{topic_name}-still", f"{topic_name}-moving"
        await west.committer.commit(still, {(topic_name, 0): 7})
        await east.committer.commit(still, {(topic_name, 1): 9})
        await west.committer.commit(moving, {(topic_name, 0): 30})
        await east.committer.commit("switchyard-mirror", {(topic_name, 0): 99})
        assert await published_needs() == [], "one look does not show which groups move"
        await west.committer.commit(moving, {(topic_name, 0): 40})
        assert await published_needs() == [PinnedOffsets([7], []), PinnedOffsets([], [9])]
        ids = await west.client.topic_ids([topic_name])
        assert {item.target for item in published} == {LogId(await west.client.cluster_id(), ids[topic_name])}
        await west.committer.commit(moving, {(topic_name, 0): 50})
        assert await published_needs() == [], "it is published already"
        await west.committer.commit(still, {(topic_name, 0): 8})
        assert await published_needs() == [PinnedOffsets([50], [])], (
            "the group moves, the other one stands still"
        )
        assert await published_needs() == [PinnedOffsets([8, 50], [])]
    finally:
        await clusters.stop()
