"""Helpers of both generators."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from spark.archive.landing import ROW_GROUP_BYTES

Task = TypeVar("Task")
Made = TypeVar("Made")
Progress = Callable[[str], None]

ARROW: dict[type[DataType], Any] = {
    StringType: pa.string(), LongType: pa.int64(), IntegerType: pa.int32(), BinaryType: pa.binary(),
}  # fmt: skip
PROGRESS_STEP = 10  # percent


def arrow_schema(schema: StructType) -> Any:
    """pyarrow's form of a flat Spark schema."""
    return pa.schema([(field.name, ARROW[type(field.dataType)]) for field in schema.fields])


def write(table: Any, path: Path) -> int:
    """Writes the table with the archive's compression and row groups; returns the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = max(1, table.num_rows * ROW_GROUP_BYTES // max(1, table.nbytes))
    pq.write_table(table, path, compression="zstd", row_group_size=rows)
    return path.stat().st_size


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    function: Callable[[Task], Made], tasks: Sequence[Task], progress: Progress, what: str
) -> Iterator[Made]:
    """The results of `function` for the tasks, in their order, on all cores; reports progress."""
    reported_percent = 0
    context = multiprocessing.get_context("spawn")  # pyarrow has threads, which a fork would lose
    with context.Pool(min(cores(), len(tasks))) as pool:
        results: Iterable[Made] = pool.imap(function, tasks)
        for number, one in enumerate(results, 1):
            yield one
            percent = 100 * number // len(tasks)
            if percent >= reported_percent + PROGRESS_STEP or number == len(tasks):
                reported_percent = percent
                progress(f"{what}: {percent} %")
