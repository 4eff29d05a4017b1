"""Compares a topic with a copy record by record: what the copy lacks, repeats, or reorders. Pure functions of
`RECORD` frames.

- **By offset**, if the copy keeps offsets (an archive). A partition and offset identify a record; its content
  must be equal.
- **By content**, if the copy has offsets of its own (a replicated topic). Within a lane the n-th occurrence
  of a content matches the n-th one of the copy. Lanes are partitions if both sides have the same number,
  otherwise keys. In the first case a record that was copied into another partition is missing and foreign.

Both take one shuffle of 40 bytes a record. Tasks that read the values hash them to 128 bits. Order takes a
sort of two offsets a record, in blocks, so that many tasks sort one partition.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from spark.archive.frames import content
from spark.schemas import FINDING

BLOCK_OFFSETS = 1 << 18  # one task sorts a block


def by_offset(source: DataFrame, copy: DataFrame) -> DataFrame:
    """The `FINDING`s of a copy that keeps offsets: missing, foreign, doubled (one a surplus), altered."""
    return differing(met(source, copy))


def met(source: DataFrame, copy: DataFrame) -> DataFrame:
    """By `partition` and `offset`: the numbers of `sources` and `copies`, and whether they `differ`."""
    return (
        _sided(source, copy)
        .groupBy("partition", "offset")
        .agg(
            f.count_if("ours").alias("sources"),
            f.count_if(~f.col("ours")).alias("copies"),
            ((f.min("one") != f.max("one")) | (f.min("two") != f.max("two"))).alias("differ"),
        )
    )


def differing(met: DataFrame) -> DataFrame:
    """The `FINDING`s from the rows of `met`."""
    sources, copies = f.col("sources"), f.col("copies")
    kinds = f.filter(
        f.array(
            f.when(copies == 0, f.lit("missing")),
            f.when(sources == 0, f.lit("foreign")),
            f.when((sources > 0) & (copies > 0) & f.col("differ"), f.lit("altered")),
        ),
        lambda one: one.isNotNull(),
    )
    surplus = f.array_repeat(f.lit("doubled"), f.greatest(copies - 1, f.lit(0)).cast("int"))
    found = met.withColumn("kind", f.explode(f.concat(kinds, surplus)))
    return found.select(
        "kind",
        "partition",
        f.when(sources > 0, f.col("offset")).alias("source_offset"),
        f.when(copies > 0, f.col("offset")).alias("copy_offset"),
    ).to(FINDING)


def by_content(source: DataFrame, copy: DataFrame, *, lanes: str = "partition") -> DataFrame:
    """The `FINDING`s of a copy with offsets of its own: missing, doubled, foreign, reordered.

    `lanes` is `partition`, or `key` if the copy has another number of partitions. With `key`, records without
    a key have no order, and places of equal content are not compared.
    """
    return judged(match(source, copy, lanes=lanes))


def judged(pairs: DataFrame) -> DataFrame:
    """The `FINDING`s from the pairs of `match`.

    It reads the pairs three times. Write many pairs to files first.
    """
    in_source, in_copy = f.col("source_offset").isNotNull(), f.col("copy_offset").isNotNull()
    kind = f.when(in_source, "missing").when(f.col("known"), "doubled").otherwise("foreign").alias("kind")
    columns = ["partition", "source_offset", "copy_offset"]
    unmatched = pairs.where(~(in_source & in_copy)).select(kind, *columns)
    late = reordered(pairs.where(in_source & in_copy)).select(f.lit("reordered").alias("kind"), *columns)
    return unmatched.unionByName(late).to(FINDING)


def match(source: DataFrame, copy: DataFrame, *, lanes: str = "partition") -> DataFrame:
    """Pairs each record with its copy: `lane`, `partition`, `source_offset`, `copy_offset` (null if there is
    none), and `known`: the source's lane has this content.

    `partition` is the source's, or else the copy's.
    """
    lane = f.col("partition").cast("long")
    if lanes == "key":
        lane = f.when(f.col("key").isNotNull(), f.xxhash64("key"))
    sides = _sided(source, copy, lane.alias("lane"))
    same = ("lane", "one", "two")
    same_content = Window.partitionBy(*same).orderBy(f.desc("ours"), "partition", "offset")
    ours = f.col("ours")
    numbered = sides.select(
        "*",
        f.row_number().over(same_content).alias("row"),
        f.count_if(ours).over(same_content).alias("sources"),  # for a copy's row: all of the source's
    ).withColumn("occurrence", f.when(ours, f.col("row")).otherwise(f.col("row") - f.col("sources")))
    met = numbered.groupBy(*same, "occurrence").agg(
        f.max(f.col("sources") > 0).alias("known"),
        *(
            f.max(f.when(side, f.col(name))).alias(f"{word}_{name}")
            for word, side in (("source", ours), ("copy", ~ours))
            for name in ("partition", "offset")
        ),
    )
    partition = f.coalesce("source_partition", "copy_partition").alias("partition")
    return met.select("lane", "known", partition, "source_offset", "copy_offset")


def reordered(pairs: DataFrame) -> DataFrame:
    """The pairs whose copy lies before the copy of an earlier record of their lane: one of the two moved.

    The greatest copy offset of all earlier records is computed in blocks: by a sort within a block, and from
    the blocks' maxima across blocks.
    """
    blocks = pairs.where(f.col("lane").isNotNull()).withColumn(
        "block", f.floor(f.col("source_offset") / BLOCK_OFFSETS)
    )
    earlier = Window.partitionBy("lane").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    carried = (
        blocks.groupBy("lane", "block")
        .agg(f.max("copy_offset").alias("greatest"))
        .select("lane", "block", f.max("greatest").over(earlier).alias("carried"))
    )
    within = (
        Window.partitionBy("lane", "block")
        .orderBy("source_offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    before = blocks.withColumn("before", f.max("copy_offset").over(within)).join(carried, ["lane", "block"])
    return before.where(f.greatest("before", "carried") > f.col("copy_offset"))


def without_headers(records: DataFrame, names: Sequence[str]) -> DataFrame:
    """The records without headers of these names, such as a route's."""
    if not names:
        return records
    kept = f.filter("headers", lambda one: ~one["key"].isin(list(names)))
    return records.withColumn("headers", kept)


def between(records: DataFrame, from_ms: int | None, to_ms: int | None) -> DataFrame:
    """The records with timestamps in [from_ms, to_ms)."""
    if from_ms is not None:
        records = records.where(f.col("timestamp_ms") >= from_ms)
    return records if to_ms is None else records.where(f.col("timestamp_ms") < to_ms)


def counted(findings: DataFrame) -> DataFrame:
    """The number of findings by kind and partition: `kind`, `partition`, `records`."""
    return findings.groupBy("kind", "partition").agg(f.count("*").alias("records"))


def _sided(source: DataFrame, copy: DataFrame, *more: Column) -> DataFrame:
    one, two = content()
    hashed = [
        frame.select(
            "partition", "offset", one.alias("one"), two.alias("two"), *more, f.lit(ours).alias("ours")
        )
        for frame, ours in ((source, True), (copy, False))
    ]
    return hashed[0].unionByName(hashed[1])
