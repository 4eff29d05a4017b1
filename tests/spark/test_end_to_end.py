"""On real Kafka: topics are archived, verified, compacted and restored by jobs that are killed."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from pyspark.sql import SparkSession

from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from spark.__main__ import main
from spark.kafka import KafkaCluster
from tests.spark.conftest import HOUR_MS, NOON_MS
from tests.spark.processes import job, until

PARTITIONS = 3
RECORDS = 9_000
LARGE = random.Random(1).randbytes(2_000_000)  # above a topic's default limit, and it does not compress
SETTINGS = {"retention.ms": "-1", "max.message.bytes": "3000000"}


def value(number: int) -> bytes | None:
    """The value of the record with this number."""
    if number % 10 == 0:
        return None
    return LARGE if number == 1 else b"value-%d" % number


async def produce(bootstrap: str, topic: str, numbers: range) -> None:
    """Writes records of three hours: tombstones, repeated headers, missing keys. Number 1 is `LARGE`."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20)
    await producer.start()
    try:
        for partition in range(PARTITIONS):
            waiting = deque(number for number in numbers if number % PARTITIONS == partition)
            while waiting:
                batch = producer.create_batch()
                while waiting and batch.append(
                    value=value(waiting[0]),
                    key=None if waiting[0] % 7 == 0 else b"key-%d" % (waiting[0] % 100),
                    timestamp=NOON_MS + waiting[0] // PARTITIONS % 3 * HOUR_MS + waiting[0],
                    headers=[("a", b"%d" % waiting[0]), ("a", b""), ("b", None)] if waiting[0] % 2 else [],
                ):
                    waiting.popleft()
                await (await producer.send_batch(batch, topic, partition=partition))
    finally:
        await producer.stop()


async def create(bootstrap: str, topic: str, partitions: int = PARTITIONS, **settings: str) -> None:
    """Creates the topic without retention, because its records are old."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=SETTINGS | settings)])
    finally:
        await admin.close()


def last_result(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The JSON result that the last job printed."""
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_no_record_is_lost_or_doubled_by_jobs_that_are_killed(
    session: SparkSession,
    bootstrap: str,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asyncio.run(create(bootstrap, topic_name))
    asyncio.run(produce(bootstrap, topic_name, range(RECORDS)))
    root = tmp_path / "archive"
    archiving = ("archive", "--bootstrap", bootstrap, "--topics", topic_name, "--to", str(root), "--once")

    with job(*archiving, "--round", str(RECORDS // 10)) as process:
        until(lambda: len(list(root.glob("log/*.json"))) >= 2, process, "two rounds were archived")
        process.kill()
        process.wait()
        part = archived(root, topic_name)
        assert 0 < part < RECORDS
        assert main(archiving) == 0  # Spark of the killed job may still write
    rest = last_result(capsys)
    assert part <= RECORDS - int(str(rest["records"]))  # the killed job may have made one change more
    assert archived(root, topic_name) == RECORDS

    comparing = ("verify", "archive", "--bootstrap", bootstrap, "--topic", topic_name, "--archive", str(root))
    assert main(comparing) == 0, last_result(capsys)
    asyncio.run(produce(bootstrap, topic_name, range(RECORDS, RECORDS + 100)))
    assert main(archiving) == 0
    before = len(Archive.open(root).state().files)
    assert main(("compact", "--archive", str(root))) == 0
    assert len(Archive.open(root).state().files) == 3 < before  # an hour a file
    capsys.readouterr()
    assert main(comparing) == 0, last_result(capsys)
    assert last_result(capsys)["records"] == RECORDS + 100

    copy = f"{topic_name}.restored"
    restoring = ("restore", "--archive", str(root), "--topic", topic_name, "--bootstrap", bootstrap)
    restoring = (*restoring, "--into", copy, "--execute")
    cluster = KafkaCluster(session, bootstrap)
    with job(*restoring) as process:
        until(lambda: written(cluster, copy) > 0, process, "the first transaction")
        process.kill()
    assert main(restoring) == 0
    capsys.readouterr()
    assert main(restoring) == 0
    assert last_result(capsys)["records"] == 0  # nothing is left to do
    comparing = ("verify", "topic", "--bootstrap", bootstrap, "--topic", topic_name)
    assert main((*comparing, "--copy-bootstrap", bootstrap, "--copy", copy)) == 0, last_result(capsys)
    assert last_result(capsys)["records"] == RECORDS + 100


def archived(root: Path, topic: str) -> int:
    """The number of archived records, each with an offset of its own."""
    found = [
        (one.partition, one.offset) for one in ArchiveReader(Archive.open(root)).records(ArchiveQuery(topic))
    ]
    assert len(found) == len(set(found))
    return len(found)


def written(cluster: KafkaCluster, topic: str) -> int:
    """The sum of the topic's end offsets; 0 if it does not exist."""
    found = cluster.topics(topic.replace(".", r"\.")).get(topic)
    return sum(bounds.end for bounds in found.partitions.values()) if found else 0
