"""A data cluster starts as a whole or not at all, and a failed start leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import ClusterAuthorizationFailedError

from app.kafka.client.cluster import ClusterSpec
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget
from app.kafka.fetch.service import FetchService

ENOUGH_S = 150.0


async def nowhere(_: Any) -> None: ...


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[AIOKafkaClient]:
    """All created clients that are not closed yet."""
    made: list[AIOKafkaClient] = []
    begin, close = AIOKafkaClient.bootstrap, AIOKafkaClient.close

    async def bootstrap(self: AIOKafkaClient) -> None:
        made.append(self)
        await begin(self)  # type: ignore[no-untyped-call]  # aiokafka has no types

    async def closed(self: AIOKafkaClient) -> None:
        await close(self)  # type: ignore[no-untyped-call]
        if self in made:
            made.remove(self)

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)
    monkeypatch.setattr(AIOKafkaClient, "close", closed)
    return made


async def test_failed_start_leaves_nothing_behind_and_the_next_start_may_succeed(
    bootstrap: str, clients: list[AIOKafkaClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = ByteBudget(1 << 20)
    clusters = DataClusters({"c": ClusterSpec("c", (bootstrap,))}, nowhere, budget)

    async def refused(_: FetchService) -> None:
        raise ClusterAuthorizationFailedError("no permission")

    tasks = asyncio.all_tasks()
    with monkeypatch.context() as patch:
        patch.setattr(FetchService, "start", refused)
        for _ in range(3):
            with pytest.raises(ClusterAuthorizationFailedError):
                await clusters.get("c")
    assert not clients
    assert not clusters.started()
    async with asyncio.timeout(ENOUGH_S):  # what was cancelled ends in a later turn
        while budget.waiters or asyncio.all_tasks() != tasks:  # noqa: ASYNC110
            await asyncio.sleep(0)

    cluster = await clusters.get("c")
    assert clusters.started() == [cluster]
    assert (await cluster.client.cluster_id()) != ""
    await clusters.stop()
    assert not clients
    assert not budget.waiters


async def test_cancelled_start_leaves_nothing_behind(
    bootstrap: str, clients: list[AIOKafkaClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = DataClusters({"c": ClusterSpec("c", (bootstrap,))}, nowhere, ByteBudget(1 << 20))
    reached = asyncio.Event()

    async def hangs(_: FetchService) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(FetchService, "start", hangs)
    starting = asyncio.create_task(clusters.get("c"))
    await reached.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert not clients
    assert not clusters.started()
