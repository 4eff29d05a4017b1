"""The audit of a real worker finds records of a range of event times, which are not their timestamps."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner

from app.cli.main import switchyard
from app.dev.demo.stage import DemoStage, http, wait_until
from app.dev.demo.traffic import create_topic
from app.dev.yard import Yard
from app.kernel.clock import now_ms
from tests.system.test_audit import plan

pytestmark = pytest.mark.system

CLUSTER = "east-regional"
PARTITIONS, RECORDS, SPAN_MS = 3, 900, 60_000
SEED = 5


async def produce(bootstrap: str, topic: str, base_ms: int) -> dict[int, list[tuple[int, int]]]:
    """Sends records with event times of an hour ago, nearly in order; returns (offset, time) by partition."""
    rng = random.Random(SEED)
    sent: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(PARTITIONS)}
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        for number in range(RECORDS):
            at_ms = base_ms + number * SPAN_MS // RECORDS + rng.randrange(3_000)
            value = orjson.dumps({"note": "=1+1", "at": at_ms, "number": number})
            key = None if number % 50 else b"\xff\x00"
            future = await producer.send(topic, value, key=key, partition=rng.randrange(PARTITIONS))
            metadata = await future
            sent[metadata.partition].append((metadata.offset, at_ms))
    return sent


@pytest.mark.deep(minutes=0.7)
def test_the_audit_finds_exactly_the_records_of_an_event_time_range(
    stage: DemoStage, yard: Yard, topic_name: str, tmp_path: Path
) -> None:
    bootstrap = yard.bootstrap("east-regional")
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    worker = stage.worker()
    by_field = {"source": "json", "field": "at"}
    stage.deploy(worker, plan("all", topic_name, clusters=[CLUSTER], timestamp=by_field))
    base_ms = now_ms() - 3_600_000
    sent = asyncio.run(produce(bootstrap, topic_name, base_ms))
    windows = f"{worker.url}/api/v1/audit/windows?topic={topic_name}"

    def count_of_windows() -> int:
        return sum(row["count"] for row in http("GET", windows)[1].get("items", ()))

    wait_until(lambda: count_of_windows() == RECORDS, 90, worker.tail)

    def cli(*arguments: str) -> Any:
        command_line = (*arguments, "--cluster", CLUSTER, "--url", worker.url)
        result = CliRunner().invoke(switchyard, command_line)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    from_ms, to_ms = base_ms + 20_000, base_ms + 31_000
    wanted = {
        (partition, offset, at_ms)
        for partition, rows in sent.items()
        for offset, at_ms in rows
        if from_ms <= at_ms < to_ms
    }
    command = ("audit", "records", "--topic", topic_name, "--from", str(from_ms), "--to", str(to_ms))
    found = cli(*command, "-o", "json")
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert {(row["partition"], row["offset"], row["time_ms"]) for row in rows} == wanted
    assert len(rows) == len(wanted) > 100
    for partition in range(PARTITIONS):
        offsets = [row["offset"] for row in rows if row["partition"] == partition]
        assert offsets == sorted(offsets)
    assert (found.exit_code, "found by the audit's index" in found.stderr) == (0, True)
    assert {row["key"]["base64"] for row in rows if row["key"]} == {"/wA="}
    looked_at = int(found.stderr.split(" read, by")[0].split()[-1])
    assert looked_at < RECORDS * 0.75, "the index says where to read"

    cut = cli(*command, "--limit", "7", "-o", "csv")
    assert (cut.exit_code, "--limit is reached" in cut.stderr) == (6, True)
    assert len(list(csv.DictReader(io.StringIO(cut.stdout)))) == 7
    path = f"/api/v1/audit/records?topic={topic_name}&cluster={CLUSTER}&from={from_ms}&to={to_ms}"
    stream = asyncio.run(fetch_text(f"{worker.url}{path}&format=csv"))
    assert len(stream.splitlines()) == 1 + len(wanted)
    assert http("GET", worker.url + path.replace(topic_name, f"{topic_name}-none"))[0] == 404

    at = cli("offsets", "at-time", topic_name, str(from_ms), "-o", "json")
    (topic,) = json.loads(at.stdout)["topics"]
    assert (topic["by"], "event time of audit plan all" in topic["why"]) == ("audit", True)
    for row in topic["partitions"]:
        exact = min(offset for offset, at_ms in sent[row["partition"]] if at_ms >= from_ms)
        window_ms = from_ms - from_ms % 5_000
        earliest = min(offset for offset, at_ms in sent[row["partition"]] if at_ms >= window_ms)
        assert earliest <= row["next_offset"] <= exact
    beyond = json.loads(cli("offsets", "at-time", topic_name, "0s", "-o", "json").stdout)["topics"][0]
    assert {row["note"] for row in beyond["partitions"]} == {"beyond-end"}


async def fetch_text(url: str) -> str:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()
