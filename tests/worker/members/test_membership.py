"""A worker that was suspended acts again only when it has read the assignments made meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from app.controllog.codec import Heartbeat
from app.controllog.events import Assignment, Claim
from app.controllog.log import ControlLog
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kernel.clock import clock
from app.kernel.lease import Lease
from app.worker.members.host_clock import HostClock
from app.worker.members.membership import Heartbeats, LeaseRenewal, Members

pytestmark = pytest.mark.system

JOB = "dispatch:billing/orders:orders:0"
ENOUGH_S = 150.0
LEASE_S = 6.0  # longer than a busy machine takes for a heartbeat


def assigned(worker: str, epoch: int) -> Assignment:
    return Assignment(at_ms=0, job=JOB, worker=worker, epoch=epoch, term=1, reason="")


async def test_a_lease_is_renewed_only_after_the_control_log_is_read(bootstrap: str, topic_name: str) -> None:
    spec, beats = ClusterSpec("east", (bootstrap,)), f"{topic_name}-beats"
    client, lease = ClusterClient(spec), Lease(LEASE_S)
    mine, others = (ControlLog(topic_name, spec.aiokafka_options()) for _ in range(2))

    async def read(timeout_s: float) -> None:
        await mine.read_to_end(client, timeout_s)

    heartbeats = Heartbeats(
        beats, spec.aiokafka_options(), members=Members(3.0), renewal=LeaseRenewal(lease, read),
        interval_s=3600.0, host_clock=HostClock(clock, lambda *_: None),
        compose=lambda: Heartbeat(worker="me", at_ms=0, started_ms=0, url="", state="running", term=0),
    )  # fmt: skip
    await client.start()
    await ensure_topics(client, [TopicSpec(topic_name, 1), TopicSpec(beats, 1)])
    services: list[Any] = [mine, others, heartbeats]
    try:
        for service in services:
            await service.start()
        async with asyncio.timeout(ENOUGH_S):
            while not lease.holds(time.monotonic()):  # noqa: ASYNC110 - the first one has no event
                await asyncio.sleep(0.01)
        await others.append(Claim(at_ms=0, term=1, worker="leader"), assigned("me", 1))
        assert await heartbeats.beat()
        assert lease.holds(time.monotonic())
        assert "me" in {held.worker for held in mine.view.assignments.values()}

        await mine._tail.stop()  # as if the worker were suspended
        lease.expires_at_s = 0.0
        await others.append(assigned("w2", 2))
        assert not await heartbeats.beat(), "the heartbeat arrived, but the worker has not read the log"
        assert not lease.holds(time.monotonic())

        await mine._tail.restart()
        assert not await heartbeats.beat(), (
            "the leader may assign its jobs to others before it gets this heartbeat"
        )
        assert not lease.holds(time.monotonic())
        async with asyncio.timeout(ENOUGH_S):
            while not await heartbeats.beat():
                pass
        assert lease.holds(time.monotonic())
        owner = mine.view.owner(JOB)
        assert owner is not None
        assert owner.worker == "w2"
    finally:
        for service in reversed(services):
            await service.stop()
        await client.stop()
