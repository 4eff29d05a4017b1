"""A store of `python -m spark dashboard`, made from a seed: windows of two regions, a file a region and date.

A topic's records go from producers (proxy-client) through east's cluster (regional) to west's (aggregate),
where a group reads them. Both regions count the aggregate; in the east it sometimes has a record less. So a
topic has five rows a minute. Growth is more days, as in a store whose audits keep running.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from app.archive.layout import ArchiveChange, ArchiveFile, FileSpan
from app.archive.log import Archive
from app.audit.folds.counted_parts import Counted
from app.audit.folds.tier import CONSUMER, Closing, SourceStatus, TierKey, TierRecord
from app.audit.folds.window import WindowKey, WindowRecord
from app.controllog import codec
from spark.dashboard.decode import TIERS, UNDATED, WINDOWS, date_of
from spark.dashboard.frames import ENTRY
from spark.dashboard.store import STATE
from switchyard.audit.model.fingerprint import Fingerprint
from switchyard.audit.model.latencies import Latencies
from switchyard.audit.model.places import place_of
from switchyard.audit.model.totals import NO_TOTALS, Totals
from tests.bench.reporting.files import Progress, arrow_schema, run_tasks, write

START_MS = 1_756_684_800_000  # 2025-09-01T00:00Z
WIDTH_MS = 60_000
DAY_MINUTES = 1440
TOPICS = 40
ROWS_A_MINUTE = 5  # of a topic
AFTERWARDS_MS = 6 * 3_600_000  # no source is recent when the report is made
CLOSED_AFTER_MS = 120_000
PLACES = {
    "east": (("proxy-client", "shop"), ("regional", "east-regional"), ("aggregate", "west-aggregate")),
    "west": (("aggregate", "west-aggregate"), (CONSUMER, place_of("west-aggregate", "billing"))),
}
# How many windows in 1000 lose, double or change records on the way to the aggregate, get some late, or lose
# some on the way to the group.
LOSSY, DOUBLED, CORRUPTED, LATE, UNREAD = 10, 10, 5, 15, 5
BEHIND = 50  # one in this many windows of the aggregate has a record less in the east
HISTOGRAMS = 256
MEASURED = 60  # latencies in one


@dataclass(frozen=True, slots=True)
class Day:
    """One task: the windows of these minutes."""

    root: Path
    seed: int
    number: int
    minutes: int


def minutes_of(rows: int) -> int:
    """The minutes that make about this many rows."""
    return max(1, rows // (ROWS_A_MINUTE * TOPICS))


def end_ms(rows: int) -> int:
    """The end of the last window."""
    return START_MS + minutes_of(rows) * WIDTH_MS


def make(root: Path, rows: int, seed: int, progress: Progress) -> int:
    """Makes the store of both regions below `root`; returns the number of rows."""
    minutes = minutes_of(rows)
    days = [
        Day(root, seed, number, min(DAY_MINUTES, minutes - number * DAY_MINUTES))
        for number in range(-(-minutes // DAY_MINUTES))
    ]
    archives = {region: Archive.create(root / region, f"cluster-{region}") for region in PLACES}
    added: dict[str, list[ArchiveFile]] = {region: [_tiers(root, region, rows)] for region in PLACES}
    for files in run_tasks(_day, days, progress, f"making {rows:,} audit rows"):
        for region, file in files.items():
            added[region].append(file)
    for region, archive in archives.items():
        archive.commit(ArchiveChange("fold", end_ms(rows), added=tuple(added[region])))
    return minutes * TOPICS * ROWS_A_MINUTE


def _tiers(root: Path, region: str, rows: int) -> ArchiveFile:
    """The state of tiers: all sources have reported until now, and all windows are closed."""
    ended_ms = end_ms(rows)
    heard_ms = ended_ms + AFTERWARDS_MS
    closing = Closing(ended_ms, 10**9, ended_ms + CLOSED_AFTER_MS)
    record = codec.encode(
        TierRecord({"reader-1": SourceStatus(heard_ms, heard_ms)}, (closing,), position=10**9)
    )
    keys = [str(TierKey(_topic(n), *place)) for n in range(TOPICS) for place in PLACES[region]]
    return _file(root, region, TIERS, UNDATED, [(key, 10**9, record) for key in keys], heard_ms)


def _topic(number: int) -> str:
    return f"shop.orders-{number:02}"


def _day(day: Day) -> dict[str, ArchiveFile]:
    """The rows of a day in the order of time, topic by topic, as the tables get them."""
    rng = np.random.default_rng([day.seed, day.number])
    pools = _histograms(day.seed)
    rows: dict[str, list[tuple[str, int, bytes]]] = {region: [] for region in PLACES}
    first_ms = START_MS + day.number * DAY_MINUTES * WIDTH_MS
    for minute in range(day.minutes):
        start_ms = first_ms + minute * WIDTH_MS
        counts = (rng.poisson(200, TOPICS) + 20).tolist()
        chances = rng.integers(0, 1000, TOPICS).tolist()
        amounts = rng.integers(1, 10, TOPICS).tolist()
        words = rng.integers(0, 1 << 64, (TOPICS, 2), dtype=np.uint64, endpoint=False).tolist()
        shapes = rng.integers(0, HISTOGRAMS, TOPICS).tolist()
        behind = (rng.integers(0, BEHIND, TOPICS) == 0).tolist()
        for number in range(TOPICS):
            position = (day.number * DAY_MINUTES + minute) * TOPICS + number
            key = partial(_key, _topic(number), start_ms)
            count, shape = counts[number], shapes[number]
            sent = Fingerprint(*words[number])
            whole, copied, late, read = _fates(chances[number], count, amounts[number], sent)
            record = partial(_record, start_ms=start_ms, position=position, topic=number)
            latencies = [pool[shape] for pool in pools]
            aggregate = record(copied, latencies[2], late)
            eastern = (
                record((max(0, copied[0] - 1), sent), latencies[2], late) if behind[number] else aggregate
            )
            east, west = rows["east"], rows["west"]
            for place, value in zip(
                PLACES["east"],
                (record(whole, latencies[0]), record(whole, latencies[1]), eastern),
                strict=True,
            ):
                east.append((key(place), position, value))
            for place, value in zip(PLACES["west"], (aggregate, record(read, latencies[3])), strict=True):
                west.append((key(place), position, value))
    date = date_of(first_ms)
    return {region: _file(day.root, region, WINDOWS, date, rows[region], first_ms) for region in PLACES}


def _key(topic: str, start_ms: int, place: tuple[str, str]) -> str:
    return str(WindowKey(topic, *place, WIDTH_MS, start_ms))


Seen = tuple[int, Fingerprint]
NONE_SEEN: Seen = (0, Fingerprint())


def _fates(chance: int, count: int, amount: int, sent: Fingerprint) -> tuple[Seen, Seen, Seen, Seen]:
    """Records sent, records at the aggregate in time, late ones there, and records that its group read."""
    whole = (count, sent)
    part = Fingerprint(amount * 0x9E3779B9, amount)
    if chance < (upto := LOSSY):
        copied = (count - amount, sent.minus(part))
    elif chance < (upto := upto + DOUBLED):
        copied = (count + amount, sent.plus(part))
    elif chance < (upto := upto + CORRUPTED):
        copied = (count, sent.plus(part))
    elif chance < (upto := upto + LATE):
        return whole, (count - amount, sent.minus(part)), (amount, part), whole
    elif chance < upto + UNREAD:
        return whole, whole, NONE_SEEN, (count - amount, sent.minus(part))
    else:
        copied = whole
    return whole, copied, NONE_SEEN, copied


def _record(
    seen: Seen, latencies: bytes, late: Seen = NONE_SEEN, *, start_ms: int, position: int, topic: int
) -> bytes:
    count, ids = seen
    end = position * 250
    totals = Totals(
        count=count,
        nbytes=137 * count,
        duplicates=int(position % 97 == 0),
        ids=ids,
        identified=count,
        latencies=latencies,
        first_ms=start_ms + 17,
        last_ms=start_ms + WIDTH_MS - 23,
    )
    after = NO_TOTALS
    if late[0]:
        after = Totals(count=late[0], nbytes=137 * late[0], ids=late[1], identified=late[0])
    record = WindowRecord(
        totals=totals,
        late=after,
        late_ms=start_ms + 300_000 if late[0] else -1,
        closed_ms=start_ms + WIDTH_MS + CLOSED_AFTER_MS,
        counted={
            f"reader-{topic % 8}": Counted(done=((end >> 16, (end >> 16) + 1),), span=(end, end + count))
        },
        position=position,
    )
    return codec.encode(record)


def _histograms(seed: int) -> list[list[bytes]]:
    """Histograms by tier, which windows share: the cost of a merge does not depend on sharing."""
    rng = np.random.default_rng([seed, 1 << 30])
    found = []
    for median_ms in (4.0, 9.0, 40.0, 90.0):
        pool = []
        for _ in range(HISTOGRAMS):
            one = Latencies()
            one.add(rng.lognormal(np.log(median_ms), 0.6, MEASURED).astype(np.int64))
            pool.append(one.to_bytes())
        found.append(pool)
    return found


def _file(
    root: Path, region: str, table: str, date: str, rows: list[tuple[str, int, bytes]], at_ms: int
) -> ArchiveFile:
    keys, positions, values = zip(*rows, strict=True)
    many = len(rows)
    columns: dict[str, Any] = {
        "table": pa.repeat(table, many), "date": pa.repeat(date, many), "key": keys,
        "generation": pa.repeat(0, many), "position": positions, "partition": np.arange(many) % 8,
        "offset": positions, "timestamp_ms": pa.repeat(at_ms, many), "value": values,
        "reason": pa.nulls(many),
    }  # fmt: skip
    schema = arrow_schema(ENTRY)
    arrays = [
        column.cast(field.type) if isinstance(column, pa.Array) else pa.array(column, field.type)
        for field, column in zip(schema, (columns[name] for name in schema.names), strict=True)
    ]
    path = Path(STATE, f"topic={table}", f"date={date}", f"{region}-{date}.parquet")
    size = write(pa.Table.from_arrays(arrays, schema=schema), root / region / path)
    return ArchiveFile(
        path.as_posix(), STATE, table, "", date, "none", size, (FileSpan(-1, 0, 0, many, -1, -1),)
    )
