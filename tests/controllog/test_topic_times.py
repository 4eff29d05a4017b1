"""When a worker starts, control topics of an earlier version get the brokers' time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from app.controllog.topic_times import use_brokers_time, warn_of_settings
from app.controllog.topics import TIMES, ControlTopics
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_configs import TopicSettings, describe
from app.kafka.client.topics import TopicSpec, ensure_topics
from tests.kafka.conftest import ENOUGH_S, connected

NAME = "message.timestamp.type"


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[ClusterClient]:
    """A client of the broker that all tests share."""
    async with connected(bootstrap) as made:
        yield made


async def timestamp_types(client: ClusterClient, topics: ControlTopics) -> set[str]:
    found = await describe(client, [topic.name for topic in topics.all()], [NAME])
    return {one.config[NAME] for one in found.values() if isinstance(one, TopicSettings)}


async def test_topics_of_an_earlier_version_are_altered_and_keep_all_else(
    client: ClusterClient, topic_name: str
) -> None:
    topics = ControlTopics(topic_name)
    assert all(TIMES.items() <= topic.config.items() for topic in topics.all())
    older = {name: value for name, value in topics.control.config.items() if name not in TIMES}
    await ensure_topics(
        client, [TopicSpec(topic.name, topic.partitions, config=older) for topic in topics.all()]
    )
    assert await timestamp_types(client, topics) == {"CreateTime"}
    await use_brokers_time(client, topics)
    async with asyncio.timeout(ENOUGH_S):  # a broker applies it a moment later
        while await timestamp_types(client, topics) != {"LogAppendTime"}:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
    found = (await describe(client, [topics.control.name]))[topics.control.name]
    assert isinstance(found, TopicSettings)
    assert older.items() <= found.config.items()


async def test_a_control_topic_with_other_settings_is_reported_with_what_it_needs(
    client: ClusterClient, topic_name: str
) -> None:
    topics = ControlTopics(topic_name)
    bad = {
        topics.control.name: {"cleanup.policy": "delete"},
        topics.heartbeats.name: {"retention.ms": "1000"},
    }
    await ensure_topics(
        client,
        [
            TopicSpec(topic.name, topic.partitions, config=topic.config | bad.get(topic.name, {}))
            for topic in topics.all()
        ],
    )
    with capture_logs() as logs:
        await warn_of_settings(client, topics)
    control, heartbeats = (entry["why"] for entry in logs)
    assert control == (
        f"topic {topics.control.name} in {client.name}: cleanup.policy is delete, but must be compact "
        "(otherwise records expire)"
    )
    assert "retention.ms is 1000, but must be 3600000 or more" in heartbeats
    for entry, setting in zip(logs, ("cleanup.policy=compact", "retention.ms=3600000"), strict=True):
        assert entry["remedy"].endswith(f"--add-config {setting}")
