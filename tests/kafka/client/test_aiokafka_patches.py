"""A connection that ends while something is sent, or waited for, is an error like any other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topic_ids import UNKNOWN_ID, TopicIdsRequest

CLUSTER = "east-aggregate"  # not the one other tests use at the same time
TURNS = 6  # of the loop, until a connection has heard of its end


async def _sent_meanwhile(bootstrap: str) -> list[str]:
    """What comes of sending in each turn of the loop after the transport has closed."""
    client = ClusterClient(ClusterSpec("test", (bootstrap,)))
    await client.start()
    try:
        await client.metadata([])
        (connection,) = client.client._conns.values()
        connection._writer.transport.abort()
        told = []
        for _ in range(TURNS):
            try:
                sent = asyncio.ensure_future(connection.send(MetadataRequest([])))
                sent.add_done_callback(lambda done: done.exception())
            except KafkaConnectionError as error:
                told.append(str(error))
            await asyncio.sleep(0)
        async with asyncio.timeout(120):
            assert await client.client.force_metadata_update()
        return told
    finally:
        await client.stop()


def test_what_is_sent_to_a_transport_that_has_closed_fails_as_kafkas_errors_do(bootstrap: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        told = runner.run(_sent_meanwhile(bootstrap))
    assert any("handler is closed" in message for message in told), "the moment was missed: it shows nothing"


async def _asked_of_an_old_broker(bootstrap: str) -> None:
    client = ClusterClient(ClusterSpec("test", (bootstrap,)))
    await client.start()
    try:
        await client.metadata([])
        (connection,) = client.client._conns.values()
        connection._versions = {TopicIdsRequest.API_KEY: (0, 9)}  # as one before Kafka 2.8 says
        with pytest.raises(NotImplementedError):
            connection.send(TopicIdsRequest([]))
        assert await client.topic_ids(["orders"]) == {"orders": UNKNOWN_ID}
        assert connection.connected()
        await client.metadata([])
        assert list(client.client._conns.values()) == [connection], "what it knows goes the same way"
    finally:
        await client.stop()


def test_a_request_that_a_broker_does_not_know_says_so_and_leaves_the_connection_open(bootstrap: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_asked_of_an_old_broker(bootstrap))


async def test_of_requests_that_a_frozen_broker_leaves_unanswered_each_fails_as_kafkas_errors_do(
    killable_yard: Yard,
) -> None:
    asked: Any = AIOKafkaClient(  # type: ignore[no-untyped-call]
        bootstrap_servers=killable_yard.bootstrap(CLUSTER), request_timeout_ms=500
    )
    await asked.bootstrap()
    node = asked.get_random_node()
    assert await asked.ready(node)

    async def ask() -> BaseException:
        """What comes of it; asked again at once, so that the connection is made anew."""
        told = []
        for _ in range(2):
            try:
                await asked.send(node, MetadataRequest([]))
            except Exception as error:  # noqa: BLE001 - which it is, is what is looked at
                told.append(error)
        return told[0]

    await asyncio.to_thread(killable_yard.pause, CLUSTER)
    try:
        found = await asyncio.gather(*(ask() for _ in range(8)))
    finally:
        await asyncio.to_thread(killable_yard.resume, CLUSTER)
        await asked.close()
    assert [error for error in found if not isinstance(error, KafkaError)] == []
