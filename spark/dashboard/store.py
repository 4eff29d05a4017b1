"""Files of a store: Spark stages them, they are read back and moved, and the archive's log commits them.

A file's folder is `<table>/topic=<changelog's table, or all>/date=<date>`; `table` decides the schema.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from app.archive.errors import SparkJobError
from app.archive.layout import ArchiveFile, FileSpan
from app.archive.log import Archive, ArchiveState, sync
from spark.archive.compact import stale
from spark.archive.frames import read_parquet
from spark.dashboard.frames import ENTRY, LOAD, TRAFFIC, VERDICT
from spark.files import read_parquet_at

STATE, QUARANTINE, LOADS = "state", "quarantine", "loads"
TRAFFICS, VERDICTS = "traffic", "verdicts"
SCHEMAS = {STATE: ENTRY, QUARANTINE: ENTRY, LOADS: LOAD, TRAFFICS: TRAFFIC, VERDICTS: VERDICT}
STAGING = "staging"
UNREAD_MS = 3_600_000
ROWS_OF_FILE = 1_000_000  # about; one task sorts and writes them


def stored(spark: SparkSession, archive: Archive, files: Iterable[ArchiveFile], table: str) -> DataFrame:
    """The rows of those files that belong to `table`."""
    paths = [str(archive.root / file.path) for file in files if file.table == table]
    schema = SCHEMAS[table]
    return read_parquet(spark, schema, paths) if paths else spark.createDataFrame([], schema)


def files_of(state: ArchiveState, table: str, dates: Iterable[str] | None = None) -> list[ArchiveFile]:
    """The counted files of a table, on these dates (all)."""
    wanted = None if dates is None else set(dates)
    return [
        file
        for _, file in sorted(state.files.items())
        if file.table == table and (wanted is None or file.date in wanted)
    ]


def write(frame: DataFrame, archive: Archive, table: str, rows: int, topic: str) -> tuple[ArchiveFile, ...]:
    """Writes the rows as files in their folders, which do not count yet.

    Args:
        rows: About how many; decides over how many tasks a date is spread.
        topic: The column of the folder's topic; "" for "all".

    Raises:
        SparkJobError: The files do not hold the rows that were written.
    """
    name = uuid4().hex
    staging = archive.root / STAGING / name
    seen = Observation()
    salt = f.pmod(f.xxhash64(*frame.columns), f.lit(max(1, rows // ROWS_OF_FILE)))
    of_what = f.col(topic) if topic else f.lit("all")
    try:
        (
            frame.withColumn("_of", of_what)
            .observe(seen, f.count("*").alias("rows"))
            .withColumn("_date", f.col("date"))
            .repartition("_of", "_date", salt)
            .sortWithinPartitions("_of", "_date")
            .write.partitionBy("_of", "_date")
            .parquet(str(staging))
        )
        held = _index(frame.sparkSession, staging, SCHEMAS[table])
        if sum(rows for _, rows in held) != seen.get["rows"]:
            staged = sum(rows for _, rows in held)
            raise SparkJobError(
                f"{archive.root}: wrote {seen.get['rows']} rows of {table}, read back {staged}; nothing was "
                "changed, run it again"
            )
        return tuple(
            _moved(path, archive.root, table, f"{name}-{number}", count)
            for number, (path, count) in enumerate(held)
        )
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def tidy(archive: Archive, now_ms: int) -> int:
    """Deletes files that have not counted for an hour, even if a report reads them; returns their number."""
    old = stale(archive, now_ms, UNREAD_MS, SCHEMAS)
    for path in old:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return len(old)


def _index(spark: SparkSession, staging: Path, schema: StructType) -> list[tuple[Path, int]]:
    if not any(staging.rglob("*.parquet")):
        return []
    staged = read_parquet_at(spark, schema, [staging], recursiveFileLookup="true")
    counted = staged.groupBy(f.col("_metadata.file_path").alias("path")).count().collect()
    return sorted((Path(unquote(urlsplit(row["path"]).path)), row["count"]) for row in counted)


def _moved(staged: Path, root: Path, table: str, name: str, rows: int) -> ArchiveFile:
    of, date = (unquote(staged.parents[at].name.partition("=")[2]) for at in (1, 0))
    folder = Path(table, f"topic={of}", f"date={date}")
    (root / folder).mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.parquet"
    sync(staged)
    staged.rename(root / target)
    sync(root / folder)
    size = (root / target).stat().st_size
    return ArchiveFile(
        target.as_posix(), table, of, "", date, "none", size, (FileSpan(-1, 0, 0, rows, -1, -1),)
    )
