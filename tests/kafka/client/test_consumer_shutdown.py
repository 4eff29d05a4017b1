"""Consumers stop quietly, whatever their broker does."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.dev.yard import Yard
from app.kafka.client.consumer_shutdown import stop_consumer
from tests.kafka.conftest import connected, create


@pytest.mark.deep(minutes=0.3)
async def test_stopping_a_consumer_of_a_dead_broker_does_not_cancel_the_caller(
    killable_yard: Yard, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap = killable_yard.bootstrap("east-regional")
    async with connected(bootstrap) as client:
        await create(client, topic_name)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, retry_backoff_ms=600_000)
    await consumer.start()
    consumer.assign([at := TopicPartition(topic_name, 0)])
    await consumer.position(at)
    fetcher: Any = consumer._fetcher
    while not fetcher._pending_tasks:  # until it asks for records
        assert await consumer.getmany(timeout_ms=50) == {}
    caplog.set_level(logging.ERROR)
    await asyncio.to_thread(killable_yard.kill, "east-regional")
    async with asyncio.timeout(60):
        while "Failed fetch messages" not in caplog.text:  # noqa: ASYNC110 - it waits from then on
            await asyncio.sleep(0.05)
    await stop_consumer(consumer)
    assert not consumer._client._conns, "nothing is left open"
