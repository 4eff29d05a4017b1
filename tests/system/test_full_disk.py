"""A worker whose disk is full goes on delivering, says so, and writes its tables once there is space."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from app.dev.demo.stage import DemoStage, Process, free_port, http, route, wait_until, workload
from app.dev.demo.traffic import create_topic, messages, produce, read_all
from tests.full_disk import fill, seen_by, small_disk_command
from tests.system.fleet import incidents

pytestmark = pytest.mark.system

CLUSTER = "east-aggregate"
ENOUGH_S = 120.0
DISK_MIB = 200
CONTROL_TABLES = ("routes", "workloads", "activity", "assignments")


def worker_on_small_disk(stage: DemoStage, mib: int) -> tuple[Process, Path]:
    """A worker that starts, and its disk as others see it."""
    port, name, disk = free_port(), "worker-small", stage.home / "data"
    disk.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "faust", "-A", "app", "worker", "-l", "info"]
    worker = stage.start(
        name,
        small_disk_command(disk, mib, command),
        {"SWITCHYARD_CONFIG": str(stage.config(name)), "SWITCHYARD_WEB_PORT": str(port)},
        port=port,
    )
    return worker, seen_by(worker.popen.pid, disk)


def delivered(stage: DemoStage) -> int:
    return len({one["id"] for one in stage.deliveries()})


def gauge(worker: Process, name: str) -> float:
    text = str(http("GET", f"{worker.url}/metrics")[1])
    found = re.search(rf"^switchyard_{name}{{.*}} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def stored(disk: Path, table: str, copy: Path) -> dict[bytes, bytes]:
    """A table's rows on the disk of a running worker, of which a copy is read."""
    (folder,) = disk.glob(f"**/{table}-0.db")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("LOCK"))
    database = Rdict(str(copy), options=Options(raw_mode=True))
    try:
        return {bytes(key): bytes(value) for key, value in database.items() if b"\0" not in key}
    finally:
        database.close()


def test_a_worker_with_a_full_disk_delivers_and_writes_its_tables_once_there_is_space(
    stage: DemoStage, topic_name: str, tmp_path: Path
) -> None:
    """Regression: rows that the disk did not take were lost to the table; RocksDB stayed shut after that."""
    bootstrap, control = stage.yard.bootstrap(CLUSTER), stage.yard.bootstrap("east-regional")
    asyncio.run(create_topic(bootstrap, topic_name, 4))
    worker, disk = worker_on_small_disk(stage, DISK_MIB)
    stage.wait_ready(worker)
    receiver = stage.receiver("g", topic_name)
    stage.deploy(worker, workload("g", topic_name, CLUSTER, receiver.address))
    asyncio.run(produce(bootstrap, topic_name, messages(100)))
    wait_until(lambda: delivered(stage) == 100, ENOUGH_S, worker.tail)

    def is_full() -> bool:
        """RocksDB takes the space of 4 MiB in advance, so small rows would not meet the end of the disk."""
        fill(disk / "ballast")
        names = [f"{next(numbers):010}-{'x' * 200}" for _ in range(1_000)]
        stage.deploy(worker, route("large", "east-regional", CLUSTER, *names))
        return gauge(worker, "unwritten_rows") > 0

    numbers = itertools.count()
    wait_until(is_full, ENOUGH_S, worker.tail, 1.0)
    wait_until(lambda: incidents(worker, "tables-unwritten"), ENOUGH_S, worker.tail)
    (incident,) = incidents(worker, "tables-unwritten")
    assert incident["message"].startswith(f"{stage.home / 'data'}")
    assert "does not take rows of tables, which are in memory only" in incident["message"]
    assert "IO error: No space left on device" in incident["message"]
    assert incident["open"]
    wait_until(lambda: gauge(worker, "data_dir_free_bytes") < 8 << 20, ENOUGH_S, worker.tail)
    asyncio.run(produce(bootstrap, topic_name, messages(200, "n")))
    wait_until(lambda: delivered(stage) == 300, ENOUGH_S, worker.tail)
    status, ready = http("GET", f"{worker.url}/health/ready")
    assert (status, "in memory only" in ready["disk"]) == (200, True)

    def same(table: str) -> bool:
        records = asyncio.run(read_all(control, f"switchyard-{stage.region}-{table}-changelog"))
        rows = {record.key: record.value for record in records}
        return stored(disk, table, tmp_path / "copy") == {k: v for k, v in rows.items() if v is not None}

    assert not all(same(table) for table in CONTROL_TABLES)
    (disk / "ballast").unlink()
    wait_until(lambda: gauge(worker, "unwritten_rows") == 0, ENOUGH_S, worker.tail)
    for table in CONTROL_TABLES:
        wait_until(partial(same, table), ENOUGH_S, worker.tail, 1.0)
    wait_until(lambda: incidents(worker, "tables-unwritten")[0]["ended_ms"], ENOUGH_S, worker.tail, 0.5)
    assert "in memory only" not in http("GET", f"{worker.url}/health/ready")[1]["disk"]
    assert worker.terminate() == 0


def test_a_worker_does_not_start_on_a_full_disk(stage: DemoStage) -> None:
    worker, _ = worker_on_small_disk(stage, 20)
    assert worker.popen.wait(ENOUGH_S) == 3
    log = worker.log.read_text()
    assert "A worker needs 32 MiB to start: free space, or set data_dir" in log
    assert "Traceback" not in log
