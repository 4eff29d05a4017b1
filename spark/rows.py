"""Python functions over a DataFrame's rows, by RDD, because PySpark's Arrow functions require pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

Function = Callable[[Iterable[Row]], Iterable[tuple[Any, ...]]]


def mapped(frame: DataFrame, function: Function, schema: StructType) -> DataFrame:
    """Applies `function` to each task's rows, with binary columns as `bytearray`; returns `schema`."""
    rows = frame.rdd.mapPartitions(function)
    return frame.sparkSession.createDataFrame(rows, schema, verifySchema=False)
