"""Jobs run on a cluster that only the configuration names: a standalone Spark master and one worker."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyspark
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

import spark
from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from app.dev.yard.jars import switchyard_home
from spark.connector import connector_jars
from spark.java import prepare_java
from tests.spark.test_end_to_end import PARTITIONS, archived, create, produce

BIN = Path(pyspark.__file__).parent / "bin"
MAIN = Path(spark.__file__).with_name("__main__.py")
WAIT_S = 120.0
RECORDS = 300
QUICK = "-XX:TieredStopAtLevel=1"


@contextmanager
def process(folder: Path, *arguments: str) -> Iterator[None]:
    """Runs a process of the cluster until the block ends."""
    prepare_java(switchyard_home() / "spark")
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    environment["SPARK_DAEMON_JAVA_OPTS"] = QUICK
    command = [str(BIN / "spark-class"), *arguments, "--webui-port", "0"]
    with (folder / f"{arguments[0]}.log").open("wb") as log:
        started = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()


@dataclass(frozen=True, slots=True)
class Standalone:
    """A cluster: its master's address, and the worker's folder, with one below it for each application."""

    address: str
    work: Path

    @property
    def executors(self) -> int:
        """The number of executors that the worker has started, for any job."""
        return len(list(self.work.glob("app-*/0")))

    def settings(self) -> list[str]:
        """The options that make a job run on this cluster."""
        chosen = {
            "spark.master": self.address,
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": "1",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.driver.extraJavaOptions": QUICK,
            "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than few records
        }
        return [part for key, value in chosen.items() for part in ("--conf", f"{key}={value}")]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A cluster with one worker."""
    folder = tmp_path_factory.mktemp("cluster")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = Standalone(f"spark://127.0.0.1:{port}", folder / "work")
    package = "org.apache.spark.deploy"
    work = ("--cores", "1", "--memory", "1g", "--work-dir", str(found.work), "--host", "127.0.0.1")
    with process(folder, f"{package}.master.Master", "--host", "127.0.0.1", "--port", str(port)):
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the master does not listen"
                time.sleep(0.2)
        with process(folder, f"{package}.worker.Worker", found.address, *work):
            yield found


def run(command: Sequence[str | Path]) -> dict[str, object]:
    """Runs a job to its end; the JSON result that it prints."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WAIT_S * 4, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@dataclass(frozen=True, slots=True)
class Archived:
    """An archive of a topic that a job on the cluster made, and the number of its executors."""

    topic: str
    root: Path
    result: dict[str, object]
    executors: int


@pytest.fixture(scope="module")
def archived_topic(
    standalone: Standalone, bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Archived:
    """A topic and its archive, which a job on the cluster made."""
    topic, root = f"test-{uuid4().hex[:12]}", tmp_path_factory.mktemp("of_kafka") / "archive"
    asyncio.run(create(bootstrap, topic))
    asyncio.run(produce(bootstrap, topic, range(RECORDS)))
    archiving = ("archive", "--bootstrap", bootstrap, "--topics", topic, "--to", str(root), "--once")
    result = run([sys.executable, "-m", "spark", *archiving, *standalone.settings()])
    return Archived(topic, root, result, standalone.executors)


@pytest.mark.deep(minutes=0.8)
def test_executors_of_a_cluster_that_only_the_configuration_names_read_kafka(
    archived_topic: Archived,
) -> None:
    assert archived_topic.result["records"] == archived(archived_topic.root, archived_topic.topic) == RECORDS
    assert archived_topic.executors == 1, "no executor of the cluster took part"


@pytest.mark.deep(minutes=1.7)
def test_executors_run_python_and_spark_submit_starts_a_job(
    standalone: Standalone, archived_topic: Archived, bootstrap: str, topic_name: str
) -> None:
    """As docs/spark-on-a-cluster.md describes; a restore writes to Kafka from Python in executors."""
    before = standalone.executors
    submit = [BIN / "spark-submit", *standalone.settings(), "--jars", ",".join(map(str, connector_jars()))]
    restoring = ("restore", "--archive", str(archived_topic.root), "--topic", archived_topic.topic)
    result = run([*submit, MAIN, *restoring, "--bootstrap", bootstrap, "--into", topic_name, "--execute"])
    assert result["records"] == RECORDS
    assert standalone.executors == before + 1, "no executor of the cluster took part"
    wanted = [
        (one.partition, one.timestamp_ms, one.key, one.value, one.headers)
        for one in ArchiveReader(Archive.open(archived_topic.root)).records(
            ArchiveQuery(archived_topic.topic)
        )
    ]
    assert asyncio.run(read(bootstrap, topic_name)) == wanted


async def read(bootstrap: str, topic: str) -> list[tuple[object, ...]]:
    """Partition, time, key, value and headers of `RECORDS` records, ordered by partition and offset."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        found = []
        async with asyncio.timeout(WAIT_S):
            while len(found) < RECORDS:
                found.append(await consumer.getone())
    finally:
        await consumer.stop()
    found.sort(key=lambda one: (one.partition, one.offset))
    return [(one.partition, one.timestamp, one.key, one.value, one.headers) for one in found]
