"""Leaders that move between two brokers while their partitions are written, fetched and committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.dev.yard import Yard
from app.kafka.append.producer import Producer
from app.kafka.client import cluster
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.commits import OffsetCommitter
from app.kafka.fetch.deliveries import FetchIncident
from tests.kafka.conftest import Pump, connected, pumping, write
from tests.kafka.second_broker import (
    FIRST,
    SECOND,
    SecondBroker,
    create_on,
    delete,
    offsets_partitions,
    second_broker,
)

CLUSTER = "east-aggregate"  # not the one other tests use at the same time
PARTITIONS = 4
WRITERS = 3  # a partition: batches of several records
MORE = 50  # records of each partition that show that it flows
LATE = b"written while a leader is frozen"


class Load:
    """Writers of numbered records; each waits until its last record is written, and none may be refused."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self._ending = False
        self.taken: dict[tuple[int, int], int] = {}  # partition, writer -> acknowledged records

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Writes until the block ends, and then until all records are acknowledged."""
        async with asyncio.TaskGroup() as group:
            for partition in range(PARTITIONS):
                for writer in range(WRITERS):
                    group.create_task(self._write(partition, writer))
            try:
                yield
            finally:
                self._ending = True

    async def _write(self, partition: int, writer: int) -> None:
        number = 0
        while not self._ending:
            await self._producer.send(self._topic, None, f"{writer} {number}".encode(), [], partition)
            number += 1
            self.taken[partition, writer] = number

    def total(self, partition: int) -> int:
        """How many records of a partition are acknowledged."""
        return sum(self.taken.get((partition, writer), 0) for writer in range(WRITERS))


def _everything_came_once_and_in_order(pump: Pump, load: Load) -> None:
    for partition in range(PARTITIONS):
        offsets = pump.offsets(partition)
        assert offsets == list(range(len(offsets)))
        for writer in range(WRITERS):
            numbers = [
                int(value.split()[1])
                for value in pump.values(partition)
                if value is not None and value.startswith(f"{writer} ".encode())
            ]
            assert numbers == list(range(load.taken[partition, writer]))
    assert not [item for item in pump.reports if not isinstance(item, FetchIncident)]
    assert pump.budget.used_bytes == 0


@dataclass(slots=True)
class Scene:
    """Two brokers that each lead half of the partitions, with writers, a reader and a committer."""

    topic: str
    client: ClusterClient
    second: SecondBroker
    pump: Pump
    load: Load
    committer: OffsetCommitter
    next_commit: int = 0

    @property
    def partitions(self) -> list[tuple[str, int]]:
        return [(self.topic, partition) for partition in range(PARTITIONS)]

    async def flows(self) -> None:
        """Waits until every partition delivers new records, and checks the commits."""
        written = {partition: self.load.total(partition) for partition in range(PARTITIONS)}
        await self.pump.until(lambda: all(self.pump.count(at) >= written[at] + MORE for at in written))
        await self.commits_are_kept()

    async def commits_are_kept(self) -> None:
        """Asserts that the last commit can be read, and the next one made and read, by two committers."""
        at, group = (self.topic, 0), f"group-{self.topic}"
        for committer in (self.committer, OffsetCommitter(self.client)):
            if self.next_commit:
                assert await committer.committed(group, [at]) == {at: self.next_commit}
            self.next_commit += 1
            assert await committer.commit(group, {at: self.next_commit}) == {}
            assert await committer.committed(group, [at]) == {at: self.next_commit}

    async def all_is_fetched(self) -> None:
        """Waits until all records of the logs are fetched, also those that may be there twice."""
        await self.pump.until(
            lambda: all(self.pump.count(at) >= self.load.total(at) for at in range(PARTITIONS))
        )
        ends = await self.client.end_offsets(self.partitions)
        await self.pump.until(
            lambda: all(self.pump.position[at] >= ends[self.topic, at] for at in range(PARTITIONS))
        )


@pytest.fixture
async def scene(killable_yard: Yard, topic_name: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(killable_yard.bootstrap(CLUSTER)))
        committer = OffsetCommitter(client)
        await committer.commit("any", {(topic_name, 0): 0})  # makes the offsets topic on node 1
        second = await stack.enter_async_context(second_broker(killable_yard, CLUSTER, tmp_path, client))
        everywhere = {at: [SECOND, FIRST] for at in await offsets_partitions(client)}
        await second.assign(everywhere)
        await second.elect(everywhere)
        wanted = {(topic_name, p): [SECOND, FIRST][:: 1 - p % 2 * 2] for p in range(PARTITIONS)}
        await create_on(client, wanted)
        stack.push_async_callback(delete, client, topic_name)
        producer = Producer(client.spec)
        await producer.start()
        stack.push_async_callback(producer.stop)
        pump = await stack.enter_async_context(pumping(client))
        for partition in range(PARTITIONS):
            pump.service.add(partition, topic_name, partition, 0)
        yield Scene(topic_name, client, second, pump, Load(producer, topic_name), committer)


def led_by(scene: Scene, node: int) -> dict[tuple[str, int], list[int]]:
    """Every partition with two replicas, of which `node` is preferred."""
    return {at: [node, FIRST + SECOND - node] for at in scene.partitions}


@pytest.mark.deep(minutes=0.4)
async def test_partitions_of_a_killed_leader_flow_from_the_new_one_and_back_after_reelection(
    scene: Scene,
) -> None:
    offsets = await offsets_partitions(scene.client)
    preferred = {at: [SECOND, FIRST] for at in [*scene.partitions[::2], *offsets]}
    async with scene.load.running():
        await scene.flows()
        await scene.second.kill()
        await scene.second.until_led_by(FIRST, list(preferred))
        await scene.flows()
        await scene.second.start()
        await scene.second.until_in_sync(preferred)
        await scene.second.elect(preferred)
        await scene.flows()
    await scene.all_is_fetched()

    _everything_came_once_and_in_order(scene.pump, scene.load)


@pytest.mark.deep(minutes=0.3)
async def test_elections_and_moves_between_brokers_neither_lose_nor_duplicate_records(
    scene: Scene,
) -> None:
    async with scene.load.running():
        for node in (FIRST, SECOND, FIRST):
            await scene.second.assign(led_by(scene, node))
            await scene.second.elect(led_by(scene, node))
            await scene.flows()
        for node in (SECOND, FIRST):  # the other has nothing of them left
            await scene.second.assign({at: [node] for at in scene.partitions})
            await scene.flows()
    await scene.all_is_fetched()

    _everything_came_once_and_in_order(scene.pump, scene.load)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to a broker that does not answer is waited for longer than a test lasts."""
    monkeypatch.setattr(cluster, "REQUEST_MS", 300_000)


@pytest.mark.deep(minutes=0.3)
@pytest.mark.usefixtures("patience")  # before the scene
async def test_partitions_of_a_frozen_leader_are_fetched_from_its_successor_and_it_wakes_without_harm(
    scene: Scene,
) -> None:
    offsets = await offsets_partitions(scene.client)
    async with scene.load.running():
        await scene.flows()
        scene.second.freeze()
        await scene.second.until_led_by(FIRST, [*scene.partitions, *offsets])
        for partition in range(PARTITIONS):
            await write(scene.client.spec.bootstrap[0], scene.topic, [LATE], partition)
        await scene.pump.until(lambda: all(LATE in scene.pump.values(at) for at in range(PARTITIONS)))
        scene.second.thaw()
        await scene.flows()
    await scene.all_is_fetched()

    _everything_came_once_and_in_order(scene.pump, scene.load)
