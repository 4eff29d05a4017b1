"""The answers by the code of `python -m spark`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from app.audit.folds.tier import PlanBounds
from spark.archive.frames import read_files, spans
from spark.dashboard import daily
from spark.dashboard.summary import summarize
from spark.schemas import PAIR
from spark.verify.compare import by_offset, judged, match
from tests.bench.reporting import audits, shapes


def report(spark: SparkSession, root: Path, rows: int) -> dict[str, Any]:
    """The `dashboard`'s results of the windows (traffic by hour, a verdict a window, kept as files), and the
    whole `report`."""
    shutil.rmtree(root / daily.GLOBAL, ignore_errors=True)
    end_ms = audits.end_ms(rows)
    now_ms = end_ms + audits.AFTERWARDS_MS
    daily.bring_up(spark, root, daily.open_stores(root), now_ms, PlanBounds())
    summary = summarize(spark, root, audits.START_MS, end_ms, now_ms)
    return shapes.report(summary["traffic"], summary["pairs"])


def time_range(root: Path, topic: str, from_ms: int, to_ms: int) -> dict[str, Any]:
    """The range by the archive's reader, without Spark, as `audit records` and exports read it."""
    offsets, sizes = [], []
    query = ArchiveQuery(topic, from_ms=from_ms, to_ms=to_ms, max_records=10**9)
    for batch in ArchiveReader(Archive.open(root)).read(query, ("offset", "key", "value", "headers")):
        offsets.append(batch["offset"])
        sizes.append(pc.sum(pc.binary_length(batch["value"])).as_py() or 0)
    bounds = [pc.min_max(column).as_py() for column in offsets]
    return {
        "records": sum(map(len, offsets)),
        "first": min(one["min"] for one in bounds),
        "last": max(one["max"] for one in bounds),
        "bytes": sum(sizes),
    }


def counts(spark: SparkSession, paths: Sequence[str]) -> dict[str, Any]:
    """The records of each partition in each file, as for the archive's index."""
    rows = spans(read_files(spark, list(paths))).collect()
    return shapes.counts(
        (unquote(urlsplit(row["path"]).path), *(row[name] for name in shapes.SPAN)) for row in rows
    )


def offsets(spark: SparkSession, pairs: Sequence[tuple[list[str], list[str]]]) -> dict[str, int]:
    """`verify archive`: topic by topic, the archive's files and the copy's."""
    found: dict[str, int] = {}
    for source, copy in pairs:
        _add(found, by_offset(read_files(spark, source), read_files(spark, copy)))
    return found


def contents(
    spark: SparkSession, pairs: Sequence[tuple[list[str], list[str]]], folder: Path
) -> dict[str, int]:
    """`verify topic`: pairs are written to files, as the job does; the copy has offsets of its own."""
    found: dict[str, int] = {}
    for source, copy in pairs:
        copied = read_files(spark, copy).withColumn("offset", f.col("offset") + shapes.SHIFT)
        match(read_files(spark, source), copied).write.parquet(str(folder), mode="overwrite")
        _add(found, judged(spark.read.schema(PAIR).parquet(str(folder))))
    return found


def _add(found: dict[str, int], findings: DataFrame) -> None:
    for row in findings.groupBy("kind").count().collect():
        found[row["kind"]] = found.get(row["kind"], 0) + row["count"]
