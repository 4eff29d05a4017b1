"""Writes files of the archive: Spark stages them, reading them back gives their index, and they move to their
place.

Rules
1. Spark writes into a new folder under `staging`. The index comes from reading the files back, so it states
   what they hold.
2. Files are synced to the disk and moved to their folders before the log's change that makes them count.
3. A file's name is never used twice. The topic's id follows a prefix, because Spark silently ignores files
   whose names begin with `_`, as an id may.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as f

from app.archive.errors import SparkJobError
from app.archive.layout import QUARANTINE, VISIBLE, ArchiveFile, FileSpan
from app.archive.log import sync
from app.kernel.json_types import JsonObject
from spark.archive.frames import PLACE, read_folder, spans, totals

ROW_GROUP_BYTES = 16 * 1024 * 1024  # the least that a reader of a time range fetches
STAGING = "staging"


@dataclass(frozen=True, slots=True)
class Landed:
    """Files in their folders, which do not count yet."""

    files: tuple[ArchiveFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def quarantined(self) -> int:
        """The number of records without a usable timestamp."""
        return sum(file.rows for file in self.files if file.table == QUARANTINE)


def land(frame: DataFrame, root: Path, topic_ids: Mapping[str, str], *, compare: bool = False) -> Landed:
    """Writes the rows of `frames.placed`; `topic_ids` by topic. `compare`: checks the content, and not only
    the number of rows.

    Raises:
        SparkJobError: The files do not hold the rows that were written.
    """
    name = uuid4().hex
    staging = root / STAGING / name
    staging.mkdir(parents=True)
    checks = totals() if compare else [f.count("*").alias("rows")]
    try:
        written = write(frame, staging, checks)
        held = index(frame.sparkSession, staging)
        if compare and held:
            staged = read_folder(frame.sparkSession, staging).agg(*checks).collect()[0].asDict()
        else:
            staged = {"rows": sum(span.rows for _, spans_ in held for span in spans_)}
        if staged != written:
            raise SparkJobError(
                f"{root}: wrote {written}, read back {staged}; nothing was changed, run it again"
            )
        files = tuple(_moved(file, name, at, root, topic_ids) for at, file in enumerate(held))
        for folder in {(root / file.path).parent for file in files}:
            sync(folder)
        return Landed(files)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write(frame: DataFrame, staging: Path, checks: list[Column]) -> JsonObject:
    """Writes the files; returns the aggregates `checks` of the rows that were written."""
    seen = Observation()
    (
        frame.observe(seen, *checks)
        .write.option("parquet.block.size", ROW_GROUP_BYTES)
        .partitionBy(*PLACE)
        .parquet(str(staging), mode="append")
    )
    return dict(seen.get)


def index(spark: SparkSession, staging: Path) -> list[tuple[Path, tuple[FileSpan, ...]]]:
    """The files of a staging folder, with their content by partition."""
    found: dict[str, list[Row]] = defaultdict(list)
    if not any(staging.rglob("*.parquet")):
        return []
    for row in spans(read_folder(spark, staging)).collect():
        found[row["path"]].append(row)
    return [
        (
            Path(unquote(urlsplit(path).path)),
            tuple(
                FileSpan(r["partition"], r["start"], r["end"], r["rows"], r["first_ms"], r["last_ms"])
                for r in sorted(rows, key=lambda r: r["partition"])
            ),
        )
        for path, rows in sorted(found.items())
    ]


def _moved(
    staged: tuple[Path, tuple[FileSpan, ...]],
    name: str,
    number: int,
    root: Path,
    topic_ids: Mapping[str, str],
) -> ArchiveFile:
    path, held = staged
    place = dict(part.split("=", 1) for part in path.parts if "=" in part and part.partition("=")[0] in PLACE)
    topic_id = topic_ids[place["topic"]]
    folder = Path(place["table"], *(f"{key}={place[key]}" for key in PLACE[1:]))
    target = folder / f"{VISIBLE}{topic_id}-{name}-{number}.parquet"
    (root / folder).mkdir(parents=True, exist_ok=True)
    sync(path)
    path.rename(root / target)
    return ArchiveFile(
        path=target.as_posix(),
        topic_id=topic_id,
        size_bytes=(root / target).stat().st_size,
        spans=held,
        **place,
    )
