"""The answers by DuckDB's SQL, of the same files; it also writes a verdict a window, as ours does.

It omits lags (the difference of two medians a window), open, silent and recent tiers, and the rest of the
report. So it does less work than ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from switchyard.audit.model.latencies import GAMMA
from tests.bench.reporting import shapes

COLUMNS = (
    "count", "nbytes", "duplicates", "low", "high", "identified",
    "late", "late_nbytes", "late_duplicates", "late_low", "late_high", "late_identified",
    "closed_ms", "latencies",
)  # fmt: skip
PATHS = (
    "$.totals.count", "$.totals.nbytes", "$.totals.duplicates", "$.totals.ids[0]", "$.totals.ids[1]",
    "$.totals.identified", "$.late.count", "$.late.nbytes", "$.late.duplicates", "$.late.ids[0]",
    "$.late.ids[1]", "$.late.identified", "$.closed_ms", "$.totals.latencies",
)  # fmt: skip

WINDOWS = """
create temp table windows as
with entries as (
    select 'east' as region, key, value from read_parquet($east, hive_partitioning = false)
    union all select 'west', key, value from read_parquet($west, hive_partitioning = false)
), decoded as (
    select region, string_split(key, '/') as k, json_extract_string(decode(value), {paths}) as v from entries
), named as (
    select region, k[1] as topic, k[2] as tier, k[3] as cluster, k[4]::bigint as width_ms,
        k[5]::bigint as start_ms, k[6] as shard, {figures}, v[{last}] as latencies
    from decoded
), summed as (
    select region, topic, tier, cluster, width_ms, start_ms, shard, late,
        count + late as count, nbytes + late_nbytes as nbytes, duplicates + late_duplicates as duplicates,
        (low + late_low) % 18446744073709551616 as low, (high + late_high) % 18446744073709551616 as high,
        identified + late_identified = count + late as is_identified, closed_ms >= 0 as closed, latencies
    from named
)
select * from summed
qualify row_number() over (
    partition by topic, tier, cluster, width_ms, start_ms, shard,
        case when tier in ('regional', 'aggregate') then '' else region end
    order by count desc, closed desc, region desc
) = 1
"""
SUMS = """
select topic, tier, cluster, count(*) as windows, sum(count)::bigint as records, sum(nbytes)::bigint as bytes,
    sum(duplicates)::bigint as duplicates, sum(late)::bigint as late
from windows group by all
"""
RANKS = """
with packed as (
    select topic, tier, cluster, hex(from_base64(latencies)) as h from windows where latencies <> ''
), sized as (
    select *, ('0x' || h[3:4])::int as width, ('0x' || h[7:8] || h[5:6])::int as many from packed
), bins as (
    select topic, tier, cluster, width, many, h, unnest(range(many)) as i from sized
), counted as (
    select topic, tier, cluster, ('0x' || h[4*i + 11:4*i + 12] || h[4*i + 9:4*i + 10])::int as bin,
        case width
            when 1 then ('0x' || h[4*many + 2*i + 9:4*many + 2*i + 10])::int
            when 2 then ('0x' || h[4*many + 4*i + 11:4*many + 4*i + 12]
                || h[4*many + 4*i + 9:4*many + 4*i + 10])::int
            else error('counts of ' || width || ' bytes') end as n
    from bins
), merged as (
    select topic, tier, cluster, bin, sum(n) as n from counted group by all
), upto as (
    select topic, tier, cluster, bin, sum(n) over (partition by topic, tier, cluster order by bin) as upto,
        sum(n) over (partition by topic, tier, cluster) as total
    from merged
)
select topic, tier, cluster, {ranks} from upto group by all
"""
VERDICTS = """
copy (
    with places as (
        select topic, start_ms, width_ms, tier, split_part(cluster, ':', 1) as cluster,
            split_part(cluster, ':', 2) as in_group,
            coalesce(list_position(
                ['proxy-client', 'proxy-server', 'regional', 'aggregate', 'consumer'], tier), 9) as place,
            struct_pack(tier := tier, count := count, late := late, low := low, high := high,
                is_identified := is_identified) as one
        from windows where start_ms >= 0
    ), pairs as (
        select topic, start_ms, width_ms, '' as in_group, one as upstream, lead(one) over (
            partition by topic, start_ms, width_ms order by place) as downstream
        from places where in_group = ''
        union all
        select a.topic, a.start_ms, a.width_ms, a.in_group, b.one, a.one
        from places a join places b using (topic, start_ms, width_ms, cluster)
        where a.in_group <> '' and b.in_group = ''
    ), compared as (
        select topic, start_ms, width_ms, in_group, upstream, downstream,
            greatest(upstream.count - downstream.count, 0) as missing,
            greatest(downstream.count - upstream.count, 0) as extra,
            upstream.is_identified and downstream.is_identified
                and (upstream.low, upstream.high) <> (downstream.low, downstream.high) as differs
        from pairs where downstream is not null
    )
    select topic, start_ms, width_ms, upstream.tier as from_tier, downstream.tier as to_tier, in_group,
        case when missing > 0 then 'lossy' when extra > 0 then 'duplicated' when differs then 'corrupted'
            when downstream.late > upstream.late then 'late' else 'ok' end as state,
        upstream.count as from_count, downstream.count as to_count, missing, extra
    from compared
) to '{file}' (format parquet, compression zstd)
"""
PAIRS = """
select topic, from_tier, to_tier, in_group, state, count(*) as windows, sum(from_count)::bigint as from_count,
    sum(to_count)::bigint as to_count, sum(missing)::bigint as missing, sum(extra)::bigint as extra
from read_parquet($file) group by all
"""
HASHED = """
select partition, "offset" + {shift} as "offset", {ours} as ours,
    hash(key, value, headers, timestamp_ms) as one, hash(timestamp_ms, headers, value, key, 7) as two
from read_parquet({files}, hive_partitioning = false)
"""
BY_OFFSET = """
with sides as ({source} union all {copy}), met as (
    select partition, "offset", count(*) filter (ours) as sources, count(*) filter (not ours) as copies,
        min(one) <> max(one) or min(two) <> max(two) as differ
    from sides group by partition, "offset"
)
select count(*) filter (copies = 0) as missing, count(*) filter (sources = 0) as "foreign",
    coalesce(sum(greatest(copies - 1, 0)), 0)::bigint as doubled,
    count(*) filter (sources > 0 and copies > 0 and differ) as altered
from met
"""
MATCHED = """
copy (
    with sides as ({source} union all {copy}), numbered as (
        select *, row_number() over (partition by partition, one, two, ours order by "offset") as occurrence
        from sides
    )
    select partition, one, two, max("offset") filter (ours) as source_offset,
        max("offset") filter (not ours) as copy_offset
    from numbered group by partition, one, two, occurrence
) to '{file}' (format parquet, compression zstd)
"""
BY_CONTENT = """
with pairs as (select * from read_parquet('{file}')), surplus as (
    select s.*, exists (select 1 from pairs p where p.partition = s.partition and p.one = s.one
        and p.two = s.two and p.source_offset is not null) as known
    from pairs s where source_offset is null
), ordered as (
    select copy_offset, max(copy_offset) over (partition by partition order by source_offset
        rows between unbounded preceding and 1 preceding) as earlier
    from pairs where source_offset is not null and copy_offset is not null
)
select (select count(*) from pairs where copy_offset is null) as missing,
    (select count(*) from surplus where not known) as "foreign",
    (select count(*) from surplus where known) as doubled,
    (select count(*) from ordered where earlier > copy_offset) as reordered
"""
SPANS = """
select filename, partition, min("offset"), max("offset") + 1, count(*), min(timestamp_ms), max(timestamp_ms)
from read_parquet($files, hive_partitioning = false, filename = true) group by filename, partition
"""
TIME_RANGE = """
select count(*), min("offset"), max("offset"), sum(octet_length(value))::bigint, count(key), count(headers)
from read_parquet($files, hive_partitioning = false) where timestamp_ms >= $from_ms and timestamp_ms < $to_ms
"""


def connect(folder: Path, threads: int) -> duckdb.DuckDBPyConnection:
    """A connection with DuckDB's defaults, and a folder for data that does not fit into memory."""
    connection = duckdb.connect()
    connection.execute(f"set threads = {threads}")
    connection.execute(f"set temp_directory = '{folder}'")
    connection.execute("set enable_progress_bar = false")
    return connection


def report(
    duck: duckdb.DuckDBPyConnection, files: dict[str, list[str]], folder: Path
) -> dict[str, list[list[Any]]]:
    """The report from both regions' files of windows."""
    big = {"low", "high", "late_low", "late_high"}  # unsigned, and added
    figures = ", ".join(
        f"coalesce(v[{at}]::{'hugeint' if name in big else 'bigint'}, {-(name == 'closed_ms')}) as {name}"
        for at, name in enumerate(COLUMNS[:-1], 1)
    )
    duck.execute(WINDOWS.format(paths=list(PATHS), figures=figures, last=len(PATHS)), files)
    ranks = ", ".join(
        f"min(bin) filter (upto >= greatest(1, ceil({rank}::double * total))) as {name}"
        for rank, name in zip((0.5, 0.95, 0.99), shapes.RANKS, strict=True)
    )
    percentiles = {
        (row["topic"], row["tier"], row["cluster"]): {name: _middle_ms(row[name]) for name in shapes.RANKS}
        for row in _rows(duck, RANKS.format(ranks=ranks))
    }
    traffic = [row | percentiles[row["topic"], row["tier"], row["cluster"]] for row in _rows(duck, SUMS)]
    file = str(folder / "verdicts.parquet")
    duck.execute(VERDICTS.format(file=file))
    pairs: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in _rows(duck, PAIRS, {"file": file}):
        key = (row["topic"], row["from_tier"], row["to_tier"], row["in_group"])
        into = pairs.setdefault(
            key,
            dict(zip((*shapes.PAIR, "group"), key, strict=True))
            | {"states": {}} | dict.fromkeys(shapes.FIGURES, 0),
        )  # fmt: skip
        into["states"][row["state"]] = row["windows"]
        for name in shapes.FIGURES:
            into[name] += row[name]
    return shapes.report(traffic, pairs.values())


def time_range(duck: duckdb.DuckDBPyConnection, files: str, from_ms: int, to_ms: int) -> dict[str, Any]:
    """The range from all files of the topic; their footers say which of them to read."""
    given = {"files": files, "from_ms": from_ms, "to_ms": to_ms}
    found = duck.execute(TIME_RANGE, given).fetchall()[0]
    return dict(zip(("records", "first", "last", "bytes"), found, strict=False))


def counts(duck: duckdb.DuckDBPyConnection, paths: Sequence[str]) -> dict[str, Any]:
    """The records of each partition in each file."""
    return shapes.counts(duck.execute(SPANS, {"files": list(paths)}).fetchall())


def offsets(duck: duckdb.DuckDBPyConnection, pairs: Sequence[tuple[list[str], list[str]]]) -> dict[str, int]:
    """The comparison of a copy that keeps offsets."""
    found: dict[str, int] = {}
    for source, copy in pairs:
        _add(found, _rows(duck, BY_OFFSET.format(**_sides(source, copy, 0))))
    return found


def contents(
    duck: duckdb.DuckDBPyConnection, pairs: Sequence[tuple[list[str], list[str]]], folder: Path
) -> dict[str, int]:
    """The comparison of a copy with offsets of its own."""
    found: dict[str, int] = {}
    file = folder / "pairs.parquet"
    for source, copy in pairs:
        duck.execute(MATCHED.format(file=file, **_sides(source, copy, shapes.SHIFT)))
        _add(found, _rows(duck, BY_CONTENT.format(file=file)))
    return found


def _sides(source: list[str], copy: list[str], shift: int) -> dict[str, str]:
    return {
        "source": HASHED.format(shift=0, ours="true", files=source),
        "copy": HASHED.format(shift=shift, ours="false", files=copy),
    }


def _add(found: dict[str, int], rows: list[dict[str, Any]]) -> None:
    for kind, many in rows[0].items():
        if many:
            found[kind] = found.get(kind, 0) + many


def _rows(
    duck: duckdb.DuckDBPyConnection, text: str, given: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    cursor = duck.execute(text, given)
    names = [one[0] for one in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _middle_ms(number: int) -> float:
    return 0.0 if number == 0 else 2 * GAMMA ** (number - 1) / (GAMMA + 1)
