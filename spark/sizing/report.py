"""The sizing report: loads to one JSON document. Spark tasks place the fleets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession

from app.archive.errors import InvalidArchive
from app.kernel.json_types import JsonMapping, JsonObject
from app.kernel.load import Load, capacity_or_default
from app.placement.model.plan import PlacementRules
from app.sizing.recommendation import RULES, SizingRules
from spark.sizing import history
from spark.sizing.advice import JobNeed, total, workload_rows
from spark.sizing.fleets import Fleet, FleetNeed, need_of

FORMAT = 2  # 2: measured loads only; 1 had forecasts, scenarios and cost

FleetKey = tuple[str, str]  # region and isolation group


def size(loads: DataFrame, rules: SizingRules = RULES, now_ms: int | None = None) -> JsonObject:
    """The document. `loads`: `history.LOAD`; `now_ms`: the last hour to keep, None keeps every hour.

    Raises:
        InvalidArchive: No job's load is known.
    """
    loads, left_out = history.sound(loads, now_ms)
    hours = history.hourly(loads).persist()
    try:
        jobs = history.busiest(hours).collect()
    finally:
        hours.unpersist()
    if not jobs:
        why = "no job's load is known: heartbeats carry it from a worker's second minute on"
        raise InvalidArchive("; ".join([why, *history.left_out_words(left_out)]))
    ran = {(_fleet_key(row), row["hour"]): row for row in history.workers(loads).collect()}
    newest = {key: row for (key, _), row in sorted(ran.items(), key=lambda item: item[0])}
    weeks: defaultdict[tuple[int, int, FleetKey], list[JobNeed]] = defaultdict(list)
    for row in jobs:
        weeks[row["week"], row["hour"], _fleet_key(row)].append(_need(row))
    past = [
        (hour, _fleet(key, weeks[week, hour, key], ran.get((key, hour)))) for week, hour, key in sorted(weeks)
    ]
    now = [
        (hour, _fleet(key, needs, newest.get(key)))
        for (week, hour, key), needs in sorted(weeks.items(), key=lambda item: item[0])
        if week == 0
    ]
    needed = _needed(loads.sparkSession, [fleet for _, fleet in [*now, *past]], rules)
    needs = [need for (week, _, _), its in weeks.items() if week == 0 for need in its]
    widest = max((fleet.worker for _, fleet in now), key=lambda load: load.cpu_cores)
    return {
        "format": FORMAT,
        "method": {
            "measured": "each fleet's hours of most cpu and most network in the last week",
            "placement": "app.placement.model.bin_packing, in rounds until no job moves",
            "past": "the same for each week; weeks end with the last measured hour",
            "spare_workers": rules.spare_workers,
        },
        "fleets": [_fleet_row(*one, need) for one, need in zip(now, needed, strict=False)],
        "past": [_past_row(*one, need) for one, need in zip(past, needed[len(now) :], strict=True)],
        "workloads": workload_rows(needs, widest, rules),
        "jobs": sorted((_job_row(need) for need in needs), key=lambda row: (-row["cpu"], row["job"])),
        "left_out": left_out,
    }


def _fleet_key(row: Row) -> FleetKey:
    return row["region"], row["group"] or ""


def _need(row: Row) -> JobNeed:
    load = Load(row["cpu"] or 0.0, row["memory"] or 0.0, row["network"] or 0.0)
    return JobNeed(*_fleet_key(row), row["job"], load, row["arriving"], row["ceiling"] or None)


def _fleet(key: FleetKey, needs: Iterable[JobNeed], ran: Row | None) -> Fleet:
    """`ran`: a row of `history.workers`; None if no worker reported its capacity."""
    measured = Load() if ran is None else Load(ran["cpu"], ran["memory"], ran["network"])
    jobs = {need.job: need.load for need in needs}
    return Fleet(*key, jobs, capacity_or_default(measured), 0 if ran is None else ran["workers"])


def _needed(spark: SparkSession, fleets: Sequence[Fleet], rules: SizingRules) -> list[FleetNeed]:
    """The need of each fleet, in their order, by one Spark task each."""
    spread = spark.sparkContext.parallelize(fleets, len(fleets))
    return list(spread.mapPartitions(partial(_needs, rules)).collect())


def _needs(rules: SizingRules, fleets: Iterable[Fleet]) -> Iterator[FleetNeed]:
    for fleet in fleets:
        yield need_of(fleet, PlacementRules(fill=rules.fill), rules.spare_workers)


def _fleet_row(hour: int, fleet: Fleet, need: FleetNeed) -> JsonObject:
    return {
        "region": fleet.region,
        "group": fleet.group,
        "hour": _hour_words(hour),
        "jobs": len(fleet.jobs),
        "cores": round(total(fleet.jobs.values()).cpu_cores, 3),
        "workers_now": fleet.workers,
        "workers": need.workers,
        "level": round(need.level, 4),
        "level_after_loss": round(need.level_lost, 4),
        "jobs_moved_by_loss": need.moved,
        "why": need.why,
    }


def _past_row(hour: int, fleet: Fleet, need: FleetNeed) -> JsonObject:
    return {
        "region": fleet.region,
        "group": fleet.group,
        "hour": _hour_words(hour),
        "workers_needed": need.workers,
        "workers_then": fleet.workers,
        "why": need.why,
    }


def _hour_words(hour: int) -> str:
    return datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%dT%H:00Z")


def _job_row(need: JobNeed) -> JsonObject:
    return {
        "region": need.region,
        "group": need.group,
        "job": need.job,
        "cpu": round(need.load.cpu_cores, 6),
        "memory": round(need.load.memory_bytes),
        "network": round(need.load.network_bytes_per_s),
        "arriving": None if need.arriving is None else round(need.arriving, 3),
        "ceiling": need.ceiling,
    }


def tables(found: JsonMapping) -> str:
    """Tables of the document for people."""
    parts = [
        ("Workers", found["fleets"], ("region", "group", "jobs", "cores", "workers_now", "workers", "why")),
        ("Past weeks", found["past"], ("hour", "region", "group", "workers_then", "workers_needed")),
        ("Workloads", found["workloads"], ("region", "workload", "partitions_now", "partitions", "workers")),
    ]
    return "\n\n".join(_table(title, rows, columns) for title, rows, columns in parts if rows)


def _table(title: str, rows: Sequence[JsonMapping], columns: Sequence[str]) -> str:
    cells = [[name.replace("_", " ") for name in columns]]
    cells += [["-" if row[name] is None else str(row[name]) for name in columns] for row in rows]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([title, *(line.rstrip() for line in lines)])
