"""What records take in a topic once they are compressed, in batches about as a restore sends them: there they
come in another order, and so its batches have other records. `MARGIN` makes up for that.

The bounds of `frames.sizes` are of records that cannot be compressed, and cheap; this compresses them all,
and is for where a topic takes less than those bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from spark.rows import mapped

Batch = Any  # aiokafka's builder, in C or in Python
MAGIC, LZ4, TRANSACTIONAL, NOBODY = 2, 3, 1, -1  # of Kafka's format
MARGIN = 1.1  # of all batches of a partition together: in another order they compress otherwise
PACKED = "partition int, record_bytes long, partition_bytes long"


def packed(files: DataFrame, batch_bytes: int) -> DataFrame:
    """By partition of `FILE` columns `record_bytes`, the largest batch, and `partition_bytes`, all of them;
    `batch_bytes`: what a batch may have before it is compressed, if it has several records."""
    records = files.select("partition", "timestamp_ms", "key", "value", "headers")
    total = f.ceil(f.sum("partition_bytes") * MARGIN).cast("long")
    schema = records.sparkSession.createDataFrame([], PACKED).schema
    return (
        mapped(records, partial(batches, batch_bytes), schema)
        .groupBy("partition")
        .agg(f.max("record_bytes").alias("record_bytes"), total.alias("partition_bytes"))
    )


def batches(batch_bytes: int, rows: Iterable[Row]) -> Iterator[tuple[int, int, int]]:
    """Partition and size, twice, of each batch of the rows of a task."""
    filling: dict[int, tuple[Batch, int]] = {}  # by partition, with how many records
    for row in rows:
        builder, count = filling.get(row.partition) or (_builder(batch_bytes), 0)
        if not _is_taken(builder, count, row):
            yield _size(row.partition, builder)
            builder, count = _builder(batch_bytes), 0
            _is_taken(builder, count, row)  # the first one is, however large
        filling[row.partition] = builder, count + 1
    for partition, (builder, _) in filling.items():
        yield _size(partition, builder)


def _builder(batch_bytes: int) -> Batch:
    return DefaultRecordBatchBuilder(MAGIC, LZ4, TRANSACTIONAL, NOBODY, NOBODY, NOBODY, batch_bytes)


def _is_taken(builder: Batch, count: int, row: Row) -> bool:
    key, value = (None if one is None else bytes(one) for one in (row.key, row.value))
    headers = [(name, None if held is None else bytes(held)) for name, held in row.headers or ()]
    return builder.append(count, row.timestamp_ms, key, value, headers) is not None


def _size(partition: int, builder: Batch) -> tuple[int, int, int]:
    size = len(builder.build())
    return partition, size, size
