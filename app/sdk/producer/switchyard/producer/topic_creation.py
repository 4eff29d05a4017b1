"""Clients of aiokafka that never create a topic.

Brokers may create what a client asks for (Kafka's default), with their own partitions and settings. aiokafka
has no option against that, so its request for metadata is replaced.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.protocol.metadata import MetadataRequest


def never_create_topics(client: AIOKafkaClient) -> None:
    """From now on a topic that does not exist is an error for this client; call it before it starts."""
    client._metadata_update = partial(update_metadata, client)  # type: ignore[method-assign]


async def update_metadata(
    client: AIOKafkaClient, known: ClusterMetadata, topics: set[str], turn_s: float | None = None
) -> bool:
    """aiokafka's `_metadata_update`, which creates no topic. Each broker but the last is waited for during
    `turn_s` at most."""
    request = MetadataRequest(list(topics or ()) or None, allow_auto_topic_creation=False)
    nodes = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(nodes)
    for node in nodes:
        try:
            async with asyncio.timeout(None if node == nodes[-1] else turn_s):
                found = await client.send(node, request)
        except Exception:  # noqa: BLE001, S112 - aiokafka's task would end, and whoever waits wait for ever
            continue
        if found.brokers:
            known.update_metadata(found)
            return True
    known.failed_update(None)
    return False
