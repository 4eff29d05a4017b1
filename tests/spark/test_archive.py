"""Archiving rounds on small frames: each record is archived once and in its hour, whatever fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from app.archive.errors import ConcurrentCommit, InvalidArchive, SparkJobError
from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from spark.archive import compact as compaction
from spark.archive import landing
from spark.archive.compact import compact, groups, rounds, stale
from spark.archive.frames import read_files
from spark.archive.ingest import run_round
from spark.verify.compare import by_offset
from tests.spark.archiving import Frames, archive_rows
from tests.spark.conftest import HOUR_MS, NOON_MS, frame, row

DAY_MS = 24 * HOUR_MS


def read(archive: Archive, topic: str = "orders") -> list[tuple[int, int]]:
    """Partition and offset of each archived record, with quarantined ones."""
    return [
        (record.partition, record.offset)
        for record in ArchiveReader(archive).records(ArchiveQuery(topic, quarantined=True))
    ]


def test_rounds_archive_each_record_once(session: SparkSession, archive: Archive) -> None:
    rows = [row(offset, partition=partition) for partition in range(2) for offset in range(20)]
    source = Frames(session, rows)
    results = [run_round(archive, source, ".*", 16, NOON_MS) for _ in range(4)]
    assert [result.records for result in results] == [16, 16, 8, 0]
    assert [result.left for result in results] == [24, 8, 0, 0]
    assert read(archive) == [(partition, offset) for partition in range(2) for offset in range(20)]


def test_a_late_record_is_archived_in_its_own_hour_and_found_there(
    session: SparkSession, archive: Archive
) -> None:
    rows = [row(0), row(1), row(2, at_ms=NOON_MS + HOUR_MS)]
    archive_rows(session, archive, *rows)
    archive_rows(session, archive, *rows, row(3, at_ms=NOON_MS + 5))
    noon = ArchiveReader(archive).records(ArchiveQuery("orders", from_ms=NOON_MS, to_ms=NOON_MS + HOUR_MS))
    assert [one.offset for one in noon] == [0, 1, 3]
    assert {file.hour for file in archive.state().files.values()} == {"12", "13"}


def test_a_round_that_dies_between_files_and_log_archives_nothing(
    session: SparkSession, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_change: object) -> None:
        raise KeyboardInterrupt

    rows = [row(0), row(1)]
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            archive_rows(session, archive, *rows)
    orphans = set((archive.root / "records").rglob("*.parquet"))
    assert orphans
    assert archive.state().files == {}
    assert archive_rows(session, archive, *rows).records == 2
    assert read(archive) == [(0, 0), (0, 1)]
    far = NOON_MS * 2  # later than the clock
    assert set(stale(archive, far, DAY_MS)) == orphans


def test_written_files_are_read_back_before_they_are_committed(
    session: SparkSession, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loses(data: DataFrame, staging: Path, checks: list[object]) -> dict[str, object]:
        return write(data.where("offset > 0"), staging, checks) | {"rows": 2}  # type: ignore[arg-type]

    write = landing.write
    monkeypatch.setattr(landing, "write", loses)
    with pytest.raises(SparkJobError, match="read back"):
        archive_rows(session, archive, row(0), row(1))
    assert archive.state().files == {}
    assert not list((archive.root / "staging").iterdir())


def test_a_topic_recreated_while_it_is_read_aborts_the_round(session: SparkSession, archive: Archive) -> None:
    @dataclass(slots=True)
    class Changing(Frames):
        topic_ids: list[str] = field(default_factory=lambda: ["id-2", "id-1"])

        def topics(self, pattern: str) -> dict[str, object]:  # type: ignore[override]
            self.topic_id = self.topic_ids.pop()
            return Frames.topics(self, pattern)  # type: ignore[return-value]

    with pytest.raises(ConcurrentCommit, match="orders was deleted or made again"):
        run_round(archive, Changing(session, [row(0)]), ".*", 10, NOON_MS)  # type: ignore[arg-type]
    assert archive.state().reach == {}


def test_a_recreated_topic_is_archived_beside_the_deleted_one(
    session: SparkSession, archive: Archive
) -> None:
    archive_rows(session, archive, row(0, b"old"), row(1, b"old"))
    archive_rows(session, archive, row(0, b"new"), topic_id="id-2")
    reader = ArchiveReader(archive)
    assert [one.value for one in reader.records(ArchiveQuery("orders"))] == [b"new"]
    assert [one.value for one in reader.records(ArchiveQuery("orders", topic_id="id-1"))] == [b"old", b"old"]
    list(compact(session, archive, NOON_MS))
    reader.refresh()
    assert [one.value for one in reader.records(ArchiveQuery("orders", topic_id="id-1"))] == [b"old", b"old"]


def test_quarantined_records_are_counted_and_kept_whole(session: SparkSession, archive: Archive) -> None:
    result = archive_rows(session, archive, row(0), row(1, at_ms=-1, headers=[("a", b"1")]))
    assert (result.records, result.quarantined) == (2, 1)
    reader = ArchiveReader(archive)
    assert [one.offset for one in reader.records(ArchiveQuery("orders"))] == [0]
    kept = list(reader.records(ArchiveQuery("orders", quarantined=True)))
    assert [(one.offset, one.timestamp_ms, one.headers) for one in kept][1] == (1, -1, (("a", b"1"),))
    (batch,) = [
        batch
        for batch in reader.read(ArchiveQuery("orders", quarantined=True), ("offset", "reason"))
        if 1 in batch["offset"].to_pylist()
    ]
    assert batch["reason"].to_pylist() == ["no timestamp"]


def fill(session: SparkSession, archive: Archive) -> DataFrame:
    """Archives records of two partitions and two hours in three rounds; returns all of them."""
    rows = [
        row(offset, partition=partition, at_ms=NOON_MS + offset % 2 * HOUR_MS, headers=[("h", None)])
        for offset in range(12)
        for partition in range(2)
    ]
    for count in (8, 16, 24):
        archive_rows(session, archive, *rows[:count])
    return frame(session, *rows)


def test_compaction_leaves_a_file_an_hour_and_the_same_records(
    session: SparkSession, archive: Archive
) -> None:
    records = fill(session, archive)
    before = archive.state().files
    (joined,) = compact(session, archive, NOON_MS)
    after = archive.state().files
    assert (joined.records, joined.before, joined.after) == (24, len(before), 2)
    assert len(after) == 2 < len(before)
    paths = [str(archive.root / path) for path in after]
    assert by_offset(records, read_files(session, paths)).collect() == []
    assert list(compact(session, archive, NOON_MS)) == []
    assert all((archive.root / path).exists() for path in before)  # readers may still have them open
    assert {
        path.relative_to(archive.root).as_posix() for path in stale(archive, NOON_MS + DAY_MS, DAY_MS)
    } == set(before)
    assert stale(archive, NOON_MS + DAY_MS - 1, DAY_MS) == []


@pytest.mark.deep(minutes=0.1)
def test_a_large_hour_becomes_several_files(session: SparkSession, archive: Archive) -> None:
    fill(session, archive)
    files = archive.state().files.values()
    target = max(file.size_bytes for file in files) * 2 + 1
    (first, second) = groups(archive.state(), target)
    assert first.into > 1
    assert [len(one) for one in rounds([first, second], 1)] == [1, 1]
    list(compact(session, archive, NOON_MS, target))
    assert read(archive) == [(partition, offset) for partition in range(2) for offset in range(12)]
    assert len(archive.state().files) == first.into + second.into


@pytest.mark.deep(minutes=0.1)
def test_a_compaction_gives_way_to_a_concurrent_one(
    session: SparkSession, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(session, archive)
    stolen = False

    def beaten(*arguments: object, **options: bool) -> landing.Landed:
        nonlocal stolen
        found = landing.land(*arguments, **options)  # type: ignore[arg-type]
        if not stolen:
            stolen = True
            list(compact(session, archive, NOON_MS))
        return found

    monkeypatch.setattr(compaction, "land", beaten)
    assert list(compact(session, archive, NOON_MS)) == []
    assert read(archive) == [(partition, offset) for partition in range(2) for offset in range(12)]


@pytest.mark.deep(minutes=0.1)
def test_a_compaction_that_alters_a_record_is_refused(
    session: SparkSession, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alters(data: DataFrame, staging: Path, checks: list[object]) -> dict[str, object]:
        totals = data.agg(*checks).collect()[0].asDict()  # type: ignore[arg-type]
        write(data.withColumn("value", f.lit(b"x")), staging, checks)  # type: ignore[arg-type]
        return dict(totals)

    write = landing.write
    fill(session, archive)
    before = archive.state().files
    monkeypatch.setattr(landing, "write", alters)
    with pytest.raises(SparkJobError, match="read back"):
        list(compact(session, archive, NOON_MS))
    assert archive.state().files == before


def test_files_of_an_earlier_version_without_some_columns_are_read_and_joined(
    session: SparkSession, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def earlier(data: DataFrame, staging: Path, checks: list[object]) -> dict[str, object]:
        return write(data.drop("headers", "reason"), staging, checks)  # type: ignore[arg-type]

    write = landing.write
    with monkeypatch.context() as patch:
        patch.setattr(landing, "write", earlier)
        archive_rows(session, archive, row(0))
    archive_rows(session, archive, row(0), row(1, headers=[("a", b"1")]))
    reader = ArchiveReader(archive)
    assert [one.headers for one in reader.records(ArchiveQuery("orders"))] == [(), (("a", b"1"),)]
    (joined,) = compact(session, archive, NOON_MS)
    assert (joined.records, joined.after) == (2, 1)
    reader.refresh()
    assert [one.headers for one in reader.records(ArchiveQuery("orders"))] == [(), (("a", b"1"),)]


@pytest.mark.deep(minutes=0.2)
def test_files_of_a_later_version_are_read_and_their_columns_are_not_lost(
    session: SparkSession, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(data: DataFrame, staging: Path, checks: list[object]) -> dict[str, object]:
        return write(data.withColumn("leader_epoch", f.lit(7)), staging, checks)  # type: ignore[arg-type]

    write = landing.write
    rows = [row(0, headers=[("a", b"1")]), row(1, key=b"k")]
    archive_rows(session, archive, rows[0])
    with monkeypatch.context() as patch:
        patch.setattr(landing, "write", later)
        archive_rows(session, archive, *rows)
    found = list(ArchiveReader(archive).records(ArchiveQuery("orders")))
    assert [(one.offset, one.key, one.value, one.headers) for one in found] == [
        (0, None, b"0-0", (("a", b"1"),)),
        (1, b"k", b"0-1", ()),
    ]
    files = archive.state().files
    paths = [str(archive.root / path) for path in files]
    assert by_offset(frame(session, *rows), read_files(session, paths)).collect() == []
    with pytest.raises(InvalidArchive, match="columns leader_epoch, which this version would lose"):
        list(compact(session, archive, NOON_MS))
    assert archive.state().files == files
