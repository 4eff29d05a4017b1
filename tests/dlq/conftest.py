"""A client of the session's broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.kafka.clusters import ClusterClient, ClusterSpec


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[ClusterClient]:
    made = ClusterClient(ClusterSpec("east", (bootstrap,)))
    await made.start()
    yield made
    await made.stop()
