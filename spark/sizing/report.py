"""All of it together: loads in, one JSON document out; scenarios are placed by Spark's tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from app.archive.errors import BadOption, InvalidArchive
from app.kernel.load import Load, capacity_or_default
from app.placement.model.plan import PlacementRules
from app.sizing.recommendation import RULES, SizingRules
from spark.sizing import history, publish
from spark.sizing.advice import JobNeed, Prices, cost_rows, monthly, total, workload_rows
from spark.sizing.forecast import HOURS_A_WEEK, MOST_GROWTH
from spark.sizing.hours import Key
from spark.sizing.scenarios import Fleet, Scenario, ScenarioResult, answer, changed

FORMAT = 1
REFUSED_LISTED = 10  # of forecasts that no worker would take
PAST = ("hour", "region", "group", "workers_then", "workers_needed")
T = TypeVar("T")


class SizingQuestion(NamedTuple):
    """What is to be found out."""

    scenarios: Sequence[Scenario]
    weeks: int = 1
    percentile: float = 0.95
    rules: SizingRules = RULES
    prices: Prices = Prices()
    now_ms: int | None = None  # what is of later hours is left out; None: every hour counts
    publish_at_ms: int | None = None  # when forecasts by the hour are made, too; counts as now


def size(loads: DataFrame, question: SizingQuestion, owners: Mapping[Key, str]) -> dict[str, Any]:
    """The document. `loads`: `history.LOAD`; `owners`: by region and name.

    Raises:
        InvalidArchive: no job's load is known. BadOption: a scenario names what is not there.
    """
    spark = loads.sparkSession
    loads, left_out = history.sound(
        loads, question.now_ms if question.publish_at_ms is None else question.publish_at_ms
    )
    hours = history.hourly(loads).persist()
    found = history.forecasts(hours, question.weeks * HOURS_A_WEEK, question.percentile).persist()
    try:
        needs = [_need(row) for row in history.busiest(found).collect()]
        if not needs:
            why = "no job's load is known there: heartbeats tell it from a worker's second minute on"
            raise InvalidArchive("; ".join([why, *history.left_out_words(left_out)]))
        had = {
            ((row["region"], row["group"] or ""), row["hour"]): row
            for row in history.workers(loads).collect()
        }
        fleets = _fleets(needs, had)
        mean = _at_mean(found)
        answers = _placed(spark, question, list(fleets.values()))
        past, past_what_if = _past(spark, history.busiest_by_week(hours).collect(), had, question)
        workers = {key: fleet.worker for key, fleet in fleets.items()}
        widest = max(workers.values(), key=lambda load: load.cpu_cores)
        workloads = workload_rows(needs, widest, question.rules)
        made = _forecasts(hours, found, workloads, workers, question)
        jobs = [_job_row(row) for row in found.drop(*(f"{name}_hours" for name in history.FIGURES)).collect()]
    finally:
        found.unpersist()
        hours.unpersist()
    enough: dict[Key, int | None] = {
        (fleet.region, fleet.group): one.workers for scenario, fleet, one in answers if scenario == 0
    }
    return {
        "format": FORMAT,
        "method": {
            "forecast": "median share of each hour of the week x straight trend of weekly means (Theil-Sen),"
            f" at most x {MOST_GROWTH:g}; margin: what real hours were above it in {question.percentile:.0%}",
            "placement": "app.placement.model.bin_packing, round by round to rest, at the fleet's"
            " busiest hours to come",
            "past": "the same placement of each week's hour of most cpu, as it was measured, and what if;"
            " weeks without the topic or the region asked for have no what if",
            "weeks_ahead": question.weeks,
            "spare_workers": question.rules.spare_workers,
        },
        "fleets": [_answer_row(fleet, one, question) for scenario, fleet, one in answers if scenario == 0],
        "what_if": [
            {"scenario": question.scenarios[scenario].name, **_answer_row(fleet, one, question)}
            for scenario, fleet, one in answers
            if scenario
        ],
        "past": past,
        "past_what_if": past_what_if,
        "workloads": workloads,
        "jobs": sorted(jobs, key=lambda row: (-(row["cpu_p95"] or 0), row["job"])),
        "cost": cost_rows(needs, enough, workers, mean, question.prices, owners),
        "prices": question.prices._asdict(),
        "left_out": left_out,
        **made,
    }


def _forecasts(
    hours: DataFrame,
    found: DataFrame,
    workloads: Sequence[Mapping[str, Any]],
    workers: Mapping[Key, Load],
    question: SizingQuestion,
) -> dict[str, Any]:
    """Records for the regions' topics, if they are asked for."""
    if question.publish_at_ms is None:
        return {}
    plan = publish.PublishTerms(question.publish_at_ms, question.weeks, question.percentile, question.rules)
    made = publish.make(hours, found, workloads, workers, plan)
    fit, refused = publish.fit(made)
    told = {"records": len(refused), "first": refused[:REFUSED_LISTED]}
    return {"made_ms": plan.made_ms, "forecasts": msgspec.to_builtins(fit), "refused": told}


def _need(row: Row) -> JobNeed:
    load = Load(row["cpu"], row["memory"] or 0.0, row["network"])
    ceiling = row["ceiling"] or None
    return JobNeed(row["region"], row["group"] or "", row["job"], load, row["arriving"], ceiling)


def _fleets(needs: Sequence[JobNeed], had: Mapping[tuple[Key, int], Row]) -> dict[Key, Fleet]:
    jobs: defaultdict[Key, dict[str, Load]] = defaultdict(dict)
    for need in needs:
        jobs[need.region, need.group][need.job] = need.load
    newest: dict[Key, Row] = {}
    for (key, _), row in sorted(had.items(), key=lambda item: item[0]):
        newest[key] = row
    return {key: _fleet(key, its, newest.get(key)) for key, its in sorted(jobs.items())}


def _fleet(key: Key, jobs: Mapping[str, Load], row: Row | None) -> Fleet:
    measured = Load() if row is None else Load(row["cpu"], row["memory"], row["network"])
    return Fleet(*key, dict(jobs), capacity_or_default(measured), 0 if row is None else row["workers"])


def _placed(
    spark: SparkSession, question: SizingQuestion, fleets: list[Fleet]
) -> list[tuple[int, Fleet, ScenarioResult]]:
    """Every scenario's fleets with what they come to; a task each."""
    questions = []
    for number, scenario in enumerate(question.scenarios):
        try:
            questions += [(number, scenario, fleet) for fleet in changed(scenario, fleets)]
        except ValueError as error:
            raise BadOption(f"{scenario.name}: {error}") from error
    return _answered(spark, questions, question.rules)


def _answered(
    spark: SparkSession, questions: list[tuple[T, Scenario, Fleet]], rules: SizingRules
) -> list[tuple[T, Fleet, ScenarioResult]]:
    """In the order of the questions; what marks each stays with it."""
    if not questions:
        return []
    spread = spark.sparkContext.parallelize(list(enumerate(questions)), len(questions))
    told = dict(spread.mapPartitions(partial(_answers, rules)).collect())
    return [(mark, fleet, told[at]) for at, (mark, _, fleet) in enumerate(questions)]


def _answers(
    rules: SizingRules, questions: Iterable[tuple[int, tuple[T, Scenario, Fleet]]]
) -> Iterator[tuple[int, ScenarioResult]]:
    for at, (_, scenario, fleet) in questions:
        yield at, answer(fleet, scenario, PlacementRules(fill=rules.fill), rules.spare_workers)


def _past(
    spark: SparkSession, rows: Sequence[Row], had: Mapping[tuple[Key, int], Row], question: SizingQuestion
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What each past week would have needed at its busiest hour, beside what there was then: as it was, and
    by each other scenario.

    Args:
        rows: of `history.busiest_by_week`.
        had: rows of `history.workers` by fleet and hour.
    """
    jobs: defaultdict[tuple[int, int, Key], dict[str, Load]] = defaultdict(dict)
    for row in rows:
        load = Load(row["cpu"] or 0.0, row["memory"] or 0.0, row["network"] or 0.0)
        jobs[row["week"], row["hour"], (row["region"], row["group"] or "")][row["job"]] = load
    weeks: defaultdict[int, dict[Key, tuple[int, Fleet]]] = defaultdict(dict)
    for week, hour, key in sorted(jobs):
        weeks[week][key] = hour, _fleet(key, jobs[week, hour, key], had.get((key, hour)))
    questions = [
        ((number, hour), scenario, fleet)
        for number, scenario in enumerate(question.scenarios)
        for week in weeks.values()
        for hour, fleet in _as_asked(scenario, week)
    ]
    answers = _answered(spark, questions, question.rules)
    return (
        [_past_row(hour, fleet, one) for (scenario, hour), fleet, one in answers if scenario == 0],
        [
            {"scenario": question.scenarios[scenario].name, **_past_row(hour, fleet, one)}
            for (scenario, hour), fleet, one in answers
            if scenario
        ],
    )


def _as_asked(scenario: Scenario, week: Mapping[Key, tuple[int, Fleet]]) -> list[tuple[int, Fleet]]:
    """A past week's fleets as the scenario has them, with their busiest hours, a new region's being that of
    the one it is like; none, when the topic or region asked for was not there in that week."""
    try:
        fleets = changed(scenario, [fleet for _, fleet in week.values()])
    except ValueError:
        return []
    hours = {key: hour for key, (hour, _) in week.items()}
    return [
        (hours.get((fleet.region, fleet.group)) or hours[scenario.subject, fleet.group], fleet)
        for fleet in fleets
    ]


def _past_row(hour: int, fleet: Fleet, one: ScenarioResult) -> dict[str, Any]:
    return {
        "region": fleet.region,
        "group": fleet.group,
        "hour": datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%dT%H:00Z"),
        "workers_needed": one.workers,
        "workers_then": one.now,
        "why": one.why,
    }


def _at_mean(found: DataFrame) -> dict[Key, float]:
    """By region and job the mean of its network over the time to come, without the margin of its peaks."""
    whole = f.aggregate("network_hours", f.lit(0.0), lambda one, other: one + other)
    mean = f.try_divide(whole, f.size("network_hours")).alias("mean")
    return {
        (row["region"], row["job"]): row["mean"] or 0.0
        for row in found.select("region", "job", mean).collect()
    }


def _answer_row(fleet: Fleet, one: ScenarioResult, question: SizingQuestion) -> dict[str, Any]:
    load = total(fleet.jobs.values())
    return {
        "region": fleet.region,
        "group": fleet.group,
        "jobs": len(fleet.jobs),
        "cores": round(load.cpu_cores, 3),
        "workers_now": one.now,
        "workers": one.workers,
        "level": round(one.level, 4),
        "level_after_loss": round(one.level_lost, 4),
        "jobs_moved_by_loss": one.moved,
        "cost_a_month": None
        if one.workers is None
        else monthly(one.workers, load.network_bytes_per_s, question.prices),
        "why": one.why,
    }


def _job_row(row: Row) -> dict[str, Any]:
    return {
        name: round(value, 6) if isinstance(value, float) else value for name, value in row.asDict().items()
    }


def tables(found: Mapping[str, Any]) -> str:
    """For people."""
    parts = [
        ("Workers", found["fleets"], ("region", "group", "jobs", "cores", "workers_now", "workers", "why")),
        ("What if", found["what_if"], ("scenario", "region", "group", "workers_now", "workers", "why")),
        ("Past weeks", found["past"], PAST),
        ("What if, past weeks", found["past_what_if"], ("scenario", *PAST)),
        ("Workloads", found["workloads"], ("region", "workload", "partitions_now", "partitions", "workers")),
        ("Cost a month", found["cost"], ("region", "name", "owner", "workers", "network_gb", "cost")),
    ]
    return "\n\n".join(table(title, rows, columns) for title, rows, columns in parts if rows)


def table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    cells = [[name.replace("_", " ") for name in columns]]
    cells += [["-" if row[name] is None else str(row[name]) for name in columns] for row in rows]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([title, *(line.rstrip() for line in lines)])
