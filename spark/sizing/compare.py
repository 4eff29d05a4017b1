"""Forecasts that were published, against what happened: hour by hour, and summed up.

Rules
1. Of an hour the newest forecast counts that was made before it began, and only hours that are over and in
   which something was measured.
2. Workers: forecast (with its margin), needed (what was measured, placed by the same code), and there.
3. Error: the sum of the differences over the sum of what came, as in `spark.sizing.forecast`; of a
   workload's rate without the margin.
4. Over: an hour for which more was forecast than needed; under: one with less. Costs are of worker-hours:
   what the surplus cost, and what the missing ones would have.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from app.kernel.csv_cells import text_cell
from app.kernel.load import Load
from app.sizing.forecasts import HOUR_MS, FleetForecastRecord, Record, WorkloadForecastRecord, iso
from app.sizing.recommendation import SizingRules
from spark.sizing import history
from spark.sizing import hours as by_hour
from spark.sizing.hours import Key
from spark.sizing.report import table

FORMAT = 1
NONE_YET = (
    "No past forecast yet: none was published before an hour that is over and measured. Publish with "
    "--publish, keep the store up to date, and compare again in some hours."
)
COLUMNS = ("kind", "region", "name", "hour", "made", "forecast", "came", "there")  # of an hour

ComparisonRow = dict[str, Any]


def compare(
    loads: DataFrame, records: Sequence[Record], now_ms: int, rules: SizingRules, price: float
) -> dict[str, Any]:
    """The document: `fleets`, `workloads`, and their `hours`.

    Args:
        loads: `history.LOAD`.
        records: that were published, of all regions.
        price: of a worker for an hour.
    """
    sound = history.sound(loads, now_ms)
    hours = history.hourly(sound.loads).where(f.col("hour") < now_ms // HOUR_MS).persist()
    try:
        had = history.workers(sound.loads).collect()
        rows = _fleet_hours(hours, had, _counting(records, FleetForecastRecord, now_ms), rules)
        rows += _workload_hours(hours, _counting(records, WorkloadForecastRecord, now_ms))
    finally:
        hours.unpersist()
    fleets = [row for row in rows if row["kind"] == "fleet"]
    return {
        "format": FORMAT,
        "method": {
            "error": "sum of |forecast - came| / sum of what came, over the hours compared",
            "forecast": "of each hour the newest that was made before it began; workers with their margin",
            "came": "workers that the hour's measured loads need by the same placement; messages a second",
            "spare_workers": rules.spare_workers,
        },
        "left_out": sound.left_out,
        "published": len(records),
        "fleets": [_fleet_row(name, its, price) for name, its in _by_name(fleets)],
        "workloads": [
            _workload_row(name, its)
            for name, its in _by_name(row for row in rows if row["kind"] == "workload")
        ],
        "hours": rows,
    }


def _counting(
    records: Sequence[Record], kind: type[Record], now_ms: int
) -> dict[tuple[str, str], dict[int, Record]]:
    """By region and name, the record that counts for each hour that is over (rule 1)."""
    found: defaultdict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for record in sorted((one for one in records if isinstance(one, kind)), key=lambda one: one.made_ms):
        begins = max(record.from_hour, -(-record.made_ms // HOUR_MS))
        ends = min(record.from_hour + record.hours, now_ms // HOUR_MS)
        found[record.region, record.name].update(dict.fromkeys(range(begins, ends), record))
    return found


def _fleet_hours(
    hours: DataFrame,
    had: Iterable[Any],
    counting: Mapping[Key, Mapping[int, Record]],
    rules: SizingRules,
) -> list[ComparisonRow]:
    wanted = sorted({hour for its in counting.values() for hour in its})
    if not wanted:
        return []
    capacity, there = dict[Key, tuple[int, Load]](), dict[tuple[str, str, int], int]()
    for row in had:
        at = row["region"], row["group"] or ""
        there[*at, row["hour"]] = row["workers"]
        if row["hour"] >= capacity.get(at, (-1,))[0]:
            capacity[at] = row["hour"], Load(row["cpu"], row["memory"], row["network"])
    newest = {at: load for at, (_, load) in capacity.items()}
    then = hours.where(f.col("hour").between(wanted[0], wanted[-1]))
    found = []
    for row in by_hour.needed(then, newest, rules).collect():
        key, hour = (row["region"], row["group"]), row["hour"]
        record = counting.get(key, {}).get(hour)
        if isinstance(record, FleetForecastRecord):
            said = record.workers[hour - record.from_hour]
            found.append(_hour("fleet", key, hour, record, said, row["workers"], there.get((*key, hour), 0)))
    return sorted(found, key=_order)


def _workload_hours(hours: DataFrame, counting: Mapping[Key, Mapping[int, Record]]) -> list[ComparisonRow]:
    wanted = sorted({hour for its in counting.values() for hour in its})
    if not wanted:
        return []
    then = hours.where(f.col("hour").between(wanted[0], wanted[-1]))
    found = []
    for row in by_hour.workload_series(then).collect():
        key, hour = (row["region"], row["name"]), row["hour"]
        record = counting.get(key, {}).get(hour)
        if isinstance(record, WorkloadForecastRecord):
            said = record.rates[hour - record.from_hour]
            one = _hour("workload", key, hour, record, said, round(row["value"], 3), None)
            found.append({**one, "with_margin": round(said * record.margin, 3)})
    return sorted(found, key=_order)


def _hour(
    kind: str, key: Key, hour: int, record: Record, said: float | None, came: float | None, there: int | None
) -> ComparisonRow:
    at, made = iso(hour * HOUR_MS), iso(record.made_ms)
    figures = (kind, *key, at, made, said, came, there)
    return dict(zip(COLUMNS, figures, strict=True))


def _order(row: ComparisonRow) -> tuple[str, str, str]:
    return row["region"], row["name"], row["hour"]


def _by_name(rows: Iterable[ComparisonRow]) -> list[tuple[Key, list[ComparisonRow]]]:
    found: defaultdict[Key, list[ComparisonRow]] = defaultdict(list)
    for row in rows:
        found[row["region"], row["name"]].append(row)
    return sorted(found.items())


def _fleet_row(name: Key, rows: Sequence[ComparisonRow], price: float) -> ComparisonRow:
    known = [row for row in rows if row["forecast"] is not None and row["came"] is not None]
    surplus = [row["forecast"] - row["came"] for row in known]
    over = sum(one for one in surplus if one > 0)
    under = -sum(one for one in surplus if one < 0)
    idle = [row["there"] - row["came"] for row in known]
    return {
        "region": name[0],
        "group": name[1],
        "hours": len(known),
        "unknown_hours": len(rows) - len(known),
        "forecast_peak": max((row["forecast"] for row in known), default=None),
        "needed_peak": max((row["came"] for row in known), default=None),
        "there_peak": max((row["there"] for row in known), default=None),
        "error": _error(known),
        "over_hours": sum(one > 0 for one in surplus),
        "over_worker_hours": over,
        "over_cost": round(over * price, 2),
        "under_hours": sum(one < 0 for one in surplus),
        "under_worker_hours": under,
        "under_cost": round(under * price, 2),
        "there_over_worker_hours": sum(one for one in idle if one > 0),
        "there_under_hours": sum(one < 0 for one in idle),
    }


def _workload_row(name: Key, rows: Sequence[ComparisonRow]) -> ComparisonRow:
    return {
        "region": name[0],
        "workload": name[1],
        "hours": len(rows),
        "forecast_peak": max(row["with_margin"] for row in rows),
        "rate_peak": max(row["came"] for row in rows),
        "error": _error(rows),
        "above_margin_hours": sum(row["came"] > row["with_margin"] for row in rows),
    }


def _error(rows: Sequence[ComparisonRow]) -> float | None:
    came = sum(row["came"] for row in rows)
    return round(sum(abs(row["forecast"] - row["came"]) for row in rows) / came, 4) if came else None


def tables(found: Mapping[str, Any]) -> str:
    """For people."""
    if not found["hours"]:
        return NONE_YET
    fleets = [
        {
            **{name: row[name] for name in ("region", "group", "hours")},
            "peak: forecast/needed/there": "/".join(
                _cell(row[name]) for name in ("forecast_peak", "needed_peak", "there_peak")
            ),
            "off by": _percent(row["error"]),
            "over": f"{row['over_worker_hours']} worker hours in {row['over_hours']} h",
            "costs": row["over_cost"],
            "under": f"{row['under_worker_hours']} worker hours in {row['under_hours']} h",
            "there too few": f"{row['there_under_hours']} h",
            "there too many": f"{row['there_over_worker_hours']} worker hours",
        }
        for row in found["fleets"]
    ]
    workloads = [
        {
            **{name: row[name] for name in ("region", "workload", "hours")},
            "peak with margin": f"{row['forecast_peak']:,.0f}/s",
            "peak that came": f"{row['rate_peak']:,.0f}/s",
            "off by": _percent(row["error"]),
            "above the margin": f"{row['above_margin_hours']} h",
        }
        for row in found["workloads"]
    ]
    parts = [("Workers forecast, and needed", fleets), ("Messages forecast, and arrived", workloads)]
    return "\n\n".join(table(title, rows, tuple(rows[0])) for title, rows in parts if rows)


def csv_text(found: Mapping[str, Any]) -> str:
    """The hours, a line each, under the names of their columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in found["hours"]:
        cells = [row[name] for name in COLUMNS]
        writer.writerow([text_cell(one) if isinstance(one, str) else one for one in cells])
    return text.getvalue()


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _cell(value: int | None) -> str:
    return "-" if value is None else str(value)
