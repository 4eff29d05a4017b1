"""Hour by hour: workers that fleets need, and what workloads get; forecast, or as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from app.kernel.load import Load, capacity_or_default
from app.placement.model.plan import PlacementRules
from app.sizing.recommendation import SizingRules
from spark.rows import mapped
from spark.sizing.forecast import forecast
from spark.sizing.scenarios import Fleet, Scenario, answer

Key = tuple[str, str]  # region and isolation group

# Workers that a fleet needs in an hour; none: no number is enough.
NEEDED = StructType(
    [
        *(StructField(name, StringType()) for name in ("region", "group")),
        *(StructField(name, LongType()) for name in ("hour", "workers")),
    ]
)

# One value an hour of whatever `name` names.
SERIES = StructType(
    [
        *(StructField(name, StringType()) for name in ("region", "name")),
        StructField("hour", LongType()),
        StructField("value", DoubleType()),
    ]
)

# A series, forecast: means of the hours to come, without the margin.
FORECAST_HOURS = StructType(
    [
        *(StructField(name, StringType()) for name in ("region", "name", "method")),
        StructField("hours_seen", LongType()),
        *(StructField(name, DoubleType()) for name in ("margin", "error")),
        StructField("hours", ArrayType(DoubleType())),
    ]
)


def to_come(found: DataFrame, first: int) -> DataFrame:
    """What jobs take in each hour from `first` on, of `history.FORECAST`: `region`, `group`, `job`, `hour`,
    `cpu`, `memory`, `network`."""
    each = found.select("region", "group", "job", "memory", "network_hours", f.posexplode("cpu_hours"))
    network = f.coalesce(f.get("network_hours", f.col("pos")), f.lit(0.0))
    return each.select(
        "region", "group", "job", (f.col("pos") + f.lit(first)).alias("hour"),
        f.col("col").alias("cpu"), "memory", network.alias("network"),
    )  # fmt: skip


def needed(jobs: DataFrame, capacity: Mapping[Key, Load], rules: SizingRules) -> DataFrame:
    """`NEEDED` of jobs' hours, by the controller's placement, a task for many hours.

    Args:
        jobs: as of `to_come`, or `history.HOURLY`.
        capacity: what a worker of a fleet has.
    """
    taken = f.struct("job", "cpu", "memory", "network")
    grouped = jobs.groupBy("region", "group", "hour").agg(f.collect_list(taken).alias("jobs"))
    return mapped(grouped, partial(_needed, dict(capacity), rules), NEEDED)


def _needed(
    capacity: Mapping[Key, Load], rules: SizingRules, rows: Iterable[Row]
) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        key = row["region"], row["group"] or ""
        loads = {
            one["job"]: Load(one["cpu"] or 0.0, one["memory"] or 0.0, one["network"] or 0.0)
            for one in row["jobs"]
        }
        fleet = Fleet(*key, loads, capacity_or_default(capacity.get(key, Load())), 0)
        found = answer(fleet, Scenario("an hour"), PlacementRules(fill=rules.fill), rules.spare_workers)
        yield *key, row["hour"], found.workers


def fleet_series(hours: DataFrame) -> DataFrame:
    """`SERIES` of `history.HOURLY`: the cores of each fleet's jobs together; `name` is the group."""
    sums = hours.groupBy("region", "group", "hour").agg(f.sum("cpu").alias("value"))
    return sums.select("region", f.coalesce("group", f.lit("")).alias("name"), "hour", "value").to(SERIES)


def workload_series(hours: DataFrame) -> DataFrame:
    """`SERIES` of `history.HOURLY`: messages that arrive a second in the main topic of each workload."""
    part = f.split("job", ":")  # `get`: an index beyond the parts of a name is null, not an error
    named = hours.select(
        "region", "hour", "arriving",
        *(f.get(part, f.lit(at)).alias(name) for at, name in enumerate(("kind", "name", "topic"))),
    )  # fmt: skip
    main = named.where(
        (f.col("kind") == "dispatch")
        & (f.col("topic") == f.substring_index("name", "/", -1))
        & f.col("arriving").isNotNull()
    )
    return main.groupBy("region", "name", "hour").agg(f.sum("arriving").alias("value")).to(SERIES)


def hours_ahead(series: DataFrame, end: int, hours: int, percentile: float) -> DataFrame:
    """`FORECAST_HOURS` of `SERIES`: the hours from `end` on."""
    grouped = series.groupBy("region", "name").agg(f.collect_list(f.struct("hour", "value")).alias("seen"))
    return mapped(grouped, partial(_ahead, end, hours, percentile), FORECAST_HOURS)


def _ahead(end: int, hours: int, percentile: float, rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        seen = {one["hour"]: one["value"] for one in row["seen"]}
        first = min(seen)
        made = forecast([seen.get(hour) for hour in range(first, end)], first, hours, percentile)
        yield row["region"], row["name"], made.method, len(seen), made.margin, made.error, made.hours
