"""The report by one Python process: the project's own rules, without Spark.

It reads one date at a time, because all of them would not fit into memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from app.archive.log import Archive
from app.audit.folds.comparison import WindowState
from app.audit.folds.tier import PlanBounds, TierRecord
from app.audit.folds.tier_pairs import OF_CLUSTERS, TierPlace
from app.audit.folds.window import WindowKey, WindowRecord
from app.controllog.codec import tier_record, window_record
from spark.dashboard.decode import TIERS, WINDOWS
from spark.dashboard.plans import Comparer, Plans, compared
from spark.dashboard.store import STATE, files_of
from switchyard.audit.model.latencies import Latencies
from tests.bench.reporting import audits, shapes


class Sums:
    """The sums of a place."""

    __slots__ = ("figures", "latencies")

    def __init__(self) -> None:
        self.figures: Counter[str] = Counter()
        self.latencies = Latencies()


def report(root: Path, rows: int) -> dict[str, list[list[Any]]]:
    """The same as `ours.report`, but writes no files."""
    now_ms = audits.end_ms(rows) + audits.AFTERWARDS_MS
    files, tiers, heard = _files(root)
    traffic: defaultdict[tuple[str, str, str], Sums] = defaultdict(Sums)
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    comparer = Comparer(compared(tiers, heard, Plans([], {}), PlanBounds().silence_ms), {}, now_ms)
    for date in sorted(files):
        best = _best(files[date])
        windows: defaultdict[tuple[str, int, int], list[tuple[str, TierPlace, WindowRecord]]] = defaultdict(
            list
        )
        for key, (_, _, region, record) in best.items():
            totals = record.totals.plus(record.late)
            sums = traffic[key.topic, key.tier, key.cluster]
            sums.figures.update(
                windows=1, records=totals.count, bytes=totals.nbytes, duplicates=totals.duplicates,
                late=record.late.count,
            )  # fmt: skip
            sums.latencies.merge(Latencies.from_bytes(totals.latencies))
            windows[key.topic, key.start_ms, key.width_ms].append((region, (key.tier, key.cluster), record))
        for (topic, start_ms, width_ms), rows_of_window in windows.items():
            for region, pair in comparer.pairs(topic, start_ms, width_ms, rows_of_window):
                key_ = (topic, pair.from_tier, pair.to_tier, pair.group)
                into = found.setdefault(
                    (region, *key_),
                    dict(zip((*shapes.PAIR, "group"), key_, strict=True))
                    | {"states": Counter()} | dict.fromkeys(shapes.FIGURES, 0),
                )  # fmt: skip
                verdict = pair.verdict
                into["states"][verdict.state.value] += 1
                into["from_count"] += pair.from_count
                into["to_count"] += pair.to_count
                if verdict.state in (WindowState.LOSSY, WindowState.DUPLICATED):
                    into["missing"] += verdict.missing
                    into["extra"] += verdict.extra
    return shapes.report(_traffic(traffic), found.values())


Tiers = dict[str, dict[TierPlace, list[TierRecord]]]  # by topic and place
Heard = dict[tuple[str, TierPlace], set[str]]  # by topic and place: the regions that have heard it


def _files(root: Path) -> tuple[dict[str, list[tuple[str, Path]]], Tiers, Heard]:
    """By date the files of all regions, the tiers of each topic, and the regions with reports of them."""
    files: defaultdict[str, list[tuple[str, Path]]] = defaultdict(list)
    tiers: defaultdict[str, dict[TierPlace, list[TierRecord]]] = defaultdict(dict)
    heard: defaultdict[tuple[str, TierPlace], set[str]] = defaultdict(set)
    for region in audits.PLACES:
        archive = Archive.open(root / region)
        for file in files_of(archive.state(), STATE):
            path = archive.root / file.path
            if file.topic == WINDOWS:
                files[file.date].append((region, path))
            elif file.topic == TIERS:
                for key, value in _columns(path):
                    topic, tier, cluster, _ = key.split("/")
                    tiers[topic][tier, cluster] = [tier_record(value)]
                    heard[topic, (tier, cluster)].add(region)
    return dict(files), dict(tiers), dict(heard)


def _best(files: list[tuple[str, Path]]) -> dict[WindowKey, tuple[int, bool, str, WindowRecord]]:
    """For a cluster that both regions count, the region's row with the most records of a window."""
    best: dict[WindowKey, tuple[int, bool, str, WindowRecord]] = {}
    for region, path in files:
        for text, value in _columns(path):
            key, record = WindowKey.parse(text), window_record(value)
            one = (record.totals.count + record.late.count, record.is_closed, region, record)
            best_so_far = best.get(key)
            if best_so_far is None or key.tier not in OF_CLUSTERS or one[:3] > best_so_far[:3]:
                best[key] = one
    return best


def _columns(path: Path) -> Iterator[tuple[str, bytes]]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["key", "value"]):
            yield from zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)


def _traffic(found: dict[tuple[str, str, str], Sums]) -> Iterator[dict[str, Any]]:
    for place, sums in found.items():
        ranks = sums.latencies.quantiles_ms((0.5, 0.95, 0.99))
        yield (
            dict(zip(shapes.PLACE, place, strict=True))
            | sums.figures
            | dict(zip(shapes.RANKS, ranks, strict=True))
        )
