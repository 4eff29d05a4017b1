"""Rows of windows, and of differences between tiers, from the shares of all workers' books. Pure.

    shares of all workers --joined--> RegionCounts --window_rows--> rows      --verdict_rows--> rows

Rules
1. If several shares hold a partition of the tables, the one that has read furthest counts.
2. `app.audit.folds.tier_pairs` says which tiers are compared. A window is marked as incomplete if it may lack
   records that were gone before they were counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from app.audit.definition import AuditPlan
from app.audit.folds.comparison import WindowState
from app.audit.folds.tier import PlanBounds, TierKey, TierRecord, watermark
from app.audit.folds.tier_pairs import (
    OF_CLUSTERS,
    ComparisonTerms,
    Pair,
    Pairing,
    TierPlace,
    Widths,
    Window,
    complete_ms,
)
from app.audit.folds.window import WindowKey, WindowPhase, WindowRecord, phase
from app.kernel.clock import iso
from app.kernel.json_types import JsonObject
from switchyard.audit.model.places import group_of
from switchyard.audit.model.reports import Scope
from switchyard.audit.model.tally import UNTIMED
from switchyard.audit.model.totals import NO_TOTALS

PlanOf = Callable[[str, str], AuditPlan | None]  # of a cluster's topic
# the client's deviation from the plan (`app.audit.topics.client_scopes`)
OddityOf = Callable[[Scope], str]
Unseen = Callable[[AuditPlan], list[str]]  # regional clusters that a plan does not count
RANKS = (0.5, 0.95, 0.99)
UNCOUNTED_TIMES = "{} of them have times for which there was no room for windows"
IN_ORDER = [WindowPhase.OPEN, WindowPhase.PROVISIONAL, WindowPhase.CLOSED]


class BookShare(msgspec.Struct, frozen=True):
    """The wanted part of a worker's books. `next_offsets`: by partition of the tables. `since`: topic -> the
    time (ms) from which on its windows are here, if some are left out (`app.audit.query.book_share`)."""

    next_offsets: dict[int, int]
    windows: dict[str, WindowRecord]
    tiers: dict[str, TierRecord]
    since: dict[str, int] = {}


class RegionCounts(NamedTuple):
    """The shares of all workers, joined. `since`: as in `BookShare`."""

    windows: Mapping[WindowKey, WindowRecord]
    tiers: Mapping[TierKey, TierRecord]
    since: Mapping[str, int] = MappingProxyType({})

    @property
    def notes(self) -> list[str]:
        """Texts for a reader who takes the rows for all there is."""
        return [
            f"topic {topic} has more windows than an answer takes: none before {iso(start_ms)} is here; "
            "ask for this topic alone, with from and to"
            for topic, start_ms in sorted(self.since.items())
        ]


class WindowQuery(NamedTuple):
    """Selects windows of a topic, tier and cluster ("": all) that begin in [from_ms, before_ms), and those of
    records without a time."""

    topic: str = ""
    tier: str = ""
    cluster: str = ""
    from_ms: int = 0
    before_ms: int = 1 << 62

    def means(self, key: WindowKey | TierKey) -> bool:
        named = ((self.topic, key.topic), (self.tier, key.tier), (self.cluster, key.cluster))
        if not all(wanted in ("", value) for wanted, value in named):
            return False
        if isinstance(key, TierKey) or key.start_ms == UNTIMED:
            return True
        return self.from_ms <= key.start_ms < self.before_ms


def joined(shares: Iterable[BookShare], partition_of: Callable[[str], int]) -> RegionCounts:
    """Joins the shares (rule 1). `partition_of`: topic -> partition of the tables."""
    shares = list(shares)
    furthest: dict[int, BookShare] = {}
    for share in shares:
        for partition, next_offset in share.next_offsets.items():
            known = furthest.get(partition)
            if known is None or known.next_offsets[partition] < next_offset:
                furthest[partition] = share
    windows: dict[WindowKey, WindowRecord] = {}
    tiers: dict[TierKey, TierRecord] = {}
    for share in shares:
        for text, window in share.windows.items():
            key = WindowKey.parse(text)
            if furthest.get(partition_of(key.topic)) is share:
                windows[key] = window
        for text, tier in share.tiers.items():
            name = TierKey.parse(text)
            if furthest.get(partition_of(name.topic)) is share:
                tiers[name] = tier
    since: dict[str, int] = {}
    for share in shares:
        since |= {
            topic: start_ms
            for topic, start_ms in share.since.items()
            if furthest.get(partition_of(topic)) is share
        }
    return RegionCounts(windows, tiers, since)


Shards = dict[tuple[str, str, str], list[TierRecord]]  # topic, tier, cluster


def _shards(known: RegionCounts) -> Shards:
    found: Shards = {}
    for key, record in sorted(known.tiers.items()):
        found.setdefault(key[:3], []).append(record)
    return found


def window_rows(
    known: RegionCounts,
    now_ms: int,
    bounds_of: Callable[[str, str], PlanBounds],
    oddity_of: OddityOf = lambda _: "",
) -> list[JsonObject]:
    """One row for each window of a cluster, newest first."""
    shards = _shards(known)
    groups: defaultdict[WindowKey, list[WindowRecord]] = defaultdict(list)
    for key, record in known.windows.items():
        groups[key._replace(shard=0)].append(record)
    rows = []
    for key, records in sorted(groups.items(), key=lambda item: (-item[0].start_ms, item[0])):
        tiers = shards.get(key[:3], [])
        mark_ms = watermark(tiers, now_ms, bounds_of(key.cluster, key.topic).silence_ms)
        apart = sum(record.apart.count for record in records)
        remarks = [UNCOUNTED_TIMES.format(apart) if apart else "", oddity_of(key.scope)]
        row = _window_row(key, records, tiers, mark_ms)
        rows.append({**row, "remark": "; ".join(filter(None, remarks))})
    return rows


def _window_row(
    key: WindowKey, records: list[WindowRecord], tiers: list[TierRecord], mark_ms: int
) -> JsonObject:
    totals = late = NO_TOTALS
    for record in records:
        totals, late = totals.plus(record.totals).plus(record.apart), late.plus(record.late)
    both = totals.plus(late)
    is_timed = key.start_ms != UNTIMED
    p50, p95, p99 = (None if rank < 0 else rank for rank in both.percentiles_ms(*RANKS))
    state = min((phase(key, record, mark_ms) for record in records), key=IN_ORDER.index)
    return {
        "topic": key.topic,
        "tier": key.tier,
        "cluster": key.cluster,
        "start_ms": key.start_ms if is_timed else None,
        "start": iso(key.start_ms) if is_timed else None,
        "end_ms": key.end_ms if is_timed else None,
        "state": state.value,
        "complete": not is_timed or key.start_ms >= complete_ms(tiers),
        "count": both.count,
        "bytes": both.nbytes,
        "duplicates": both.duplicates,
        "late": late.count,
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "ids": str(both.ids) if both.count and both.identified == both.count else None,
        "without": sorted({name for record in records for name in record.without}),
    }


def verdict_rows(known: RegionCounts, now_ms: int, plan_of: PlanOf, unseen: Unseen) -> list[JsonObject]:
    """One row for each window and pair of consecutive tiers (`app.audit.folds.tier_pairs`), newest first."""
    topics: defaultdict[str, dict[TierPlace, list[TierRecord]]] = defaultdict(dict)
    live: defaultdict[str, set[TierPlace]] = defaultdict(set)
    plans: dict[str, AuditPlan] = {}
    for (topic, tier, cluster), records in _shards(known).items():
        topics[topic][tier, cluster] = records
        plan = plan_of(cluster, topic)
        if plan is not None or (tier not in OF_CLUSTERS and not group_of(cluster)[1]):
            live[topic].add((tier, cluster))
        if plan is not None:
            plans.setdefault(topic, plan)
    windows: defaultdict[str, dict[Window, list[tuple[TierPlace, WindowRecord]]]] = defaultdict(dict)
    for key, record in sorted(known.windows.items()):
        of = windows[key.topic].setdefault((key.start_ms, key.width_ms), [])
        of.append(((key.tier, key.cluster), record))
    rows = []
    for topic, found in sorted(windows.items()):
        pairing = Pairing(topics[topic], live[topic], _terms_of(plans.get(topic), unseen))
        widths = Widths((place, window) for window, held in found.items() for place, _ in held)
        for window, held in found.items():
            compared = pairing.compared(*window, held, widths, now_ms)
            rows += [{"topic": topic, "group": pair.group or None, **_verdict_row(pair)} for pair in compared]
    return sorted(rows, key=lambda row: (-row["start_ms"], row["topic"]))


def _terms_of(plan: AuditPlan | None, unseen: Unseen) -> ComparisonTerms:
    if plan is None:
        return ComparisonTerms()
    return ComparisonTerms(plan.width_ms, plan.bounds, plan.spec.tiers, tuple(unseen(plan)))


def _verdict_row(pair: Pair) -> JsonObject:
    verdict = pair.verdict
    differs = verdict.state is WindowState.CORRUPTED
    return {
        "from_tier": pair.from_tier,
        "to_tier": pair.to_tier,
        "start_ms": pair.start_ms,
        "start": iso(pair.start_ms),
        "end_ms": pair.end_ms,
        "state": verdict.state.value,
        "from_count": pair.from_count,
        "to_count": pair.to_count,
        "missing": None if differs else verdict.missing,
        "extra": None if differs else verdict.extra,
        "by": verdict.by.value,
        "absent": list(verdict.absent),
        "lag_ms": verdict.lag_ms,
        "behind_ms": verdict.behind_ms,
        "closed": pair.is_closed,
        "remark": pair.remark,
    }
