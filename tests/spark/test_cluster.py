"""On a cluster by configuration only: Spark's own, of a master and a worker in processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from app.yard.jars import switchyard_home
from spark.archive.log import Archive
from spark.archive.reader import Query, Reader
from spark.java import prepare_java
from tests.spark.archiving import archive_rows
from tests.spark.conftest import row

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
WAIT_S = 120.0


@contextmanager
def process(folder: Path, *arguments: str) -> Iterator[None]:
    """A part of the cluster, until the block ends."""
    prepare_java(switchyard_home() / "spark")
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    command = [str(CLASS), *arguments, "--webui-port", "0"]
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


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster with one worker."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    work = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work"), "--host", "127.0.0.1")
    with process(tmp_path, f"{package}.master.Master", "--host", "127.0.0.1", "--port", str(port)):
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the master does not listen"
                time.sleep(0.2)
        with process(tmp_path, f"{package}.worker.Worker", address, *work):
            yield address


def test_a_job_runs_on_a_cluster_that_only_its_configuration_names(
    session: SparkSession, archive: Archive, master: str, tmp_path: Path
) -> None:
    rows = [row(offset) for offset in range(4)]
    archive_rows(session, archive, *rows[:2])
    archive_rows(session, archive, *rows)
    settings = {"spark.master": master, "spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "spark", "compact", "--archive", str(archive.root), *conf],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(archive.state().files) == 1
    assert [one.offset for one in Reader(archive).records(Query("orders"))] == [0, 1, 2, 3]
    assert list((tmp_path / "work").glob("app-*/0")), "no executor of the cluster took part"
