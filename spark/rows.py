"""Python over a frame's rows. By RDD, as PySpark's Arrow functions require pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

Function = Callable[[Iterable[Row]], Iterable[tuple[Any, ...]]]


def mapped(frame: DataFrame, function: Function, schema: StructType) -> DataFrame:
    """What `function` makes of the rows of each task, in the order of `schema`. Binary columns come to it as
    `bytearray`."""
    rows = frame.rdd.mapPartitions(function)
    return frame.sparkSession.createDataFrame(rows, schema, verifySchema=False)
