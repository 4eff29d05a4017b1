"""The archive's frames: pure functions from frame to frame.

`RECORD` frames come from Kafka or from files; a file's path says topic, date and hour.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from app.archive.errors import InvalidArchive, SparkJobError
from app.archive.layout import QUARANTINE, RECORDS, is_hidden
from app.archive.reader import ArchiveQuery
from spark.quarantine import REASON, judge
from spark.schemas import FILE, HEADERS, RECORD

NO_TIMESTAMP = "no timestamp"
BEFORE_1970 = "timestamp before 1970"
FAR_FUTURE = "timestamp far in the future"
FUTURE_MS = 86_400_000  # a day: no clock is wrong by more without being broken
UNDATED = "none"

PLACE = ("table", "topic", "date", "hour")
BATCH_OVERHEAD, RECORD_OVERHEAD, LENGTH_BYTES = 61, 21, 5  # of Kafka's format, each number at its longest
LZ4_BLOCK_BITS, LZ4_FRAME = 13, 64  # what cannot be compressed grows by 8 bytes in 64 KiB, and by a frame
DIGEST_SALT = 0x5DEECE66D


def placed(records: DataFrame, now_ms: int) -> DataFrame:
    """`RECORD` with the folder each belongs to: `table`, `date` and `hour` of its timestamp (UTC), and for
    quarantined ones the `reason`, with `none` as their date and hour."""
    judged = judge(
        records,
        {
            NO_TIMESTAMP: f.col("timestamp_ms") == -1,
            BEFORE_1970: f.col("timestamp_ms") < 0,
            FAR_FUTURE: f.col("timestamp_ms") > f.lit(now_ms + FUTURE_MS),
        },
    )
    good = f.col(REASON).isNull()
    when = f.timestamp_millis(f.when(good, f.col("timestamp_ms")))  # of others it may overflow
    return judged.select(
        f.when(good, RECORDS).otherwise(QUARANTINE).alias("table"),
        *RECORD.names,
        f.when(good, f.date_format(when, "yyyy-MM-dd")).otherwise(UNDATED).alias("date"),
        f.when(good, f.date_format(when, "HH")).otherwise(UNDATED).alias("hour"),
        REASON,
    )


def ordered(placed_records: DataFrame) -> DataFrame:
    """Each task's rows folder by folder, within one by partition and offset: files are written in one go, and
    Parquet's statistics tell row groups apart."""
    return placed_records.sortWithinPartitions(*PLACE, "partition", "offset")


def spans(files: DataFrame) -> DataFrame:
    """By file and partition what it holds: `path`, `partition`, `start`, `end`, `rows`, `first_ms`,
    `last_ms`.

    Takes `FILE` columns with `path`.
    """
    return files.groupBy("path", "partition").agg(
        f.min("offset").alias("start"),
        (f.max("offset") + 1).alias("end"),
        f.count("*").alias("rows"),
        f.min("timestamp_ms").alias("first_ms"),
        f.max("timestamp_ms").alias("last_ms"),
    )


FOLDERS = ".*/(records|quarantine)/topic=([^/]+)/date=([^/]+)/hour=([^/]+)/[^/]+$"


def replaced(files: DataFrame) -> DataFrame:
    """What `placed` gave, from files with their `path`."""
    return files.select(
        *(f.regexp_extract("path", FOLDERS, at).alias(name) for at, name in enumerate(PLACE, 1)), *FILE.names
    )


def read_files(spark: SparkSession, paths: list[str]) -> DataFrame:
    """`FILE` columns with `path`, of all of these files, as `read_parquet` does."""
    return _with_path(read_parquet(spark, FILE, paths))


def read_parquet(spark: SparkSession, schema: StructType, paths: list[str]) -> DataFrame:
    """All of these files; columns that a file lacks are null, those of later versions are left out.

    Spark passes over files that are hidden, or gone when it lists them, without a word: here that fails.

    Raises:
        InvalidArchive: a file's name hides it. SparkJobError: Spark does not find all of them.
    """
    if hidden := [path for path in paths if is_hidden(path)]:
        raise InvalidArchive(
            f"{hidden[0]}: Spark passes over files of such names, which an earlier version gave to "
            f"{len(hidden)} of these: `python -m spark compact` gives them others"
        )
    frame = spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)
    there = len(frame.inputFiles())
    if there != len(set(paths)):
        raise SparkJobError(
            f"Spark finds {there} of {len(set(paths))} files, as {paths[0]}; another job may have deleted "
            "some: run it again"
        )
    return frame


def read_folder(spark: SparkSession, folder: Path) -> DataFrame:
    """The same of what Spark has written into a folder, at any depth."""
    return _with_path(spark.read.schema(FILE).option("recursiveFileLookup", "true").parquet(str(folder)))


def _with_path(frame: DataFrame) -> DataFrame:
    return frame.select(f.col("_metadata.file_path").alias("path"), *FILE.names)


def later_columns(spark: SparkSession, paths: list[str]) -> list[str]:
    """Columns of these files that this version does not know; only their footers are read."""
    there = spark.read.option("mergeSchema", "true").parquet(*paths).columns
    return sorted(set(there) - set(FILE.names))


def matching_records(files: DataFrame, query: ArchiveQuery) -> DataFrame:
    """Of `FILE` columns the records that the query wants; quarantined ones whatever their time is."""
    inside = f.col("offset").between(query.start, query.end - 1)
    if query.partitions is not None:
        inside &= f.col("partition").isin(sorted(query.partitions))
    in_time = f.col("timestamp_ms").between(query.from_ms, query.to_ms - 1)
    return files.where(inside & (f.col(REASON).isNotNull() | in_time))


def sizes(files: DataFrame) -> DataFrame:
    """By partition what a topic needs to take these records: `record_bytes`, the largest as a batch of its
    own (as Kafka's producer bounds it, and lz4 may make it larger); `partition_bytes`; `keyless`, how many;
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
    """A record's content as two hashes of 64 bits: key, value, headers and timestamp, not where it lies.

    Both see the same fields in another order behind another first word, so that what collides in one does not
    in the other. Null and empty are told apart.
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
        f.when(f.size(headers) > 0, pairs),  # Spark interprets `transform`: most records need none
        f.col("timestamp_ms"),
    ]
    return f.xxhash64(*parts), f.xxhash64(f.lit(DIGEST_SALT), *reversed(parts))


def totals() -> list[Column]:
    """Aggregates that two frames of the same records share, in whatever order: `rows`, and two sums over
    content and place."""
    place = f.xxhash64("partition", "offset")
    sums = [f.sum(f.xxhash64(digest, place).cast("decimal(20,0)")) for digest in content()]
    return [f.count("*").alias("rows"), sums[0].alias("one"), sums[1].alias("two")]
