"""Replicas in the hands of the job manager, between real brokers; control log and tracker are by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from app.clock import now_ms
from app.config.route import RouteDefinition
from app.control.beginning import Anew
from app.control.beginning_replica import find_replica_beginning
from app.control.catalog import Catalog
from app.control.data_clusters import DataClusters
from app.control.jobs import Jobs
from app.core.control_events import ALL, Assignment, Paused, RoutePut
from app.core.fencing import LogId, SnapshotItem, Snapshots, Takeover, TakeoverAnswer
from app.core.job import JobId, Kind
from app.core.lease import Lease
from app.core.offset_map import BarrierItem
from app.core.ranges import Snapshot
from app.core.tracker_fold import TrackerFold
from app.kafka.clusters import ClusterSpec
from app.kafka.fetched import ByteBudget
from app.kafka.topics import TopicSpec, ensure_topics
from app.replica.pump import ReplicaPump
from app.yard import Yard
from tests.control.test_jobs import Log
from tests.kafka.conftest import connected, write
from tests.kafka.second_broker import delete
from tests.replica.stand import definition, rows

ENOUGH_S = 60.0
HOME, AWAY = "east-regional", "east-aggregate"


class Trackers:
    """The tracker topic and who follows it, in one."""

    def __init__(self) -> None:
        self._fold = TrackerFold()
        self._offset = 0

    def _apply(self, event: Any) -> TakeoverAnswer | None:
        self._offset += 1
        return self._fold.apply(event, self._offset)

    async def takeover(self, job: str, epoch: int) -> TakeoverAnswer:
        answer = self._apply(Takeover(job=job, epoch=epoch, worker="me", nonce="n", at_ms=0))
        assert answer is not None
        return answer

    async def send_snapshots(self, items: Iterable[SnapshotItem]) -> list[asyncio.Future[Any]]:
        self._apply(Snapshots(worker="me", at_ms=0, items=list(items)))
        return []


class Sender:
    """Takes barriers."""

    def __init__(self) -> None:
        self.items: list[BarrierItem] = []

    async def send(self, items: Iterable[BarrierItem]) -> list[asyncio.Future[Any]]:
        self.items += items
        return []


class Manager:
    """A job manager with one job: to copy partition 0 of a topic."""

    def __init__(self, jobs: Jobs, log: Log, topic: str, told: list[tuple[str, str]], sender: Sender) -> None:
        self.jobs, self.log, self.topic, self.told, self.sender = jobs, log, topic, told, sender
        self.job = f"replicate:r:{topic}:0"
        self._epoch = 0

    @property
    def pump(self) -> ReplicaPump | None:
        return self.jobs.replicas.pumps.get(self.job)

    def put(self, **spec: Any) -> None:
        """Deploys the route."""
        route = definition(HOME, AWAY, self.topic, **spec)
        self.log.apply(
            RoutePut(at_ms=now_ms(), key="r", definition=route.to_wire(), etag=route.etag(), actor="test")
        )

    def assign(self, *, release: bool = False) -> None:
        self._epoch += not release
        event = Assignment(at_ms=0, job=self.job, worker="me", epoch=self._epoch, term=1, reason="")
        self.log.apply(msgspec.structs.replace(event, release=release))

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(ENOUGH_S):
            while not condition():  # noqa: ASYNC110 - callbacks change it
                await asyncio.sleep(0.02)

    async def copied(self, end: int) -> ReplicaPump:
        await self.until(lambda: self.pump is not None and self.pump.base >= end)
        assert self.pump is not None
        return self.pump


@asynccontextmanager
async def managing(yard: Yard, topic: str) -> AsyncIterator[Manager]:
    """A manager, with the topic on both sides."""
    budget, holder = ByteBudget(64 << 20), list[Jobs]()

    async def deliver(item: Any) -> None:
        holder[0].take(item)

    lease = Lease(1e9)
    lease.renewed(time.monotonic())
    lease.saved(time.monotonic(), 1e9)
    specs = {name: ClusterSpec(name, (yard.bootstrap(name),)) for name in (HOME, AWAY)}
    clusters = DataClusters(specs, deliver, budget)
    for name in specs:
        await ensure_topics((await clusters.get(name)).client, [TopicSpec(topic, 1, 1)])
    told: list[tuple[str, str]] = []

    def tell(kind: str, _subject: str, message: str, _remedy: str) -> None:
        told.append((kind, message))

    log, sender = Log(), Sender()
    by_hand: Any = log
    trackers: Any = Trackers()
    barriers: Any = sender
    catalog = Catalog(by_hand, clusters, tell)
    jobs = Jobs("me", by_hand, catalog, clusters, trackers, lease, tell, grace_s=10.0, barriers=barriers)
    holder.append(jobs)
    await jobs.start()
    try:
        yield Manager(jobs, log, topic, told, sender)
    finally:
        async with asyncio.timeout(ENOUGH_S):
            await jobs.drain_all()
            await jobs.stop()
            await clusters.stop()
        assert budget.used_bytes == 0


@pytest.fixture
async def manager(yard: Yard, topic_name: str) -> AsyncIterator[Manager]:
    async with managing(yard, topic_name) as made:
        yield made


async def _write(yard: Yard, topic: str, *values: str) -> None:
    await write(yard.bootstrap(HOME), topic, [value.encode() for value in values])


async def _copy(yard: Yard, topic: str) -> list[bytes | None]:
    async with connected(yard.bootstrap(AWAY)) as client:
        return [value for _, _, value, _ in await rows(client, topic)]


async def test_a_route_is_copied_paused_given_up_and_taken_again_without_a_record_lost_or_doubled(
    yard: Yard, manager: Manager
) -> None:
    topic = manager.topic
    manager.put(checkpoint={"every": "200ms"})
    manager.assign()
    await _write(yard, topic, "a", "b")
    pump = await manager.copied(2)
    log_id = pump.target_log
    await manager.until(lambda: len(manager.sender.items) > 1)
    assert {(item.route, item.topic, item.target_topic, item.target) for item in manager.sender.items} == {
        ("r", topic, topic, log_id)
    }
    first, last = manager.sender.items[0].barriers[0], manager.sender.items[-1].barriers[-1]
    assert (first.source_end, first.target_end) == (0, 0)
    assert (last.source_end, last.target_end) == (2, 2)

    manager.log.apply(Paused(at_ms=0, key="r", partition=ALL, paused=True, actor="test"))
    await manager.until(lambda: pump.paused)
    await _write(yard, topic, "c")
    await asyncio.sleep(0.3)
    assert await _copy(yard, topic) == [b"a", b"b"]
    manager.log.apply(Paused(at_ms=0, key="r", partition=ALL, paused=False, actor="test"))
    await manager.copied(3)

    manager.assign(release=True)
    await manager.until(lambda: manager.pump is None)
    assert not manager.jobs.replicas.routes, "its runtime goes with its last pump"
    await _write(yard, topic, "d")
    manager.assign()
    await manager.copied(4)
    assert await _copy(yard, topic) == [b"a", b"b", b"c", b"d"]
    group = await _committed(manager)
    assert group == 4, "Kafka's own tools see the lag"
    assert manager.told == []


async def _committed(manager: Manager) -> int | None:
    cluster = await manager.jobs._clusters.get(HOME)
    at = (manager.topic, 0)
    async with asyncio.timeout(ENOUGH_S):
        while (found := (await cluster.committer.committed("switchyard-r", [at]))[at]) != 4:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # a round of commits is due
    return found


async def test_other_limits_come_into_force_at_once_and_any_other_change_from_where_it_stands(
    yard: Yard, manager: Manager
) -> None:
    topic = manager.topic
    manager.put()
    manager.assign()
    await _write(yard, topic, "a")
    pump = await manager.copied(1)
    manager.put(limits={"messages_per_second": 5.0})
    await manager.until(lambda: pump.runtime.messages is not None)
    assert manager.pump is pump
    manager.put(headers={"provenance": True})
    await manager.until(lambda: manager.pump is not None and manager.pump is not pump)
    await _write(yard, topic, "b")
    await manager.copied(2)
    assert await _copy(yard, topic) == [b"a", b"b"]
    assert manager.told == []


async def test_a_source_topic_that_is_made_anew_is_copied_from_its_start_or_waited_for_as_the_route_says(
    yard: Yard, manager: Manager
) -> None:
    topic = manager.topic
    manager.put(onGap="stop")
    manager.assign()
    await _write(yard, topic, "a", "b", "c")
    await manager.copied(3)
    client = (await manager.jobs._clusters.get(HOME)).client
    await delete(client, topic)
    while topic in await client.topics():  # noqa: ASYNC110 - the broker's
        await asyncio.sleep(0.05)
    await ensure_topics(client, [TopicSpec(topic, 1, 1)])
    await _write(yard, topic, "d")
    await manager.until(lambda: manager.pump is not None and "stops at gaps" in manager.pump.trouble)
    await asyncio.sleep(0.5)
    assert await _copy(yard, topic) == [b"a", b"b", b"c"]
    assert "log-begun-anew" in {kind for kind, _ in manager.told}
    manager.put(onGap="continue")
    await manager.until(lambda: manager.pump is not None and manager.pump.lineage == 1)
    await manager.copied(1)
    assert await _copy(yard, topic) == [b"a", b"b", b"c", b"d"]


async def test_a_fault_in_a_replica_begins_its_job_again_by_itself(yard: Yard, manager: Manager) -> None:
    topic = manager.topic
    manager.put()
    manager.assign()
    await _write(yard, topic, "a")
    pump = await manager.copied(1)
    pump.lose("a fault")
    await _write(yard, topic, "b")
    await manager.copied(2)
    assert manager.pump is not pump
    assert await _copy(yard, topic) == [b"a", b"b"]
    assert [kind for kind, _ in manager.told] == ["replica-begins-again"]


# -- where it begins -------------------------------------------------------------------------------


class Place:
    """A source topic, and what the tracker says of it."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def begin(
        self, base: int | None = None, *, start: str = "earliest", on_gap: str = "continue",
        since_ms: int = 0, anew: Anew | None = None, **answer: Any,
    ) -> Any:  # fmt: skip
        topic = self._manager.topic
        cluster = await self._manager.jobs._clusters.get(HOME)
        given = TakeoverAnswer(
            job="j", epoch=1, worker="me", nonce="n", granted=True, known_epoch=1,
            snapshot=b"" if base is None else Snapshot(base).to_bytes(),
        )  # fmt: skip
        route: RouteDefinition = definition(HOME, AWAY, topic, start=start, onGap=on_gap)
        return await find_replica_beginning(
            JobId(Kind.REPLICATE, "r", topic, 0), route, cluster, msgspec.structs.replace(given, **answer),
            since_ms=since_ms, anew=anew, tell=lambda *_: None,
        )  # fmt: skip


async def test_a_replica_begins_where_it_was_never_by_chance_at_the_end(yard: Yard, manager: Manager) -> None:
    place = Place(manager)
    await _write(yard, manager.topic, "a", "b", "c")
    between_ms = now_ms() + 1
    await asyncio.sleep(0.05)
    await _write(yard, manager.topic, "d")
    first = await place.begin()
    assert (first.snapshot.base, first.is_first, first.known) == (0, True, False)
    assert (await place.begin(start="latest", since_ms=between_ms)).snapshot.base == 3
    assert (await place.begin(start="latest", since_ms=now_ms() + 60_000)).snapshot.base == 4
    again = await place.begin(2, start="latest", since_ms=now_ms(), log=first.log, note=b"n")
    assert (again.snapshot.base, again.known, again.is_first) == (2, True, False)
    cluster = await manager.jobs._clusters.get(HOME)
    await cluster.committer.commit("switchyard-r", {(manager.topic, 0): 1})
    lost = await place.begin()
    assert (lost.snapshot.base, lost.is_first) == (1, False)
    another = LogId(first.log.cluster_id, "AAAAAAAAAAAAAAAAAAAAAA")
    anew = await place.begin(3, log=another, note=b"n")
    assert (anew.snapshot.base, anew.lineage, anew.is_first) == (0, 1, True)
    with pytest.raises(LookupError, match="stops at gaps"):
        await place.begin(3, log=another, on_gap="stop")
