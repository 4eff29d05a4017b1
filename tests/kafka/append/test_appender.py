"""Batches appended to real brokers arrive once, in order and byte by byte, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from app.dev.yard import Yard
from app.kafka.append.appender import Appender
from app.kafka.append.encoder import copies, reencoded
from app.kafka.append.errors import AppendIncident, BatchRefused, ProducerFenced
from app.kafka.append.lane import AppendLane
from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches
from app.kafka.fetch.service import FetchService
from app.kafka.producers import history
from app.kafka.producers.history import OwnBatches, _log_end, own
from app.kafka.producers.ids import ProducerId
from app.kafka.records.batch import BatchHeader
from app.kafka.records.producer_sequences import ProducerStamp
from tests.kafka.conftest import ENOUGH_S, Pump, Start, connected, create, producing, pumping
from tests.kafka.records.test_verbatim_copy import as_logged, rows_of, the_batch
from tests.kafka.second_broker import FIRST, SECOND, create_on, delete, second_broker

CLUSTER = "east-aggregate"  # not the one other tests use at the same time
PARTITIONS = 3
LIMIT = 1_000_000


@asynccontextmanager
async def appending(client: ClusterClient) -> AsyncIterator[tuple[Appender, list[AppendIncident]]]:
    """A started appender and its incidents."""
    incidents: list[AppendIncident] = []
    appender = Appender(client, incidents.append)
    await appender.start()
    try:
        yield appender, incidents
    finally:
        await appender.stop()
        assert not appender._requests
        assert not appender._lanes


def batch_of(*values: bytes) -> tuple[bytes, int]:
    """A batch and its record count."""
    return as_logged(0, rows_of([(1_000 + n, b"k", v, []) for n, v in enumerate(values)])), len(values)


async def until(condition: Callable[[], Any]) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(2 * ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.02)


async def gathered(*futures: asyncio.Future[int]) -> list[int]:
    async with asyncio.timeout(ENOUGH_S):
        return await asyncio.gather(*futures)


async def values_of(pump: Pump, topic: str, count: int) -> list[bytes | None]:
    """The partition's values, once there are `count`."""
    pump.service.add(topic, topic, 0, 0)
    await pump.until(lambda: pump.count(topic) >= count)
    return pump.values(topic)


class Copier:
    """Copies the partitions of one topic to those of another; what a route does, without its checkpoints."""

    def __init__(self, source: ClusterClient, appender: Appender, topics: tuple[str, str]) -> None:
        self.position = dict.fromkeys(range(PARTITIONS), 0)
        self.ranges: dict[int, list[tuple[int, int, int]]] = {n: [] for n in self.position}
        self._appender, self._topics = appender, topics
        self._queues: dict[int, asyncio.Queue[FetchedBatches]] = {n: asyncio.Queue() for n in self.position}
        self.fetch = FetchService(source, self._deliver, ByteBudget(8 * LIMIT))

    async def _deliver(self, item: Any) -> None:
        if isinstance(item, FetchedBatches):
            self._queues[item.partition].put_nowait(item)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        source, there = self._topics
        async with asyncio.TaskGroup() as group:
            tasks = []
            for partition in self.position:
                lane = await self._appender.lane(there, partition)
                tasks.append(group.create_task(self._copy(partition, lane)))
                self.fetch.add(partition, source, partition, 0)
            await self.fetch.start()
            try:
                yield
            finally:
                await self.fetch.stop()
                for task in tasks:
                    task.cancel()

    async def _copy(self, partition: int, lane: AppendLane) -> None:
        while True:
            fetched = await self._queues[partition].get()
            found = copies(fetched, LIMIT)
            sent = [(copy, await lane.append(copy.data, copy.record_count)) for copy in found]
            for copy, future in sent:
                self.ranges[partition].append((copy.source_start, copy.source_end, await future))
            self.position[partition] = fetched.next_offset
            fetched.release()

    async def until(self, ends: dict[tuple[str, int], int]) -> None:
        await until(lambda: all(self.position[partition] >= end for (_, partition), end in ends.items()))


async def _write_all_sorts(bootstrap: str, topic: str, count: int, name: str) -> None:
    """Records of all codecs with keys, headers and tombstones; transactions that end one way or the other."""
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        async with producing(bootstrap, compression_type=codec, max_batch_size=3_000) as producer:
            sent = [
                await producer.send(
                    topic,
                    None if n % 7 == 3 else b"" if n % 7 == 4 else f"{codec} {n}".encode() * (n % 5),
                    key=None if n % 5 == 1 and n % 7 != 3 else f"{n % 3}".encode(),
                    partition=n % PARTITIONS,
                    timestamp_ms=1_600_000_000_000 + 37 * (n % 11),
                    headers=[("n", b"%d" % n), ("n", None), ("", b"")][: n % 4],
                )
                for n in range(count)
            ]
            await asyncio.gather(*sent)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    await producer.start()
    try:
        for number in range(6):
            await producer.begin_transaction()
            for n in range(20):
                await producer.send(topic, f"transaction {number}".encode(), partition=n % PARTITIONS)
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
    finally:
        await producer.stop()


def _same(there: Pump, here: Pump, copier: Copier) -> None:
    for partition in range(PARTITIONS):
        expected, came = here.records[partition], there.records[partition]
        assert [record.offset for record in came] == list(range(len(came)))
        assert [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in came] == [
            (r.timestamp, r.key, r.value, tuple(r.headers)) for r in expected
        ]
        # the map: a range's records begin where its copy was said to be, and ranges leave nothing out
        position = 0
        for start, end, base_offset in copier.ranges[partition]:
            assert not any(position <= record.offset < start for record in expected)
            assert position <= start < end
            position = end
            assert base_offset == sum(record.offset < start for record in expected)


async def test_copy_equals_the_source_after_the_destination_was_killed_and_restarted(
    killable_yard: Yard, topic_name: str
) -> None:
    home, away = killable_yard.bootstrap("east-regional"), killable_yard.bootstrap(CLUSTER)
    async with connected(home) as source, connected(away) as destination:
        await create(source, topic_name, PARTITIONS)
        await create(destination, topic_name, PARTITIONS)
        await _write_all_sorts(home, topic_name, 700, topic_name)
        async with appending(destination) as (appender, _):
            copier = Copier(source, appender, (topic_name, topic_name))
            async with copier.running():
                await until(lambda: copier.ranges[0])
                await asyncio.to_thread(killable_yard.kill, CLUSTER)
                await _write_all_sorts(home, topic_name, 700, topic_name)
                await asyncio.to_thread(killable_yard.start, CLUSTER)
                at = [(topic_name, partition) for partition in range(PARTITIONS)]
                await copier.until(await source.end_offsets(at))
            ends = await destination.end_offsets(at)
        async with pumping(source) as here, pumping(destination) as there:
            for pump in (here, there):
                for partition in range(PARTITIONS):
                    pump.service.add(partition, topic_name, partition, 0)
            await here.until(lambda: here.position == copier.position)
            await there.until(lambda: there.position == {p: ends[topic_name, p] for p in range(PARTITIONS)})
        _same(there, here, copier)


async def test_too_large_batch_is_divided_by_its_sender_while_later_batches_wait(
    client: ClusterClient, start: Start, topic_name: str
) -> None:
    await create(client, topic_name, max_message_bytes="1000")
    async with appending(client) as (appender, _):
        lane = await appender.lane(topic_name, 0)
        large, count = batch_of(*[b"%d" % n * 300 for n in range(6)])
        before = [await lane.append(*batch_of(b"before %d" % n)) for n in range(3)]
        refused = await lane.append(large, count)
        alone = await lane.append(*batch_of(b"hopeless" * 200))
        behind = [await lane.append(*batch_of(b"behind %d" % n)) for n in range(12)]

        assert await gathered(*before) == [0, 1, 2]
        with pytest.raises(BatchRefused, match=topic_name) as caught:
            await gathered(refused)
        assert caught.value.code == 10
        await asyncio.sleep(0.2)
        assert not behind[0].done()
        pieces = list(reencoded(the_batch(large), 0, 1_000))
        assert len(pieces) > 1
        divided = lane.replace_refused([(piece.data, piece.record_count) for piece in pieces])
        await gathered(*divided)
        with pytest.raises(BatchRefused):
            await gathered(alone)
        assert lane.replace_refused([]) == []
        await gathered(*behind)
        with pytest.raises(ValueError, match="refused"):
            lane.replace_refused([])

    expected = [b"before %d" % n for n in range(3)] + [b"%d" % n * 300 for n in range(6)]
    expected += [b"behind %d" % n for n in range(12)]
    assert await values_of(await start(), topic_name, len(expected)) == expected


async def written(
    client: ClusterClient, topic: str, producer_id: int, start: int, known: ProducerStamp | None = None
) -> tuple[list[BatchHeader], OwnBatches]:
    """The headers of a producer's batches from `start` on."""
    headers: list[BatchHeader] = []
    found = await own(client, topic, 0, producer_id, start, known, lambda batch: headers.append(batch.header))
    return headers, found


async def test_successor_learns_the_written_end_and_fences_its_predecessor(
    client: ClusterClient, start: Start, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(client, topic_name)
    async with appending(client) as (appender, _):
        former = await appender.lane(topic_name, 0)
        values = [b"%d" % n for n in range(25)]
        await gathered(*[await former.append(*batch_of(*values[n : n + 5])) for n in range(0, 25, 5)])

        lookups = 0

        async def log_end(*where: Any) -> int:
            nonlocal lookups
            lookups += 1
            return await _log_end(*where)

        monkeypatch.setattr(history, "FETCH_BYTES", 200)  # a batch or two at once
        monkeypatch.setattr(history, "_log_end", log_end)
        headers, found = await written(client, topic_name, former.producer.id, 5)
        assert lookups == 2, "two lookups of the log's end, not one for each fetch"
        assert [(header.base_offset, header.record_count) for header in headers] == [
            (n, 5) for n in range(5, 25, 5)
        ]
        last = ProducerStamp(*former.producer, 25)
        assert found == OwnBatches(25, 5, last)
        assert await written(client, topic_name, former.producer.id + 1_000_000, 0) == (
            [],
            OwnBatches(25, 0, None),
        )
        assert await written(client, topic_name, former.producer.id, 26) == ([], OwnBatches(-1, 26, last))

        next_epoch = former.producer.bumped()
        assert next_epoch is not None
        successor = await appender.lane(topic_name, 0, next_epoch)
        await gathered(await former.append(*batch_of(b"still")))
        assert await gathered(await successor.append(*batch_of(b"mine", b"too"))) == [26]
        late = await former.append(*batch_of(b"late"))
        later = await former.append(*batch_of(b"later"))
        for future in (late, later):
            with pytest.raises(ProducerFenced, match="newer epoch"):
                await gathered(future)
        with pytest.raises(ProducerFenced):
            await former.append(*batch_of(b"never"))

        headers, _ = await written(client, topic_name, former.producer.id, 25)
        epochs = [header.producer_epoch for header in headers]
        assert epochs == [0, 1], "the log has no other batches"
    assert await values_of(await start(), topic_name, 28) == [*values, b"still", b"mine", b"too"]


async def test_lane_continues_in_the_next_epoch_and_reports_when_the_log_lost_batches(
    client: ClusterClient, start: Start, topic_name: str
) -> None:
    await create(client, topic_name)
    async with appending(client) as (appender, incidents):
        other = await appender.lane(topic_name, 0)
        await gathered(await other.append(*batch_of(b"a", b"b", b"c")))
        lane = await appender.lane(topic_name, 0, other.producer)  # not allowed: the log disagrees
        await gathered(*[await lane.append(*batch_of(b"%d" % n)) for n in range(20)])
        assert lane.producer == ProducerId(other.producer.id, 1)
        (trouble,) = incidents
        assert (trouble.topic, trouble.partition) == (topic_name, 0)
        assert "epoch 1" in trouble.message
    expected = [b"a", b"b", b"c", *[b"%d" % n for n in range(20)]]
    assert await values_of(await start(), topic_name, 23) == expected


async def test_each_lane_keeps_its_order_beside_others(
    client: ClusterClient, start: Start, topic_name: str
) -> None:
    await create(client, topic_name)
    async with appending(client) as (appender, incidents):
        lanes = [await appender.lane(topic_name, 0) for _ in range(2)]

        async def feed(lane: AppendLane, name: bytes) -> list[int]:
            return await gathered(*[await lane.append(*batch_of(name + b"%d" % n)) for n in range(200)])

        offsets = await asyncio.gather(feed(lanes[0], b"a"), feed(lanes[1], b"b"))
        assert sorted([*offsets[0], *offsets[1]]) == list(range(400))
        assert not incidents
    values = await values_of(await start(), topic_name, 400)
    for name in (b"a", b"b"):
        assert [value for value in values if value and value[:1] == name] == [
            name + b"%d" % n for n in range(200)
        ]


async def test_missing_topic_is_reported_and_waited_for(
    client: ClusterClient, start: Start, topic_name: str
) -> None:
    async with appending(client) as (appender, incidents):
        lane = await appender.lane(topic_name, 0)
        futures = [await lane.append(*batch_of(b"%d" % n)) for n in range(10)]
        await until(lambda: incidents)
        assert topic_name in incidents[0].message
        assert "create the topic" in incidents[0].remedy
        await create(client, topic_name)
        await gathered(*futures)
    assert await values_of(await start(), topic_name, 10) == [b"%d" % n for n in range(10)]


async def _replicated(client: ClusterClient, topic: str, least_in_sync: int) -> None:
    await create_on(client, {(topic, 0): [SECOND, FIRST]})
    admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
    await admin.start()
    try:
        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {"min.insync.replicas": str(least_in_sync)})
        await admin.alter_configs([wanted])
    finally:
        await admin.close()


@pytest.mark.deep(minutes=0.9)
async def test_too_few_replicas_and_killed_or_frozen_leaders_neither_lose_nor_duplicate_records(
    killable_yard: Yard, topic_name: str, tmp_path: Path
) -> None:
    one_enough = f"{topic_name}-one"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(killable_yard.bootstrap(CLUSTER)))
        second = await stack.enter_async_context(second_broker(killable_yard, CLUSTER, tmp_path, client))
        topics = {topic_name: 2, one_enough: 1}
        for topic, least in topics.items():
            await _replicated(client, topic, least)
            stack.push_async_callback(delete, client, topic)
        wanted = {(topic, 0): [SECOND, FIRST] for topic in topics}
        await second.until_in_sync(wanted)
        appender, incidents = await stack.enter_async_context(appending(client))
        written, ending = dict.fromkeys(topics, 0), asyncio.Event()

        async def feed(topic: str) -> None:
            lane = await appender.lane(topic, 0)
            number = 0
            while not ending.is_set():
                futures = [await lane.append(*batch_of(b"%d" % n)) for n in range(number, number + 20)]
                await asyncio.gather(*futures)
                written[topic] = number = number + 20

        async def more(*names: str) -> None:
            before = dict(written)
            await until(lambda: all(written[topic] > before[topic] + 40 for topic in names))

        async with asyncio.TaskGroup() as group:
            for topic in topics:
                group.create_task(feed(topic))
            await more(*topics)
            await second.kill()
            await more(one_enough)  # its new leader takes it
            # Beyond the lost leader: the records it took are still found and counted.
            await until(
                lambda: any(
                    one.topic == topic_name and "NotEnoughReplicas" in one.message for one in incidents
                )
            )
            stopped = written[topic_name]
            await more(one_enough)
            assert written[topic_name] == stopped  # nothing is acknowledged by too few
            await second.start()
            await second.until_in_sync(wanted)
            await second.elect(wanted)
            await more(*topics)
            second.freeze()
            await more(one_enough)
            second.thaw()
            await second.until_in_sync(wanted)
            await more(*topics)
            ending.set()
        pump = await stack.enter_async_context(pumping(client))
        for topic in topics:
            assert await values_of(pump, topic, written[topic]) == [b"%d" % n for n in range(written[topic])]
            assert await client.end_offsets([(topic, 0)]) == {(topic, 0): written[topic]}
