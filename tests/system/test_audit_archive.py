"""A real worker finds records of a time range, each once: Spark's job archived them, and the log has deleted
some.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner

from app.archive.topic_archive import ArchiveUnreadable, open_archive
from app.audit.query.record_search import EventTimeRange, RangeReader, SearchLimits, parts_of
from app.cli.main import switchyard
from app.dev.demo.stage import DemoStage, http, wait_until
from app.dev.demo.traffic import create_topic
from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kernel.clock import now_ms
from tests.spark.processes import job
from tests.system.test_audit import plan
from tests.system.test_audit_missing import delete_records_before
from tests.system.test_audit_records import CLUSTER, PARTITIONS, RECORDS, SPAN_MS, fetch_text

pytestmark = pytest.mark.system

SEED = 9
ENOUGH = SearchLimits(100_000, 1 << 30, 300.0)
LATER_MS = 600_000  # between the first records and the second ones


async def produce(bootstrap: str, topic: str, base_ms: int) -> dict[int, list[tuple[int, int]]]:
    """Sends records with rising event times, nearly in order; returns (offset, time) by partition."""
    rng = random.Random(SEED)
    sent: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(PARTITIONS)}
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        waiting = []
        for number in range(RECORDS):
            at_ms = base_ms + number * SPAN_MS // RECORDS + rng.randrange(3_000)
            value = orjson.dumps({"note": "", "at": at_ms, "number": number})
            waiting.append((at_ms, await producer.send(topic, value, partition=rng.randrange(PARTITIONS))))
        for at_ms, future in waiting:
            metadata = await future
            sent[metadata.partition].append((metadata.offset, at_ms))
    return sent


def archive(bootstrap: str, topics: str, folder: Path) -> None:
    with job(
        "archive", "--bootstrap", bootstrap, "--topics", topics, "--to", str(folder), "--once"
    ) as process:
        assert process.wait(600) == 0


@pytest.mark.deep(minutes=1.2)
def test_records_of_a_time_range_are_read_from_archive_and_log_once_each(
    stage: DemoStage, yard: Yard, topic_name: str, tmp_path: Path
) -> None:
    bootstrap, folder = yard.bootstrap(CLUSTER), tmp_path / "archive"
    counted, plain = f"{topic_name}-counted", f"{topic_name}-plain"
    for topic in (counted, plain):
        asyncio.run(create_topic(bootstrap, topic, PARTITIONS))
    config = orjson.loads(stage.config().read_bytes())
    for one in config["clusters"]:
        one.update({"archive": str(folder)} if one["name"] == CLUSTER else {})
    stage.settings["clusters"] = config["clusters"]
    worker = stage.worker()
    by_field = {"source": "json", "field": "at"}
    stage.deploy(worker, plan("all", counted, clusters=[CLUSTER], timestamp=by_field))
    base_ms, began_ms = now_ms() - 3_600_000, now_ms()
    sent = {topic: asyncio.run(produce(bootstrap, topic, base_ms)) for topic in (counted, plain)}
    range_ms = (base_ms, base_ms + LATER_MS + SPAN_MS * 2)

    def cli(topic: str, from_ms: int, to_ms: int) -> tuple[list[dict[str, Any]], Any]:
        arguments = ("--topic", topic, "--from", str(from_ms), "--to", str(to_ms), "--limit", "100000")
        command = ("audit", "records", *arguments, "--cluster", CLUSTER, "--url", worker.url, "-o", "json")
        result = CliRunner().invoke(switchyard, command)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return [json.loads(line) for line in result.stdout.splitlines()], result

    rows, before = cli(counted, *range_ms)
    assert (len(rows), before.exit_code) == (RECORDS, 6)
    assert "is no archive" in before.stderr, "without an archive the command warns and shows the log"

    archive(bootstrap, f"{topic_name}-.*", folder)
    for topic, records in sent.items():
        for partition, new_records in asyncio.run(produce(bootstrap, topic, base_ms + LATER_MS)).items():
            records[partition] += new_records
    windows = f"{worker.url}/api/v1/audit/windows?topic={counted}&limit=1000"
    wait_until(
        lambda: sum(row["count"] for row in http("GET", windows)[1].get("items", ())) == 2 * RECORDS,
        90, worker.tail,
    )  # fmt: skip
    reach = asyncio.run(open_archived(bootstrap, folder, counted)).spans
    ends = {partition: spans[-1][1] for partition, spans in reach.items()}
    assert sum(ends.values()) == RECORDS
    for topic in sent:
        asyncio.run(delete_records_before(bootstrap, topic, {0: ends[0] - 20, 1: ends[1]}))

    def positions(rows: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
        return [(row["partition"], row["offset"], row["time_ms"]) for row in rows]

    wanted = [(partition, *one) for partition, records in sorted(sent[counted].items()) for one in records]
    rows, result = cli(counted, *range_ms)
    assert sorted(positions(rows)) == wanted, "each once"
    assert (result.exit_code, "looked up in the archive" in result.stderr) == (0, True), result.stderr
    for partition in range(PARTITIONS):
        offsets = [row["offset"] for row in rows if row["partition"] == partition]
        assert offsets == sorted(offsets)
    assert {row["value"]["text"][:8] for row in rows} == {'{"note":'}
    part = (base_ms + 20_000, base_ms + 31_000)
    assert sorted(positions(cli(counted, *part)[0])) == [one for one in wanted if part[0] <= one[2] < part[1]]
    query = f"topic={counted}&cluster={CLUSTER}&from={range_ms[0]}&to={range_ms[1]}&limit=100000&format=csv"
    assert (
        len(asyncio.run(fetch_text(f"{worker.url}/api/v1/audit/records?{query}")).splitlines())
        == 2 * RECORDS + 1
    )

    rows, result = cli(plain, began_ms - 60_000, now_ms() + 60_000)  # no plan: by timestamps
    offsets = [
        (partition, offset) for partition, records in sorted(sent[plain].items()) for offset, _ in records
    ]
    assert sorted((row["partition"], row["offset"]) for row in rows) == offsets
    assert result.exit_code == 0, result.stderr
    assert cli(plain, began_ms - 120_000, began_ms - 60_000)[0] == []

    times = EventTimeRange(began_ms - 60_000, now_ms() + 60_000)
    found, lost = asyncio.run(
        read_while_records_are_deleted(bootstrap, folder, plain, times, {2: ends[2] - 5})
    )
    assert (sorted(found), lost) == (offsets, 0), "retention deleted records during the read"
    found, lost = asyncio.run(
        read_while_records_are_deleted(bootstrap, folder, plain, times, {2: ends[2] + 7})
    )
    assert (sorted(found), lost) == (
        [one for one in offsets if one[0] != 2 or not ends[2] <= one[1] < ends[2] + 7], 7,
    )  # fmt: skip
    rows, result = cli(plain, began_ms - 60_000, now_ms() + 60_000)
    assert (len(rows), result.exit_code, "7 offsets" in result.stderr) == (2 * RECORDS - 7, 6, True), (
        result.stderr
    )


async def open_archived(bootstrap: str, folder: Path, topic: str) -> Any:
    client = ClusterClient(ClusterSpec(CLUSTER, (bootstrap,)))
    await client.start()
    try:
        topic_id = (await client.topic_ids([topic]))[topic]
        with pytest.raises(ArchiveUnreadable, match="is of cluster"):
            await open_archive(str(folder), "another", topic, topic_id)
        return await open_archive(str(folder), await client.cluster_id(), topic, topic_id)
    finally:
        await client.stop()


async def read_while_records_are_deleted(
    bootstrap: str, folder: Path, topic: str, times: EventTimeRange, deletions: dict[int, int]
) -> tuple[list[tuple[int, int]], int]:
    """Deletes more records once the parts are known, then reads: (partition, offset) of the records, and the
    number of lost ones."""
    archived = await open_archived(bootstrap, folder, topic)
    client = ClusterClient(ClusterSpec(CLUSTER, (bootstrap,)))
    await client.start()
    try:
        parts = await parts_of(client, topic, times, None, by_timestamp=True, archive=archived)
        await delete_records_before(bootstrap, topic, deletions)
        reader = RangeReader(
            client, topic, parts, times, lambda record: record.timestamp, ENOUGH, archived, by_timestamp=True
        )
        pieces = [piece async for piece in reader.pieces()]
        assert reader.why == ""
        return [(one.partition, one.record.offset) for piece in pieces for one in piece], reader.lost
    finally:
        await client.stop()
