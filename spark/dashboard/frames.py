"""The dashboard's frames: schemas, and pure functions from frame to frame."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row
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

from app.core.audit.latencies import Latencies
from app.core.audit.tiers import Bounds, TierRecord
from app.core.audit.windows import WindowKey
from app.wire import tier_record, window_record
from spark.dashboard import decode
from spark.dashboard.pairs import OF_CLUSTERS, Place, pairs
from spark.rows import mapped

HOUR_MS = 3_600_000
RANKS = (0.5, 0.95, 0.99)


def _schema(**columns: type) -> StructType:
    types = {str: StringType, int: LongType, float: DoubleType, bytes: BinaryType, bool: BooleanType}
    return StructType([StructField(name, types[kind]()) for name, kind in columns.items()])


# The newest record of a key; `value` null: it was deleted. `partition` and `offset` say where it stood.
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
# What heartbeats said (`decode.JobLoad`); several rows of the same five minutes add up.
LOAD = _schema(
    date=str, job=str, worker=str, group=str, start_ms=int, samples=int, cpu_sum=float, cpu_max=float,
    memory_max=float, network_sum=float, network_max=float, rated=int, arriving_sum=float, arriving_max=float,
    ceiling_max=float, lag_max=int, lag_last=int, last_ms=int,
)  # fmt: skip
# A window of a cluster, or of a group's place, as one region knows it.
WINDOW = _schema(
    region=str, topic=str, tier=str, cluster=str, width_ms=int, start_ms=int, shard=int, count=int,
    nbytes=int, duplicates=int, late=int, closed=bool, latencies=bytes, value=bytes,
)  # fmt: skip
# By hour of event time; `hour_ms` -1: of records without a time. `latencies` merge further.
TRAFFIC = _schema(
    date=str, topic=str, tier=str, cluster=str, hour_ms=int, windows=int, open_windows=int, records=int,
    nbytes=int, duplicates=int, late=int, latencies=bytes,
)  # fmt: skip
VERDICT = _schema(
    date=str, topic=str, start_ms=int, width_ms=int, from_tier=str, to_tier=str, group=str, state=str,
    from_count=int, to_count=int, missing=int, extra=int, by=str, absent=str, lag_ms=float, behind_ms=int,
    closed=bool,
)  # fmt: skip


def decoded(records: DataFrame, topics: Mapping[str, tuple[str, int]]) -> DataFrame:
    """`ENTRY` of records of changelogs, bad ones with their reason; `topics`: of each the table and the
    generation. What the table has forgotten, and is kept, is left out."""
    return mapped(records, partial(_decoded, dict(topics)), ENTRY)


def _decoded(topics: dict[str, tuple[str, int]], rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        table, generation = topics[row.topic]
        key = None if row.key is None else bytes(row.key)
        value = None if row.value is None else bytes(row.value)
        found = decode.entry(table, key, value, row.offset)
        if value is None and not found.reason and table in decode.KEPT:
            continue
        name = found.key or (key or b"").decode(errors="replace")
        place = (row.partition, row.offset, row.timestamp_ms)
        yield table, found.date, name, generation, found.position, *place, value, found.reason or None


def newest(entries: DataFrame) -> DataFrame:
    """Of each key of a table the entry that counts (rule 2)."""
    order = f.struct("generation", "position", "offset")
    whole = f.struct(*ENTRY.names)
    found = entries.groupBy("table", "date", "key").agg(f.max_by(whole, order).alias("entry"))
    return found.select("entry.*").to(ENTRY)


def loads(records: DataFrame) -> DataFrame:
    """`LOAD` of heartbeats; those that cannot be used are in `bad_heartbeats`."""
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
    """`ENTRY` of heartbeats that cannot be used, with their reason."""
    return mapped(records, _bad_heartbeats, ENTRY)


def _bad_heartbeats(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        value = None if row.value is None else bytes(row.value)
        if reason := decode.add_heartbeat({}, value):
            place = (row.partition, row.offset, row.timestamp_ms)
            yield "heartbeats", decode.UNDATED, "", 0, row.offset, *place, value, reason


def windows(entries: DataFrame) -> DataFrame:
    """`WINDOW` of the entries of windows of all regions (`ENTRY` with `region`), each cluster's once (rule 5
    of the package)."""
    found = mapped(entries.where(f.col("table") == decode.WINDOWS), _windows, WINDOW)
    whose = f.when(f.col("tier").isin(*OF_CLUSTERS), "").otherwise(f.col("region"))
    best = f.max_by(f.struct(*WINDOW.names), f.struct(f.col("count"), "closed", "region"))
    keys = ("topic", "tier", "cluster", "width_ms", "start_ms", "shard")
    return found.groupBy(*keys, whose.alias("whose")).agg(best.alias("one")).select("one.*").to(WINDOW)


def _windows(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        value = bytes(row.value)
        key, record = WindowKey.parse(row.key), window_record(value)
        both = record.totals.plus(record.late)
        figures = (both.count, both.nbytes, both.duplicates, record.late.count, record.is_closed)
        yield row.region, *key, *figures, both.latencies or None, value


def traffic(found: DataFrame) -> DataFrame:
    """`TRAFFIC` of `WINDOW`."""
    hour = f.when(f.col("start_ms") < 0, -1).otherwise(f.col("start_ms") - f.col("start_ms") % HOUR_MS)
    counted = found.withColumn("hour_ms", hour).withColumn("date", _date("start_ms"))
    return merged(
        counted.groupBy("date", "topic", "tier", "cluster", "hour_ms").agg(
            f.count("*").alias("windows"),
            f.sum((~f.col("closed")).cast("long")).alias("open_windows"),
            f.sum("count").alias("records"),
            *(f.sum(name).alias(name) for name in ("nbytes", "duplicates", "late")),
            f.collect_list("latencies").alias("latencies"),
        ),
        TRAFFIC,
    )


def merged(grouped: DataFrame, schema: StructType) -> DataFrame:
    """The last column, a list of histograms, as one."""
    return mapped(grouped, _merged, schema)


def _merged(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        both = Latencies()
        for one in row[-1]:
            both.merge(Latencies.from_bytes(bytes(one)))
        yield (*row[:-1], both.to_bytes())


def percentiles_ms(latencies: bytes | None) -> list[float | None]:
    """At `RANKS`; None where nothing was measured."""
    found = Latencies.from_bytes(bytes(latencies or b"")).quantiles_ms(RANKS)
    return [None if one < 0 else one for one in found]


def tiers_of(entries: Sequence[Row]) -> dict[str, dict[Place, list[TierRecord]]]:
    """By topic and place, of entries of tiers of all regions. Of a cluster that several regions count: the
    region's that was heard last."""
    found: defaultdict[tuple[str, Place], defaultdict[str, list[TierRecord]]]
    found = defaultdict(lambda: defaultdict(list))
    for row in entries:
        topic, tier, cluster, _shard = row["key"].split("/")
        found[topic, (tier, cluster)][row["region"]].append(tier_record(bytes(row["value"])))
    by_topic: defaultdict[str, dict[Place, list[TierRecord]]] = defaultdict(dict)
    for (topic, place), regions in sorted(found.items()):
        if place[0] in OF_CLUSTERS:
            by_topic[topic][place] = max(regions.values(), key=_heard_ms)
        else:
            by_topic[topic][place] = [record for _, records in sorted(regions.items()) for record in records]
    return dict(by_topic)


def _heard_ms(records: list[TierRecord]) -> int:
    return max((one.heard_ms for record in records for one in record.sources.values()), default=-1)


def verdicts(
    found: DataFrame,
    tiers: Mapping[str, Mapping[Place, list[TierRecord]]],
    now_ms: int,
    bounds: Bounds = Bounds(),  # noqa: B008  a tuple
) -> DataFrame:
    """`VERDICT` of `WINDOW`: a row a window and pair of tiers."""
    one = f.struct("tier", "cluster", "value")
    grouped = found.groupBy("topic", "start_ms", "width_ms").agg(f.collect_list(one).alias("places"))
    known = {topic: dict(places) for topic, places in tiers.items()}
    return mapped(grouped, partial(_verdicts, known, now_ms, bounds), VERDICT)


def _verdicts(
    tiers: dict[str, dict[Place, list[TierRecord]]], now_ms: int, bounds: Bounds, rows: Iterable[Row]
) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        held = [((one["tier"], one["cluster"]), window_record(bytes(one["value"]))) for one in row.places]
        date = decode.date_of(row.start_ms)
        for pair in pairs(row.start_ms, row.width_ms, held, tiers.get(row.topic, {}), now_ms, bounds):
            lag_ms = None if pair.lag_ms is None else float(pair.lag_ms)
            yield date, row.topic, row.start_ms, row.width_ms, *pair._replace(lag_ms=lag_ms)


def _date(column: str) -> Any:
    dated = f.date_format(f.timestamp_millis(column), "yyyy-MM-dd")
    return f.when(f.col(column) < 0, decode.UNDATED).otherwise(dated)
