"""The compressed size of records in a topic, in batches like those of a restore.

A restore sends the records in another order, so its batches hold other records; `MARGIN` allows for that.
`frames.sizes` bounds records that do not compress, and is cheap. This module compresses all records, for a
topic that takes less than those bounds.
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
MAGIC, LZ4, TRANSACTIONAL, NO_PRODUCER = 2, 3, 1, -1  # of Kafka's format
MARGIN = 1.1  # of a partition's batches, whose compression depends on the order
PACKED = "partition int, record_bytes long, partition_bytes long"


def packed(files: DataFrame, batch_bytes: int) -> DataFrame:
    """The sizes of `FILE` rows by partition: `record_bytes` of the largest batch, `partition_bytes` of all.
    `batch_bytes`: the most bytes of a batch of several records before compression."""
    records = files.select("partition", "timestamp_ms", "key", "value", "headers")
    total = f.ceil(f.sum("partition_bytes") * MARGIN).cast("long")
    schema = records.sparkSession.createDataFrame([], PACKED).schema
    return (
        mapped(records, partial(batches, batch_bytes), schema)
        .groupBy("partition")
        .agg(f.max("record_bytes").alias("record_bytes"), total.alias("partition_bytes"))
    )


def batches(batch_bytes: int, rows: Iterable[Row]) -> Iterator[tuple[int, int, int]]:
    """For each batch of a task's rows: the partition, and the size twice."""
    filling: dict[int, tuple[Batch, int]] = {}  # by partition, with the number of records
    for row in rows:
        builder, count = filling.get(row.partition) or (_builder(batch_bytes), 0)
        if not _is_taken(builder, count, row):
            yield _size(row.partition, builder)
            builder, count = _builder(batch_bytes), 0
            _is_taken(builder, count, row)  # an empty batch takes a record of any size
        filling[row.partition] = builder, count + 1
    for partition, (builder, _) in filling.items():
        yield _size(partition, builder)


def _builder(batch_bytes: int) -> Batch:
    return DefaultRecordBatchBuilder(
        MAGIC, LZ4, TRANSACTIONAL, NO_PRODUCER, NO_PRODUCER, NO_PRODUCER, batch_bytes
    )


def _is_taken(builder: Batch, count: int, row: Row) -> bool:
    key, value = (None if one is None else bytes(one) for one in (row.key, row.value))
    headers = [(name, None if held is None else bytes(held)) for name, held in row.headers or ()]
    return builder.append(count, row.timestamp_ms, key, value, headers) is not None


def _size(partition: int, builder: Batch) -> tuple[int, int, int]:
    size = len(builder.build())
    return partition, size, size
