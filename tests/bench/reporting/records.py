"""An archive as `python -m spark archive` writes it and `compact` leaves it, made from a seed: one file a
topic and hour.

A copy of it has known differences in the first hour of each topic. Growth is more hours, as in an archive
that keeps growing. The other files of the copy are hard links.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.archive.layout import RECORDS, ArchiveChange, ArchivedPartition, ArchivedReach, ArchiveFile, FileSpan
from app.archive.log import Archive
from app.archive.reader import record_schema
from tests.bench.reporting.files import Progress, run_tasks, write

START_MS = 1_761_955_200_000  # 2025-11-01T00:00Z
HOUR_MS = 3_600_000
TOPICS = ("orders", "payments", "shipments", "visits")
PARTITIONS = 8
RECORDS_AN_HOUR = 250_000  # of a topic, where there are enough
LEAST_HOURS = 2
TOPIC_ID = "benchbenchbenchbench00"
KEY = b"customer-00000000"
VALUE = b'{"id":"0000000000000000","customer":"customer-00000000","cents":0000000,"state":"accepted"}'
TRACE = b"00000000-0000000000000000"
TOMBSTONES, TRACED = 100, 5  # one in this many has no value; one in this many has a header
MISSING, ALTERED, FOREIGN, DOUBLED, SWAPPED = 3, 2, 1, 2, 1  # in each topic of the copy
FAR_OFFSET = 10**12
BY_OFFSET = {
    "missing": MISSING, "altered": ALTERED + 2 * SWAPPED, "foreign": FOREIGN, "doubled": DOUBLED,
}  # fmt: skip
BY_CONTENT = {
    "missing": MISSING + ALTERED, "foreign": ALTERED + FOREIGN, "doubled": DOUBLED, "reordered": SWAPPED,
}  # fmt: skip

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Hour:
    """One task: the records of a topic and hour."""

    root: Path
    copy: Path
    seed: int
    topic: int
    hour: int
    records: int


def hours_of(records: int) -> int:
    """The hours that this many records take."""
    return max(LEAST_HOURS, round(records / (RECORDS_AN_HOUR * len(TOPICS))))


def an_hour(records: int) -> int:
    """The records of a topic in an hour: a multiple of the partitions."""
    share = records // (hours_of(records) * len(TOPICS) * PARTITIONS)
    return max(16, share) * PARTITIONS


def make(root: Path, copy: Path, records: int, seed: int, progress: Progress) -> int:
    """Makes the archive at `root` and the copy's files; returns the number of records in the archive."""
    archive = Archive.create(root, "bench")
    hours, many = hours_of(records), an_hour(records)
    tasks = [
        Hour(root, copy, seed, topic, hour, many) for hour in range(hours) for topic in range(len(TOPICS))
    ]
    files = tuple(run_tasks(_hour, tasks, progress, f"making {records:,} records"))
    end = hours * many // PARTITIONS
    reach = {
        ArchivedPartition(topic, TOPIC_ID, number): ArchivedReach(0, end)
        for topic in TOPICS
        for number in range(PARTITIONS)
    }
    archive.commit(ArchiveChange("land", START_MS + hours * HOUR_MS, added=files, reach=reach))
    return sum(file.rows for file in files)


def _hour(task: Hour) -> ArchiveFile:
    table = _table(task)
    first_ms = START_MS + task.hour * HOUR_MS
    at = datetime.fromtimestamp(first_ms / 1000, UTC)
    topic, date, hour = TOPICS[task.topic], at.strftime("%Y-%m-%d"), at.strftime("%H")
    path = Path(
        RECORDS, f"topic={topic}", f"date={date}", f"hour={hour}", f"{TOPIC_ID}-{task.hour}-0.parquet"
    )
    size = write(table, task.root / path)
    other = task.copy / path
    if task.hour == 0:
        write(_differing(table), other)
    else:
        other.parent.mkdir(parents=True, exist_ok=True)
        os.link(task.root / path, other)
    each = task.records // PARTITIONS
    times = table["timestamp_ms"].to_numpy().reshape(PARTITIONS, each)
    start = task.hour * each
    spans = tuple(
        FileSpan(number, start, start + each, each, int(times[number].min()), int(times[number].max()))
        for number in range(PARTITIONS)
    )
    return ArchiveFile(path.as_posix(), RECORDS, topic, TOPIC_ID, date, hour, size, spans)


def _table(task: Hour) -> Any:
    """Records by partition and offset; timestamps rise apart from some jitter."""
    rng = np.random.default_rng([task.seed, task.topic, task.hour])
    many, each = task.records, task.records // PARTITIONS
    offsets = np.tile(np.arange(each, dtype=np.int64) + task.hour * each, PARTITIONS)
    steady = np.tile(np.arange(each, dtype=np.int64) * HOUR_MS // each, PARTITIONS)
    times = np.clip(steady + rng.integers(-2000, 2000, many), 0, HOUR_MS - 1)
    customers = rng.zipf(1.3, many).clip(max=99_999_999)
    ids = (task.hour * many + np.arange(many)) * len(TOPICS) + task.topic
    ids += rng.integers(0, 10**6, many) * 10**10  # nothing that compresses better than ids do
    values = _texts(VALUE, many)
    _digits(values, VALUE.index(b'"0') + 1, 16, ids)
    _digits(values, VALUE.index(b"-0") + 1, 8, customers)
    _digits(values, VALUE.index(b":0") + 1, 7, rng.integers(100, 1_000_000, many))
    keys = _texts(KEY, many)
    _digits(keys, KEY.index(b"0"), 8, customers)
    is_tombstone = rng.integers(0, TOMBSTONES, many) == 0
    is_traced = rng.integers(0, TRACED, many) == 0
    traced = int(is_traced.sum())
    traces = _texts(TRACE, traced)
    _digits(traces, 9, 16, rng.integers(0, 10**15, traced))
    schema = record_schema(pa)
    header = schema.field("headers").type.value_type
    pairs = pa.StructArray.from_arrays(
        [pa.repeat("trace", traced).cast(pa.string()), _binaries(traces)], fields=list(header)
    )
    ends = np.concatenate(([0], np.cumsum(is_traced))).astype(np.int32)
    return pa.Table.from_arrays(
        [
            pa.array(np.repeat(np.arange(PARTITIONS, dtype=np.int32), each)),
            pa.array(offsets),
            pa.array(START_MS + task.hour * HOUR_MS + times),
            pa.array(np.zeros(many, dtype=np.int32)),
            _binaries(keys),
            _binaries(values, is_tombstone),
            pa.ListArray.from_arrays(pa.array(ends), pairs, type=schema.field("headers").type),
            pa.nulls(many, pa.string()),
        ],
        schema=schema,
    )


def _texts(template: bytes, many: int) -> Bytes:
    return np.tile(np.frombuffer(template, dtype=np.uint8), (many, 1))


def _digits(texts: Bytes, at: int, width: int, numbers: npt.NDArray[np.int64]) -> None:
    """Writes the numbers, decimal with leading zeros, into a field of the texts."""
    left = numbers.astype(np.int64)
    for column in range(at + width - 1, at - 1, -1):
        texts[:, column] = 48 + left % 10
        left = left // 10


def _binaries(texts: Bytes, is_null: npt.NDArray[np.bool_] | None = None) -> Any:
    """One row each, without the null ones."""
    many, width = texts.shape
    sizes = np.full(many, width, dtype=np.int32)
    valid = None
    if is_null is not None:
        texts = texts[~is_null]
        sizes[is_null] = 0
        valid = pa.array(~is_null).buffers()[1]
    ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), many, [valid, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(texts))]
    )


def _differing(table: Any) -> Any:
    """The hour with the differences of `BY_OFFSET` and `BY_CONTENT`, all in the first partition.

    Only records with a value are changed, because two without one may be equal.
    """
    rows = table.slice(0, 256 if table.num_rows >= 256 * PARTITIONS else table.num_rows // PARTITIONS)
    rest = table.slice(rows.num_rows)
    found = rows.to_pylist()
    whole = [at for at, row in enumerate(found) if row["value"] is not None]
    pair = next(at for at in whole if at + 1 in whole)
    free = iter([at for at in whole if at not in (pair, pair + 1)])
    gone = {next(free) for _ in range(MISSING)}
    for at in (next(free) for _ in range(ALTERED)):
        found[at]["value"] = found[at]["value"].replace(b"accepted", b"refused!")
    place = {name: found[pair][name] for name in ("partition", "offset")}
    other = {name: found[pair + 1][name] for name in ("partition", "offset")}
    found[pair], found[pair + 1] = found[pair + 1] | place, found[pair] | other
    repeated = [found[next(free)] for _ in range(DOUBLED)]
    foreign = [
        found[pair] | {"offset": FAR_OFFSET + number, "value": b"nobody wrote this"}
        for number in range(FOREIGN)
    ]
    kept = [row for at, row in enumerate(found) if at not in gone]
    return pa.concat_tables(
        [pa.Table.from_pylist(kept + repeated + foreign, schema=table.schema), rest.cast(table.schema)]
    )
