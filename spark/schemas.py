"""The schemas of frames, spelled out: nothing is inferred from data."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

# A record as it is archived and compared. `timestamp_type`: 0 the producer's, 1 the broker's, -1 none.
RECORD = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp_ms", LongType()),
        StructField("timestamp_type", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
    ]
)

# The same in a file, where the topic stands in the path; `reason` says why it is quarantined. Later versions
# append columns that may be null.
FILE = StructType(
    [*(field for field in RECORD.fields if field.name != "topic"), StructField("reason", StringType())]
)

# A record and its copy: `known` says whether the source has that content at all.
PAIR = StructType(
    [
        StructField("lane", LongType()),
        StructField("known", BooleanType()),
        StructField("partition", IntegerType()),
        StructField("source_offset", LongType()),
        StructField("copy_offset", LongType()),
    ]
)

# What a comparison found. `missing` is in the source only; `foreign` in the copy only; `doubled` once too
# often in the copy; `reordered` before an earlier one there; `altered` at its offset with another content.
FINDING = StructType(
    [
        StructField("kind", StringType()),
        StructField("partition", IntegerType()),
        StructField("source_offset", LongType()),
        StructField("copy_offset", LongType()),
    ]
)
