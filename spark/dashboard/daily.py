"""The global store: traffic by hour and a verdict for every window of all regions, computed a date at a time.

A date is recomputed when its input files have changed: the `topic_id` of a file in the global store is the
digest of its input. A recent date is recomputed in every run, and once afterwards, because lateness and
absence depend on the present time. One change of the log replaces a date's files, so a job that is killed
leaves the former ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from app.archive.errors import InvalidArchive
from app.archive.layout import ArchiveChange, ArchivedPartition, ArchivedReach
from app.archive.log import Archive, ArchiveState
from app.audit.folds.tier import PlanBounds
from spark.dashboard import frames, people
from spark.dashboard.decode import DAY_MS, PLANS, TIERS, UNDATED, WINDOWS, WORKLOADS, date_of
from spark.dashboard.plans import Compared, compared
from spark.dashboard.store import STATE, TRAFFICS, VERDICTS, files_of, stored, write

GLOBAL = "global"
TURN = ArchivedPartition(GLOBAL, "", 0)
RECENT_DAYS = 2
MADE = "made-5-"  # begins each digest; changes when the same input gives another result

Stores = Mapping[str, tuple[Archive, ArchiveState]]  # by region


def open_stores(root: Path) -> dict[str, tuple[Archive, ArchiveState]]:
    """The stores of all regions below `root`, with their present state.

    Raises:
        InvalidArchive: There is none.
    """
    cards = sorted(root.glob("*/archive.json"))
    archives = {card.parent.name: Archive.open(card.parent) for card in cards if card.parent.name != GLOBAL}
    if not archives:
        raise InvalidArchive(f"{root} has no region's store: run `python -m spark dashboard` first")
    return {region: (archive, archive.state()) for region, archive in archives.items()}


def entries(
    spark: SparkSession, stores: Stores, tables: Sequence[str], dates: Sequence[str] | None = None
) -> DataFrame:
    """The `ENTRY` rows of these tables and dates with `region`, without deleted keys."""
    found = []
    for region, (archive, state) in stores.items():
        files = [file for file in files_of(state, STATE, dates) if file.topic in tables]
        found.append(stored(spark, archive, files, STATE).withColumn("region", f.lit(region)))
    return reduce(DataFrame.union, found).where(f.col("value").isNotNull())


def bring_up(spark: SparkSession, root: Path, stores: Stores, now_ms: int, bounds: PlanBounds) -> list[str]:
    """Recomputes the dates that need it; returns them."""
    archive = Archive.create(root / GLOBAL, GLOBAL)
    state = archive.state()
    dates = stale_dates(stores, state, now_ms)
    if not dates:
        return []
    topics = _compared(spark, stores, bounds)
    found = frames.windows(entries(spark, stores, [WINDOWS], list(dates))).persist()
    try:
        rows = sum(file.rows for _, its in stores.values() for file in files_of(its, STATE, dates))
        traffic, verdicts = (
            frames.traffic(found),
            frames.verdicts(found, topics, frames.widths(found), now_ms),
        )
        added = write(traffic, archive, TRAFFICS, 0, "") + write(verdicts, archive, VERDICTS, rows, "")
    finally:
        found.unpersist()
    added = tuple(replace(file, topic_id=dates[file.date]) for file in added)
    removed = tuple(file.path for table in (TRAFFICS, VERDICTS) for file in files_of(state, table, dates))
    before = state.reach.get(TURN, ArchivedReach(0, 0))  # if two jobs compute the same dates, one counts
    archive.commit(
        ArchiveChange(
            kind="daily",
            at_ms=now_ms,
            added=added,
            removed=removed,
            reach={TURN: ArchivedReach(0, before.end + 1)},
            based_on={TURN: before},
        )
    )
    return sorted(dates)


def _compared(spark: SparkSession, stores: Stores, bounds: PlanBounds) -> dict[str, dict[str, Compared]]:
    tiers = entries(spark, stores, [TIERS]).collect()
    small = entries(spark, stores, [PLANS, WORKLOADS]).select("region", "table", "key", "value").collect()
    plans = people.SmallTables((row.region, row.table, row.key, bytes(row.value)) for row in small).plans()
    return compared(frames.tiers_of(tiers), frames.regions_of(tiers), plans, bounds.silence_ms)


def check_made(root: Path, state: ArchiveState) -> None:
    """Checks that this version has computed all dates of the global store.

    Raises:
        InvalidArchive: Another version computed some, which may lack fields that are read now.
    """
    made = (*files_of(state, TRAFFICS), *files_of(state, VERDICTS))
    others = sorted({file.date for file in made if not file.topic_id.startswith(MADE)})
    if others:
        raise InvalidArchive(
            f"{root}: {len(others)} dates, the first {others[0]}, were computed by another version: "
            "run `python -m spark dashboard --once`, which computes them again"
        )


def stale_dates(stores: Stores, state: ArchiveState, now_ms: int) -> dict[str, str]:
    """The dates to recompute, each with the digest of its input. A recent date's digest differs from its
    later one, so that provisional verdicts are computed once more. Dates of another version that no region's
    store has any more are included, so that their files are removed."""
    made_of: dict[str, list[str]] = {}
    for region, (_, its) in stores.items():
        for file in files_of(its, STATE):
            if file.topic == WINDOWS:
                made_of.setdefault(file.date, []).append(f"{region}/{file.path}")
    recent = {date_of(max(0, now_ms - days * DAY_MS)) for days in range(RECENT_DAYS)} | {UNDATED}
    digests = {
        date: MADE + _digest("recent" if date in recent else "", *sorted(paths))
        for date, paths in made_of.items()
    }
    known = {file.date: file.topic_id for file in files_of(state, TRAFFICS)}
    for file in (*files_of(state, TRAFFICS), *files_of(state, VERDICTS)):
        if not file.topic_id.startswith(MADE):
            digests.setdefault(file.date, MADE)
    return {date: one for date, one in digests.items() if known.get(date) != one or date in recent}


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
