"""Writes records with a worker's seal into control topics, as a faulty worker could."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.controllog.seals import Seals
from app.controllog.topics import ControlTopics
from app.kafka.append.replaceable_producer import ReplaceableProducer
from tests.kafka.conftest import connected


async def seals_of(bootstrap: str, region: str) -> Seals:
    """Seals with the region's key; `bootstrap` is the address of its control cluster."""
    seals = Seals(ControlTopics(region), {"bootstrap_servers": bootstrap})
    async with connected(bootstrap) as client:
        await seals.learn(client)
    return seals


@asynccontextmanager
async def producing_as_worker(bootstrap: str, region: str) -> AsyncIterator[ReplaceableProducer]:
    """A producer that seals its records with the region's key."""
    seal = await seals_of(bootstrap, region)
    producer = ReplaceableProducer("a test", {"bootstrap_servers": bootstrap}, seal=seal)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()
