"""The seals that are valid for copied control topics, also after they change."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from app.dev.yard.security import ADMIN
from app.failover.topology import Layout, Site
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget
from app.replicate.jobs import sealed_sources
from app.replicate.jobs.sealed_sources import SealedSources
from tests.controllog.test_seals import region, started_seals, until
from tests.kafka import acls
from tests.kafka.acls import Acls, spec_of
from tests.kafka.conftest import ENOUGH_S
from tests.kafka.second_broker import delete

Troubles = list[tuple[str, ...]]


async def nowhere(_: Any) -> None:
    pass


@asynccontextmanager
async def sources(there: ClusterSpec, away: str) -> AsyncIterator[tuple[SealedSources, Troubles]]:
    """The seals of a worker in `west`, with the control cluster of the region `away`."""
    specs = {name: replace(there, name=name) for name in ("there", "here")}
    clusters = DataClusters(specs, nowhere, ByteBudget(1 << 20))
    sites = {"there": Site(away, "regional"), "here": Site("west", "regional")}
    troubles: Troubles = []
    layout = Layout("west", sites, "here")
    made = SealedSources(layout, clusters, lambda *incident: troubles.append(incident[:4]))
    await made.start()
    try:
        yield made, troubles
    finally:
        await made.stop()
        await clusters.stop()


async def recreate(client: ClusterClient, topics: ControlTopics, name: str) -> None:
    await delete(client, name)
    (topic,) = [one for one in topics.all() if one.name == name]
    await ensure_topics(client, [TopicSpec(topic.name, topic.partitions, 1, config=topic.config)])


async def test_seals_are_those_that_the_region_has_now(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_sources, "POLL_INTERVAL_S", 0.1)
    async with (
        region(bootstrap, monkeypatch) as (client, topics, options),
        sources(client.spec, topics.region) as (here, troubles),
    ):
        control = topics.control.name
        assert await here.of("there", topics.audit.name) is None, "clients write there"
        assert await here.of("here", control) is None, "that is a copy"
        found = await here.of("there", control)
        assert found is not None
        async with started_seals(topics, options, client) as seals:
            await seals.begin(client, "w")
            await until(lambda: (now := found()) and not now.missing)
        first = found()
        assert first is not None
        first.refuse(control, 0, 7)
        await until(lambda: troubles)
        ((kind, subject, message, _),) = troubles
        assert (kind, subject) == ("unsealed", control)
        assert "1 records" in message
        assert "offset 7 of partition 0" in message

        await delete(client, topics.seals.name)  # as before one goes back to an earlier version
        await until(lambda: found() is None)
        await recreate(client, topics, control)
        await ensure_topics(client, [TopicSpec(topics.seals.name, 1, 1, config=topics.seals.config)])
        await until(lambda: found() is not None)
        async with started_seals(topics, options, client) as seals:
            await seals.begin(client, "w")
            await until(lambda: (now := found()) and not now.missing)
            second, sealed = found(), seals.headers(control, b"k", b"v")
            assert second is not None
            assert sealed == second.headers(control, b"k", b"v") != first.headers(control, b"k", b"v")


async def test_a_region_without_seals_does_not_keep_its_copy_from_beginning(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        region(bootstrap, monkeypatch) as (client, topics, _),
        sources(client.spec, topics.region) as (here, troubles),
    ):
        await delete(client, topics.seals.name)
        found = await here.of("there", topics.control.name)
        assert found is not None
        assert found() is None
        assert troubles == []


async def test_a_worker_that_may_not_see_the_seals_continues_and_reports_what_to_grant(secured: Yard) -> None:
    topics = ControlTopics(f"r{uuid.uuid4().hex[:8]}")
    admin = ClusterClient(spec_of(secured, "east-regional", ADMIN))
    user = ClusterClient(spec_of(secured, "east-regional", "switchyard"))
    await admin.start()
    await user.start()
    try:
        made = [one for one in topics.all() if one in (topics.control, topics.seals)]
        await ensure_topics(admin, [TopicSpec(one.name, 1, 1, config=one.config) for one in made])
        await Acls(admin).allow("switchyard", acls.TOPIC, topics.control.name, acls.READ)
        async with asyncio.timeout(ENOUGH_S):
            while not await user.topic_ids([topics.control.name]):  # brokers hear of a grant later
                pass
        async with sources(spec_of(secured, "east-regional", "switchyard"), topics.region) as (
            here,
            troubles,
        ):
            found = await here.of("there", topics.control.name)
            assert found is not None
            assert found() is None
            await here.of("there", topics.control.name)
            ((kind, subject, message, remedy),) = troubles
            assert (kind, subject) == ("seals-unread", topics.region)
            assert topics.seals.name in message
            assert f"grant Read on switchyard-{topics.region}-" in remedy
            everything = f"switchyard-{topics.region}-"
            await Acls(admin).allow("switchyard", acls.TOPIC, everything, acls.READ, pattern=acls.PREFIXED)
            async with asyncio.timeout(ENOUGH_S):
                while found() is None:
                    await here.of("there", topics.control.name)
    finally:
        await user.stop()
        await admin.stop()
