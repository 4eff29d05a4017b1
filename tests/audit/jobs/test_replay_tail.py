"""The last events of the audit topic, from a real broker, without waiting for events that are gone."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from app.audit.jobs import replay_tail as module
from app.audit.jobs.replay_tail import Events, Margin
from app.controllog.topics import ControlTopics
from tests.kafka.conftest import connected, create

ENOUGH_S = 150.0
CLIENT_MS = 1 << 42  # by the client's clock, a hundred years ahead


async def before(bootstrap: str, topic: str, offset: int) -> Events:
    async with asyncio.timeout(ENOUGH_S), connected(bootstrap) as client:
        margin = Margin(topic, {"bootstrap_servers": bootstrap}, client)
        return [event async for events in margin.before(0, offset) for event in events]


async def test_reading_does_not_wait_for_events_that_are_gone(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MARGIN_EVENTS", 3)
    monkeypatch.setattr(module, "MARGIN_MS", 0)
    async with connected(bootstrap) as client:
        await create(client, topic_name, 1, **ControlTopics("test").audit.config)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            await producer.send_and_wait(topic_name, b"%d" % number, partition=0, timestamp_ms=CLIENT_MS)
    found = await before(bootstrap, topic_name, 7)
    assert [(one.offset, one.value) for one in found] == [(4, b"4"), (5, b"5"), (6, b"6")]
    assert all(one.recorded_ms < CLIENT_MS for one in found), "the broker's clock counts"
    whole = [(one.offset, one.value) for one in await before(bootstrap, topic_name, 12)]
    assert whole == [(9, b"9")], "the topic was recreated, and is shorter"
    assert await before(bootstrap, topic_name, 1_000) == []
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic_name, 0): RecordsToDelete(8)})
    finally:
        await admin.close()
    assert await before(bootstrap, topic_name, 7) == []
    assert [one.offset for one in await before(bootstrap, topic_name, 9)] == [8]
