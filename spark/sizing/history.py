"""The history of loads by hour and week: schemas, and pure functions from DataFrame to DataFrame.

`LOAD` is `frames.LOAD` with `region`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from app.kernel.job import PATTERN
from app.kernel.json_types import JsonMapping, JsonObject
from spark.dashboard import frames

HOUR_MS = frames.HOUR_MS
HOURS_A_WEEK = 168
LOAD = StructType([*frames.LOAD.fields, StructField("region", StringType())])

# An hour of a job: `cpu`, `network` and `arriving` are means, `memory` and `ceiling` maxima.
HOURLY = StructType(
    [
        *(StructField(name, StringType()) for name in ("region", "group", "job")),
        StructField("hour", LongType()),
        *(StructField(name, DoubleType()) for name in ("cpu", "network", "arriving", "memory", "ceiling")),
    ]
)


class Sound(NamedTuple):
    """The usable loads, and the number of rows left out by reason."""

    loads: DataFrame
    left_out: JsonObject


def sound(loads: DataFrame, now_ms: int | None) -> Sound:
    """Leaves out `LOAD` rows with an impossible job name, or with an hour in the future.

    Both occur, because heartbeats carry the worker's own names and clock.

    Args:
        now_ms: The last hour to keep; None keeps every hour.
    """
    after = (
        f.lit(False) if now_ms is None else f.floor(f.col("start_ms") / f.lit(HOUR_MS)) > now_ms // HOUR_MS
    )
    named = (f.col("job") == "") | f.col("job").rlike(rf"\A{PATTERN}\z")
    odd = f.when(after, "after_now").when(~f.coalesce(named, f.lit(False)), "no_job")
    marked = loads.withColumn("odd", odd)
    odd_rows = marked.where(f.col("odd").isNotNull()).groupBy("odd")
    one = f.min(f.struct("region", "worker", "job")).alias("one")
    found = {row["odd"]: row for row in odd_rows.agg(f.count("*").alias("rows"), one).collect()}
    left_out = {
        what: {
            "rows": found[what]["rows"] if what in found else 0,
            "one": found[what]["one"].asDict() if what in found else None,
        }
        for what in ("after_now", "no_job")
    }
    return Sound(marked.where(f.col("odd").isNull()).drop("odd"), left_out)


def left_out_words(left_out: JsonMapping) -> Iterator[str]:
    """A line for each reason why rows were left out."""
    words = {
        "after_now": "load rows are in the future, and left out: check the clocks of the workers",
        "no_job": "load rows have an impossible job name, and are left out",
    }
    for what, reason in words.items():
        if left_out[what]["rows"]:
            one = left_out[what]["one"]
            where = f"worker {one['worker']!r} of {one['region']!r}, job {(one['job'] or '')[:80]!r}"
            yield f"{left_out[what]['rows']:,} {reason}; for example: {where}"


def hourly(loads: DataFrame) -> DataFrame:
    """The `HOURLY` rows of the jobs in `LOAD`. Rows of two workers in the same five minutes give one mean."""
    jobs = loads.where((f.col("job") != "") & (f.col("samples") > 0))
    # A row has its worker's group. A job's group is its last owner's in the hour.
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
        f.coalesce(f.max_by("group", "start_ms"), f.lit("")).alias("group"),
        *(f.avg(name).alias(name) for name in ("cpu", "network", "arriving")),
        *(f.max(name).alias(name) for name in ("memory", "ceiling")),
    )
    return hours.select(HOURLY.names).to(HOURLY)


def busiest(hours: DataFrame) -> DataFrame:
    """A row for each job and week of `HOURLY`. A week is seven days that end with the last hour: 0 is the
    last week, -1 the one before.

    Columns: `week`, `region`, `group`, `job`, and `hour`, in which the job's fleet took most cpu. `cpu` is
    from that hour, `network` from the fleet's hour of most network, `memory` the maximum of both. They are
    null if the job ran in neither hour. `arriving` and `ceiling` are maxima over all its hours.
    """
    end = hours.agg(f.max("hour").alias("end"))
    dated = hours.crossJoin(f.broadcast(end)).withColumn(
        "week", -f.floor((f.col("end") - f.col("hour")) / f.lit(HOURS_A_WEEK))
    )
    fleet = ["region", "group", "week"]
    sums = dated.groupBy(*fleet, "hour").agg(*(f.sum(name).alias(name) for name in ("cpu", "network")))
    top = sums.groupBy(*fleet).agg(
        *(
            f.max_by("hour", f.struct(f.col(name), -f.col("hour"))).alias(f"{name}_hour")
            for name in ("cpu", "network")
        )
    )
    in_cpu_hour, in_network_hour = (f.col("hour") == f.col(f"{name}_hour") for name in ("cpu", "network"))
    return (
        dated.join(top, fleet)
        .groupBy(*fleet, "job", "cpu_hour")
        .agg(
            f.max(f.when(in_cpu_hour, f.col("cpu"))).alias("cpu"),
            f.max(f.when(in_network_hour, f.col("network"))).alias("network"),
            f.max(f.when(in_cpu_hour | in_network_hour, f.col("memory"))).alias("memory"),
            f.max("arriving").alias("arriving"),
            f.max("ceiling").alias("ceiling"),
        )
        .withColumnRenamed("cpu_hour", "hour")
    )


def workers(loads: DataFrame) -> DataFrame:
    """The number of workers by region, group and hour, and the medians of their capacity."""
    hour = f.floor(f.col("start_ms") / f.lit(HOUR_MS)).alias("hour")
    capacity = loads.where((f.col("job") == "") & (f.col("samples") > 0))
    return capacity.groupBy("region", "group", hour).agg(
        f.countDistinct("worker").alias("workers"),
        f.median("cpu_max").alias("cpu"),
        f.median("memory_max").alias("memory"),
        f.median("network_max").alias("network"),
    )
