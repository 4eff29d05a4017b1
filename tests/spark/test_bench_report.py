"""The bench `report` at a small size: its data has the format that the jobs write, and all engines agree."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from spark.archive.frames import read_files, spans
from spark.dashboard.frames import ENTRY
from spark.schemas import FILE
from tests.bench import report, run
from tests.bench.reporting import audits, records
from tests.bench.reporting.duck import connect
from tests.bench.reporting.shapes import SPAN
from tests.bench.reporting.works import (
    CONTENTS,
    COUNTS,
    DUCK,
    OFFSETS,
    OURS,
    PLAIN,
    RANGE,
    REPORT,
    Work,
    answer,
    ask_duck,
    ask_spark,
)
from tests.spark.conftest import SETTINGS

ROWS, RECORDS = 4_000, 20_000


def discard_progress(_: str) -> None:
    """Discards progress messages."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store, a small archive and its copy."""
    root = tmp_path_factory.mktemp("report")
    assert audits.make(root / "store", ROWS, 1, discard_progress) == ROWS
    records.make(root / "archive", root / "copy", RECORDS, 1, discard_progress)
    return root


def answers_of(
    session: SparkSession, folder: Path, work: str, rows: int, *engines: str
) -> dict[str, list[Any]]:
    """Each engine's answer, after a round trip through JSON as between processes."""
    found: dict[str, list[Any]] = {}
    for engine in engines:
        question = Work(engine, work, str(folder), rows, rows)
        if engine == DUCK:
            with closing(connect(question.scratch, 2)) as duck:
                result = ask_duck(duck, question)
        elif engine == OURS and work != RANGE:
            result = ask_spark(session, question)
        else:
            result = answer(question)["answer"]
        found[engine] = [json.loads(json.dumps(result))]
    return found


@pytest.mark.deep(minutes=0.5)
def test_spark_duckdb_and_python_make_the_same_report(session: SparkSession, folder: Path) -> None:
    found = answers_of(session, folder, REPORT, ROWS, OURS, DUCK, PLAIN)
    report.check_same(REPORT, found)
    result = found[OURS][0]
    assert sum(row[3] for row in result["traffic"]) == ROWS * 4 // 5  # the aggregate is counted twice
    states = {state for row in result["pairs"] for state, _ in row[-1]}
    assert states == {"ok", "lossy", "duplicated", "corrupted", "late"}


@pytest.mark.deep(minutes=0.3)
@pytest.mark.parametrize("work", [RANGE, COUNTS, OFFSETS, CONTENTS])
def test_spark_and_duckdb_agree_on_the_archive(session: SparkSession, folder: Path, work: str) -> None:
    found = answers_of(session, folder, work, RECORDS, OURS, DUCK)
    report.check_same(work, found)
    assert found[OURS][0]


def test_the_benchs_data_has_the_format_that_the_jobs_write(session: SparkSession, folder: Path) -> None:
    archive = Archive.open(folder / "archive")
    files = list(archive.state().files.values())
    paths = [str(archive.root / file.path) for file in files]
    assert session.read.parquet(paths[0]).schema == FILE
    entries = str(folder / "store" / "east" / "state" / "topic=audit_windows" / "*" / "*.parquet")
    assert session.read.parquet(entries).schema.fields == ENTRY.fields
    in_files = {
        (Path(row["path"]).name, row["partition"]): tuple(row[name] for name in SPAN[1:])
        for row in spans(read_files(session, paths)).where("path like '%topic=orders/%'").collect()
    }
    recorded = {
        (Path(file.path).name, span.partition): astuple(span)[1:]
        for file in files
        if file.topic == "orders"
        for span in file.spans
    }
    assert in_files == recorded
    some = next(ArchiveReader(archive).records(ArchiveQuery("orders", start=3)))
    assert (some.partition, some.offset) == (0, 3)


@pytest.mark.deep(minutes=0.4)
def test_the_same_seed_makes_the_same_data(tmp_path: Path) -> None:
    made = []
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        root = tmp_path / name
        audits.make(root / "store", 400, seed, discard_progress)
        records.make(root / "archive", root / "copy", 1_000, seed, discard_progress)
        files = sorted(path for path in root.rglob("*.parquet"))
        made.append([path.read_bytes() for path in files])
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_answers_that_differ_fail_the_bench_and_say_where() -> None:
    same = {"traffic": [["orders", 7]], "pairs": []}
    other = {"traffic": [["orders", 8]], "pairs": []}
    with pytest.raises(ValueError, match=r"duckdb answers otherwise: at .traffic\[0\]\[1\]|\['orders', 8\]"):
        report.check_same(REPORT, {OURS: [same], DUCK: [same, other]})
    planted = {kind: count * len(records.TOPICS) for kind, count in records.BY_OFFSET.items()}
    report.check_same(OFFSETS, {OURS: [planted], DUCK: [planted]})
    with pytest.raises(ValueError, match="spark answers otherwise"):
        report.check_same(OFFSETS, {OURS: [{"missing": 1}], DUCK: [{"missing": 1}]})


def test_a_disk_that_is_too_small_is_refused_before_any_data_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    with pytest.raises(ValueError, match=r"1\.0 GB free and 6\.0 GB are needed: give --folder"):
        report.check_disk(tmp_path, "audits", 10_000_000, 0)


@pytest.mark.deep(minutes=7.1)
def test_the_bench_prints_its_results_and_leaves_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", "--only=audits", "--audit-rows=1200", "--growth=2", "--rounds=1", "--folder"]
    quick = [word for setting in SETTINGS.items() for word in ("--conf", "=".join(setting))]
    assert run.main([*arguments, str(tmp_path), *quick]) == 0
    output = capsys.readouterr()
    found = json.loads(output.out.splitlines()[-1])
    assert (found["bench"], found["unit"], found["peer"]) == ("report", "s", DUCK)
    names = [(row["bench"], row["peer"]) for row in found["rows"]]
    assert names == [
        ("report: report, 600", DUCK),
        ("report: report, 600", PLAIN),
        ("report: report, 1,200", DUCK),
        ("report: report, growth", DUCK),
    ]
    assert all(min(row["peak MB"]) > 10 for row in found["rows"][:3])
    assert "the answers are the same" in output.err
    assert list(tmp_path.iterdir()) == []
