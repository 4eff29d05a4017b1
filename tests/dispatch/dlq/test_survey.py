"""Counting, purging and exporting queues of real Kafka."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.dispatch.dlq import export
from app.dispatch.dlq.operation_history import choose
from app.dispatch.dlq.query import LetterQuery
from app.dispatch.dlq.reader import NoQueue, read_one
from app.dispatch.dlq.survey import lines, stats
from app.dispatch.model.retry_headers import left_out_headers
from app.kafka.append.producer import Producer
from tests.dispatch.dlq.queues import DeadLetterQueue, headers


async def test_figures_have_codes_hours_and_ages(queue: DeadLetterQueue) -> None:
    with pytest.raises(NoQueue):
        await stats(queue.client, queue.workload, LetterQuery(), 30)
    await queue.create(2)
    await queue.fill(range(6), moved_ms=3_600_000)
    await queue.fill(range(3), code="DATA_LOSS", moved_ms=7_200_001, merges=1)
    figures = await stats(queue.client, queue.workload, LetterQuery(), 30)
    assert figures["codes"] == {"INTERNAL": 6, "DATA_LOSS": 3}
    assert figures["hours"] == [[3_600_000, 6], [7_200_000, 3]]
    assert (figures["oldest_ms"], figures["newest_ms"], figures["merged_before"]) == (3_600_000, 7_200_001, 3)
    assert (figures["letters"], figures["looked_at"], figures["complete"]) == (9, 9, True)
    assert (await stats(queue.client, queue.workload, LetterQuery(partition=(1,)), 30))["letters"] == 4


async def test_one_letter_is_read_or_none(queue: DeadLetterQueue) -> None:
    await queue.create()
    await queue.fill(range(5))
    letter = await read_one(queue.client, queue.workload.dlq_topic(), 0, 3)
    assert letter is not None
    assert (letter.offset, letter.value, letter.code) == (3, b"3", "INTERNAL")
    assert await read_one(queue.client, queue.workload.dlq_topic(), 0, 5) is None
    assert await read_one(queue.client, queue.workload.dlq_topic(), 7, 0) is None


async def exported(queue: DeadLetterQueue, query: LetterQuery) -> list[bytes]:
    ends, found = await queue.ends(), b""
    choice = await choose(queue.client, queue.workload, query, ends)
    async for piece in lines(queue.client, queue.workload.dlq_topic(), choice, ends):
        found += piece
    return found.splitlines(keepends=True)


async def test_an_export_holds_every_byte_in_both_formats(queue: DeadLetterQueue, tmp_path: Path) -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    await queue.create()
    values = [b"plain", b"\xff\x00", None, b"", "€".encode()]
    await queue.put(*values, key=b"\xfe", headers=headers())
    await queue.fill(range(3), code="DATA_LOSS")
    found = await exported(queue, LetterQuery(code=("INTERNAL",)))
    plain, table = tmp_path / "letters.jsonl", tmp_path / "letters.parquet"
    assert export.write_file(plain, "jsonl", found) == 5
    assert export.write_file(table, "parquet", found) == 5
    rows = parquet.read_table(table).to_pylist()
    assert [row["value"] for row in rows] == values
    figures = [json.loads(line) for line in plain.read_text().splitlines()]
    assert [row["offset"] for row in figures] == [row["offset"] for row in rows] == list(range(5))
    assert figures[1]["value"] == {"base64": "/wA="}
    assert rows[0]["key"] == b"\xfe"
    assert {h["name"]: h["value"] for h in rows[0]["headers"]}["own"] == b"\x00kept"


async def test_exports_and_figures_distinguish_a_left_out_value_from_null(
    queue: DeadLetterQueue, tmp_path: Path
) -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    await queue.create()
    large, key = b"v" * 3_000, b"k" * 70
    lacks_both = left_out_headers(large, "orders", 0, 8, "", key)
    producer = Producer(queue.client.spec)  # aiokafka's sends nothing without key and value
    await producer.start()
    for at, value, figures in (
        (b"k", None, headers()),
        (b"k", None, [*headers(), *left_out_headers(large, "orders", 0, 7, "")]),
        (None, None, [*headers(), *lacks_both]),
        (b"k", b"here", headers()),
    ):
        await producer.send(queue.workload.dlq_topic(), at, value, figures, 0)
    await producer.stop()
    found = await exported(queue, LetterQuery())
    table = tmp_path / "letters.parquet"
    assert export.write_file(table, "parquet", found) == 4
    columns = "value", "left_out_bytes", "left_out_key_bytes"
    for rows in (parquet.read_table(table).to_pylist(), [json.loads(line) for line in found]):
        shown = [tuple(row[column] for column in columns) for row in rows]
        assert shown[:3] == [(None, None, None), (None, 3_000, None), (None, 3_000, 70)]
        assert shown[3][1:] == (None, None)
    assert (await stats(queue.client, queue.workload, LetterQuery(), 30))["value_bytes"] == 6_004


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
