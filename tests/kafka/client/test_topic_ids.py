"""A recreated topic is distinguished from the former one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection

from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_ids import id_text
from app.kafka.fetch.deliveries import LogGap
from tests.kafka.conftest import ENOUGH_S, Start, connected, create, write
from tests.kafka.second_broker import delete


async def test_recreated_topic_has_another_id(client: ClusterClient, topic_name: str) -> None:
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


async def test_topic_id_of_the_leader_counts(client: ClusterClient, topic_name: str) -> None:
    await create(client, topic_name)
    node = await client.leader(topic_name, 0)

    assert await client.topic_ids([topic_name], node) == await client.topic_ids([topic_name])
    assert await client.topic_ids([]) == {}


async def test_old_broker_gives_no_topic_ids(
    client: ClusterClient, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(client, topic_name)
    send = AIOKafkaConnection.send

    def as_to_kafka_2_7(self: Any, request: Any, expect_response: bool = True) -> Any:
        if 3 in self._versions:  # only once the broker's versions are known
            low, high = self._versions[3]
            self._versions = {**self._versions, 3: (low, min(high, 9))}
        return send(self, request, expect_response)  # type: ignore[no-untyped-call]  # aiokafka has no types

    monkeypatch.setattr(AIOKafkaConnection, "send", as_to_kafka_2_7)

    assert await client.topic_ids([topic_name]) == {topic_name: ""}


async def test_each_cluster_has_its_own_id(yard: Yard) -> None:
    async with (
        connected(yard.bootstrap("east-regional")) as one,
        connected(yard.bootstrap("east-aggregate")) as other,
    ):
        assert await one.cluster_id() == await one.cluster_id() != ""
        assert await one.cluster_id() != await other.cluster_id()


# -- while it is fetched ---------------------------------------------------------------------------


async def test_recreated_topic_is_read_from_its_beginning_even_if_it_is_longer_than_the_position(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"old"] * 100)
    topic_id = (await client.topic_ids([topic_name]))[topic_name]
    pump = await start()
    pump.service.add("given its id", topic_name, 0, 0, topic_id)
    pump.service.add("saw its id", topic_name, 0, 0)
    await pump.until(lambda: pump.count("given its id") == pump.count("saw its id") == 100)
    async with asyncio.timeout(ENOUGH_S):
        while pump.service._partitions["saw its id"].topic_id != topic_id:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
    await delete(client, topic_name)
    await create(client, topic_name)
    new = [f"new {number}".encode() for number in range(300)]
    await write(bootstrap, topic_name, new)

    for key in ("given its id", "saw its id"):
        await pump.until(lambda: pump.values(key)[-300:] == new)  # noqa: B023 - asked at once
    gaps = [item for item in pump.reports if isinstance(item, LogGap)]
    assert {gap.key for gap in gaps} == {"given its id", "saw its id"}
    assert len(gaps) == 2
    for gap in gaps:
        assert (gap.begun_anew, gap.end) == (True, 0)
        assert "recreated" in gap.reason


async def test_topic_recreated_while_not_fetched_is_reported_whatever_its_length(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    former = (await client.topic_ids([topic_name]))[topic_name]
    await delete(client, topic_name)
    await create(client, topic_name)
    await write(bootstrap, topic_name, [str(number).encode() for number in range(10)])
    pump = await start()
    pump.service.add("k", topic_name, 0, 7, former)
    await pump.until(lambda: pump.reports)

    (gap,) = pump.reports
    assert (gap.start, gap.end, gap.begun_anew) == (7, 0, True)
    await pump.until(lambda: pump.offsets("k")[-10:] == list(range(10)))


async def test_topic_id_of_an_outdated_broker_does_not_count(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"v"] * 10)
    leaders, nodes = client.topic_ids, []

    async def of_a_former_topic(topics: Iterable[str], node: int | None = None) -> dict[str, str]:
        nodes.append(node)
        return await leaders(topics, node) if node is not None else {topic_name: "another"}

    topic_id = (await client.topic_ids([topic_name]))[topic_name]
    monkeypatch.setattr(client, "topic_ids", of_a_former_topic)
    pump = await start()
    pump.service.add("k", topic_name, 0, 0, topic_id)
    async with asyncio.timeout(ENOUGH_S):
        while not any(node is not None for node in nodes):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.05)
    await write(bootstrap, topic_name, [b"v"])
    await pump.until(lambda: pump.count("k") == 11)

    assert pump.reports == []
    assert pump.offsets("k") == list(range(11))


def test_topic_id_is_shown_as_by_kafkas_tools() -> None:
    assert id_text(bytes(16)) == ""
    assert id_text(bytes(range(16))) == "AAECAwQFBgcICQoLDA0ODw"
