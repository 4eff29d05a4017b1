"""A history of loads: forecast and published by Spark, taken in by a real worker, compared with what came."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer

from app.controllog.topics import ControlTopics
from app.dev.demo.stage import DemoStage, Process, http, wait_until
from app.dev.demo.traffic import read_all
from app.sizing.forecasts import HOUR_MS, HOURS_A_WEEK, FleetForecastRecord, decode, key

pytestmark = pytest.mark.system

ENOUGH_S = 150.0
WEEKS, JOBS = 3, 10
CORES = 0.3  # of each job at all hours: two fit on a worker, so five are needed, and one may be lost


def write_history(folder: Path, region: str, end_h: int) -> None:
    """Loads of `WEEKS` whole weeks up to that hour, as the dashboard's store has them."""
    rows: list[dict[str, Any]] = []
    for hour in range(end_h - WEEKS * HOURS_A_WEEK, end_h):
        at = {
            "date": "2025-11-22", "region": region, "worker": "w-0", "group": "", "start_ms": hour * HOUR_MS,
            "samples": 10, "last_ms": hour * HOUR_MS + 1, "lag_max": 0, "lag_last": 0,
        }  # fmt: skip
        for number in range(JOBS):
            job = {"job": f"dispatch:billing/orders:orders:{number}", "rated": 10, "ceiling_max": 50.0}
            rows.append(at | job | taken(CORES, 1e6, 1e4) | {"arriving_sum": 1000.0, "arriving_max": 100.0})
        nothing = {"job": "", "rated": 0, "ceiling_max": 0.0, "arriving_sum": 0.0, "arriving_max": 0.0}
        rows.append(at | nothing | taken(1.0, 2e9, 1e8))
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "loads.parquet")


def taken(cpu: float, memory: float, network: float) -> dict[str, float]:
    """Ten samples of that."""
    return {
        "cpu_sum": 10 * cpu, "cpu_max": cpu, "memory_max": memory, "network_sum": 10 * network,
        "network_max": network,
    }  # fmt: skip


def spark_size(*words: str) -> str:
    """What the job says to people."""
    ended = subprocess.run(
        [sys.executable, "-m", "spark", "size", *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def sizing(worker: Process) -> Any:
    status, body = http("GET", f"{worker.url}/api/v1/sizing")
    assert status == 200
    return body


async def append(bootstrap: str, topic: str, *records: tuple[bytes, bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=2_000_000)
    await producer.start()
    try:
        for at, value in records:
            await producer.send_and_wait(topic, value, at)
    finally:
        await producer.stop()


@pytest.mark.deep(minutes=5.1)
def test_a_published_forecast_is_recommended_by_a_real_worker_and_compared(
    stage: DemoStage, tmp_path: Path
) -> None:
    region, bootstrap = stage.region, stage.yard.bootstrap("east-regional")
    topic = ControlTopics(region).forecast.name
    worker = stage.worker()
    wait_until(lambda: bool(sizing(worker)["fleets"]), 30, worker.tail)  # it has heard its own heartbeat
    measured = sizing(worker)["fleets"][0]
    assert measured["forecast"] is None
    now_h = time.time_ns() // 1_000_000 // HOUR_MS
    write_history(tmp_path / "loads", region, now_h)
    common = ["--loads", str(tmp_path / "loads"), "--region", f"{region}={bootstrap}"]
    where = ["--json", str(tmp_path / "told.json")]
    assert "No past forecast yet" in spark_size(*common, "--compare", *where)

    bad = [(b"a", b"nonsense"), (b"", b"{}"), (b"b", b"\xff" * 900_000), (b"c", b"[" * 60_000)]
    asyncio.run(append(bootstrap, topic, *bad))
    told = spark_size(*common, "--publish", *where)
    assert "2 forecasts published" in told
    wait_until(lambda: sizing(worker)["fleets"][0]["forecast"], ENOUGH_S, worker.tail)
    whole = sizing(worker)
    (fleet,) = whole["fleets"]
    assert fleet["measured"] == measured["workers"]["value"] < 5
    assert (fleet["workers"]["value"], fleet["forecast"]["workers"]) == (5, 5)
    assert "says 5 (made " in fleet["workers"]["why"]
    assert " of 3 weeks, 0% off in the last of them)" in fleet["workers"]["why"]
    assert (whole["forecasts"]["used"], whole["forecasts"]["passed_over"]) == (True, 4)
    assert http("GET", f"{worker.url}/health/ready")[0] == 200

    # What would have been published a day ago: the same figures a day earlier.
    (today,) = [
        found
        for record in asyncio.run(read_all(bootstrap, topic))
        if record.key and record.value and record.key.startswith(b'["fleet"')
        and isinstance(found := decode(record.value), FleetForecastRecord)
    ]  # fmt: skip
    yesterday = msgspec.structs.replace(
        today, made_ms=today.made_ms - 24 * HOUR_MS, from_hour=today.from_hour - 24
    )
    asyncio.run(append(bootstrap, topic, (key(yesterday), msgspec.json.encode(yesterday))))
    spark_size(*common, "--compare", "--price-worker-hour", "0.5", *where)
    (row,) = json.loads((tmp_path / "told.json").read_text())["fleets"]
    assert 22 <= row["hours"] <= 24  # an hour may have ended meanwhile; the one it was made in does not count
    assert (row["forecast_peak"], row["needed_peak"], row["there_peak"], row["error"]) == (5, 5, 1, 0)
    assert row["there_under_hours"] == row["hours"]
