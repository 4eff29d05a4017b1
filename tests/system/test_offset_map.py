"""Two routes copy a topic, their worker is killed, and the offset map translates positions in one copy into
the other.
"""

from __future__ import annotations

import asyncio
import uuid

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from app.controllog import codec
from app.controllog.topics import ControlTopics
from app.dev.demo.stage import DemoStage, Process, route
from app.dev.demo.traffic import create_topic
from app.offsets.model.offset_map import LineSource, OffsetMapLine, line_key
from tests.offsets.model.translation_rule import translate
from tests.system.compare_topics import compare_topics

pytestmark = pytest.mark.system

PARTITIONS, HALF, APART = 2, 10_000, 1_000
SOURCE, COPIES = "east-regional", "east-aggregate"
ENOUGH_S = 150.0
Values = dict[int, list[bytes]]


async def write(bootstrap: str, topic: str, first: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5) as producer:
        sent = [
            await producer.send(topic, b"%d" % number, partition=partition)
            for number in range(first, first + HALF)
            for partition in range(PARTITIONS)
        ]
        await asyncio.gather(*sent)


async def read(bootstrap: str, topic: str, count: int, worker: Process) -> Values:
    """The values of all partitions once there are `count` records."""
    found: Values = {partition: [] for partition in range(PARTITIONS)}
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        async with asyncio.timeout(ENOUGH_S):
            while sum(map(len, found.values())) < count:
                assert worker.running, worker.tail()
                for at, records in (await consumer.getmany(timeout_ms=200)).items():
                    found[at.partition] += [record.value for record in records]
    return found


async def wait_lines(
    bootstrap: str, topics: ControlTopics, wanted: dict[str, int]
) -> dict[str, OffsetMapLine]:
    """The offset map, once every line ends at the source's end."""
    changelog = topics.changelog("checkpoints", topics.checkpoints.partitions)
    found: dict[str, OffsetMapLine] = {}
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(changelog.name, p) for p in range(changelog.partitions)])
        async with asyncio.timeout(ENOUGH_S):
            while {key: line.barriers[-1].source_end for key, line in found.items()} != wanted:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found |= {record.key.decode(): codec.checkpoint_line(record.value) for record in records}
    return found


@pytest.mark.deep(minutes=0.5)
async def test_positions_in_one_copy_translate_to_another_without_loss_although_the_worker_was_killed(
    stage: DemoStage,
) -> None:
    source, copies = stage.yard.bootstrap(SOURCE), stage.yard.bootstrap(COPIES)
    topic, worker = f"orders-{uuid.uuid4().hex[:8]}", stage.worker()
    names = [f"{name}-{uuid.uuid4().hex[:6]}" for name in "ad"]
    await create_topic(source, topic, PARTITIONS)
    await write(source, topic, 0)
    for name in names:
        checkpoint = {"every": "1s", "records": APART}
        rename = f"{name}.{{topic}}"
        copied = route(name, SOURCE, COPIES, topic, rename=rename, checkpoint=checkpoint)
        await asyncio.to_thread(stage.deploy, worker, copied)
    await read(copies, f"{names[0]}.{topic}", 1, worker)  # it copies
    worker.kill()
    await write(source, topic, HALF)
    worker = await asyncio.to_thread(stage.worker)
    a, d = [await read(copies, f"{name}.{topic}", 2 * HALF * PARTITIONS, worker) for name in names]
    for name in names:
        found = await compare_topics(source, topic, copies, f"{name}.{topic}")
        assert not found.differences, str(found)
    wanted = {line_key(name, topic, p): 2 * HALF for name in names for p in range(PARTITIONS)}
    line_by_key = await wait_lines(source, ControlTopics(stage.region), wanted)
    into_a, into_d = (
        [LineSource(p, line_by_key[line_key(name, topic, p)]) for p in range(PARTITIONS)] for name in names
    )
    for next_offset in (0, 1, APART - 1, 3 * APART, HALF + 7, 2 * HALF - 1, 2 * HALF):
        resumed = translate(
            dict.fromkeys(range(PARTITIONS), next_offset), into_a, into_d, dict.fromkeys(range(PARTITIONS), 0)
        )
        for partition, start in resumed.items():
            assert set(d[partition][:start]) <= set(a[partition][:next_offset])
            assert next_offset < 2 * HALF or start == 2 * HALF
