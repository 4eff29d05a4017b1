"""The dashboard's DataFrames: schemas, and pure functions from DataFrame to DataFrame."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from app.audit.folds.tier import TierRecord
from app.audit.folds.tier_pairs import OF_CLUSTERS, TierPlace, Widths
from app.audit.folds.tier_pairs import Window as PairedWindow
from app.audit.folds.window import WindowKey
from app.controllog.codec import tier_record, window_record
from spark.dashboard import decode, timeline
from spark.dashboard.plans import Compared, Comparer
from spark.rows import mapped
from switchyard.audit.model.latencies import Latencies

HOUR_MS = 3_600_000
TIMELINE_STATES = ("lossy", "duplicated", "corrupted", "absent-audit")  # on the timeline
COUNTED = (
    "lossy",
    "duplicated",
)  # states whose `missing` and `extra` are known: an absent audit is not a loss


def _schema(**columns: type) -> StructType:
    types = {str: StringType, int: LongType, float: DoubleType, bytes: BinaryType, bool: BooleanType}
    return StructType([StructField(name, types[kind]()) for name, kind in columns.items()])


# The newest record of a key, from `partition` and `offset`. `value` null: the key was deleted.
ENTRY = StructType(
    [
        StructField("table", StringType()),
        StructField("date", StringType()),
        StructField("key", StringType()),
        StructField("generation", IntegerType()),
        StructField("position", LongType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp_ms", LongType()),
        StructField("value", BinaryType()),
        StructField("reason", StringType()),
    ]
)
# Loads in heartbeats (`decode.JobLoad`); rows of the same five minutes add up.
LOAD = _schema(
    date=str, job=str, worker=str, group=str, start_ms=int, samples=int, cpu_sum=float, cpu_max=float,
    memory_max=float, network_sum=float, network_max=float, rated=int, arriving_sum=float, arriving_max=float,
    ceiling_max=float, lag_max=int, lag_last=int, last_ms=int,
)  # fmt: skip
# A window of a cluster or a group's place, from one region's table.
WINDOW = _schema(
    region=str, topic=str, tier=str, cluster=str, width_ms=int, start_ms=int, shard=int, count=int,
    nbytes=int, duplicates=int, late=int, closed=bool, latencies=bytes, value=bytes,
)  # fmt: skip
# An event (`timeline.Event`).
EVENT = _schema(
    kind=str, episode=str, region=str, at_ms=int, position=int, from_ms=int, until_ms=int, what=str, who=str,
    subject=str, rank=int,
)  # fmt: skip
# Traffic by hour of event time; `hour_ms` -1: records without one. `latencies` is a histogram. `region`: the
# region that counts a group or client; "" for clusters, which count once.
TRAFFIC = _schema(
    date=str, region=str, topic=str, tier=str, cluster=str, hour_ms=int, windows=int, open_windows=int,
    records=int, nbytes=int, duplicates=int, late=int, latencies=bytes,
)  # fmt: skip
VERDICT = _schema(
    date=str, region=str, topic=str, start_ms=int, width_ms=int, from_tier=str, to_tier=str, group=str,
    state=str, from_count=int, to_count=int, missing=int, extra=int, by=str, absent=str, lag_ms=float,
    behind_ms=int, closed=bool, remark=str,
)  # fmt: skip


def decoded(records: DataFrame, topics: Mapping[str, tuple[str, int]]) -> DataFrame:
    """Decodes changelog records to `ENTRY`; bad ones have a reason. `topics`: table and generation by topic.
    Leaves out deletions in tables whose entries are kept."""
    return mapped(records, partial(_decoded, dict(topics)), ENTRY)


def _decoded(topics: dict[str, tuple[str, int]], rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        table, generation = topics[row.topic]
        key = None if row.key is None else bytes(row.key)
        value = None if row.value is None else bytes(row.value)
        if table == decode.INCIDENTS:
            place = f"{generation}/{row.partition}/{row.offset:020}"
            found = decode.incident_entry(place, value, row.offset)
        else:
            found = decode.entry(table, key, value, row.offset)
        if value is None and not found.reason and table in decode.KEPT:
            continue
        name = found.key or (key or b"").decode(errors="replace")
        stood = (row.partition, row.offset, row.timestamp_ms)
        yield table, found.date, name, generation, found.position, *stood, value, found.reason or None


def newest(entries: DataFrame) -> DataFrame:
    """The entry that counts for each key of a table (rule 2 of the package)."""
    order = f.struct("generation", "position", "offset")
    whole = f.struct(*ENTRY.names)
    found = entries.groupBy("table", "date", "key").agg(f.max_by(whole, order).alias("entry"))
    return found.select("entry.*").to(ENTRY)


def loads(records: DataFrame) -> DataFrame:
    """The `LOAD` rows of usable heartbeats."""
    return mapped(records, _loads, LOAD)


def _loads(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    found: decode.Loads = {}
    for row in rows:
        decode.add_heartbeat(found, None if row.value is None else bytes(row.value))
    for one in decode.load_rows(found):
        yield decode.date_of(int(one[3])), *one


def joined(found: DataFrame) -> DataFrame:
    """`LOAD` with one row for each worker, job and five minutes."""
    sums = ("samples", "cpu_sum", "network_sum", "rated", "arriving_sum")
    most = ("cpu_max", "memory_max", "network_max", "arriving_max", "ceiling_max", "lag_max", "last_ms")
    return (
        found.groupBy("date", "job", "worker", "group", "start_ms")
        .agg(
            *(f.sum(name).alias(name) for name in sums),
            f.max_by("lag_last", "last_ms").alias("lag_last"),
            *(f.max(name).alias(name) for name in most),
        )
        .to(LOAD)
    )


def bad_heartbeats(records: DataFrame) -> DataFrame:
    """The `ENTRY` rows of unusable heartbeats, with the reason."""
    return mapped(records, _bad_heartbeats, ENTRY)


def _bad_heartbeats(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        value = None if row.value is None else bytes(row.value)
        if reason := decode.add_heartbeat({}, value):
            place = (row.partition, row.offset, row.timestamp_ms)
            yield "heartbeats", decode.UNDATED, "", 0, row.offset, *place, value, reason


def windows(entries: DataFrame) -> DataFrame:
    """`WINDOW` from `ENTRY` with `region`, each cluster's once (rule 5 of the package)."""
    found = mapped(entries.where(f.col("table") == decode.WINDOWS), _windows, WINDOW)
    best = f.max_by(f.struct(*WINDOW.names), f.struct(f.col("count"), "closed", "region"))
    keys = ("topic", "tier", "cluster", "width_ms", "start_ms", "shard")
    return found.groupBy(*keys, _whose().alias("whose")).agg(best.alias("one")).select("one.*").to(WINDOW)


def _windows(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        value = bytes(row.value)
        key, record = WindowKey.parse(row.key), window_record(value)
        both = record.totals.plus(record.late)
        figures = (both.count, both.nbytes, both.duplicates, record.late.count, record.is_closed)
        yield row.region, *key, *figures, both.latencies or None, value


def traffic(found: DataFrame) -> DataFrame:
    """`TRAFFIC` from `WINDOW`."""
    hour = f.when(f.col("start_ms") < 0, -1).otherwise(f.col("start_ms") - f.col("start_ms") % HOUR_MS)
    counted = found.withColumn("hour_ms", hour).withColumn("date", _date("start_ms"))
    return merged(
        counted.withColumn("region", _whose())
        .groupBy("date", "region", "topic", "tier", "cluster", "hour_ms")
        .agg(
            f.count("*").alias("windows"),
            f.sum((~f.col("closed")).cast("long")).alias("open_windows"),
            f.sum("count").alias("records"),
            *(f.sum(name).alias(name) for name in ("nbytes", "duplicates", "late")),
            f.collect_list("latencies").alias("latencies"),
        ),
        TRAFFIC,
    )


def merged(grouped: DataFrame, schema: StructType) -> DataFrame:
    """Merges the histograms in the last column, a list, to one."""
    return mapped(grouped, _merged, schema)


def _merged(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        both = Latencies()
        for one in row[-1]:
            both.merge(Latencies.from_bytes(bytes(one)))
        yield (*row[:-1], both.to_bytes())


def tiers_of(entries: Sequence[Row]) -> dict[str, dict[TierPlace, list[TierRecord]]]:
    """Tier records by topic and place. If several regions have a cluster, the last to hear it counts."""
    found: defaultdict[tuple[str, TierPlace], defaultdict[str, list[TierRecord]]]
    found = defaultdict(lambda: defaultdict(list))
    for row in entries:
        topic, tier, cluster, _shard = row["key"].split("/")
        found[topic, (tier, cluster)][row["region"]].append(tier_record(bytes(row["value"])))
    by_topic: defaultdict[str, dict[TierPlace, list[TierRecord]]] = defaultdict(dict)
    for (topic, place), regions in sorted(found.items()):
        if place[0] in OF_CLUSTERS:
            by_topic[topic][place] = max(regions.values(), key=_heard_ms)
        else:
            by_topic[topic][place] = [record for _, records in sorted(regions.items()) for record in records]
    return dict(by_topic)


def _heard_ms(records: list[TierRecord]) -> int:
    return max((one.heard_ms for record in records for one in record.sources.values()), default=-1)


def widths(found: DataFrame) -> dict[str, Widths]:
    """Window widths by topic, if there are several: the plan has changed, or a client uses others."""
    several = found.groupBy("topic").agg(f.min("width_ms").alias("least"), f.max("width_ms").alias("most"))
    topics = several.where(f.col("least") < f.col("most")).select("topic")
    by_topic: defaultdict[str, list[tuple[TierPlace, PairedWindow]]] = defaultdict(list)
    columns = found.join(topics, "topic", "left_semi").select(
        "topic", "tier", "cluster", "start_ms", "width_ms"
    )
    for row in columns.distinct().collect():
        by_topic[row.topic].append(((row.tier, row.cluster), (row.start_ms, row.width_ms)))
    return {topic: Widths(windows) for topic, windows in by_topic.items()}


def verdicts(
    found: DataFrame,
    topics: Mapping[str, Mapping[str, Compared]],
    widths: Mapping[str, Widths],
    now_ms: int,
) -> DataFrame:
    """`VERDICT` from `WINDOW`: a row for each window, pair of tiers, and region that reports it."""
    one = f.struct("region", "tier", "cluster", "value")
    grouped = found.groupBy("topic", "start_ms", "width_ms").agg(f.collect_list(one).alias("places"))
    return mapped(grouped, partial(_verdicts, dict(topics), dict(widths), now_ms), VERDICT)


def _verdicts(
    topics: dict[str, Mapping[str, Compared]], widths: dict[str, Widths], now_ms: int, rows: Iterable[Row]
) -> Iterator[tuple[object, ...]]:
    comparer = Comparer(topics, widths, now_ms)
    for row in rows:
        held = [
            (one["region"], (one["tier"], one["cluster"]), window_record(bytes(one["value"])))
            for one in row.places
        ]
        date = decode.date_of(row.start_ms)
        for region, pair in comparer.pairs(row.topic, row.start_ms, row.width_ms, held):
            verdict = pair.verdict
            tiers = (pair.from_tier, pair.to_tier, pair.group, verdict.state.value)
            counts = (pair.from_count, pair.to_count, verdict.missing, verdict.extra)
            lag_ms = None if verdict.lag_ms is None else float(verdict.lag_ms)
            rest = (
                verdict.by.value,
                ", ".join(verdict.absent),
                lag_ms,
                verdict.behind_ms,
                pair.is_closed,
                pair.remark,
            )
            yield date, region, row.topic, row.start_ms, row.width_ms, *tiers, *counts, *rest


def happened(entries: DataFrame) -> DataFrame:
    """`EVENT` from activity and incident entries of all regions (`ENTRY` with `region`), one for each
    episode, with its end (rules 1 and 2 of `timeline`)."""
    events = mapped(entries, _happened, EVENT)
    newest = f.max_by(f.struct(*EVENT.names), f.struct("at_ms", "position", "region")).alias("one")
    found = events.groupBy("kind", "episode").agg(newest, f.min("from_ms").alias("first_ms"))
    found = found.select("one.*", "first_ms").withColumn("from_ms", f.col("first_ms"))
    above = Window.partitionBy("subject").orderBy("rank").rangeBetween(1, Window.unboundedFollowing)
    ended_ms = f.min("from_ms").over(above)  # null: no higher rank
    ended_ms = f.when(ended_ms.isNotNull(), f.greatest("at_ms", ended_ms))
    return found.withColumn("until_ms", f.coalesce("until_ms", ended_ms)).to(EVENT)


def _happened(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        found = timeline.event(row.region, row.table, row.key, row.position, bytes(row.value))
        if found is not None:
            yield tuple(found)


def audit_runs(verdicts: DataFrame) -> DataFrame:
    """Merges adjacent windows of `VERDICT` in `TIMELINE_STATES`: a row for each topic, region, pair of tiers,
    group, state and run of windows [from_ms, until_ms). `missing`, `extra`: sums over `COUNTED` states."""
    of = ("topic", "region", "from_tier", "to_tier", "group", "state")
    by = Window.partitionBy(*of).orderBy("start_ms", "width_ms")
    end_ms = f.col("start_ms") + f.col("width_ms")
    before_ms = f.max(end_ms).over(by.rowsBetween(Window.unboundedPreceding, -1))
    begins = f.coalesce(f.col("start_ms") > before_ms, f.lit(True)).cast("long")
    problems = verdicts.where(f.col("state").isin(*TIMELINE_STATES)).withColumn("begins", begins)
    runs = problems.withColumn("run", f.sum("begins").over(by.rowsBetween(Window.unboundedPreceding, 0)))
    return runs.groupBy(*of, "run").agg(
        f.min("start_ms").alias("from_ms"),
        f.max(end_ms).alias("until_ms"),
        f.count("*").alias("windows"),
        *(f.sum(differing(name)).alias(name) for name in ("missing", "extra")),
        f.max("absent").alias("absent"),
    )


def differing(name: str) -> Column:
    """`missing` or `extra` of a verdict; 0 where it is unknown."""
    return f.when(f.col("state").isin(*COUNTED), f.greatest(name, f.lit(0))).otherwise(0)


def regions_of(entries: Sequence[Row]) -> dict[tuple[str, TierPlace], set[str]]:
    """The regions with tier entries, by topic and place."""
    found: defaultdict[tuple[str, TierPlace], set[str]] = defaultdict(set)
    for row in entries:
        topic, tier, cluster, _shard = row["key"].split("/")
        found[topic, (tier, cluster)].add(row["region"])
    return dict(found)


def _whose() -> Any:
    return f.when(f.col("tier").isin(*OF_CLUSTERS), "").otherwise(f.col("region"))


def _date(column: str) -> Any:
    dated = f.date_format(f.timestamp_millis(column), "yyyy-MM-dd")
    return f.when(f.col(column) < 0, decode.UNDATED).otherwise(dated)
