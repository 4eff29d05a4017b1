"""A client of the session's broker, and a queue in it that is yet to be created."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.kafka.client.cluster import ClusterClient, ClusterSpec
from tests.dispatch.dlq.queues import DeadLetterQueue


@pytest.fixture
async def queue(bootstrap: str, topic_name: str) -> AsyncIterator[DeadLetterQueue]:
    client = ClusterClient(ClusterSpec("east", (bootstrap,)))
    await client.start()
    yield DeadLetterQueue(bootstrap, topic_name, client)
    await client.stop()
