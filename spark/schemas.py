"""Explicit schemas of the DataFrames: nothing is inferred from data."""

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

# A record that is archived or compared. `timestamp_type`: 0 the producer's, 1 the broker's, -1 none.
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

# A record in a file, whose path names the topic. `reason`: why it is quarantined. Later versions append
# nullable columns.
FILE = StructType(
    [*(field for field in RECORD.fields if field.name != "topic"), StructField("reason", StringType())]
)

# A record and its copy. `known`: the source has this content at some offset.
PAIR = StructType(
    [
        StructField("lane", LongType()),
        StructField("known", BooleanType()),
        StructField("partition", IntegerType()),
        StructField("source_offset", LongType()),
        StructField("copy_offset", LongType()),
    ]
)

# A difference. `missing`: in the source only. `foreign`: in the copy only. `doubled`: a surplus record of the
# copy. `reordered`: the copy has it before an earlier record. `altered`: other content at the same offset.
FINDING = StructType(
    [
        StructField("kind", StringType()),
        StructField("partition", IntegerType()),
        StructField("source_offset", LongType()),
        StructField("copy_offset", LongType()),
    ]
)
