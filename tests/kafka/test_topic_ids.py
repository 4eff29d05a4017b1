"""A topic that is deleted and made anew is told from the one before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import AIOKafkaConnection

from app.kafka.clusters import ClusterClient
from app.kafka.topic_ids import written
from app.yard import Yard
from tests.kafka.conftest import ENOUGH_S, connected, create


async def delete(client: ClusterClient, topic: str) -> None:
    """Deletes the topic and waits until the broker says so."""
    admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
    await admin.start()
    await admin.delete_topics([topic])
    await admin.close()
    async with asyncio.timeout(ENOUGH_S):
        while await client.partitions(topic) is not None:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.05)


async def test_a_topic_made_anew_has_another_id(client: ClusterClient, topic_name: str) -> None:
    other = await create(client, f"{topic_name}-other", 3)
    await create(client, topic_name)
    before = await client.topic_ids([topic_name, other])
    await delete(client, topic_name)
    between = await client.topic_ids([topic_name, other])
    await create(client, topic_name)
    after = await client.topic_ids([topic_name, other, topic_name])

    assert set(before) == set(after) == {topic_name, other}
    assert between == {other: before[other]}  # asking for it did not make it
    assert before[other] == after[other] != ""
    assert before[topic_name] != after[topic_name] != ""


async def test_an_id_is_the_one_that_the_topics_leader_tells(client: ClusterClient, topic_name: str) -> None:
    await create(client, topic_name)
    node = await client.leader(topic_name, 0)

    assert await client.topic_ids([topic_name], node) == await client.topic_ids([topic_name])
    assert await client.topic_ids([]) == {}


async def test_a_broker_too_old_to_tell_ids_tells_none(
    client: ClusterClient, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(client, topic_name)
    send = AIOKafkaConnection.send

    def as_to_kafka_2_7(self: Any, request: Any, expect_response: bool = True) -> Any:
        low, high = self._versions[3]
        self._versions = {**self._versions, 3: (low, min(high, 9))}
        return send(self, request, expect_response)

    monkeypatch.setattr(AIOKafkaConnection, "send", as_to_kafka_2_7)

    assert await client.topic_ids([topic_name]) == {topic_name: ""}


async def test_each_cluster_has_an_id_of_its_own(yard: Yard) -> None:
    async with (
        connected(yard.bootstrap("east-regional")) as one,
        connected(yard.bootstrap("east-aggregate")) as other,
    ):
        assert await one.cluster_id() == await one.cluster_id() != ""
        assert await one.cluster_id() != await other.cluster_id()


def test_an_id_is_written_as_kafkas_tools_write_it() -> None:
    assert written(bytes(16)) == ""
    assert written(bytes(range(16))) == "AAECAwQFBgcICQoLDA0ODw"
