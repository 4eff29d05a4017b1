"""A follower on a real broker: positions reported by others delay no answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.controllog import codec
from app.controllog.codec import Heartbeat
from app.controllog.topics import TRACKER_PARTITIONS, ControlTopics
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.commits import OffsetCommitter
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kernel.fencing import SnapshotItem, TakeoverAnswer, TrackerRecord
from app.kernel.tracker import Tracker
from app.worker.members.membership import Members
from app.worker.tracker.client import TrackerClient, tracker_partition
from app.worker.tracker.follower import TrackerFollower
from tests.kafka.conftest import ENOUGH_S, connected, producing

ME, JOB = "me", "dispatch|billing/orders|orders|0"
PARTITION = tracker_partition(JOB)
BEYOND = 1 << 40


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[ClusterClient]:
    """A client of the broker that all tests share."""
    async with connected(bootstrap) as made:
        yield made


@pytest.fixture
async def topics(client: ClusterClient, topic_name: str) -> ControlTopics:
    """The empty control topics of a region of the test's own."""
    made = ControlTopics(topic_name)
    changelog = made.changelog("trackers", TRACKER_PARTITIONS)
    await ensure_topics(client, [TopicSpec(one.name, one.partitions) for one in (*made.all(), changelog)])
    return made


@asynccontextmanager
async def followed(client: ClusterClient, topics: ControlTopics) -> AsyncIterator[TrackerClient]:
    """A tracker client, once the only live worker follows the job's partition."""
    options, members = client.spec.aiokafka_options(), Members(dead_after_s=1e9)
    beat = Heartbeat(worker=ME, at_ms=0, started_ms=0, url="", state="running", term=0)
    members.observe(beat, time.monotonic())
    follower, asking = (
        TrackerFollower(ME, topics, options, members, client),
        TrackerClient(ME, topics, options),
    )
    try:
        await follower.start()
        await asking.start()
        async with asyncio.timeout(ENOUGH_S):
            while PARTITION not in follower.folds:  # noqa: ASYNC110 - a task of its own
                await asyncio.sleep(0.02)
        yield asking
    finally:
        await asking.stop()
        await follower.stop()


async def taken(client: TrackerClient, epoch: int) -> TakeoverAnswer:
    """The answer to a takeover; the timeout only ends a test that hangs."""
    async with asyncio.timeout(ENOUGH_S):
        return await client.takeover(JOB, epoch)


async def save(client: TrackerClient, epoch: int) -> bytes:
    """Saves a snapshot under the epoch and returns it."""
    snapshot = Tracker(3, 8).snapshot().to_bytes()
    await asyncio.gather(*await client.send_snapshots([SnapshotItem(JOB, epoch, snapshot)]))
    return snapshot


async def test_a_position_beyond_the_end_of_the_tracker_topic_keeps_no_takeover_waiting(
    client: ClusterClient, topics: ControlTopics
) -> None:
    place = topics.trackers.name, PARTITION
    assert await OffsetCommitter(client).commit(topics.app_id, {place: BEYOND}) == {}
    async with followed(client, topics) as asking:
        assert (await taken(asking, 1)).granted
        saved = await save(asking, 1)
        assert (await taken(asking, 2)).snapshot == saved


async def test_a_row_of_an_offset_beyond_the_end_is_changed_by_later_events(
    client: ClusterClient, topics: ControlTopics, bootstrap: str
) -> None:
    """Otherwise each later owner would get that row for ever, and deliver its messages again."""
    record = TrackerRecord(epoch=1, worker="gone", offset=BEYOND)
    async with producing(bootstrap) as producer:
        name = topics.changelog("trackers", TRACKER_PARTITIONS).name
        await producer.send_and_wait(name, codec.encode(record), key=JOB.encode(), partition=PARTITION)
    async with followed(client, topics) as asking:
        refused = await taken(asking, 1)
        assert (refused.granted, refused.known_epoch) == (False, 1), "the record was read"
        assert (await taken(asking, 2)).granted
        saved = await save(asking, 2)
        assert (await taken(asking, 3)).snapshot == saved
