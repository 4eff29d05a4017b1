"""Spark ignores files whose names begin with `_`: one topic id in 64 begins with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from pyspark.sql import DataFrame, SparkSession

from app.archive.errors import InvalidArchive, SparkJobError
from app.archive.layout import ArchiveChange
from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from spark.archive import compact as compaction
from spark.archive.compact import compact
from spark.archive.frames import read_files
from tests.spark.archiving import archive_rows
from tests.spark.conftest import HOUR_MS, NOON_MS, row

ID = "_kAxFeIgRS-sUoyV5uqfpA"


def fill(session: SparkSession, archive: Archive, topic: str, topic_id: str) -> list[int]:
    """Archives records of two hours in two rounds; returns their offsets."""
    rows = [row(offset, topic=topic, at_ms=NOON_MS + offset % 2 * HOUR_MS) for offset in range(8)]
    for count in (4, 8):
        archive_rows(session, archive, *rows[:count], topic_id=topic_id)
    return list(range(8))


def paths(archive: Archive, topic: str) -> list[str]:
    """The topic's files in the archive's log."""
    return [str(archive.root / file.path) for file in ArchiveReader(archive).files(ArchiveQuery(topic))]


def offsets(archive: Archive, topic: str) -> list[int]:
    """The offsets that the reader without Spark finds."""
    return [one.offset for one in ArchiveReader(archive).records(ArchiveQuery(topic))]


def hide(archive: Archive) -> None:
    """Renames the files as an earlier version named them."""
    files = list(archive.state().files.values())
    hidden = []
    for file in files:
        path = PurePosixPath(file.path)
        former = path.with_name(path.name.removeprefix("id-"))
        (archive.root / file.path).rename(archive.root / former)
        hidden.append(replace(file, path=former.as_posix()))
    archive.commit(ArchiveChange("compact", NOON_MS, tuple(hidden), tuple(file.path for file in files)))


@pytest.mark.deep(minutes=0.2)
def test_spark_reads_an_archived_topic_whatever_its_id_begins_with(
    session: SparkSession, archive: Archive
) -> None:
    wanted = fill(session, archive, "orders", ID)
    found = read_files(session, paths(archive, "orders")).collect()
    assert sorted(one["offset"] for one in found) == wanted == offsets(archive, "orders")


@pytest.mark.deep(minutes=0.3)
def test_hidden_files_are_refused_and_compaction_gives_them_names_that_spark_reads(
    session: SparkSession, archive: Archive
) -> None:
    wanted = fill(session, archive, "orders", ID)
    fill(session, archive, "others", "id-2")
    hide(archive)
    assert offsets(archive, "orders") == wanted
    files = len(paths(archive, "orders"))
    message = rf"/_kAxFeIgRS.*: Spark ignores .* {files} of these: `python -m spark compact`"
    with pytest.raises(InvalidArchive, match=message):
        read_files(session, paths(archive, "orders"))
    assert sum(joined.records for joined in compact(session, archive, NOON_MS)) == 16
    for topic in ("orders", "others"):
        assert offsets(archive, topic) == wanted
        assert read_files(session, paths(archive, topic)).count() == len(wanted)


@pytest.mark.deep(minutes=0.1)
def test_a_compaction_that_was_killed_while_it_renamed_files_is_repeated(
    session: SparkSession, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_change: object) -> None:
        raise KeyboardInterrupt

    wanted = fill(session, archive, "orders", ID)
    hide(archive)
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            list(compact(session, archive, NOON_MS))
    assert offsets(archive, "orders") == wanted
    list(compact(session, archive, NOON_MS))
    assert offsets(archive, "orders") == wanted
    assert read_files(session, paths(archive, "orders")).count() == len(wanted)


def test_a_file_that_spark_does_not_find_fails_the_read(session: SparkSession, archive: Archive) -> None:
    fill(session, archive, "orders", ID)
    files = paths(archive, "orders")
    empty = Path(files[0]).with_name("folder.parquet")
    empty.mkdir()  # Spark skips a folder as it skips a file that is deleted meanwhile
    with pytest.raises(SparkJobError, match=f"finds {len(files)} of {len(files) + 1} files"):
        read_files(session, [*files, str(empty)])


@pytest.mark.deep(minutes=0.1)
def test_a_compaction_that_does_not_read_all_records_changes_nothing(
    session: SparkSession, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(spark: SparkSession, files: list[str]) -> DataFrame:
        return read_files(spark, files).where("offset <> 3")

    wanted = fill(session, archive, "orders", ID)
    monkeypatch.setattr(compaction, "read_files", short)
    with pytest.raises(SparkJobError, match="read 7 records from files that hold 8"):
        list(compact(session, archive, NOON_MS))
    assert offsets(archive, "orders") == wanted
