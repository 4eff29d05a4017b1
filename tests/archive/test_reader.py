"""Reading archives without Spark: by time and offset, with a limit, and their coverage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.archive.errors import BadOption, NotArchived
from app.archive.layout import (
    ArchiveChange,
    ArchivedPartition,
    ArchivedReach,
    ArchiveFile,
    ArchiveGap,
    FileSpan,
)
from app.archive.log import Archive
from app.archive.reader import COLUMNS, ArchiveQuery, ArchiveReader, record_schema

Place = tuple[int, int, int]  # partition, offset, timestamp in ms


def put(archive: Archive, *files: list[Place], topic_id: str = "id-1", rows_a_group: int = 2) -> None:
    """Commits files with records at these places; each value is the text of its place."""
    added = []
    for places in files:
        name = f"records/{archive.state().number}-{len(added)}.parquet"
        columns = {
            "partition": [place[0] for place in places],
            "offset": [place[1] for place in places],
            "timestamp_ms": [place[2] for place in places],
            "timestamp_type": [0] * len(places),
            "key": [None] * len(places),
            "value": [repr(place).encode() for place in places],
            "headers": [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}]] * len(places),
            "reason": [None] * len(places),
        }
        path = archive.root / name
        path.parent.mkdir(exist_ok=True)
        table = pa.table(columns, schema=record_schema(pa))
        pyarrow.parquet.write_table(table, path, row_group_size=rows_a_group)
        spans = []
        for partition in sorted({place[0] for place in places}):
            offsets = [place[1] for place in places if place[0] == partition]
            times = [place[2] for place in places if place[0] == partition]
            spans.append(
                FileSpan(partition, min(offsets), max(offsets) + 1, len(offsets), min(times), max(times))
            )
        added.append(
            ArchiveFile(name, "records", "orders", topic_id, "d", "h", path.stat().st_size, tuple(spans))
        )
    reach = {
        ArchivedPartition("orders", topic_id, span.partition): ArchivedReach(0, span.end)
        for file in added
        for span in file.spans
    }
    archive.commit(ArchiveChange("land", 0, tuple(added), reach=reach))


FILES = [
    [(0, 0, 100), (0, 1, 110), (0, 4, 105), (1, 0, 100), (1, 1, 300)],
    [(0, 2, 200), (0, 3, 190), (0, 6, 210)],
    [(0, 5, 101)],  # late
]
PLACES = [place for file in FILES for place in file]


def test_records_come_in_the_order_of_offsets_though_files_overlap(archive: Archive) -> None:
    put(archive, *FILES)
    found = list(ArchiveReader(archive).records(ArchiveQuery("orders")))
    assert [(one.partition, one.offset, one.timestamp_ms) for one in found] == sorted(PLACES)
    assert found[0].headers == (("h", b"1"), ("h", None))
    assert [one.value for one in found] == [repr(place).encode() for place in sorted(PLACES)]


times, offsets = st.integers(90, 310), st.integers(0, 8)


@given(times, times, offsets, offsets, st.none() | st.frozensets(st.integers(0, 2)), st.integers(0, 12))
def test_a_query_returns_exactly_the_matching_records(
    from_ms: int, to_ms: int, start: int, end: int, partitions: frozenset[int] | None, most: int
) -> None:
    if from_ms >= to_ms or start >= end:
        with pytest.raises(BadOption):
            ArchiveQuery("orders", from_ms=from_ms, to_ms=to_ms, start=start, end=end)
        return
    query = ArchiveQuery(
        "orders", from_ms=from_ms, to_ms=to_ms, start=start, end=end, partitions=partitions, max_records=most
    )
    wanted = sorted(
        place
        for place in PLACES
        if from_ms <= place[2] < to_ms and start <= place[1] < end
        if partitions is None or place[0] in partitions
    )
    found = list(READER.records(query))
    assert [(one.partition, one.offset, one.timestamp_ms) for one in found] == wanted[:most]
    assert READER.truncated == (len(wanted) > most)
    batches = list(READER.read(query, ("offset", "value")))
    assert sum(batch.num_rows for batch in batches) == min(most, len(wanted))
    assert READER.truncated == (len(wanted) > most)


@given(times)
def test_the_offset_at_a_time_is_the_first_one_at_or_after_it(time_ms: int) -> None:
    wanted: dict[int, int] = {}
    for partition, offset, at_ms in sorted(PLACES):
        if at_ms >= time_ms:
            wanted.setdefault(partition, offset)
    assert READER.offset_at("orders", time_ms) == wanted


def test_a_column_of_a_later_version_is_ignored(archive: Archive) -> None:
    put(archive, *FILES)
    for path in archive.state().files:
        table = pyarrow.parquet.read_table(archive.root / path)
        table = table.add_column(0, "leader_epoch", pa.array([7] * len(table)))
        pyarrow.parquet.write_table(table, archive.root / path)
    reader = ArchiveReader(archive)
    found = [(one.partition, one.offset, one.timestamp_ms) for one in reader.records(ArchiveQuery("orders"))]
    assert found == sorted(PLACES)
    assert all(batch.schema.names == list(COLUMNS) for batch in reader.read(ArchiveQuery("orders")))


def test_coverage_has_the_start_of_the_topic_and_its_gaps(archive: Archive) -> None:
    put(archive, *FILES)
    at = ArchivedPartition("orders", "id-1", 0)
    gap = ArchiveGap(at, 7, 9, 5)
    archive.commit(
        ArchiveChange(
            "land", 5, reach={at: ArchivedReach(0, 9)}, based_on={at: archive.state().reach[at]}, gaps=(gap,)
        )
    )
    first, second = ArchiveReader(archive).coverage("orders")
    assert (first.partition, first.reach, first.gaps) == (0, ArchivedReach(0, 9), (gap,))
    assert (second.partition, second.reach, second.gaps) == (1, ArchivedReach(0, 2), ())


def test_only_files_and_row_groups_that_may_match_are_opened(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(archive, *FILES)
    opened = []

    class Counted(pyarrow.parquet.ParquetFile):  # type: ignore[misc]
        def iter_batches(self, *arguments: object, **options: object) -> object:
            opened.append(options["row_groups"])
            return super().iter_batches(*arguments, **options)

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Counted)
    reader = ArchiveReader(archive)
    assert [one.offset for one in reader.records(ArchiveQuery("orders", from_ms=300, to_ms=301))] == [1]
    assert opened == [[2]]


def test_files_are_opened_only_when_their_offsets_are_reached(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(archive, *([(0, offset, offset)] for offset in range(5)))
    opened = []

    class Counted(pyarrow.parquet.ParquetFile):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            opened.append(path)
            super().__init__(path)

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Counted)
    records = ArchiveReader(archive).records(ArchiveQuery("orders"))
    assert [(next(records).offset, len(opened)) for _ in range(5)] == [(n, n + 1) for n in range(5)]


def test_a_reader_sees_the_state_of_its_last_refresh(archive: Archive) -> None:
    put(archive, FILES[0])
    reader = ArchiveReader(archive)
    put(archive, FILES[1])
    assert len(list(reader.records(ArchiveQuery("orders")))) == len(FILES[0])
    reader.refresh()
    assert len(list(reader.records(ArchiveQuery("orders")))) == len(FILES[0]) + len(FILES[1])


def test_a_topic_that_was_never_archived_is_refused_with_the_archived_ones(archive: Archive) -> None:
    put(archive, *FILES)
    with pytest.raises(NotArchived, match="nothing of topic 'payments'; it has: orders"):
        list(ArchiveReader(archive).records(ArchiveQuery("payments")))
    with pytest.raises(NotArchived, match="never had the id 'id-9'"):
        list(ArchiveReader(archive).read(ArchiveQuery("orders", topic_id="id-9")))


def test_reading_an_archive_imports_no_spark() -> None:
    code = "import sys, app.archive.reader; sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module", autouse=True)
def _shared_reader(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One archive for all examples of the properties, which only read it."""
    global READER  # noqa: PLW0603 - given to properties, which take no fixtures of a narrower scope
    archive = Archive.create(Path(tmp_path_factory.mktemp("shared")) / "archive", "cluster")
    put(archive, *FILES)
    READER = ArchiveReader(archive)


READER: ArchiveReader
