"""One window of a topic, all of its tiers: each compared with the next. Pure.

The rules are those of the console (`app.audit.view`), but for what only a plan can say: the tiers are those
that were heard, in the way of a record; bounds are `tiers.Bounds`' defaults unless others are given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from app.core.audit.compare import compare, side
from app.core.audit.count import UNTIMED
from app.core.audit.tiers import CONSUMER, Bounds, TierRecord, group_of, lateness
from app.core.audit.windows import Phase, WindowRecord

ORDER = ("proxy-client", "proxy-server", "regional", "aggregate", CONSUMER)  # in the way of a record
OF_CLUSTERS = ("regional", "aggregate")  # counted from logs: by whoever counts, the same

Place = tuple[str, str]  # tier and cluster, or group's place
Tiers = Mapping[Place, Sequence[TierRecord]]


class Pair(NamedTuple):
    """What is said of a window between two tiers; `group` of what a consumer group has finished, else ""."""

    from_tier: str
    to_tier: str
    group: str
    state: str
    from_count: int
    to_count: int
    missing: int
    extra: int
    by: str
    absent: str
    lag_ms: float | None
    behind_ms: int
    is_closed: bool


def pairs(
    start_ms: int,
    width_ms: int,
    windows: Iterable[tuple[Place, WindowRecord]],
    tiers: Tiers,
    now_ms: int,
    bounds: Bounds,
) -> Iterator[Pair]:
    """What is to be said of the window; `tiers`: of its topic."""
    if start_ms == UNTIMED:
        return
    seen: defaultdict[Place, list[WindowRecord]] = defaultdict(list)
    for place, record in windows:
        seen[place].append(record)
    meant = {
        place
        for place, records in tiers.items()
        if place in seen or _is_counted(records, start_ms + width_ms, bounds)
    } | seen.keys()
    named: defaultdict[str, list[Place]] = defaultdict(list)
    groups: list[Place] = []
    for tier, cluster in sorted(meant):
        if group_of(cluster)[1]:
            groups.append((tier, cluster))
        else:
            named[tier].append((tier, cluster))
    order = sorted(named, key=_rank)
    compared: list[tuple[str, list[Place], list[Place]]] = [
        ("", named[first], named[second]) for first, second in pairwise(order)
    ]
    for place in groups:
        cluster, group = group_of(place[1])
        before = next(([(tier, cluster)] for tier in order if (tier, cluster) in meant), None)
        if before is None and order:
            before = named[order[-1]]
        if before:
            compared.append((group, before, [place]))
    for group, first, second in compared:
        records = [record for place in (*first, *second) for record in tiers.get(place, ())]
        if start_ms < max((record.complete_ms for record in records), default=-1):
            continue  # what had gone before it was counted is not lost
        patience_ms = lateness(records, bounds) + bounds.silence_ms
        before_side, after_side = (
            side(
                places[0][0],
                start_ms + width_ms,
                [record for place in places for record in seen.get(place, ())],
                [list(tiers.get(place, ())) for place in places],
                now_ms,
                bounds.silence_ms,
            )
            for places in (first, second)
        )
        verdict = compare(before_side, after_side, start_ms + width_ms, now_ms, patience_ms)
        yield Pair(
            first[0][0],
            second[0][0],
            group,
            verdict.state.value,
            before_side.all.count,
            after_side.all.count,
            verdict.missing,
            verdict.extra,
            verdict.by.value,
            ", ".join(verdict.absent),
            verdict.lag_ms,
            verdict.behind_ms,
            before_side.phase is after_side.phase is Phase.CLOSED,
        )


def _rank(tier: str) -> tuple[int, str]:
    return (ORDER.index(tier) if tier in ORDER else len(ORDER), tier)


def _is_counted(records: Sequence[TierRecord], end_ms: int, bounds: Bounds) -> bool:
    """Whether anybody was still heard there when the window ended, or shortly before."""
    heard = [source.heard_ms for record in records for source in record.sources.values()]
    return max(heard, default=-1) >= end_ms - bounds.give_up_ms
