"""A connection that ends during a send or a wait raises a Kafka error."""

from __future__ import annotations

import asyncio
import subprocess
import sys
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
TURNS = 6  # turns of the loop until a connection knows that it was closed


async def _sent_meanwhile(bootstrap: str) -> list[str]:
    """The results of sends in each turn of the loop after the transport has closed."""
    client = ClusterClient(ClusterSpec("test", (bootstrap,)))
    await client.start()
    try:
        await client.metadata([])
        (connection,) = client.client._conns.values()
        connection._writer.transport.abort()
        results = []
        for _ in range(TURNS):
            try:
                sent = asyncio.ensure_future(connection.send(MetadataRequest([])))
                sent.add_done_callback(lambda done: done.exception())
            except KafkaConnectionError as error:
                results.append(str(error))
            await asyncio.sleep(0)
        async with asyncio.timeout(120):
            assert await client.client.force_metadata_update()
        return results
    finally:
        await client.stop()


def test_send_on_a_closed_transport_raises_a_kafka_error(bootstrap: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = runner.run(_sent_meanwhile(bootstrap))
    assert any("handler is closed" in message for message in results), "the moment was missed"


async def _send_to_an_old_broker(bootstrap: str) -> None:
    client = ClusterClient(ClusterSpec("test", (bootstrap,)))
    await client.start()
    try:
        await client.metadata([])
        (connection,) = client.client._conns.values()
        connection._versions = {TopicIdsRequest.API_KEY: (0, 9)}  # as a broker before Kafka 2.8 reports
        with pytest.raises(NotImplementedError):
            connection.send(TopicIdsRequest([]))
        assert await client.topic_ids(["orders"]) == {"orders": UNKNOWN_ID}
        assert connection.connected()
        await client.metadata([])
        assert list(client.client._conns.values()) == [connection], "what it knows goes the same way"
    finally:
        await client.stop()


def test_unknown_request_raises_and_leaves_the_connection_open(bootstrap: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_send_to_an_old_broker(bootstrap))


async def test_each_request_to_a_frozen_broker_raises_a_kafka_error(
    killable_yard: Yard,
) -> None:
    shared_client: Any = AIOKafkaClient(  # type: ignore[no-untyped-call]
        bootstrap_servers=killable_yard.bootstrap(CLUSTER), request_timeout_ms=500
    )
    await shared_client.bootstrap()
    node = shared_client.get_random_node()
    assert await shared_client.ready(node)

    async def ask() -> BaseException:
        """The results of a request and an immediate second one, which makes a new connection."""
        results = []
        for _ in range(2):
            try:
                await shared_client.send(node, MetadataRequest([]))
            except Exception as error:  # noqa: BLE001 - which it is, is what is looked at
                results.append(error)
        return results[0]

    await asyncio.to_thread(killable_yard.pause, CLUSTER)
    try:
        found = await asyncio.gather(*(ask() for _ in range(8)))
    finally:
        await asyncio.to_thread(killable_yard.resume, CLUSTER)
        await shared_client.close()
    assert [error for error in found if not isinstance(error, KafkaError)] == []


def test_a_process_that_forgot_the_patches_makes_no_client() -> None:
    script = """
from aiokafka.conn import AIOKafkaConnection
before = AIOKafkaConnection.send
from app.kafka.client import aiokafka_patches
from app.kafka.client.cluster import ClusterClient, ClusterSpec
assert AIOKafkaConnection.send is before, "an import changes nothing"
try:
    ClusterClient(ClusterSpec("east", ("h:1",)))
except RuntimeError as error:
    print(error)
for _ in range(2):
    aiokafka_patches.install()
    ClusterClient(ClusterSpec("east", ("h:1",)))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "aiokafka_patches.install()" in ran.stdout
    assert "east" in ran.stdout
