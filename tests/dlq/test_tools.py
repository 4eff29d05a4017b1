"""Counting, purging and exporting queues of real Kafka."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from app.dlq import export
from app.dlq.purge import foresee_purge, purge
from app.dlq.query import BadQuery, Query
from app.dlq.read import NoQueue, queue_ends, read_one
from app.dlq.survey import lines, stats
from app.kafka.clusters import ClusterClient
from tests.dlq.queues import create, fill, headers, of_topic


async def test_figures_tell_codes_hours_and_ages(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    workload = of_topic(topic_name)
    with pytest.raises(NoQueue):
        await stats(client, workload, Query(), 30)
    await create(bootstrap, workload.dlq_topic(), 2)
    await fill(bootstrap, workload, range(6), moved_ms=3_600_000)
    await fill(bootstrap, workload, range(3), code="DATA_LOSS", moved_ms=7_200_001, merges=1)
    told = await stats(client, workload, Query(), 30)
    assert told["codes"] == {"INTERNAL": 6, "DATA_LOSS": 3}
    assert told["hours"] == [[3_600_000, 6], [7_200_000, 3]]
    assert (told["oldest_ms"], told["newest_ms"], told["merged_before"]) == (3_600_000, 7_200_001, 3)
    assert (told["letters"], told["looked_at"], told["complete"]) == (9, 9, True)
    assert (await stats(client, workload, Query(partition=(1,)), 30))["letters"] == 4


async def test_a_purge_deletes_what_is_before_its_bound_and_nothing_else(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 2)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(20):
            await producer.send_and_wait(
                workload.dlq_topic(), b"x", partition=number % 2, timestamp_ms=1_000_000 + number // 2
            )
    foreseen = await foresee_purge(client, workload, before_ms=1_000_004)
    assert foreseen["offsets"] == 8
    assert (await foresee_purge(client, workload, before_offsets={1: 3}))["partitions"] == {
        "1": {"start": 0, "end": 3}
    }
    assert (await foresee_purge(client, workload, before_ms=9_000_000))["offsets"] == 20
    assert await queue_ends(client, workload.dlq_topic()) == {0: (0, 10), 1: (0, 10)}, (
        "looking changes nothing"
    )
    bounds = {int(p): (b["start"], b["end"]) for p, b in foreseen["partitions"].items()}
    assert await purge(client, workload, bounds) == {0: 4, 1: 4}
    assert await purge(client, workload, bounds) == {0: 4, 1: 4}
    assert await queue_ends(client, workload.dlq_topic()) == {0: (4, 10), 1: (4, 10)}
    with pytest.raises(BadQuery, match="is not there yet"):
        await purge(client, workload, {0: (0, 11)})


async def test_one_letter_is_read_or_none(client: ClusterClient, bootstrap: str, topic_name: str) -> None:
    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 1)
    await fill(bootstrap, workload, range(5))
    letter = await read_one(client, workload.dlq_topic(), 0, 3)
    assert letter is not None
    assert (letter.offset, letter.value, letter.code) == (3, b"3", "INTERNAL")
    assert await read_one(client, workload.dlq_topic(), 0, 5) is None
    assert await read_one(client, workload.dlq_topic(), 7, 0) is None


async def exported(client: ClusterClient, topic: str, query: Query) -> list[bytes]:
    found = b""
    async for piece in lines(client, topic, query, await queue_ends(client, topic)):
        found += piece
    return found.splitlines(keepends=True)


async def test_an_export_holds_every_byte_in_both_formats(
    client: ClusterClient, bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    workload = of_topic(topic_name)
    await create(bootstrap, workload.dlq_topic(), 1)
    values = [b"plain", b"\xff\x00", None, b"", "€".encode()]
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number, value in enumerate(values):
            await producer.send_and_wait(workload.dlq_topic(), value, key=b"\xfe", headers=headers(number))
    await fill(bootstrap, workload, range(3), code="DATA_LOSS")
    found = await exported(client, workload.dlq_topic(), Query(code=("INTERNAL",)))
    plain, table = tmp_path / "letters.jsonl", tmp_path / "letters.parquet"
    assert export.write_file(plain, "jsonl", found) == 5
    assert export.write_file(table, "parquet", found) == 5
    rows = parquet.read_table(table).to_pylist()
    assert [row["value"] for row in rows] == values
    told = [json.loads(line) for line in plain.read_text().splitlines()]
    assert [row["offset"] for row in told] == [row["offset"] for row in rows] == list(range(5))
    assert told[1]["value"] == {"base64": "/wA="}
    assert rows[0]["key"] == b"\xfe"
    assert {h["name"]: h["value"] for h in rows[0]["headers"]}["own"] == b"\x00kept"


def test_an_export_that_breaks_off_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    path.write_text("before\n")

    def breaking() -> Iterator[bytes]:
        yield b"{}\n"
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        export.write_file(path, "jsonl", breaking())
    assert [entry.name for entry in tmp_path.iterdir()] == ["letters.jsonl"]
    assert path.read_text() == "before\n"


def test_parquet_without_its_package_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(export.NoParquet, match="pip install pyarrow"):
        export.write_file(tmp_path / "x.parquet", "parquet", [])
    assert list(tmp_path.iterdir()) == []
