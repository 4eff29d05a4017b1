"""Topics created on real brokers: a temporary inability of the cluster is no refusal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.dev.yard import Yard
from app.kafka.client import topics
from app.kafka.client.topics import TOO_FEW_BROKERS, TopicRefused, TopicSpec, ensure_topics
from tests.kafka.conftest import connected
from tests.kafka.second_broker import delete, second_broker

CLUSTER = "east-aggregate"


async def test_topic_creation_waits_for_too_few_brokers_and_finally_fails(
    killable_yard: Yard, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_two = [TopicSpec(topic_name, 1, 2)]
    async with connected(killable_yard.bootstrap(CLUSTER)) as client:
        monkeypatch.setattr(topics, "VISIBLE_TRIES", 3)
        with pytest.raises(TopicRefused, match=topic_name) as caught:
            await ensure_topics(client, of_two)
        assert caught.value.code == TOO_FEW_BROKERS
        monkeypatch.setattr(topics, "VISIBLE_TRIES", 1_000)
        making = asyncio.create_task(ensure_topics(client, of_two))
        async with second_broker(killable_yard, CLUSTER, tmp_path, client):
            assert await making == [topic_name]
            await delete(client, topic_name)
