"""`verify` counts what it compared. Where a side was not read whole, it reports that instead of findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from app.archive.log import Archive
from spark.__main__ import main
from spark.archive.frames import read_files
from spark.jobs import verify
from spark.topics import KafkaTopic, LogBounds, Range
from tests.spark.archiving import Frames, archive_rows
from tests.spark.conftest import HOUR_MS, NOON_MS, Row, row

ROWS = [row(offset, at_ms=NOON_MS + offset % 2 * HOUR_MS) for offset in range(8)]


@dataclass(slots=True)
class Side(Frames):
    """A cluster whose log begins at `start`. Spark reads its rows that match `seen`, `times` times."""

    start: int = 0
    seen: str = "true"
    times: int = 1

    def cluster_id(self) -> str:
        """The id of the archive's cluster."""
        return "cluster"

    def topic(self, name: str) -> KafkaTopic:
        """The topic; its log begins at `start`."""
        found = Frames.topics(self, name)[name]
        bounds = {number: LogBounds(self.start, one.end) for number, one in found.partitions.items()}
        return KafkaTopic(name, found.topic_id, bounds)

    def read(self, ranges: Sequence[Range], raw: Sequence[Range] = ()) -> DataFrame:
        """The rows that this side pretends to have read."""
        whole = Frames.read(self, ranges).where(self.seen)
        for _ in range(self.times - 1):
            whole = whole.unionByName(Frames.read(self, ranges))
        return whole

    def has_records(self, ranges: Sequence[Range]) -> bool:
        """Whether the rows have a record in any range."""
        return any(one.start <= at < one.end for _, _, at, *_ in self.rows for one in ranges)


Verify = Callable[..., int]


@pytest.fixture
def run(session: SparkSession, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Runs the job, which compares the source with the copy, or with the archive if no copy is given."""
    monkeypatch.setattr(verify.common, "session", lambda _name, _options: session)
    monkeypatch.setattr(verify, "switchyard_home", lambda: tmp_path / "home")

    def run_job(source: Side, copy: Side | None = None, *more: str) -> int:
        sides = {"source": source, "copy": copy}
        monkeypatch.setattr(verify.common, "cluster", lambda _spark, bootstrap, _config: sides[bootstrap])
        options = ["--bootstrap", "source", "--topic", "orders", *more]
        if copy is None:
            return main(["verify", "archive", *options, "--archive", str(archive.root)])
        return main(["verify", "topic", *options, "--copy-bootstrap", "copy", "--copy", "orders"])

    return run_job


def test_only_what_topic_and_archive_have_in_common_is_compared_and_counted(
    run: Verify, session: SparkSession, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    for count in (4, 8):
        archive_rows(session, archive, *ROWS[:count])
    assert run(Side(session, ROWS, start=2)) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["records"], result["findings"]) == (6, {})
    assert run(Side(session, [one for one in ROWS if one[2] != 5], start=2)) == verify.EXIT_DIFFERS
    assert json.loads(capsys.readouterr().out)["findings"] == {"foreign": 1}


def test_existing_findings_are_not_overwritten(
    run: Verify,
    session: SparkSession,
    archive: Archive,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "kept" / "findings").mkdir(parents=True)
    assert run(Side(session, ROWS), None, "--findings", str(tmp_path / "kept")) == 2
    assert "it has findings already; name another folder" in capsys.readouterr().err


def test_findings_are_kept_in_a_folder_of_any_name(
    run: Verify, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "a[b]{c}*"
    assert run(Side(session, ROWS), Side(session, ROWS[1:], start=1), "--findings", str(kept)) == 8
    assert json.loads(capsys.readouterr().out)["findings"] == {"missing": 1}


@pytest.mark.deep(minutes=0.1)
@pytest.mark.parametrize("seen", ["offset <> 5", "offset < 0"])
def test_an_archive_that_is_not_read_whole_is_reported_instead_of_findings(
    run: Verify,
    session: SparkSession,
    archive: Archive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seen: str,
) -> None:
    archive_rows(session, archive, *ROWS)
    monkeypatch.setattr(verify, "read_files", lambda spark, paths: read_files(spark, paths).where(seen))
    assert run(Side(session, ROWS, seen=seen), None, "--findings", str(tmp_path / "kept")) == 1
    output = capsys.readouterr()
    assert f"read {7 if '<>' in seen else 0} of 8 records of {archive.root}" in output.err
    assert output.out == ""
    assert list((tmp_path / "kept").rglob("*.parquet")) == []


@pytest.mark.deep(minutes=0.2)
def test_a_topic_with_records_of_which_none_is_read_is_reported(
    run: Verify, session: SparkSession, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_rows(session, archive, *ROWS)
    blind, whole = Side(session, ROWS, seen="offset < 0"), Side(session, ROWS)
    for sides in ((blind,), (blind, whole), (whole, blind), (blind, blind)):
        assert run(*sides) == 1
        output = capsys.readouterr()
        assert "read 0 records of orders, which has up to 8: nothing was compared; run it again" in output.err
        assert output.out == ""


@pytest.mark.deep(minutes=0.2)
def test_more_records_than_the_topic_has_offsets_are_reported(
    run: Verify, session: SparkSession, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_rows(session, archive, *ROWS)
    twice, whole = Side(session, ROWS, times=2), Side(session, ROWS)
    for sides in ((twice,), (twice, whole), (whole, twice)):
        assert run(*sides) == 1
        assert "read 16 records of orders, which has up to 8" in capsys.readouterr().err


@pytest.mark.deep(minutes=0.1)
def test_a_copy_or_a_period_without_records_is_no_failure(
    run: Verify, session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    @dataclass(slots=True)
    class Aborted(Side):
        def has_records(self, _ranges: Sequence[Range]) -> bool:
            """Its only records were aborted."""
            return False

    whole = Side(session, ROWS)
    assert run(whole, Aborted(session, ROWS, seen="offset < 0")) == verify.EXIT_MISSING
    assert json.loads(capsys.readouterr().out)["findings"] == {"missing": 8}
    assert run(whole, whole, "--to", str(NOON_MS)) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 0


def test_findings_that_cannot_be_read_back_fail_the_job(
    run: Verify,
    session: SparkSession,
    archive: Archive,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive_rows(session, archive, *ROWS)
    monkeypatch.setattr(verify, "_kinds", lambda _findings: [])
    other: list[Row] = [row(0, b"other", at_ms=NOON_MS), *ROWS[1:]]
    assert run(Side(session, other)) == 1
    assert "wrote 1, read back 0" in capsys.readouterr().err
