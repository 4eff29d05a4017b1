"""What is told of windows and of differences between tiers: pure, of what the workers' books hold.

    shares of all workers --joined--> Known --windows--> rows      --verdicts--> rows

Rules
1. Of several shares that hold a partition of the tables the furthest one counts.
2. Tiers are compared each with the next in the plan's order, of those that count the topic, and of those that
   the plan names. A cluster that no plan counts any more has its part in the windows that it has, only.
3. Windows that may lack what had gone before it was counted are told as incomplete, and not compared; nor
   are those of another width than the plan has now: where it was changed, each has a part of the records.
   A tier that has such windows at the time of one that is compared lacks their records: it is told as absent.
4. An aggregate cluster may have records of regional clusters that the plan does not count: more there than
   here says nothing then (`Unseen`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from app.clock import iso
from app.config.audit import TIERS, AuditPlan
from app.core.audit.compare import Side, State, Verdict, compare, side
from app.core.audit.count import UNTIMED
from app.core.audit.reports import Scope
from app.core.audit.tiers import Bounds, TierKey, TierRecord, lateness, watermark
from app.core.audit.totals import NO_TOTALS
from app.core.audit.windows import Phase, WindowKey, WindowRecord, phase
from app.core.topology import AGGREGATE, REGIONAL

PlanOf = Callable[[str, str], AuditPlan | None]  # of a cluster's topic
OddityOf = Callable[[Scope], str]  # what a client counts otherwise than planned (`app.audit.planned`)
Unseen = Callable[[AuditPlan | None], list[str]]  # regional clusters that a plan does not count
OF_CLUSTERS = (REGIONAL, AGGREGATE, "other")  # tiers that plans count; others are told by clients
MOST_WIDTHS = 3  # that are named
RANKS = (0.5, 0.95, 0.99)
IN_ORDER = [Phase.OPEN, Phase.PROVISIONAL, Phase.CLOSED]


class Share(msgspec.Struct, frozen=True):
    """What a worker's books hold of what was asked for. `next_offsets`: of the partitions it has books of.
    `since`: topics of which only windows that begin then or later are told (`app.audit.share`)."""

    next_offsets: dict[int, int]
    windows: dict[str, WindowRecord]
    tiers: dict[str, TierRecord]
    since: dict[str, int] = {}


class Known(NamedTuple):
    """What the region knows. `since`: as in `Share`."""

    windows: Mapping[WindowKey, WindowRecord]
    tiers: Mapping[TierKey, TierRecord]
    since: Mapping[str, int] = MappingProxyType({})

    @property
    def notes(self) -> list[str]:
        """What a person must know who reads it as if it were all."""
        return [
            f"topic {topic} has more windows than are told at once: none that begins before {iso(start_ms)} "
            "is here; ask for this topic alone, and with from and to"
            for topic, start_ms in sorted(self.since.items())
        ]


class Wanted(NamedTuple):
    """Which windows: of a topic, tier, cluster ("": of all), that begin in [from_ms, before_ms); and that of
    records without a time."""

    topic: str = ""
    tier: str = ""
    cluster: str = ""
    from_ms: int = 0
    before_ms: int = 1 << 62

    def means(self, key: WindowKey | TierKey) -> bool:
        """Whether a window, or a tier, is among them."""
        named = ((self.topic, key.topic), (self.tier, key.tier), (self.cluster, key.cluster))
        if not all(name in ("", told) for name, told in named):
            return False
        if isinstance(key, TierKey) or key.start_ms == UNTIMED:
            return True
        return self.from_ms <= key.start_ms < self.before_ms


def joined(shares: Iterable[Share], partition_of: Callable[[str], int]) -> Known:
    """Rule 1; `partition_of` a topic."""
    shares = list(shares)
    furthest: dict[int, Share] = {}
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
    return Known(windows, tiers, since)


Shards = dict[tuple[str, str, str], list[TierRecord]]  # topic, tier, cluster


def _shards(known: Known) -> Shards:
    found: Shards = {}
    for key, record in sorted(known.tiers.items()):
        found.setdefault(key[:3], []).append(record)
    return found


def window_rows(
    known: Known, now_ms: int, bounds_of: Callable[[str, str], Bounds], oddity_of: OddityOf = lambda _: ""
) -> list[dict[str, Any]]:
    """A row a window of a cluster, the newest first."""
    shards = _shards(known)
    groups: defaultdict[WindowKey, list[WindowRecord]] = defaultdict(list)
    for key, record in known.windows.items():
        groups[key._replace(shard=0)].append(record)
    rows = []
    for key, records in sorted(groups.items(), key=lambda item: (-item[0].start_ms, item[0])):
        tiers = shards.get(key[:3], [])
        mark_ms = watermark(tiers, now_ms, bounds_of(key.cluster, key.topic).silence_ms)
        rows.append({**_window_row(key, records, tiers, mark_ms), "remark": oddity_of(key.scope)})
    return rows


def _window_row(
    key: WindowKey, records: list[WindowRecord], tiers: list[TierRecord], mark_ms: int
) -> dict[str, Any]:
    totals = late = NO_TOTALS
    for record in records:
        totals, late = totals.plus(record.totals), late.plus(record.late)
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
        "complete": not is_timed or key.start_ms >= _complete_ms(tiers),
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


def _complete_ms(tiers: Iterable[TierRecord]) -> int:
    return max((record.complete_ms for record in tiers), default=-1)


class _Tier:
    """What is known of a topic at a tier. `live`: its clusters that are counted now."""

    def __init__(self) -> None:
        self.clusters: dict[str, list[TierRecord]] = {}
        self.live: set[str] = set()
        self.windows: dict[tuple[int, int], dict[str, list[WindowRecord]]] = {}
        self._starts: dict[int, list[int]] | None = None

    def other_widths(self, start_ms: int, width_ms: int) -> list[int]:
        """Of windows at the same time that are not of the same width. Ask once all are known."""
        if self._starts is None:
            self._starts = {}
            for start, width in sorted(self.windows):
                self._starts.setdefault(width, []).append(start)
        found = []
        for width, starts in self._starts.items():
            at = bisect_left(starts, start_ms + width_ms) - 1  # the last that begins before its end
            if width != width_ms and at >= 0 and starts[at] != UNTIMED and starts[at] + width > start_ms:
                found.append(width)
        return sorted(found)

    @property
    def records(self) -> list[TierRecord]:
        """Of clusters that are counted now."""
        return [record for cluster in sorted(self.live) for record in self.clusters[cluster]]

    def side(self, name: str, start_ms: int, width_ms: int, now_ms: int, silence_ms: int) -> Side:
        """Its part of a comparison. A cluster that is not counted any more has one in windows that it has."""
        windows = self.windows.get((start_ms, width_ms), {})
        meant = sorted(self.live | windows.keys())
        records = [record for of_cluster in windows.values() for record in of_cluster]
        clusters = [self.clusters.get(cluster, []) for cluster in meant]
        return side(name, start_ms + width_ms, records, clusters, now_ms, silence_ms)


def verdict_rows(known: Known, now_ms: int, plan_of: PlanOf, unseen: Unseen) -> list[dict[str, Any]]:
    """A row a window and pair of tiers that follow on each other, the newest first."""
    topics: defaultdict[str, defaultdict[str, _Tier]] = defaultdict(lambda: defaultdict(_Tier))
    plans: dict[str, AuditPlan] = {}
    for (topic, tier, cluster), records in _shards(known).items():
        at, plan = topics[topic][tier], plan_of(cluster, topic)
        at.clusters[cluster] = records
        if plan is not None or tier not in OF_CLUSTERS:
            at.live.add(cluster)
        if plan is not None:
            plans.setdefault(topic, plan)
    for key, record in sorted(known.windows.items()):
        window = topics[key.topic][key.tier].windows.setdefault((key.start_ms, key.width_ms), {})
        window.setdefault(key.cluster, []).append(record)
    rows = []
    for topic, tiers in sorted(topics.items()):
        plan = plans.get(topic)
        for first, second in pairwise(_in_order(plan, {name for name, tier in tiers.items() if tier.live})):
            compared = _compared((first, tiers[first]), (second, tiers[second]), now_ms, plan, unseen)
            rows += [{"topic": topic, **row} for row in compared]
    return sorted(rows, key=lambda row: (-row["start_ms"], row["topic"]))


def _in_order(plan: AuditPlan | None, tiers: Collection[str]) -> list[str]:
    """Rule 2."""
    named = () if plan is None else plan.spec.tiers
    return [tier for tier in named or TIERS if tier in tiers or tier in named]


def _compared(
    first: tuple[str, _Tier], second: tuple[str, _Tier], now_ms: int, plan: AuditPlan | None, unseen: Unseen
) -> Iterator[dict[str, Any]]:
    bounds = Bounds() if plan is None else plan.bounds
    records = first[1].records + second[1].records
    patience_ms = lateness(records, bounds) + bounds.silence_ms
    complete_ms = _complete_ms(records)
    others = unseen(plan) if second[0] == AGGREGATE else []
    for start_ms, width_ms in sorted(first[1].windows.keys() | second[1].windows.keys()):
        if start_ms == UNTIMED or start_ms < complete_ms or (plan is not None and width_ms != plan.width_ms):
            continue
        before, after = (
            tier.side(name, start_ms, width_ms, now_ms, bounds.silence_ms) for name, tier in (first, second)
        )
        verdict = compare(before, after, start_ms + width_ms, now_ms, patience_ms)
        if verdict.extra and verdict.state is State.DUPLICATED and others:  # rule 4
            verdict = verdict._replace(state=State.ABSENT, absent=tuple(others))
        odd = {
            name: found for name, tier in (first, second) if (found := tier.other_widths(start_ms, width_ms))
        }
        if odd and verdict.state not in (State.OK, State.PROVISIONAL):  # rule 3
            verdict = verdict._replace(state=State.ABSENT, absent=tuple(odd))
        row = _verdict_row(
            (first[0], second[0]), start_ms, start_ms + width_ms, verdict, before.all.count, after.all.count
        )
        yield {**row, "remark": "; ".join(_other(name, odd[name], width_ms) for name in odd)}


def _other(tier: str, widths_ms: list[int], width_ms: int) -> str:
    told = ", ".join(map(str, widths_ms[:MOST_WIDTHS]))
    return f"{tier} also counts in windows of {told} ms, which those of {width_ms} ms lack"


def _verdict_row(
    pair: tuple[str, str], start_ms: int, end_ms: int, verdict: Verdict, before: int, after: int
) -> dict[str, Any]:
    differs = verdict.state is State.CORRUPTED
    return {
        "from_tier": pair[0],
        "to_tier": pair[1],
        "start_ms": start_ms,
        "start": iso(start_ms),
        "end_ms": end_ms,
        "state": verdict.state.value,
        "from_count": before,
        "to_count": after,
        "missing": None if differs else verdict.missing,
        "extra": None if differs else verdict.extra,
        "by": verdict.by.value,
        "absent": list(verdict.absent),
        "lag_ms": verdict.lag_ms,
        "behind_ms": verdict.behind_ms,
    }
