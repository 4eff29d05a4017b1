"""Pairs the tiers of a topic, each with the next one, and compares them in each window. Pure.

    places that are counted --Pairing--> pairs of tiers --compared--> a verdict for each window and pair

Rules
1. Each tier is compared with the next one in the plan's order: tiers that count the topic, and tiers that the
   plan names. A cluster that is no longer counted takes part only in the windows that it has.
2. Windows that may lack records which expired uncounted are not compared (`complete_ms`). Nor are windows of
   another width than the plan has now: after a change each width has a part of the records. A tier with such
   windows at the time of a compared one lacks their records, so it is absent.
3. A group's counts of a cluster's topic (`places.place_of`) are compared with that cluster, or with the tier
   before if the cluster is not counted. Groups are never added up.
4. An aggregate cluster may have records of regional clusters that the plan does not count. Extra records
   there are then no finding (`ComparisonTerms.unseen`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from app.audit.folds.comparison import TierSide, WindowState, WindowVerdict, compare, side
from app.audit.folds.tier import CONSUMER, PlanBounds, TierRecord, lateness
from app.audit.folds.window import WindowPhase, WindowRecord
from app.failover.topology import AGGREGATE, REGIONAL
from switchyard.audit.model.places import OF_WORKERS, group_of
from switchyard.audit.model.tally import UNTIMED

ORDER = ("proxy-client", "proxy-server", REGIONAL, AGGREGATE, CONSUMER)  # in the order of a record's way
OF_CLUSTERS = OF_WORKERS  # tiers that workers count; clients report the others
MOST_WIDTHS = 3  # in a remark

TierPlace = tuple[str, str]  # tier, and cluster or a group's place
Window = tuple[int, int]  # start and width, ms


class ComparisonTerms(NamedTuple):
    """How an audit plan compares tiers. `width_ms`: of the compared windows; 0: any. `tiers`: as the plan
    names them; empty: those that report. `unseen`: regional clusters that the plan does not count."""

    width_ms: int = 0
    bounds: PlanBounds = PlanBounds()
    tiers: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


class Pair(NamedTuple):
    """The comparison of two tiers in a window. `group`: the group whose finished messages are compared; "":
    none. `remark`: a note for people."""

    from_tier: str
    to_tier: str
    group: str
    start_ms: int
    width_ms: int
    verdict: WindowVerdict
    from_count: int
    to_count: int
    is_closed: bool
    remark: str

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.width_ms


class Widths:
    """The windows of each place by their width; most places have one width."""

    def __init__(self, windows: Iterable[tuple[TierPlace, Window]]) -> None:
        self._starts: defaultdict[TierPlace, dict[int, list[int]]] = defaultdict(dict)
        for place, (start_ms, width_ms) in sorted(windows):
            if start_ms != UNTIMED:
                self._starts[place].setdefault(width_ms, []).append(start_ms)

    def overlapping(self, place: TierPlace, start_ms: int, width_ms: int) -> list[int]:
        """The other widths of windows at the same time."""
        found = []
        for width, starts in self._starts.get(place, {}).items():
            if width == width_ms:
                continue
            at = bisect_left(starts, start_ms + width_ms) - 1  # the last one that begins before the end
            if at >= 0 and starts[at] + width > start_ms:
                found.append(width)
        return found


class _Column(NamedTuple):
    """One side of a pair: a tier's counted clusters. `key`: as of `_column`. `only`: the one cluster that
    counts; "": all."""

    key: tuple[str, str]
    live: frozenset[str]
    only: str = ""

    @property
    def tier(self) -> str:
        return self.key[0]


class _TierPair(NamedTuple):
    """A pair of tiers, and what all its windows have in common."""

    group: str
    first: _Column
    second: _Column
    patience_ms: int
    complete_ms: int


HeldWindows = Mapping[
    tuple[str, str], Mapping[str, Sequence[WindowRecord]]
]  # of a window: column key -> cluster


class Pairing:
    """The pairs of a topic. `places`: the tiers' records, by place. `live`: the counted places."""

    def __init__(
        self,
        places: Mapping[TierPlace, Sequence[TierRecord]],
        live: Collection[TierPlace],
        plan: ComparisonTerms,
    ) -> None:
        self._places = places
        self._plan = plan
        columns: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for tier, cluster in live:
            columns[_column(tier, cluster)].add(cluster)
        self._places_of: defaultdict[tuple[str, str], list[TierPlace]] = defaultdict(list)
        for place in places:
            self._places_of[_column(*place)].append(place)
        groups = sorted(at for at in self._places_of if at[1])
        order = _in_order(
            plan, {tier for (tier, group), clusters in columns.items() if clusters and not group}
        )
        if CONSUMER in order and groups and (CONSUMER, "") not in self._places_of:
            order.remove(CONSUMER)
        tiers = [_Column((tier, ""), frozenset(columns[tier, ""])) for tier in order]
        self._pairs = [self._tier_pair("", *pair) for pair in pairwise(tiers)]
        for at in groups:
            before = self._predecessor(at[1], tiers, columns)
            if columns[at] and before is not None:
                self._pairs.append(
                    self._tier_pair(group_of(at[1])[1], before, _Column(at, frozenset(columns[at])))
                )

    def _tier_pair(self, group: str, first: _Column, second: _Column) -> _TierPair:
        records = [
            record
            for column in (first, second)
            for cluster in sorted(column.live)
            for record in self._places.get((column.tier, cluster), ())
        ]
        patience_ms = lateness(records, self._plan.bounds) + self._plan.bounds.silence_ms
        return _TierPair(group, first, second, patience_ms, complete_ms(records))

    @staticmethod
    def _predecessor(
        place: str, tiers: Sequence[_Column], columns: Mapping[tuple[str, str], Collection[str]]
    ) -> _Column | None:
        """The side that a group's counts are compared with (rule 3); None: there is none."""
        cluster = group_of(place)[0]
        for tier in OF_CLUSTERS:
            if cluster in columns.get((tier, ""), ()):
                return _Column((tier, ""), frozenset({cluster}), cluster)
        before = [column for column in tiers if column.tier != CONSUMER]
        return before[-1] if before else None

    def compared(
        self,
        start_ms: int,
        width_ms: int,
        windows: Iterable[tuple[TierPlace, WindowRecord]],
        widths: Widths,
        now_ms: int,
    ) -> Iterator[Pair]:
        """The comparisons of a window. `windows`: of all places; `widths`: of the whole topic."""
        if start_ms == UNTIMED or self._plan.width_ms not in (0, width_ms):
            return
        held: defaultdict[tuple[str, str], defaultdict[str, list[WindowRecord]]]
        held = defaultdict(lambda: defaultdict(list))
        for (tier, cluster), record in windows:
            held[_column(tier, cluster)][cluster].append(record)
        for pair in self._pairs:
            sides = [_held(column, held) for column in (pair.first, pair.second)]
            if any(sides) and start_ms >= pair.complete_ms:
                yield self._pair(pair, start_ms, width_ms, sides, widths, now_ms)

    def _pair(
        self,
        pair: _TierPair,
        start_ms: int,
        width_ms: int,
        held: Sequence[Mapping[str, Sequence[WindowRecord]]],
        widths: Widths,
        now_ms: int,
    ) -> Pair:
        end_ms, columns = start_ms + width_ms, (pair.first, pair.second)
        before, after = (
            self._side(column, end_ms, records, now_ms) for column, records in zip(columns, held, strict=True)
        )
        verdict = compare(before, after, end_ms, now_ms, pair.patience_ms)
        unseen = self._plan.unseen if pair.second.tier == AGGREGATE else ()
        if verdict.extra and verdict.state is WindowState.DUPLICATED and unseen:  # rule 4
            verdict = verdict._replace(state=WindowState.ABSENT, absent=unseen)
        odd = {
            column.tier: found
            for column in columns
            if (found := self._other_widths(column, start_ms, width_ms, widths))
        }
        if odd and verdict.state not in (WindowState.OK, WindowState.PROVISIONAL):  # rule 2
            verdict = verdict._replace(state=WindowState.ABSENT, absent=tuple(odd))
        return Pair(
            pair.first.tier,
            pair.second.tier,
            pair.group,
            start_ms,
            width_ms,
            verdict,
            before.all.count,
            after.all.count,
            before.phase is after.phase is WindowPhase.CLOSED,
            "; ".join(_width_remark(tier, found, width_ms) for tier, found in odd.items()),
        )

    def _side(
        self, column: _Column, end_ms: int, held: Mapping[str, Sequence[WindowRecord]], now_ms: int
    ) -> TierSide:
        """A tier's side. A cluster that is no longer counted takes part in windows that it has."""
        records = [record for of_cluster in held.values() for record in of_cluster]
        meant = sorted(column.live | held.keys())
        clusters = [self._places.get((column.tier, cluster), ()) for cluster in meant]
        return side(column.tier, end_ms, records, clusters, now_ms, self._plan.bounds.silence_ms)

    def _other_widths(self, column: _Column, start_ms: int, width_ms: int, widths: Widths) -> list[int]:
        places = [place for place in self._places_of.get(column.key, ()) if column.only in ("", place[1])]
        return sorted({width for place in places for width in widths.overlapping(place, start_ms, width_ms)})


def complete_ms(records: Iterable[TierRecord]) -> int:
    """The start below which windows may lack records that expired uncounted; -1: none does."""
    return max((record.complete_ms for record in records), default=-1)


def _column(tier: str, cluster: str) -> tuple[str, str]:
    """The key that counts are added up under: the tier, and a group's place ("": a cluster)."""
    return tier, cluster if group_of(cluster)[1] else ""


def _held(column: _Column, held: HeldWindows) -> Mapping[str, Sequence[WindowRecord]]:
    clusters = held.get(column.key, {})
    return (
        {column.only: clusters[column.only]} if column.only in clusters else {} if column.only else clusters
    )


def _in_order(plan: ComparisonTerms, tiers: Collection[str]) -> list[str]:
    """The tiers to compare, in order (rule 1)."""
    return [tier for tier in plan.tiers or ORDER if tier in tiers or tier in plan.tiers]


def _width_remark(tier: str, widths_ms: Sequence[int], width_ms: int) -> str:
    listed = ", ".join(map(str, widths_ms[:MOST_WIDTHS]))
    return f"{tier} also counts in windows of {listed} ms; those of {width_ms} ms lack these records"
