"""Forecasts as records of each region's forecast topic, and back: `app.sizing.forecasts` says what they are.

A topic keeps one forecast a day of each name for `KEEP_MS` behind its last hour, so that it can be compared
with what happened; a publication takes back what is older.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from app.controllog.topics import ControlTopics
from app.kernel.load import Load
from app.sizing.forecasts import (
    HOUR_MS,
    HOURS_A_WEEK,
    MOST_KEY_BYTES,
    MOST_MARGIN,
    BadForecast,
    FleetForecastRecord,
    Record,
    WorkloadForecastRecord,
    decode,
    key,
)
from app.sizing.recommendation import SizingRules
from spark.kafka import KafkaCluster
from spark.reading import Doubts, read_whole
from spark.sizing import hours as by_hour
from spark.sizing.hours import Key
from spark.topics import Range

KEEP_MS = 35 * 24 * HOUR_MS


class PublishTerms(NamedTuple):
    """Of what is made: when, for how long, with which margin and rules."""

    made_ms: int
    weeks: int
    percentile: float
    rules: SizingRules


class PublishedRecords(NamedTuple):
    """What a region's topic has: records by key, and how many are none."""

    records: Mapping[bytes, Record]
    bad: int


def make(
    hours: DataFrame,
    found: DataFrame,
    workloads: Sequence[Mapping[str, Any]],
    capacity: Mapping[Key, Load],
    plan: PublishTerms,
) -> list[Record]:
    """The records of all regions.

    Args:
        hours: `history.HOURLY`.
        found: `history.FORECAST` of them.
        workloads: rows of `advice.workload_rows`.
        capacity: what a worker of each fleet has.
    """
    last = hours.agg(f.max("hour")).first()
    assert last is not None
    assert last[0] is not None, "without an hour there is no forecast to publish"
    first, count = last[0] + 1, plan.weeks * HOURS_A_WEEK
    workers: defaultdict[Key, dict[int, int | None]] = defaultdict(dict)
    for row in by_hour.needed(by_hour.to_come(found, first), capacity, plan.rules).collect():
        workers[row["region"], row["group"]][row["hour"]] = row["workers"]
    made: list[Record] = []
    for row in by_hour.hours_ahead(by_hour.fleet_series(hours), first, count, plan.percentile).collect():
        its = workers.get((row["region"], row["name"]))
        if its:  # a group whose jobs are all gone needs nothing
            told = tuple(its.get(first + at) for at in range(count))
            made.append(FleetForecastRecord(**_common(row, plan, first), group=row["name"], workers=told))
    sizes = {(one["region"], one["workload"]): one for one in workloads}
    for row in by_hour.hours_ahead(by_hour.workload_series(hours), first, count, plan.percentile).collect():
        size = sizes.get((row["region"], row["name"]))
        if size is not None:
            rates = tuple(round(rate, 3) for rate in row["hours"])
            made.append(
                WorkloadForecastRecord(
                    **_common(row, plan, first), workload=row["name"], rates=rates,
                    margin=round(min(row["margin"], MOST_MARGIN), 4), partitions=size["partitions"],
                    partitions_now=size["partitions_now"], partitions_why=size["partitions_why"],
                )
            )  # fmt: skip
    return made


def fit(made: Iterable[Record]) -> tuple[list[Record], list[str]]:
    """Those that workers take in, and of each other one why they would pass it over."""
    found: list[Record] = []
    refused: list[str] = []
    for record in made:
        try:
            if len(key(record)) > MOST_KEY_BYTES:
                raise BadForecast(f"its key has more than {MOST_KEY_BYTES:,} bytes")
            found.append(decode(msgspec.json.encode(record)))
        except BadForecast as error:
            refused.append(f"{record.region[:80]}, {record.name[:80]!r}: {error}")
    return found, refused


def _common(row: Row, plan: PublishTerms, first: int) -> dict[str, Any]:
    return {
        "region": row["region"],
        "made_ms": plan.made_ms,
        "from_hour": first,
        "history_hours": row["hours_seen"],
        "error": None if row["error"] is None else round(row["error"], 4),
        "method": row["method"],
    }


def kept(source: KafkaCluster, region: str) -> PublishedRecords:
    """What the region's topic has; nothing without one.

    Raises:
        SparkJobError: it cannot be read, with what of it and why.
    """
    name = ControlTopics(region).forecast.name
    topic = source.topics(re.escape(name)).get(name)
    if topic is None:
        return PublishedRecords({}, 0)
    ranges = [
        Range(name, partition, bounds.start, bounds.end)
        for partition, bounds in topic.partitions.items()
        if bounds.end > bounds.start
    ]
    if not ranges:
        return PublishedRecords({}, 0)
    newest = f.max_by("value", "offset").alias("value")
    rows = read_whole(
        source,
        ranges,
        lambda records: records.groupBy("key").agg(newest).collect(),
        lambda _: Doubts(ranges),  # compaction leaves out offsets
    )
    return published_records(
        (bytes(row["key"] or b""), bytes(row["value"])) for row in rows if row["value"] is not None
    )


def published_records(values: Iterable[tuple[bytes, bytes]]) -> PublishedRecords:
    """Records of a topic's keys and values."""
    records: dict[bytes, Record] = {}
    bad = 0
    for at, value in values:
        try:
            records[at] = decode(value)
        except BadForecast:
            bad += 1
    return PublishedRecords(records, bad)


def changes(
    made: Iterable[Record], before: PublishedRecords, now_ms: int
) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values that a publication writes: what was made, and tombstones of what is too old."""
    written = set()
    for record in made:
        at = key(record)
        written.add(at)
        yield at, msgspec.json.encode(record)
    for at, record in before.records.items():
        if at not in written and (record.from_hour + record.hours) * HOUR_MS + KEEP_MS < now_ms:
            yield at, None


def write(
    spark: SparkSession, target: KafkaCluster, region: str, rows: Sequence[tuple[bytes, bytes | None]]
) -> None:
    """Writes them to the region's topic, which is made if it is not there."""
    topic = ControlTopics(region).forecast
    if topic.name not in target.topics(re.escape(topic.name)):
        target.create(topic.name, topic.partitions, topic.config)
    frame = spark.createDataFrame(
        [(bytearray(at), None if value is None else bytearray(value)) for at, value in rows],
        "key binary, value binary",
    ).coalesce(1)
    writer = frame.write.format("kafka").option("topic", topic.name)
    writer.options(**{f"kafka.{name}": value for name, value in target.options.items()}).save()
