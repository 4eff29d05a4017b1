"""Reads Parquet files from paths that are taken literally.

Spark's readers take `[ ] { } * ?` and backslashes in a path for a pattern: they find no file, or the files of
another folder. Backslashes before these characters do not help where a name also has a colon. Spark's own
streams read their files with `LITERAL`, which its documents do not name; no upstream issue is known that asks
for a public form.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

LITERAL = "__globPaths__"


def read_parquet_at(
    spark: SparkSession, schema: StructType | None, paths: Iterable[str | Path], **options: str
) -> DataFrame:
    """The rows of these files and folders. `options` are Spark's; without a schema, it is the files' own."""
    reader = spark.read.options(**{LITERAL: "false"}, **options)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.parquet(*map(str, paths))
