"""On a cluster by configuration only: Spark's own, of a master and a worker in processes of their own."""

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

import pyspark
import pytest
from pyspark.sql import SparkSession

import spark
from app.yard.jars import switchyard_home
from spark.archive.log import Archive
from spark.archive.reader import Query, Reader
from spark.connector import connector_jars
from spark.java import prepare_java
from spark.kafka import Cluster, Range
from tests.spark.archiving import archive_rows
from tests.spark.conftest import row
from tests.spark.test_end_to_end import archived, create, produce

BIN = Path(pyspark.__file__).parent / "bin"
MAIN = Path(spark.__file__).with_name("__main__.py")
WAIT_S = 120.0


@contextmanager
def process(folder: Path, *arguments: str) -> Iterator[None]:
    """A part of the cluster, until the block ends."""
    prepare_java(switchyard_home() / "spark")
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
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
        """How many have been started there, for whatever job."""
        return len(list(self.work.glob("app-*/0")))

    def settings(self) -> list[str]:
        """What makes a job run here."""
        chosen = {
            "spark.master": self.address,
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
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
    """The job's result."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WAIT_S * 4, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_job_runs_on_a_cluster_that_only_its_configuration_names(
    session: SparkSession, archive: Archive, standalone: Standalone
) -> None:
    rows = [row(offset) for offset in range(4)]
    archive_rows(session, archive, *rows[:2])
    archive_rows(session, archive, *rows)
    before = standalone.executors
    compacting = ("compact", "--archive", str(archive.root))
    run([sys.executable, "-m", "spark", *compacting, *standalone.settings()])
    assert len(archive.state().files) == 1
    assert [one.offset for one in Reader(archive).records(Query("orders"))] == [0, 1, 2, 3]
    assert standalone.executors > before, "no executor of the cluster took part"


def test_executors_read_kafka(
    standalone: Standalone, bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    asyncio.run(create(bootstrap, topic_name))
    asyncio.run(produce(bootstrap, topic_name, range(300)))
    root = tmp_path / "archive"
    before = standalone.executors
    archiving = ("archive", "--bootstrap", bootstrap, "--topics", topic_name, "--to", str(root), "--once")
    told = run([sys.executable, "-m", "spark", *archiving, *standalone.settings()])
    assert (told["records"], archived(root, topic_name)) == (300, 300)
    assert standalone.executors > before, "no executor of the cluster took part"


def test_executors_run_python_and_spark_submit_starts_a_job(
    session: SparkSession, archive: Archive, standalone: Standalone, bootstrap: str, topic_name: str
) -> None:
    """As docs/spark-on-a-cluster.md has it; a restore writes to Kafka from Python in executors."""
    rows = [row(offset, key=b"k", headers=[("a", b"1")]) for offset in range(20)]
    archive_rows(session, archive, *rows)
    before = standalone.executors
    submit = [BIN / "spark-submit", *standalone.settings(), "--jars", ",".join(map(str, connector_jars()))]
    restoring = ("restore", "--archive", str(archive.root), "--topic", "orders", "--bootstrap", bootstrap)
    told = run([*submit, MAIN, *restoring, "--into", topic_name, "--execute"])
    assert told["records"] == 20
    assert standalone.executors > before, "no executor of the cluster took part"
    cluster = Cluster(session, bootstrap)
    restored = cluster.read([Range(topic_name, 0, 0, cluster.topic(topic_name).partitions[0].end)])
    found = restored.orderBy("offset").select("timestamp_ms", "key", "value", "headers").collect()
    assert [tuple(one) for one in found] == [(r[3], r[5], r[6], [("a", b"1")]) for r in rows]
