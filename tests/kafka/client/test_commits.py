"""Kafka's tools see the commits, and concurrent creations make each topic once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter
from app.kafka.client.topics import TopicMismatch, TopicSpec, ensure_topics
from tests.kafka.conftest import create, write


async def test_commits_are_visible_to_kafkas_tools_and_read_back(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name, 3)
    committer, group = OffsetCommitter(client), f"group-{topic_name}"
    wanted = [(topic_name, partition) for partition in range(3)]
    assert await committer.committed(group, wanted) == dict.fromkeys(wanted)

    assert await committer.commit(group, {(topic_name, 0): 5, (topic_name, 2): 2**40}) == {}
    assert await committer.commit(group, {(topic_name, 0): 3}) == {}  # back, as an operator's reset does

    assert await committer.committed(group, wanted) == {
        (topic_name, 0): 3, (topic_name, 1): None, (topic_name, 2): 2**40,
    }  # fmt: skip
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    seen = await admin.list_consumer_group_offsets(group)
    await admin.close()
    offsets = {(at.topic, at.partition): found.offset for at, found in seen.items() if found.offset >= 0}
    assert offsets == {(topic_name, 0): 3, (topic_name, 2): 2**40}


async def test_commit_beside_a_live_consumer_is_refused_with_a_remedy(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"v"])
    committer, group, at = OffsetCommitter(client), f"group-{topic_name}", (topic_name, 0)
    consumer = AIOKafkaConsumer(
        topic_name, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    await consumer.start()
    await consumer.getone()

    refused = await committer.commit(group, {at: 1})
    assert "live members of an ordinary consumer" in refused[at]

    await consumer.stop()
    assert await committer.commit(group, {at: 1}) == {}


async def test_commit_for_a_deleted_topic_is_refused_with_a_reason(
    client: ClusterClient, topic_name: str
) -> None:
    at = (topic_name, 0)

    refused = await OffsetCommitter(client).commit(f"group-{topic_name}", {at: 1})

    assert "Unknown" in refused[at]


# -- topics ----------------------------------------------------------------------------------------


async def test_topics_are_created_once_with_their_settings_and_ready_at_once(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    specs = [
        TopicSpec(topic_name, 5, config={"retention.ms": "12345"}, exact=True),
        TopicSpec(f"{topic_name}-b", 1),
    ]

    assert await ensure_topics(client, specs) == [topic_name, f"{topic_name}-b"]
    await write(bootstrap, topic_name, [b"v"], 4)
    assert await ensure_topics(client, specs) == []

    topics = await client.topics()
    assert (topics[topic_name], topics[f"{topic_name}-b"]) == (5, 1)
    assert await client.partitions(topic_name) == 5
    assert await client.end_offsets([(topic_name, p) for p in (0, 4)]) == {
        (topic_name, 0): 0, (topic_name, 4): 1,
    }  # fmt: skip
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    answer: Any
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic_name)])
    await admin.close()
    config = {entry[0]: entry[1] for entry in answer.resources[0][4]}
    assert config["retention.ms"] == "12345"


async def test_concurrent_creations_make_each_topic_once(client: ClusterClient, topic_name: str) -> None:
    specs = [TopicSpec(f"{topic_name}-{number}", 2) for number in range(5)]

    made = await asyncio.gather(*(ensure_topics(client, specs) for _ in range(6)))

    assert sorted(name for names in made for name in names) == sorted(spec.name for spec in specs)
    assert {await client.partitions(spec.name) for spec in specs} == {2}


async def test_other_partition_count_is_refused_only_for_exact_topics(
    client: ClusterClient, topic_name: str
) -> None:
    await create(client, topic_name, 2)

    assert await ensure_topics(client, [TopicSpec(topic_name, 3)]) == []
    with pytest.raises(TopicMismatch, match="has 2 partitions but needs 3"):
        await ensure_topics(client, [TopicSpec(topic_name, 3, exact=True)])


@pytest.mark.parametrize(
    ("name", "config"), [("bad name", {}), ("{}", {"no.such.setting": "1"}), ("{}", {"retention.ms": "x"})]
)
async def test_refused_creation_names_the_topic(
    client: ClusterClient, topic_name: str, name: str, config: dict[str, str]
) -> None:
    name = name.format(topic_name)

    with pytest.raises(KafkaError, match=f"cluster east-regional does not create topic {name}: "):
        await ensure_topics(client, [TopicSpec(name, 1, config=config)])
    assert await client.partitions(topic_name) is None


async def test_cluster_keeps_its_id_and_shows_no_password(client: ClusterClient) -> None:
    assert await client.cluster_id() == await client.cluster_id() != ""
    assert await client.broker_count() == 1
    spec = ClusterSpec("c", ("h:1",), username="me", password="hunter2", protocol="SASL_SSL")  # noqa: S106
    assert "hunter2" not in f"{spec} {spec!r}"
    assert spec.aiokafka_options()["sasl_plain_password"] == "hunter2"  # noqa: S105
