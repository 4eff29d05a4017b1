"""Python functions over a DataFrame's rows, by RDD, because PySpark's Arrow functions require pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

Function = Callable[[Iterable[Row]], Iterable[tuple[Any, ...]]]


def mapped(frame: DataFrame, function: Function, schema: StructType) -> DataFrame:
    """Applies `function` to the rows of each task; its tuples are in the order of `schema`. The function gets
    binary columns as `bytearray`."""
    rows = frame.rdd.mapPartitions(function)
    return frame.sparkSession.createDataFrame(rows, schema, verifySchema=False)
