"""The archive's DataFrames: pure functions from DataFrame to DataFrame.

A `RECORD` frame comes from Kafka or from files. A file's path has the topic, date and hour.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from app.archive.errors import InvalidArchive, SparkJobError
from app.archive.layout import QUARANTINE, RECORDS, is_hidden
from app.archive.reader import ArchiveQuery
from spark.files import read_parquet_at
from spark.quarantine import REASON, judge
from spark.schemas import FILE, HEADERS, RECORD

NO_TIMESTAMP = "no timestamp"
BEFORE_1970 = "timestamp before 1970"
FAR_FUTURE = "timestamp far in the future"
FUTURE_MS = 86_400_000  # a day: a clock that is wrong by more is broken
UNDATED = "none"

PLACE = ("table", "topic", "date", "hour")
BATCH_OVERHEAD, RECORD_OVERHEAD, LENGTH_BYTES = 61, 21, 5  # of Kafka's format, with its longest varints
LZ4_BLOCK_BITS, LZ4_FRAME = 13, 64  # incompressible bytes grow by 8 in 64 KiB, and by a frame
DIGEST_SALT = 0x5DEECE66D


def placed(records: DataFrame, now_ms: int) -> DataFrame:
    """`RECORD` with the folder: `table`, and `date` and `hour` of the timestamp (UTC). A quarantined record
    has a `reason`, and `none` as date and hour."""
    judged = judge(
        records,
        {
            NO_TIMESTAMP: f.col("timestamp_ms") == -1,
            BEFORE_1970: f.col("timestamp_ms") < 0,
            FAR_FUTURE: f.col("timestamp_ms") > f.lit(now_ms + FUTURE_MS),
        },
    )
    good = f.col(REASON).isNull()
    when = f.timestamp_millis(f.when(good, f.col("timestamp_ms")))  # a quarantined timestamp may overflow
    return judged.select(
        f.when(good, RECORDS).otherwise(QUARANTINE).alias("table"),
        *RECORD.names,
        f.when(good, f.date_format(when, "yyyy-MM-dd")).otherwise(UNDATED).alias("date"),
        f.when(good, f.date_format(when, "HH")).otherwise(UNDATED).alias("hour"),
        REASON,
    )


def ordered(placed_records: DataFrame) -> DataFrame:
    """Sorts each task's rows by folder, partition and offset, so that it writes one file after the other and
    Parquet's statistics separate row groups."""
    return placed_records.sortWithinPartitions(*PLACE, "partition", "offset")


def spans(files: DataFrame) -> DataFrame:
    """The content of `FILE` rows with `path`, by path and partition: offsets, rows, and times."""
    return files.groupBy("path", "partition").agg(
        f.min("offset").alias("start"),
        (f.max("offset") + 1).alias("end"),
        f.count("*").alias("rows"),
        f.min("timestamp_ms").alias("first_ms"),
        f.max("timestamp_ms").alias("last_ms"),
    )


FOLDERS = ".*/(records|quarantine)/topic=([^/]+)/date=([^/]+)/hour=([^/]+)/[^/]+$"


def replaced(files: DataFrame) -> DataFrame:
    """The columns of `placed`, from files with their `path`."""
    return files.select(
        *(f.regexp_extract("path", FOLDERS, at).alias(name) for at, name in enumerate(PLACE, 1)), *FILE.names
    )


def read_files(spark: SparkSession, paths: list[str]) -> DataFrame:
    """The `FILE` columns of these files with `path` (see `read_parquet`)."""
    return _with_path(read_parquet(spark, FILE, paths))


def read_parquet(spark: SparkSession, schema: StructType, paths: list[str]) -> DataFrame:
    """Reads all of these files. Columns that a file lacks are null; columns of later versions are left out.

    Spark silently skips hidden files, and files that are gone when it lists them. Here both fail.

    Raises:
        InvalidArchive: A file's name makes it hidden.
        SparkJobError: Spark does not find all files.
    """
    if hidden := [path for path in paths if is_hidden(path)]:
        raise InvalidArchive(
            f"{hidden[0]}: Spark ignores files with such names, which an earlier version gave to "
            f"{len(hidden)} of these: `python -m spark compact` renames them"
        )
    frame = read_parquet_at(spark, schema, paths, recursiveFileLookup="true")
    found = len(frame.inputFiles())
    if found != len(set(paths)):
        raise SparkJobError(
            f"Spark finds {found} of {len(set(paths))} files like {paths[0]}; another job may have deleted "
            "some: run it again"
        )
    return frame


def read_folder(spark: SparkSession, folder: Path) -> DataFrame:
    """The `FILE` columns with `path` of all files in a folder that Spark wrote, at any depth."""
    return _with_path(read_parquet_at(spark, FILE, [folder], recursiveFileLookup="true"))


def _with_path(frame: DataFrame) -> DataFrame:
    return frame.select(f.col("_metadata.file_path").alias("path"), *FILE.names)


def later_columns(spark: SparkSession, paths: list[str]) -> list[str]:
    """The columns of these files that this version does not know; reads only footers."""
    columns = read_parquet_at(spark, None, paths, mergeSchema="true").columns
    return sorted(set(columns) - set(FILE.names))


def matching_records(files: DataFrame, query: ArchiveQuery) -> DataFrame:
    """The `FILE` rows that match the query. Quarantined ones match at any time."""
    inside = f.col("offset").between(query.start, query.end - 1)
    if query.partitions is not None:
        inside &= f.col("partition").isin(sorted(query.partitions))
    in_time = f.col("timestamp_ms").between(query.from_ms, query.to_ms - 1)
    return files.where(inside & (f.col(REASON).isNotNull() | in_time))


def sizes(files: DataFrame) -> DataFrame:
    """The bounds of a topic that takes these records, by partition: `record_bytes`, the largest batch of one
    record (the bound of Kafka's producer, and lz4's growth); `partition_bytes`; `keyless` records;
    `first_ms`, `last_ms`."""
    held = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0)) + 2 * LENGTH_BYTES
    headers = f.aggregate(
        f.coalesce("headers", f.array().cast(HEADERS)),
        f.lit(LENGTH_BYTES),
        lambda sum_, one: (
            sum_
            + f.octet_length(one["key"])
            + f.coalesce(f.length(one["value"]), f.lit(0))
            + 2 * LENGTH_BYTES
        ),
    )
    plain = (held + f.when(f.size("headers") > 0, headers).otherwise(LENGTH_BYTES)).cast("long")
    each = plain + f.shiftright(plain, LZ4_BLOCK_BITS) + LZ4_FRAME + BATCH_OVERHEAD + RECORD_OVERHEAD
    return files.groupBy("partition").agg(
        f.max(each).alias("record_bytes"),
        f.sum(each).alias("partition_bytes"),
        f.count_if(f.col("key").isNull()).alias("keyless"),
        f.min("timestamp_ms").alias("first_ms"),
        f.max("timestamp_ms").alias("last_ms"),
    )


def content() -> tuple[Column, Column]:
    """Two 64-bit hashes of a record's key, value, headers and timestamp, without its place.

    The second hash reads the fields in reverse after a salt, so that records which collide in one hash differ
    in the other. Null and empty differ.
    """
    headers = f.coalesce("headers", f.array().cast(HEADERS))
    pairs = f.transform(
        headers, lambda one: f.struct(one["key"], one["value"], f.coalesce(f.length(one["value"]), f.lit(-1)))
    )
    parts = [
        f.coalesce(f.length("key"), f.lit(-1)),
        f.col("key"),
        f.coalesce(f.length("value"), f.lit(-1)),
        f.col("value"),
        f.size(headers),
        f.when(
            f.size(headers) > 0, pairs
        ),  # Spark interprets `transform` slowly, and most records have no headers
        f.col("timestamp_ms"),
    ]
    return f.xxhash64(*parts), f.xxhash64(f.lit(DIGEST_SALT), *reversed(parts))


def totals() -> list[Column]:
    """Aggregates that are equal for the same records in any order: `rows`, and two sums of hashes."""
    place = f.xxhash64("partition", "offset")
    sums = [f.sum(f.xxhash64(digest, place).cast("decimal(20,0)")) for digest in content()]
    return [f.count("*").alias("rows"), sums[0].alias("one"), sums[1].alias("two")]
