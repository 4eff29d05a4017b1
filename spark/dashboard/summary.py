"""The report as one JSON document, which `summarize` makes.

Times are ISO 8601 in UTC, or their names end in `_ms`. Some parts list only the newest, worst or most
frequent rows; `cut` has the number of the others (of the quarantine, of records).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from app.archive.log import Archive
from app.audit.folds.tier import CONSUMER
from app.audit.folds.tier_pairs import ORDER
from app.kernel.json_types import JsonMapping, JsonObject
from spark.dashboard import daily, decode, people, timeline
from spark.dashboard.frames import HOUR_MS, audit_runs, differing, happened, merged
from spark.dashboard.store import LOADS, QUARANTINE, TRAFFICS, VERDICTS, files_of, stored
from spark.dashboard.times import iso
from switchyard.audit.model.places import group_of

FORMAT = 2  # 2: `timeline` instead of `incidents`
MOST_WINDOWS, MOST_SERIES = 100, 24
MOST_LINES, MOST_POINTS = 8, 240  # in a topic's chart
MOST_PLACES = 200  # in tiers, and in records without a time
MOST_EVENTS = 200  # from each source: activity, incidents, the audit
MOST_REASONS = 200  # of a region's quarantine
SUMS = ("windows", "open_windows", "records", "nbytes", "duplicates", "late")
SMALL = (
    decode.WORKLOADS, decode.ROUTES, decode.ASSIGNMENTS, decode.TRACKERS, decode.CHECKPOINTS, decode.PLANS,
)  # fmt: skip
NOT_OK = ("lossy", "duplicated", "corrupted", "late", "absent-audit")
BUCKET_S = decode.BUCKET_MS / 1000


def summarize(spark: SparkSession, root: Path, from_ms: int, to_ms: int, now_ms: int) -> JsonObject:
    """The report on windows that begin in [from_ms, to_ms), from the store at `root`.

    Both times are extended to full hours, because traffic is kept by the hour. Records without a time are
    from the whole store.

    Raises:
        InvalidArchive: There is no store, or another version has computed it.
    """
    stores = daily.open_stores(root)
    world = Archive.create(root / daily.GLOBAL, daily.GLOBAL)
    state = world.state()
    daily.check_made(root, state)
    from_ms, to_ms = from_ms - from_ms % HOUR_MS, to_ms + -to_ms % HOUR_MS
    hourly = stored(spark, world, files_of(state, TRAFFICS), TRAFFICS)
    traffic = hourly.where(f.col("hour_ms").between(from_ms, to_ms - 1))
    verdicts = stored(spark, world, files_of(state, VERDICTS), VERDICTS)
    verdicts = verdicts.where(f.col("start_ms").between(from_ms, to_ms - 1))
    tables = people.SmallTables(
        (row["region"], row["table"], row["key"], bytes(row["value"]))
        for row in daily.entries(spark, stores, SMALL).toLocalIterator()
    )
    by_place = traffic_rows(traffic, ["topic", "tier", "cluster"])
    pairs = pair_rows(verdicts)
    topics = topic_rows(by_place, pairs)
    owners = people.topic_owners(tables)
    for row in topics:
        row["owners"] = owners.get(row["topic"], [people.NO_OWNER])
    lossy = {row["topic"]: row["states"].get("lossy", 0) for row in topics}
    newest = {row["topic"]: row["newest"] for row in _newest(traffic)}
    finished = deliveries(traffic, pairs)
    workloads = people.workload_rows(tables, uses(spark, stores, from_ms, to_ms), finished, now_ms)
    readiness = people.readiness_rows(tables, stores, lossy, newest, now_ms)
    totals = {name: sum(row[name] for row in topics) for name in ("records", "missing", "extra")}
    events, more_events = timeline_rows(spark, stores, verdicts, owners, from_ms, to_ms)
    worst = worst_windows(verdicts)
    bad, more_bad = quarantine_rows(spark, stores)
    problems = sum(row["states"].get(state, 0) for row in pairs for state in NOT_OK)
    tiers, fewer_tiers = most(traffic_rows(traffic, ["tier", "cluster"]), MOST_PLACES)
    timeless = hourly.where(f.col("hour_ms") < 0)
    untimed, fewer_untimed = most(traffic_rows(timeless, ["topic", "tier", "cluster"]), MOST_PLACES)
    lines, fewer_lines = series(traffic, by_place, [row["topic"] for row in topics])
    cut = {
        "timeline": more_events, "windows": problems - len(worst), "quarantine": more_bad,
        "tiers": fewer_tiers, "untimed": fewer_untimed, "series": fewer_lines,
    }  # fmt: skip
    return {
        "format": FORMAT,
        "generated": iso(now_ms),
        "from": iso(from_ms),
        "to": iso(to_ms),
        "regions": [_region(name, *store) for name, store in stores.items()],
        "totals": {**totals, "topics": len(topics), "windows": sum(row["windows"] for row in pairs)},
        "topics": topics,
        "tiers": [{"name": place_name(row["tier"], row["cluster"]), **row} for row in tiers],
        "traffic": by_place,
        "untimed": untimed,
        "pairs": pairs,
        "windows": worst,
        "workloads": workloads,
        "owners": people.owner_rows(workloads, topics, owners, finished, readiness),
        "readiness": readiness,
        "timeline": events,
        "quarantine": bad,
        "cut": {part: more for part, more in cut.items() if more},
        "series": lines,
    }


def traffic_rows(traffic: DataFrame, by: Sequence[str]) -> list[JsonObject]:
    """The sums of `TRAFFIC` by these columns, with merged percentiles."""
    rows = []
    for found in _summed(traffic, by):
        latencies, found["bytes"] = found.pop("latencies"), found.pop("nbytes")
        rows.append({**found, **people.percentiles_ms(latencies)})
    return sorted(rows, key=lambda row: tuple(row[name] for name in by))


def _summed(traffic: DataFrame, by: Sequence[str]) -> list[JsonObject]:
    """`SUMS` and one histogram `latencies`, by these columns."""
    fields = [StructField(name, StringType()) for name in by] + [StructField(one, LongType()) for one in SUMS]
    schema = StructType([*fields, StructField("latencies", BinaryType())])
    grouped = traffic.groupBy(*by).agg(
        *(f.sum(name).alias(name) for name in SUMS), f.collect_list("latencies").alias("latencies")
    )
    return [row.asDict() for row in merged(grouped, schema).collect()]


def deliveries(
    traffic: DataFrame, pairs: Sequence[JsonMapping]
) -> dict[tuple[str, str, str], people.GroupDelivery]:
    """A group's finished records by region, group and topic, with the losses of `pair_rows`."""
    found: defaultdict[tuple[str, str, str], people.GroupDelivery] = defaultdict(people.GroupDelivery)
    for row in _summed(traffic.where(f.col("tier") == CONSUMER), ["region", "topic", "cluster"]):
        at = (row["region"], group_of(row["cluster"])[1], row["topic"])
        counts = (row["records"], row["duplicates"], row["late"])
        found[at] = found[at].plus(people.GroupDelivery(*counts, latencies=bytes(row["latencies"] or b"")))
    for pair in pairs:
        if pair["group"]:
            at = (pair["region"], pair["group"], pair["topic"])
            found[at] = found[at].plus(people.GroupDelivery(missing=pair["missing"], extra=pair["extra"]))
    return dict(found)


def pair_rows(verdicts: DataFrame) -> list[JsonObject]:
    """Windows by state, missing and extra records, and lag, by topic, region and pair of tiers."""
    by = ("topic", "region", "from_tier", "to_tier", "group")
    found: dict[tuple[str, ...], JsonObject] = {}
    rows = (
        verdicts.groupBy(*by, "state")
        .agg(
            f.count("*").alias("windows"),
            f.sum("from_count").alias("from_count"),
            f.sum("to_count").alias("to_count"),
            *(f.sum(differing(name)).alias(name) for name in ("missing", "extra")),
            f.max("behind_ms").alias("behind_ms"),
            f.sum("lag_ms").alias("lag_sum"),
            f.count("lag_ms").alias("lag_count"),
        )
        .collect()
    )
    for row in rows:
        key = tuple(row[name] for name in by)
        into = found.setdefault(
            key,
            dict(zip(by, key, strict=True))
            | {"windows": 0, "states": {}, "from_count": 0, "to_count": 0, "missing": 0, "extra": 0}
            | {"behind_ms": 0, "lag_sum": 0.0, "lag_count": 0},
        )
        into["states"][row["state"]] = row["windows"]
        for name in ("windows", "from_count", "to_count", "missing", "extra", "lag_count"):
            into[name] += row[name]
        into["lag_sum"] += row["lag_sum"] or 0.0
        into["behind_ms"] = max(into["behind_ms"], row["behind_ms"])
    for into in found.values():
        lag_sum, many = into.pop("lag_sum"), into.pop("lag_count")
        into["lag_ms"] = round(lag_sum / many, 3) if many else None
        into["group"] = into["group"] or None
    return [found[key] for key in sorted(found)]


def topic_rows(by_place: Sequence[JsonMapping], pairs: Sequence[JsonMapping]) -> list[JsonObject]:
    """A row for each topic: records of its first tier, losses on the whole way, windows by state."""
    rank = {tier: at for at, tier in enumerate(ORDER)}
    first: dict[str, str] = {}
    for row in by_place:
        known = first.get(row["topic"])
        if known is None or rank.get(row["tier"], len(ORDER)) < rank.get(known, len(ORDER)):
            first[row["topic"]] = row["tier"]
    found: dict[str, JsonObject] = {
        topic: {"topic": topic, "records": 0, "bytes": 0, "missing": 0, "extra": 0, "states": {}}
        for topic in first
    }
    for row in by_place:
        if row["tier"] == first[row["topic"]]:
            found[row["topic"]]["records"] += row["records"]
            found[row["topic"]]["bytes"] += row["bytes"]
    for pair in pairs:
        into = found.get(pair["topic"])
        if into is not None:
            into["missing"] += pair["missing"]
            into["extra"] += pair["extra"]
            states: dict[str, int] = defaultdict(int, into["states"])
            for state, windows in pair["states"].items():
                states[state] += windows
            into["states"] = dict(sorted(states.items()))
    return sorted(found.values(), key=lambda row: (-row["records"], row["topic"]))


def worst_windows(verdicts: DataFrame) -> list[JsonObject]:
    """Windows in a `NOT_OK` state, most missing or extra records first, unknown numbers last."""
    known, differs = f.greatest(differing("missing"), differing("extra")), f.greatest("missing", "extra")
    rows = (
        verdicts.where(f.col("state").isin(*NOT_OK))
        .orderBy(f.desc(known), f.desc(differs), f.desc("start_ms"), "topic", "region", "from_tier", "group")
        .limit(MOST_WINDOWS)
        .drop("date")
        .collect()
    )
    return [{**row.asDict(), "start": iso(row["start_ms"]), "group": row["group"] or None} for row in rows]


def timeline_rows(
    spark: SparkSession,
    stores: daily.Stores,
    verdicts: DataFrame,
    owners: Mapping[str, Sequence[str]],
    from_ms: int,
    to_ms: int,
) -> tuple[list[JsonObject], int]:
    """The events in [from_ms, to_ms), the newest first, and the number of those left out."""
    is_within = (f.col("from_ms") < to_ms) & f.coalesce(f.col("until_ms") >= from_ms, f.lit(True))
    dates = decode.dates(from_ms, to_ms)
    activity = happened(daily.entries(spark, stores, [decode.ACTIVITY])).where(is_within)
    incidents = happened(daily.entries(spark, stores, [decode.INCIDENTS], dates)).where(is_within)
    runs = audit_runs(verdicts)
    rows, more = [], 0
    for frame in (activity, incidents, runs):
        newest = frame.orderBy(f.desc("from_ms"), "region", *frame.columns).limit(MOST_EVENTS).collect()
        for row in newest:
            found = row.asDict()
            is_event = "kind" in found
            rows.append(
                timeline.event_row(found)
                if is_event
                else timeline.audit_row(found, owners.get(found["topic"], []))
            )
        more += frame.count() - len(newest) if len(newest) == MOST_EVENTS else 0
    return timeline.in_order(rows), more


def most(rows: Sequence[JsonObject], limit: int) -> tuple[list[JsonObject], int]:
    """The rows with most records, in their order, and the number of the others."""
    kept = {id(row) for row in sorted(rows, key=lambda row: -row["records"])[:limit]}
    return [row for row in rows if id(row) in kept], len(rows) - len(kept)


def series(
    traffic: DataFrame, by_place: Sequence[JsonObject], topics: Sequence[str]
) -> tuple[list[JsonObject], int]:
    """A row for each of the first topics and their largest places (`place_name`): `points` are [ms, records]
    for every `step_ms`. Also the number of rows left out.

    Copies of the same records, and different groups' deliveries, are not added up.
    """
    places: dict[str, list[JsonObject]] = {topic: [] for topic in topics[:MOST_SERIES]}
    for row in by_place:
        if row["topic"] in places:
            places[row["topic"]].append(row)
    kept = {
        (topic, row["tier"], row["cluster"]): place_name(row["tier"], row["cluster"])
        for topic, its in places.items()
        for row in most(its, MOST_LINES)[0]
    }
    of_them = traffic.where(f.col("topic").isin(*places))
    bounds = of_them.agg(f.min("hour_ms").alias("first"), f.max("hour_ms").alias("last")).first()
    if bounds is None or bounds["first"] is None:
        return [], len(by_place)
    first_ms = bounds["first"]
    step_ms = HOUR_MS * -(-((bounds["last"] - first_ms) // HOUR_MS + 1) // MOST_POINTS)
    at = f.col("hour_ms") - f.pmod(f.col("hour_ms") - first_ms, f.lit(step_ms))
    counted = of_them.groupBy("topic", "tier", "cluster", at.alias("at_ms")).agg(
        f.sum("records").alias("records")
    )
    points: dict[tuple[str, str, str], list[list[int]]] = {key: [] for key in kept}
    for one in counted.orderBy("at_ms").collect():
        key = (one["topic"], one["tier"], one["cluster"])
        if key in points:
            points[key].append([one["at_ms"], one["records"]])
    rows = [
        {"topic": key[0], "place": name, "step_ms": step_ms, "points": points[key]}
        for key, name in kept.items()
    ]
    return rows, len(by_place) - len(rows)


def place_name(tier: str, place: str) -> str:
    """A place as text: "regional east-regional", "consumer billing of east-regional"."""
    cluster, group = group_of(place)
    return f"{tier} {group} of {cluster}" if group else f"{tier} {cluster}"


def uses(
    spark: SparkSession, stores: daily.Stores, from_ms: int, to_ms: int
) -> dict[tuple[str, str], people.Use]:
    """Each job's use by region and job, with arrival rate and lag in its last five minutes."""
    found = {}
    for region, (archive, state) in stores.items():
        loads = stored(spark, archive, files_of(state, LOADS), LOADS)
        times = f.col("start_ms").between(from_ms - from_ms % decode.BUCKET_MS, to_ms - 1)
        means = (
            loads.where((f.col("job") != "") & times)
            .groupBy("job", "start_ms")
            .agg(
                f.try_divide(f.sum("cpu_sum"), f.sum("samples")).alias("cores"),
                f.try_divide(f.sum("network_sum"), f.sum("samples")).alias("network"),
                f.max("memory_max").alias("memory"),
                f.try_divide(f.sum("arriving_sum"), f.sum("rated")).alias("arriving"),
                f.max_by("lag_last", "last_ms").alias("lag"),
            )
        )
        rows = means.groupBy("job").agg(
            f.sum("cores").alias("cores"),
            f.sum("network").alias("network"),
            f.max("memory").alias("memory"),
            f.max_by("arriving", "start_ms").alias("arriving"),
            f.max_by("lag", "start_ms").alias("lag"),
        )
        for row in rows.collect():
            lag = -1 if row["lag"] is None else row["lag"]
            taken = ((row["cores"] or 0.0) * BUCKET_S, (row["network"] or 0.0) * BUCKET_S)
            found[region, row["job"]] = people.Use(*taken, row["memory"] or 0.0, row["arriving"] or 0.0, lag)
    return found


def quarantine_rows(spark: SparkSession, stores: daily.Stores) -> tuple[list[JsonObject], int]:
    """Each region's most frequent reasons by table; and the number of records with other reasons."""
    rows, more = [], 0
    for region, (archive, state) in stores.items():
        files = files_of(state, QUARANTINE)
        bad = stored(spark, archive, files, QUARANTINE).groupBy("table", "reason").count()
        counted = bad.orderBy(f.desc("count"), "table", "reason").limit(MOST_REASONS).collect()
        rows += [{"region": region, **row.asDict()} for row in counted]
        more += sum(file.rows for file in files) - sum(row["count"] for row in counted)
    return rows, more


def _newest(traffic: DataFrame) -> list[Any]:
    counted = traffic.where(f.col("records") > 0)
    return list(counted.groupBy("topic").agg(f.max("hour_ms").alias("newest")).collect())


def _region(name: str, archive: Archive, state: Any) -> JsonObject:
    return {
        "region": name,
        "cluster_id": archive.cluster_id,
        "offsets": sum(reach.end - reach.start for reach in state.reach.values()),
        "gone": sum(gap.end - gap.start for gap in state.gaps),
    }
