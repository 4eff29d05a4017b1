"""The history of loads, and forecasts of it: schemas, and pure functions from frame to frame.

`LOAD` is `frames.LOAD` with `region`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from app.kernel.job import PATTERN
from spark.dashboard import frames
from spark.rows import mapped
from spark.sizing.forecast import HOURS_A_WEEK, forecast

HOUR_MS = frames.HOUR_MS
LOAD = StructType([*frames.LOAD.fields, StructField("region", StringType())])
FIGURES = ("cpu", "network", "arriving")  # that are forecast; of memory the most that was seen counts

# An hour of a job: means, the highest of its five-minute means, what it took at most.
HOURLY = StructType(
    [
        *(StructField(name, StringType()) for name in ("region", "group", "job")),
        StructField("hour", LongType()),
        *(
            StructField(name, DoubleType())
            for name in ("cpu", "network", "arriving", "cpu_peak", "memory", "ceiling")
        ),
    ]
)

# A job's forecast. `*_hours`: each hour to come, with the margin.
FORECAST = StructType(
    [
        *(StructField(name, StringType()) for name in ("region", "group", "job", "method")),
        StructField("hours_seen", LongType()),
        *(
            StructField(name, DoubleType())
            for name in (
                "memory", "ceiling", "cpu_p50", "cpu_p95", "cpu_p99", "network_p95", "arriving_p95", "growth",
                "error",
            )
        ),
        *(StructField(f"{name}_hours", ArrayType(DoubleType())) for name in FIGURES),
    ]
)  # fmt: skip


class Sound(NamedTuple):
    """Loads that can be used, and what of them cannot."""

    loads: DataFrame
    left_out: dict[str, Any]


def sound(loads: DataFrame, now_ms: int | None) -> Sound:
    """Of `LOAD` what can be used: heartbeats say what their worker believes, also names that no job has, and
    hours of a clock that is wrong.

    Args:
        now_ms: what is of hours after this one is left out; None: every hour counts.
    """
    after = (
        f.lit(False) if now_ms is None else f.floor(f.col("start_ms") / f.lit(HOUR_MS)) > now_ms // HOUR_MS
    )
    named = (f.col("job") == "") | f.col("job").rlike(rf"\A{PATTERN}\z")
    odd = f.when(after, "after_now").when(~f.coalesce(named, f.lit(False)), "no_job")
    marked = loads.withColumn("odd", odd)
    told = marked.where(f.col("odd").isNotNull()).groupBy("odd")
    one = f.min(f.struct("region", "worker", "job")).alias("one")
    found = {row["odd"]: row for row in told.agg(f.count("*").alias("rows"), one).collect()}
    left_out = {
        what: {
            "rows": found[what]["rows"] if what in found else 0,
            "one": found[what]["one"].asDict() if what in found else None,
        }
        for what in ("after_now", "no_job")
    }
    return Sound(marked.where(f.col("odd").isNull()).drop("odd"), left_out)


def left_out_words(left_out: Mapping[str, Any]) -> Iterator[str]:
    """A line for each kind that was left out."""
    words = {
        "after_now": "rows of loads are of hours to come, and left out: compare the clocks of the workers",
        "no_job": "rows of loads are of no job's name, and left out",
    }
    for what, told in words.items():
        if left_out[what]["rows"]:
            one = left_out[what]["one"]
            where = f"worker {one['worker']!r} of {one['region']!r}, job {(one['job'] or '')[:80]!r}"
            yield f"{left_out[what]['rows']:,} {told}; one: {where}"


def hourly(loads: DataFrame) -> DataFrame:
    """`HOURLY` of `LOAD`, of jobs. What two workers said of the same five minutes adds up to one mean."""
    jobs = loads.where((f.col("job") != "") & (f.col("samples") > 0))
    # What capacity rows say: the group of the worker; a job has it from whoever owned it last in the hour.
    fives = jobs.groupBy("region", "job", "start_ms").agg(
        f.max_by("group", "last_ms").alias("group"),
        f.try_divide(f.sum("cpu_sum"), f.sum("samples")).alias("cpu"),
        f.try_divide(f.sum("network_sum"), f.sum("samples")).alias("network"),
        f.try_divide(f.sum("arriving_sum"), f.sum("rated")).alias("arriving"),
        f.max("memory_max").alias("memory"),
        f.max("ceiling_max").alias("ceiling"),
    )
    hour = f.floor(f.col("start_ms") / f.lit(HOUR_MS)).alias("hour")
    hours = fives.groupBy("region", "job", hour).agg(
        f.max_by("group", "start_ms").alias("group"),
        *(f.avg(name).alias(name) for name in FIGURES),
        f.max("cpu").alias("cpu_peak"),
        *(f.max(name).alias(name) for name in ("memory", "ceiling")),
    )
    return hours.select(HOURLY.names).to(HOURLY)


def forecasts(hours: DataFrame, hours_ahead: int, percentile: float) -> DataFrame:
    """`FORECAST` of `HOURLY`: a row a job, of the hours behind the last that any job was seen in. A job that
    was not seen in the week before is gone."""
    end = hours.agg(f.max("hour")).first()
    assert end is not None
    if end[0] is None:
        return hours.sparkSession.createDataFrame([], FORECAST)
    taken = f.struct("hour", "cpu", "network", "arriving", "memory", "ceiling", "cpu_peak", "group")
    grouped = hours.groupBy("region", "job").agg(
        f.collect_list(taken).alias("hours"), f.max("hour").alias("last")
    )
    there = grouped.where(f.col("last") >= end[0] - HOURS_A_WEEK).drop("last")
    return mapped(there, partial(_forecasts, end[0] + 1, hours_ahead, percentile), FORECAST)


def _forecasts(
    end: int, hours_ahead: int, percentile: float, rows: Iterable[Row]
) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        by_hour = {one["hour"]: one for one in row["hours"]}
        first = min(by_hour)
        span = range(first, end)
        made = {}
        for name in FIGURES:
            values = [by_hour[hour][name] if hour in by_hour else None for hour in span]
            known = any(value is not None for value in values)
            made[name] = forecast(values, first, hours_ahead, percentile) if known else None
        cpu = made["cpu"]
        assert cpu is not None, "hours without samples are left out"
        told = [None if one is None else [hour * one.margin for hour in one.hours] for one in made.values()]
        last = by_hour[max(by_hour)]
        yield (
            row["region"],
            last["group"] or "",
            row["job"],
            cpu.method,
            len(by_hour),
            max(one["memory"] or 0.0 for one in by_hour.values()),
            max(one["ceiling"] or 0.0 for one in by_hour.values()),
            *(_rank([one["cpu_peak"] for one in by_hour.values()], rank) for rank in (0.5, 0.95, 0.99)),
            _rank([one["network"] for one in by_hour.values()], 0.95),
            _rank([one["arriving"] for one in by_hour.values()], 0.95),
            cpu.weekly_growth,
            cpu.error,
            *told,
        )


def _rank(values: list[float | None], rank: float) -> float | None:
    known = sorted(one for one in values if one is not None)
    return known[min(len(known) - 1, int(rank * len(known)))] if known else None


def busiest(found: DataFrame) -> DataFrame:
    """A row a job: what it takes when its fleet (region and group) takes most cpu, and most network:
    `region`, `group`, `job`, `cpu`, `memory`, `network`, `arriving`, `ceiling`."""
    top = {name: _top(found, f"{name}_hours", name) for name in ("cpu", "network")}
    both = found.join(top["cpu"], ["region", "group"], "left").join(
        top["network"], ["region", "group"], "left"
    )
    return both.select(
        "region", "group", "job",
        _at("cpu").alias("cpu"), "memory", _at("network").alias("network"),
        f.array_max("arriving_hours").alias("arriving"), "ceiling",
    )  # fmt: skip


def _top(found: DataFrame, hours: str, name: str) -> DataFrame:
    exploded = found.select("region", "group", f.posexplode(hours).alias("at", "value"))
    sums = exploded.groupBy("region", "group", "at").agg(f.sum("value").alias("total"))
    order = f.struct(f.col("total"), -f.col("at"))
    return sums.groupBy("region", "group").agg(f.max_by("at", order).alias(f"{name}_at"))


def _at(name: str) -> Column:
    return f.coalesce(f.get(f"{name}_hours", f.col(f"{name}_at")), f.lit(0.0))


def busiest_by_week(hours: DataFrame) -> DataFrame:
    """A row a job and week (seven days that end with the last hour; 0 is the last): what it took in the hour
    of the week in which its fleet took most cpu: `week`, `hour`, `region`, `group`, `job`, `cpu`, `memory`,
    `network`."""
    end = hours.agg(f.max("hour").alias("end"))
    dated = hours.crossJoin(f.broadcast(end)).withColumn(
        "week", -f.floor((f.col("end") - f.col("hour")) / f.lit(HOURS_A_WEEK))
    )
    sums = dated.groupBy("region", "group", "week", "hour").agg(f.sum("cpu").alias("total"))
    order = f.struct(f.col("total"), -f.col("hour"))
    top = sums.groupBy("region", "group", "week").agg(f.max_by("hour", order).alias("hour"))
    taken = dated.join(top, ["region", "group", "week", "hour"])
    return taken.select("week", "hour", "region", "group", "job", "cpu", "memory", "network")


def workers(loads: DataFrame) -> DataFrame:
    """By region, group and hour: how many workers there were, and the median of what they have: `workers`,
    `cpu`, `memory`, `network`."""
    hour = f.floor(f.col("start_ms") / f.lit(HOUR_MS)).alias("hour")
    capacity = loads.where((f.col("job") == "") & (f.col("samples") > 0))
    return capacity.groupBy("region", "group", hour).agg(
        f.countDistinct("worker").alias("workers"),
        f.median("cpu_max").alias("cpu"),
        f.median("memory_max").alias("memory"),
        f.median("network_max").alias("network"),
    )
