"""Writing files of the archive: staged by Spark, told by their own content, moved to their place, and then
counted.

Rules
1. Spark writes into a folder of its own under `staging`. What is there is read back: the index says what
   files hold, not what was meant.
2. Files are brought to the disk and moved to their final folders before the log's change that makes them
   count.
3. Their names are never used twice, and tell the topic's id: behind a word, since ids may begin with `_`,
   and Spark takes files whose names do for hidden and leaves them out without saying so.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as f

from app.archive.errors import SparkJobError
from app.archive.layout import QUARANTINE, VISIBLE, ArchiveFile, FileSpan
from app.archive.log import sync
from spark.archive.frames import PLACE, read_folder, spans, totals

ROW_GROUP_BYTES = 16 * 1024 * 1024  # what a reader of a time range reads at least
STAGING = "staging"


@dataclass(frozen=True, slots=True)
class Landed:
    """Files in their places, which do not count yet."""

    files: tuple[ArchiveFile, ...]

    @property
    def rows(self) -> int:
        """Records in them."""
        return sum(file.rows for file in self.files)

    @property
    def quarantined(self) -> int:
        """Those of them without a usable timestamp."""
        return sum(file.rows for file in self.files if file.table == QUARANTINE)


def land(frame: DataFrame, root: Path, topic_ids: Mapping[str, str], *, compare: bool = False) -> Landed:
    """Writes what `frames.placed` gives; `topic_ids` by topic. `compare`: all that was written is read back,
    and not only counted.

    Raises:
        SparkJobError: what was written is not what was read.
    """
    name = uuid4().hex
    staging = root / STAGING / name
    staging.mkdir(parents=True)
    checks = totals() if compare else [f.count("*").alias("rows")]
    try:
        written = write(frame, staging, checks)
        held = index(frame.sparkSession, staging)
        if compare and held:
            there = read_folder(frame.sparkSession, staging).agg(*checks).collect()[0].asDict()
        else:
            there = {"rows": sum(span.rows for _, spans_ in held for span in spans_)}
        if there != written:
            raise SparkJobError(
                f"{root}: {written} was to be written, {there} is there; nothing of it counts"
            )
        files = tuple(_moved(file, name, at, root, topic_ids) for at, file in enumerate(held))
        for folder in {(root / file.path).parent for file in files}:
            sync(folder)
        return Landed(files)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write(frame: DataFrame, staging: Path, checks: list[Column]) -> dict[str, Any]:
    """Writes the files; returns what the aggregates `checks` say of the records that went into them."""
    seen = Observation()
    (
        frame.observe(seen, *checks)
        .write.option("parquet.block.size", ROW_GROUP_BYTES)
        .partitionBy(*PLACE)
        .parquet(str(staging), mode="append")
    )
    return dict(seen.get)


def index(spark: SparkSession, staging: Path) -> list[tuple[Path, tuple[FileSpan, ...]]]:
    """What lies in a staging folder, by its content."""
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
