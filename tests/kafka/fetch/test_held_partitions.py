"""A partition that an open transaction holds up is told, with the producer, until the transaction ends."""

from __future__ import annotations

import re

import pytest

from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.deliveries import FetchIncident
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
