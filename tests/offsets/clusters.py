"""Two clusters on real brokers that stand for two regions; tests write the changelogs themselves."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from app.controllog import codec
from app.controllog.events import RoutePut
from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import Barrier, OffsetMapLine
from app.offsets.store.records import CHECKPOINTS
from app.offsets.store.tables import RegionAtlas, RegionTables
from app.replicate.definition import RouteDefinition

HERE, THERE, NOWHERE = "here", "there", "nowhere"  # clusters: two that answer, and one that does not
PARTITIONS = 2  # partitions of a changelog
COMPACTED = {"cleanup.policy": "compact", "max.message.bytes": "2097152"}


async def deliver(_: Any) -> None: ...


@dataclass
class Regions:
    """Two regions: `own` has its control topics in `here`, `other` in `there`."""

    bootstraps: Mapping[str, str]
    path: Path
    own: str = field(default_factory=lambda: f"r{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.other = f"{self.own}b"
        specs = {name: ClusterSpec(name, (address,)) for name, address in self.bootstraps.items()}
        self.clusters = DataClusters(specs, deliver, ByteBudget(1 << 20))
        self.atlas = RegionAtlas(
            self.own, {self.own: HERE, self.other: THERE}, {HERE: self.own, THERE: self.other}
        )
        self.tables = self.opened()

    def opened(self, atlas: RegionAtlas | None = None) -> RegionTables:
        """The tables, opened as by another process."""
        return RegionTables(atlas or self.atlas, self.clusters, self.path / "regions")

    def topic(self, region: str) -> str:
        return ControlTopics(region).changelog(CHECKPOINTS, 0).name

    async def client(self, cluster: str) -> ClusterClient:
        client: ClusterClient = (await self.clusters.get(cluster)).client
        return client

    async def make(self, cluster: str, topic: str, partitions: int = PARTITIONS, **config: str) -> None:
        """Creates a topic; an existing one is recreated."""
        client = await self.client(cluster)
        if await client.partitions(topic) is not None:
            await self.delete(cluster, topic)
        await ensure_topics(client, [TopicSpec(topic, partitions, config=config)])

    async def delete(self, cluster: str, topic: str) -> None:
        """Deletes an existing topic."""
        client = await self.client(cluster)
        admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
        await admin.start()
        await admin.delete_topics([topic])
        await admin.close()
        async with asyncio.timeout(120):
            while await client.partitions(topic) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def send(
        self, cluster: str, topic: str, records: Mapping[bytes, bytes | None], partition: int = 0
    ) -> None:
        """Writes records by key."""
        async with AIOKafkaProducer(
            bootstrap_servers=self.bootstraps[cluster], max_request_size=2_000_000
        ) as producer:
            for key, value in records.items():
                await producer.send_and_wait(topic, value, key=key, partition=partition)

    async def values(self, cluster: str, topic: str, partition: int, *values: bytes, **at: int) -> None:
        """Writes records without keys."""
        async with AIOKafkaProducer(bootstrap_servers=self.bootstraps[cluster], linger_ms=5) as producer:
            sent = [await producer.send(topic, one, partition=partition, **at) for one in values]  # type: ignore[arg-type]
            await asyncio.gather(*sent)

    async def log_id(self, cluster: str, topic: str) -> LogId:
        client = await self.client(cluster)
        return LogId(await client.cluster_id(), (await client.topic_ids([topic])).get(topic, ""))

    async def close(self) -> None:
        await self.tables.close()
        await self.clusters.stop()


def a_line(source: LogId, target: LogId, topic: str, partition: int, *barriers: tuple[int, int]) -> bytes:
    """A line of the offset map, as the table holds it."""
    line = OffsetMapLine(
        target_topic=topic, target_partition=partition, epoch=1, lineage=0, source=source, target=target,
        barriers=[Barrier(*at) for at in barriers],
    )  # fmt: skip
    return codec.encode(line)


def a_route(name: str, source: str, target: str, *topics: str, **spec: Any) -> RouteDefinition:
    return RouteDefinition.model_validate({
        "apiVersion": "switchyard/v1", "kind": "Route", "metadata": {"name": name},
        "spec": {"from": source, "to": target, "topics": list(topics), **spec},
    })  # fmt: skip


def put_of(route: RouteDefinition) -> bytes:
    """The route's record in the control log."""
    return codec.encode(
        RoutePut(at_ms=1, key=route.key, definition=route.to_wire(), etag=route.etag(), actor="test")
    )


@contextlib.asynccontextmanager
async def regions(yard: Yard, path: Path) -> AsyncIterator[Regions]:
    """Two regions on two brokers of the yard, with this region's changelog."""
    bootstraps = {
        HERE: yard.bootstrap("east-regional"),
        THERE: yard.bootstrap("east-aggregate"),
        NOWHERE: "127.0.0.1:1",
    }
    made = Regions(bootstraps, path)
    try:
        await made.make(HERE, made.topic(made.own), **COMPACTED)
        yield made
    finally:
        await made.close()
