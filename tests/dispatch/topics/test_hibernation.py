"""An idle workload sleeps and wakes, on a real cluster: what waits is never left lying."""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaProducer

from app.dispatch.definition import Workload
from app.dispatch.topics.hibernation import HibernationTracker
from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.consumer_lag import ConsumerLag, read_backlog
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget
from tests.web.runtime_fake import definition


async def nowhere(_: Any) -> None: ...


async def test_a_workload_sleeps_once_it_was_idle_and_wakes_when_something_waits(
    bootstrap: str, topic_name: str
) -> None:
    clusters = DataClusters({"east": ClusterSpec("east", (bootstrap,))}, nowhere, ByteBudget(1 << 20))
    workload = Workload.model_validate(definition("billing", topic_name, hibernate={"after": "1m"}))
    at = [(topic_name, 0), (topic_name, 1)]
    sleepers = HibernationTracker()
    owned = True

    async def asleep_at(now_s: float) -> bool:
        backlog = await read_backlog(cluster, "billing", at)
        sleepers.evaluate(workload, at, backlog, now_s, owned)
        return workload.key in sleepers.asleep

    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        try:
            cluster = await clusters.get("east")
            await ensure_topics(cluster.client, [TopicSpec(topic_name, 2)])
            await producer.send_and_wait(topic_name, b"1", partition=0)

            assert not await asleep_at(0)
            assert not await asleep_at(100)  # the message waits: the group has not committed it

            await cluster.committer.commit("billing", {at[0]: 1})
            assert not await asleep_at(101)
            assert not await asleep_at(160)
            assert await asleep_at(162)
            assert "wakes with the first message" in sleepers.asleep[workload.key]

            await producer.send_and_wait(topic_name, b"2", partition=1)
            assert not await asleep_at(163)

            await cluster.committer.commit("billing", {at[1]: 1})
            owned = False
            sleepers = HibernationTracker()  # of another leader, who finds it asleep
            assert await asleep_at(0)
            owned = True
            sleepers = HibernationTracker()
            assert not await asleep_at(0)
        finally:
            await clusters.stop()


def look(sleepers: HibernationTracker, now_s: float, backlog: ConsumerLag, **spec: Any) -> bool:
    """Whether the workload sleeps at `now_s`."""
    workload = Workload.model_validate(definition("billing", "orders", **spec))
    sleepers.evaluate(workload, [("orders", 0)], backlog, now_s, False)
    return workload.key in sleepers.asleep


def test_a_definition_without_hibernation_never_sleeps() -> None:
    sleepers, hibernate = HibernationTracker(), {"after": "1m"}
    assert look(sleepers, 0.0, backlog(0, 5, 5), hibernate=hibernate)
    assert not look(sleepers, 1.0, backlog(0, 5, 5))


def test_unreadable_positions_neither_wake_a_workload_nor_let_it_sleep() -> None:
    sleepers, hibernate = HibernationTracker(), {"after": "1m"}
    assert look(sleepers, 0.0, ConsumerLag(), hibernate=hibernate)
    assert not look(sleepers, 1.0, backlog(0, 6, 5), hibernate=hibernate)
    assert not look(sleepers, 100.0, ConsumerLag(), hibernate=hibernate)
    assert not look(sleepers, 200.0, ConsumerLag(), hibernate=hibernate)


def test_a_topic_recreated_under_a_sleeping_workload_wakes_it() -> None:
    sleepers, hibernate = HibernationTracker(), {"after": "1m"}
    assert look(sleepers, 0.0, backlog(0, 90, 90), hibernate=hibernate)
    assert not look(sleepers, 1.0, backlog(0, 3, 90), hibernate=hibernate)


def backlog(start: int, end: int, committed: int) -> ConsumerLag:
    at = ("orders", 0)
    return ConsumerLag({at: start}, {at: end}, {at: committed})
