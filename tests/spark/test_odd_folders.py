"""Spark takes some characters in a path for a pattern; jobs read and write folders of any name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from spark.__main__ import main
from spark.archive.compact import compact
from spark.archive.frames import read_files
from spark.dashboard.store import LOADS, files_of, stored
from spark.jobs import size
from tests.spark.archiving import archive_rows
from tests.spark.conftest import NOON_MS, row
from tests.spark.test_dashboard import report, take, two_regions

ODD = "a[b]{c,d}*:?\\e %20#"


def test_an_archive_lies_in_any_folder(session: SparkSession, tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / ODD, "cluster")
    for count in (2, 4):
        archive_rows(session, archive, *(row(offset) for offset in range(count)))
    assert [joined.after for joined in compact(session, archive, NOON_MS)] == [1]
    reader = ArchiveReader(archive)
    (file,) = reader.files(ArchiveQuery("orders"))
    assert read_files(session, [str(archive.root / file.path)]).count() == 4
    assert [one.offset for one in reader.records(ArchiveQuery("orders"))] == [0, 1, 2, 3]


def test_a_store_lies_in_any_folder(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ODD
    for region in two_regions():
        take(session, folder, region)
    assert report(session, folder)["totals"]["records"] == 40
    archive = Archive.open(folder / "east")
    loads = stored(session, archive, files_of(archive.state(), LOADS), LOADS).withColumn(
        "region", lit("east")
    )
    loads.write.parquet(str(folder / "loads"))
    monkeypatch.setattr(size.common, "session", lambda _name, _options: session)
    for source in (["--from-store", str(folder)], ["--loads", str(folder / "loads")]):
        assert main(["size", *source]) == 0
        assert json.loads(capsys.readouterr().out)["fleets"][0]["jobs"] == 1
