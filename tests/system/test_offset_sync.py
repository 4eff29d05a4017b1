"""A consumer group moves to another cluster and reads the rest there.

A route copies the topic and syncs the group; its worker is killed meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from click.testing import CliRunner

from app.cli.main import switchyard
from app.dev.demo.stage import DemoStage, Process, http, route
from app.dev.demo.traffic import create_topic

pytestmark = pytest.mark.system

SOURCE, TARGET = "east-regional", "east-aggregate"
PARTITIONS, COUNT = 2, 4_000  # records, half of them before the kill
READ, APART = 1_500, 200
ENOUGH_S = 150.0


async def write(bootstrap: str, topic: str, numbers: range) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5) as producer:
        sent = [await producer.send(topic, b"%d" % n, partition=n % PARTITIONS) for n in numbers]
        await asyncio.gather(*sent)


async def consume(bootstrap: str, topic: str, group: str, count: int) -> list[int]:
    """Reads and commits as an ordinary member of the group until it has `count` records."""
    found: list[int] = []
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False,
        auto_offset_reset="latest", max_poll_records=100,
    ) as consumer:  # fmt: skip
        async with asyncio.timeout(ENOUGH_S):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [int(record.value) for record in records]
                if found:
                    await consumer.commit()
    return found


async def committed(bootstrap: str, topic: str, group: str) -> list[int | None]:
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
    ) as consumer:
        return [await consumer.committed(TopicPartition(topic, p)) for p in range(PARTITIONS)]


def offsets_command(worker: Process, *arguments: str) -> Any:
    """Runs a command and returns its JSON."""
    done = CliRunner().invoke(
        switchyard, ["offsets", *arguments, "-o", "json"], env={**os.environ, "SWITCHYARD_URL": worker.url}
    )
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


async def wait_synced(worker: Process, group: str, state: str, since_ms: int) -> dict[str, Any]:
    """The group's row, once a later round left it in that state."""
    async with asyncio.timeout(ENOUGH_S):
        while True:
            status, body = await asyncio.to_thread(http, "GET", f"{worker.url}/api/v1/offsets/sync")
            rows = body["items"] if status == 200 else []
            for row in rows:
                if row["group"] == group and row["state"] == state and row["at_ms"] > since_ms:
                    return dict(row)
            assert worker.running, worker.tail()
            await asyncio.sleep(0.2)


async def wait_positions(bootstrap: str, topic: str, group: str, least: int) -> None:
    """Waits until the sum of the group's positions is at least `least`."""
    async with asyncio.timeout(ENOUGH_S):
        while sum(at or 0 for at in await committed(bootstrap, topic, group)) < least:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def test_a_group_continues_in_another_cluster_without_loss_although_the_worker_was_killed(
    stage: DemoStage, topic_name: str
) -> None:
    source, target = stage.yard.bootstrap(SOURCE), stage.yard.bootstrap(TARGET)
    group, worker = f"billing-{uuid.uuid4().hex[:8]}", await asyncio.to_thread(stage.worker)
    await create_topic(source, topic_name, PARTITIONS)
    await write(source, topic_name, range(COUNT // 2))
    async with AIOKafkaConsumer(
        bootstrap_servers=source, group_id=group, enable_auto_commit=False
    ) as consumer:
        start = {TopicPartition(topic_name, p): 0 for p in range(PARTITIONS)}
        consumer.assign(list(start))
        await consumer.commit(start)  # it begins at the start
    definition = route(
        "copies", SOURCE, TARGET, topic_name, checkpoint={"every": "1s", "records": APART},
        offsets={"groups": ["billing-.*"], "every": "1s"},
    )  # fmt: skip
    await asyncio.to_thread(stage.deploy, worker, definition)
    read = await consume(source, topic_name, group, READ)
    await wait_synced(worker, group, "unchanged", 0)
    worker.kill()
    await write(source, topic_name, range(COUNT // 2, COUNT))
    read += await consume(source, topic_name, group, READ)
    worker = await asyncio.to_thread(stage.worker)
    await wait_positions(target, topic_name, group, len(read) - 2 * APART * PARTITIONS)

    offset_map = await asyncio.to_thread(
        offsets_command, worker, "map", "--group", group, "--from", SOURCE, "--to", TARGET
    )
    (mapped,) = offset_map["topics"]
    assert (mapped["road"], mapped["to_topic"]) == ("copy", topic_name)
    source_positions = await committed(source, topic_name, group)
    reread_messages = 0
    for partition in mapped["partitions"]:
        (one,) = partition["sources"]
        assert one["read_up_to"] == source_positions[partition["partition"]]
        assert one["barrier"]["target_end"] == one["next_offset"] == partition["next_offset"]
        assert one["cluster"] == SOURCE
        reread_messages += partition["again"]

    rest = await consume(target, topic_name, group, COUNT - len(set(read)))
    assert set(read) | set(rest) == set(range(COUNT)), "no record is lost"
    assert len(set(read) & set(rest)) <= reread_messages, "and no more comes again than was said"
    for partition in range(PARTITIONS):
        assert [n for n in rest if n % PARTITIONS == partition] == sorted(
            n for n in rest if n % PARTITIONS == partition
        )

    # The group consumed in the target: a sync from the source must not set it back.
    target_positions = await committed(target, topic_name, group)
    refused = await asyncio.to_thread(http, "POST", f"{worker.url}/api/v1/offsets/sync", {
        "group": group, "from": SOURCE, "to": TARGET, "execute": True,
    })  # fmt: skip
    assert refused[0] == 200
    assert (refused[1]["state"], refused[1]["done"]) == ("refused", False)
    assert await committed(target, topic_name, group) == target_positions
    times = await asyncio.to_thread(offsets_command, worker, "at-time", topic_name, "1h")
    assert {(one["cluster"], one["partitions"][0]["next_offset"]) for one in times["topics"]} == {
        (SOURCE, 0), (TARGET, 0),
    }  # fmt: skip
