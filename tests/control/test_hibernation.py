"""An idle workload sleeps and wakes, on a real cluster: what waits is never left lying."""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaProducer

from app.config.definitions import Workload
from app.control.data_clusters import DataClusters
from app.control.hibernation import Sleepers
from app.kafka.clusters import ClusterSpec
from app.kafka.fetched import ByteBudget
from app.kafka.topics import TopicSpec, ensure_topics
from tests.console.hand_fed import definition


async def nowhere(_: Any) -> None: ...


async def test_a_workload_sleeps_once_it_was_idle_and_wakes_when_something_waits(
    bootstrap: str, topic_name: str
) -> None:
    clusters = DataClusters({"east": ClusterSpec("east", (bootstrap,))}, nowhere, ByteBudget(1 << 20))
    workload = Workload.model_validate(definition("billing", topic_name, hibernate={"after": "1m"}))
    at = [(topic_name, 0), (topic_name, 1)]
    sleepers = Sleepers()
    owned = True

    async def asleep_at(now_s: float) -> bool:
        await sleepers.read(cluster, workload, at, now_s, lambda: owned)
        return workload.key in sleepers.asleep

    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        try:
            cluster = await clusters.get("east")
            await ensure_topics(cluster.client, [TopicSpec(topic_name, 2)])
            await producer.send_and_wait(topic_name, b"1", partition=0)

            assert not await asleep_at(0)
            assert not await asleep_at(100)  # the message waits: nobody has committed it

            await cluster.committer.commit("billing", {at[0]: 1})
            assert not await asleep_at(101)
            assert not await asleep_at(160)
            assert await asleep_at(162)
            assert "wakes with the first message" in sleepers.asleep[workload.key]

            await producer.send_and_wait(topic_name, b"2", partition=1)
            assert not await asleep_at(163)

            await cluster.committer.commit("billing", {at[1]: 1})
            owned = False
            sleepers = Sleepers()  # of another leader, who finds it asleep
            assert await asleep_at(0)
            owned = True
            sleepers = Sleepers()
            assert not await asleep_at(0)
        finally:
            await clusters.stop()


async def test_a_definition_without_hibernation_never_sleeps(bootstrap: str, topic_name: str) -> None:
    clusters = DataClusters({"east": ClusterSpec("east", (bootstrap,))}, nowhere, ByteBudget(1 << 20))
    try:
        cluster = await clusters.get("east")
        await ensure_topics(cluster.client, [TopicSpec(topic_name, 1)])
        sleepers = Sleepers()
        workload = Workload.model_validate(definition("billing", topic_name))
        await sleepers.read(cluster, workload, [(topic_name, 0)], 0.0, lambda: False)
        assert sleepers.asleep == {}
    finally:
        await clusters.stop()
