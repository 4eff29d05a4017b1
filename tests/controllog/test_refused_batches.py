"""Each sender of a control topic continues after a refused batch; a stuck partition is reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from app.audit.jobs.report_sender import AuditSender
from app.controllog.codec import Heartbeat
from app.controllog.events import OperatorAct
from app.controllog.log import ControlLog
from app.controllog.seals import Seals
from app.controllog.topics import ControlTopics
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kernel.clock import clock
from app.kernel.fencing import LogId, SnapshotItem
from app.kernel.lease import Lease
from app.offsets.model.offset_map import NeedItem
from app.offsets.sync.offset_sync_sender import BarrierSender
from app.worker.members.host_clock import HostClock
from app.worker.members.membership import Heartbeats, LeaseRenewal, Members
from app.worker.tracker.client import TrackerClient, tracker_partition
from tests.kafka.conftest import bound, connected
from tests.kafka.second_broker import delete

NOTHING_BYTES = 50  # smaller than any record
ITEM = SnapshotItem("dispatch|billing/orders|orders|0", 1, b"")
ENOUGH_S = 150.0


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[ClusterClient]:
    """A client of the broker that all tests share."""
    async with connected(bootstrap) as made:
        yield made


@pytest.fixture
async def topics(client: ClusterClient, topic_name: str) -> ControlTopics:
    """Control topics of a region that only this test uses."""
    made = ControlTopics(topic_name)
    await ensure_topics(client, [TopicSpec(one.name, one.partitions, 1) for one in made.all()])
    return made


@asynccontextmanager
async def running(service: Any) -> AsyncIterator[Any]:
    """Starts the service, and stops it after the block."""
    await service.start()
    try:
        yield service
    finally:
        async with asyncio.timeout(ENOUGH_S):
            await service.stop()


async def until(is_taken: bool, send: Callable[[], Awaitable[Any]]) -> None:
    """Sends until the broker accepts a batch, or refuses one: it applies a new setting after a moment."""
    async with asyncio.timeout(ENOUGH_S):
        found = not is_taken
        while found != is_taken:
            try:
                await send()
                found = True
            except KafkaError:
                found = False


async def written(sent: Awaitable[list[asyncio.Future[Any]]]) -> None:
    """Returns once all of the messages are written. Raises KafkaError."""
    await asyncio.gather(*await sent)


def tracking(topics: ControlTopics, spec: ClusterSpec) -> tuple[Any, Callable[[], Awaitable[Any]]]:
    sender = TrackerClient("me", topics, spec.aiokafka_options())
    return sender, lambda: written(sender.send_snapshots([ITEM]))


def taking_over(topics: ControlTopics, spec: ClusterSpec) -> tuple[Any, Callable[[], Awaitable[Any]]]:
    sender = TrackerClient("me", topics, spec.aiokafka_options())
    place = topics.trackers.name, tracker_partition(ITEM.job)

    async def take_over() -> None:  # no agent answers, so the request only has to be written
        async with connected(",".join(spec.bootstrap)) as client, asyncio.timeout(ENOUGH_S):
            before = await client.end_offsets([place])
            takeover = asyncio.create_task(sender.takeover(ITEM.job, 1))
            while not takeover.done() and await client.end_offsets([place]) == before:
                await asyncio.wait([takeover], timeout=0.02)
            if takeover.done():
                await takeover
            takeover.cancel()

    return sender, take_over


def controlling(topics: ControlTopics, spec: ClusterSpec) -> tuple[Any, Callable[[], Awaitable[Any]]]:
    log = ControlLog(topics.control.name, spec.aiokafka_options())
    act = OperatorAct(at_ms=1, subject="billing/orders", action="pause", detail="", actor="test")
    return log, lambda: log.append(act)


def mapping(topics: ControlTopics, spec: ClusterSpec) -> tuple[Any, Callable[[], Awaitable[Any]]]:
    sender = BarrierSender(topics, spec.aiokafka_options(), "me")
    return sender, lambda: written(sender.ask([NeedItem("mirror", "orders", 0, LogId(), ())]))


def auditing(topics: ControlTopics, spec: ClusterSpec) -> tuple[Any, Callable[[], Awaitable[Any]]]:
    none: Any = None
    sender = AuditSender(topics, spec.aiokafka_options(), none)
    return sender, lambda: sender.tick(1)


def beating(topics: ControlTopics, spec: ClusterSpec) -> tuple[Any, Callable[[], Awaitable[Any]]]:
    beat = Heartbeat(worker="me", at_ms=0, started_ms=0, url="", state="running", term=0)

    async def read(_: float) -> None: ...

    beats = Heartbeats(
        topics.heartbeats.name, spec.aiokafka_options(), members=Members(3.0),
        renewal=LeaseRenewal(Lease(60.0), read), interval_s=3600.0, compose=lambda: beat,
        host_clock=HostClock(clock, lambda *_: None),
    )  # fmt: skip

    async def send() -> None:
        if not await beats.beat():
            raise MessageSizeTooLargeError("the lease is not renewed")

    return beats, send


def sealing(topics: ControlTopics, spec: ClusterSpec) -> tuple[Any, Callable[[], Awaitable[Any]]]:
    seals = Seals(topics, spec.aiokafka_options())

    async def begin() -> None:
        async with connected(",".join(spec.bootstrap)) as client:
            await seals.learn(client)
            await seals.begin(client, "me")

    return seals, begin


@pytest.mark.parametrize(
    ("topic", "sender"),
    [
        ("trackers", tracking),
        ("trackers", taking_over),
        ("control", controlling),
        ("checkpoints", mapping),
        ("audit", auditing),
        ("heartbeats", beating),
        ("seals", sealing),
    ],
)
async def test_a_sender_continues_after_its_topic_refused_a_batch(
    client: ClusterClient, topics: ControlTopics, topic: str, sender: Any
) -> None:
    service, send = sender(topics, client.spec)
    name = getattr(topics, topic).name
    async with running(service):
        await send()
        await bound(client, NOTHING_BYTES, name)
        await until(False, send)
        for _ in range(3):
            with pytest.raises(KafkaError):
                await send()
        await bound(client, None, name)
        await until(True, send)
        await send()


async def test_a_worker_names_the_stuck_partition_and_the_brokers_answer(
    client: ClusterClient, topics: ControlTopics
) -> None:
    sender = TrackerClient("me", topics, client.spec.aiokafka_options())
    name, partition = topics.trackers.name, tracker_partition(ITEM.job)
    async with running(sender):
        await written(sender.send_snapshots([ITEM]))
        assert sender.writes.trouble(time.monotonic()) is None
        assert await sender.probe() is None

        await bound(client, NOTHING_BYTES, name)
        await until(False, lambda: written(sender.send_snapshots([ITEM])))
        trouble, met = sender.writes.trouble(time.monotonic()), await sender.probe()
        assert trouble is not None
        assert (trouble.partition, "MessageSizeTooLarge" in trouble.why) == (partition, True)
        assert met is not None
        assert ("MessageSizeTooLarge" in met.why, met.is_refusal) == (True, True)

        await bound(client, None, name)
        await until(True, lambda: written(sender.send_snapshots([ITEM])))
        assert sender.writes.trouble(time.monotonic()) is None


async def test_a_topic_that_does_not_answer_is_reported_and_delays_no_stop(
    client: ClusterClient, topics: ControlTopics
) -> None:
    """aiokafka's idempotent producer retries for ever, and reports nothing."""
    sender = TrackerClient("me", topics, client.spec.aiokafka_options())
    async with running(sender):
        await written(sender.send_snapshots([ITEM]))
        await delete(client, topics.trackers.name)
        (waiting,) = await sender.send_snapshots([ITEM])
        met = await sender.probe(1.0)
        assert met is not None
        assert (bool(met.why), met.is_refusal) == (True, False)
        trouble = sender.writes.trouble(time.monotonic())
        assert trouble is not None
        assert trouble.why == "", "no broker has answered"
    with pytest.raises(KafkaError):
        await waiting
    assert not [one for one in asyncio.all_tasks() if "_sender_routine" in repr(one)], (
        "a sender task still runs"
    )
