"""A partition that an open transaction holds up is told, with the producer, until the transaction ends."""

from __future__ import annotations

import re

import pytest

from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.deliveries import ByteBudget, FetchIncident, FetchKey, PartitionFetch
from tests.kafka.conftest import Start, create, producing, write


async def test_an_open_transaction_is_named_with_its_producer_and_the_command_that_ends_it(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.kafka.fetch.held_partitions.HELD_S", 0.5)
    await create(client, topic_name)
    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    async with producing(bootstrap, transactional_id=topic_name) as producer:
        await write(bootstrap, topic_name, [b"before"])
        await producer.begin_transaction()
        await producer.send_and_wait(topic_name, b"inside", partition=0)
        await write(bootstrap, topic_name, [b"behind"] * 3)
        await pump.until(lambda: pump.reports)
        incident = pump.reports[0]
        assert isinstance(incident, FetchIncident)
        assert re.fullmatch(
            rf"an open transaction holds up {topic_name}-0 at offset 1 since 20[-0-9T:.+]+; 4 messages wait "
            rf"behind it. Its producer is \d+ \(transactional id '{topic_name}', Ongoing\)",
            incident.message,
        )
        assert "let its producer end it; Kafka aborts it at 20" in incident.remedy
        assert f"kafka-transactions.sh --bootstrap-server {bootstrap} abort --topic" in incident.remedy
        assert "--partition 0 --start-offset 1" in incident.remedy
        assert pump.service.trouble("k") == incident.message
        await producer.commit_transaction()
        await pump.until(lambda: pump.count("k") == 5)
    assert pump.service.trouble("k") == ""
    assert pump.reports == [incident], "it is told once"


async def test_a_short_transaction_is_no_trouble(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    async with producing(bootstrap, transactional_id=topic_name) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic_name, b"inside", partition=0)
        await producer.commit_transaction()
    await pump.until(lambda: pump.count("k") == 1)
    assert pump.reports == []


async def test_a_trouble_of_the_broker_does_not_hide_the_transaction_behind_it(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.kafka.fetch.held_partitions.HELD_S", 0.5)
    await create(client, topic_name)
    pump = await start()
    async with producing(bootstrap, transactional_id=topic_name) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic_name, b"inside", partition=0)
        pump.service.add("k", topic_name, 0, 0)
        part = pump.service._partitions["k"]
        part.failures, part.incident = 3, "a broker is away"
        await pump.until(lambda: any("open transaction" in report.message for report in pump.reports))
        await producer.abort_transaction()


def test_a_follower_that_gets_data_is_held_no_more() -> None:
    budget = ByteBudget(1 << 20)
    part = PartitionFetch(budget, FetchKey("audit:a:t:0", 1), "t", 0, 5, high_watermark=9)
    part.note_stable(5, now_s=10.0)
    assert (part.is_held(10.0), part.is_held(9.9)) == (True, False)
    part.note_stable(9, now_s=20.0)
    assert not part.is_held()
