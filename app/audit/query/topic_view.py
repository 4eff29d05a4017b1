"""A row for each topic, from the rows of its windows and differences. Pure.

A topic's state is the worst among its verdicts: a loss, then an unknown window, then ok; provisional only if
none is decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from app.audit.folds.comparison import WindowState
from app.audit.folds.tier import PlanBounds, TierRecord
from app.audit.folds.tier_pairs import ORDER
from app.audit.query.view import RegionCounts
from app.kernel.clock import iso
from app.kernel.json_types import JsonMapping, JsonObject

WORST_FIRST = (
    WindowState.LOSSY,
    WindowState.CORRUPTED,
    WindowState.DUPLICATED,
    WindowState.LATE,
    WindowState.ABSENT,
    WindowState.OK,
    WindowState.PROVISIONAL,
)
NOT_COMPARED = "not-compared"  # no two tiers count it, or no window of it is known from its beginning
LOST = {WindowState.LOSSY.value, WindowState.CORRUPTED.value}

VerdictRows = Iterable[JsonMapping]


def topic_rows(
    known: RegionCounts,
    windows: VerdictRows,
    verdicts: VerdictRows,
    now_ms: int,
    bounds_of: Callable[[str, str], PlanBounds],
) -> list[JsonObject]:
    """One row for each topic, by name. `windows`, `verdicts`: the rows of `view` for the same `known`."""
    tiers: dict[str, dict[tuple[str, str], list[TierRecord]]] = {}
    for key, record in known.tiers.items():
        tiers.setdefault(key.topic, {}).setdefault((key.tier, key.cluster), []).append(record)
    of_windows = _by_topic(windows)
    of_verdicts = _by_topic(verdicts)
    return [
        _row(
            topic,
            tiers.get(topic, {}),
            of_windows.get(topic, []),
            of_verdicts.get(topic, []),
            now_ms,
            bounds_of,
        )
        for topic in sorted(tiers.keys() | of_windows.keys())
    ]


def _by_topic(rows: VerdictRows) -> dict[str, list[JsonMapping]]:
    found: dict[str, list[JsonMapping]] = {}
    for row in rows:
        found.setdefault(row["topic"], []).append(row)
    return found


def _row(
    topic: str,
    tiers: Mapping[tuple[str, str], list[TierRecord]],
    windows: list[JsonMapping],
    verdicts: list[JsonMapping],
    now_ms: int,
    bounds_of: Callable[[str, str], PlanBounds],
) -> JsonObject:
    states = Counter(row["state"] for row in verdicts)
    newest_ms = max((row["start_ms"] for row in windows if row["start_ms"] is not None), default=None)
    lossy = [row for row in verdicts if row["state"] == WindowState.LOSSY.value]
    doubled = [row for row in verdicts if row["state"] == WindowState.DUPLICATED.value]
    return {
        "topic": topic,
        "tiers": in_order({tier for tier, _ in tiers}),
        "state": next((state.value for state in WORST_FIRST if states[state.value]), NOT_COMPARED),
        "states": {state.value: states[state.value] for state in WindowState},
        "windows": len({(row["start_ms"], row["end_ms"]) for row in windows}),
        "incomplete": len({row["start_ms"] for row in windows if not row["complete"]}),
        "missing": sum(row["missing"] or 0 for row in lossy),
        "extra": sum(row["extra"] or 0 for row in doubled),
        "late": sum(row["late"] for row in windows),
        "duplicates": sum(row["duplicates"] for row in windows),
        "absent": sorted({name for row in verdicts for name in row["absent"]}),
        "silent": [
            f"{tier}/{cluster}"
            for (tier, cluster), records in sorted(tiers.items())
            if _is_silent(records, now_ms, bounds_of(cluster, topic).silence_ms)
        ],
        "newest_ms": newest_ms,
        "newest": None if newest_ms is None else iso(newest_ms),
    }


def in_order(tiers: Collection[str]) -> list[str]:
    """The tiers in the order of a record's way, then others by name."""
    return [tier for tier in ORDER if tier in tiers] + sorted(set(tiers) - set(ORDER))


def _is_silent(records: Iterable[TierRecord], now_ms: int, silence_ms: int) -> bool:
    heard = (source.heard_ms for record in records for source in record.sources.values())
    return now_ms - max(heard, default=0) > silence_ms
