"""Sizing ignores and counts heartbeats and load rows that are invalid or from a wrong clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from app.archive.errors import InvalidArchive
from app.archive.log import Archive
from spark.__main__ import main
from spark.jobs import size as job
from spark.sizing import history
from spark.sizing.history import LOAD
from spark.sizing.report import size
from tests.spark.archiving import archive_rows
from tests.spark.conftest import HOUR_MS, row
from tests.spark.regions import Region, beat, status
from tests.spark.test_sizing_frames import BEGAN_H, JOBS, ORDERS, loads

END_H = BEGAN_H + 30
NOW_MS = END_H * HOUR_MS - 1
YEAR_9999_MS = 253_402_300_799_999


def valid_loads(session: SparkSession) -> DataFrame:
    """Valid loads of thirty hours."""
    return loads(session).where(f"start_ms < {END_H * HOUR_MS}")


def odd_load(session: SparkSession, name: str, at_ms: int = NOW_MS) -> DataFrame:
    """One load row of five minutes, of a job with that name."""
    start_ms = at_ms - at_ms % 300_000
    measured = (10, 1.0, 0.1, 1e6, 1e5, 2e4, 10, 1000.0, 120.0, 50.0, 5, 5, at_ms)
    return session.createDataFrame([("", name, "w-9", "", start_ms, *measured, "west")], LOAD)


@pytest.mark.deep(minutes=0.2)
@pytest.mark.parametrize("name", ["x", "dispatch:g/a:a:x", "dispatch", ":", "dispatch:g/a:a:0\n", "\u2028"])
def test_a_name_that_no_job_has_is_left_out_and_the_others_are_sized(
    session: SparkSession, name: str
) -> None:
    found = size(valid_loads(session).union(odd_load(session, name)), now_ms=NOW_MS)
    assert {one["job"] for one in found["jobs"]} == {ORDERS.format(number) for number in range(JOBS)}
    assert {fleet["region"] for fleet in found["fleets"]} == {"east"}
    left_out = found["left_out"]["no_job"]
    assert (left_out["rows"], left_out["one"]) == (1, {"region": "west", "worker": "w-9", "job": name})
    (line,) = history.left_out_words(found["left_out"])
    assert "1 load rows have an impossible job name" in line


@pytest.mark.deep(minutes=0.3)
def test_a_row_from_the_far_future_moves_no_week(session: SparkSession) -> None:
    with_odd_load = valid_loads(session).union(odd_load(session, ORDERS.format(0), YEAR_9999_MS))
    found, alone = size(with_odd_load, now_ms=NOW_MS), size(valid_loads(session), now_ms=NOW_MS)
    assert {**found, "left_out": None} == {**alone, "left_out": None}
    assert found["left_out"]["after_now"]["rows"] == 1


@pytest.mark.deep(minutes=0.1)
def test_sizing_without_a_usable_row_fails_with_the_reasons_they_were_left_out(session: SparkSession) -> None:
    with pytest.raises(InvalidArchive, match="1 load rows have an impossible job name"):
        size(odd_load(session, "x"))


@pytest.mark.deep(minutes=0.1)
def test_archived_heartbeats_that_cannot_be_used_are_counted(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job.common, "session", lambda _name, _options: session)
    east = Region("east")
    east.beat(beat("w-1", BEGAN_H * HOUR_MS, status("dispatch:g/a:a:0", 0.2)))
    topic = east.topics.heartbeats.name
    bad = row(1, b"nonsense", topic=topic, at_ms=BEGAN_H * HOUR_MS)
    archive_rows(session, Archive.create(tmp_path / "east", "c"), *east.rows, bad)
    answer = tmp_path / "size.json"
    assert main(["size", "--archive", f"east={tmp_path / 'east'}", "--json", str(answer)]) == 0
    left_out = json.loads(answer.read_text())["left_out"]["heartbeats"]
    assert left_out["records"] == 1
    assert left_out["why"].startswith("east: the value is")
    assert "1 archived heartbeats cannot be used" in capsys.readouterr().err
