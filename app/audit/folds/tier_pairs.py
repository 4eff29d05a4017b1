"""A topic's tiers, each compared with the next: which pairs there are, and what is said of a window. Pure.

    places that are counted --Pairing--> pairs of tiers --compared--> a verdict for a window and pair

Rules
1. Tiers are compared each with the next in the plan's order, of those that count the topic, and of those that
   the plan names. A cluster that is not counted any more has its part in the windows that it has, only.
2. Windows that may lack what had gone before it was counted are told as incomplete, and not compared; nor
   are those of another width than the plan has now: where it was changed, each has a part of the records.
   A tier that has such windows at the time of one that is compared lacks their records: it is told as absent.
3. What a group has finished of a cluster's topic (`tier.place_of`) is compared with that cluster, or, where
   that is not counted, with the tier before; groups are never added up.
4. An aggregate cluster may have records of regional clusters that the plan does not count: more there than
   here says nothing then (`ComparisonTerms.unseen`).
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

ORDER = ("proxy-client", "proxy-server", REGIONAL, AGGREGATE, CONSUMER)  # in the way of a record
OF_CLUSTERS = OF_WORKERS  # tiers that plans count; others are told by clients
MOST_WIDTHS = 3  # that are named

TierPlace = tuple[str, str]  # tier, and cluster or a group's place
Window = tuple[int, int]  # start and width, ms


class ComparisonTerms(NamedTuple):
    """What of an audit plan says how tiers are compared.

    Attributes:
        width_ms: of the windows that are compared; 0: of all.
        tiers: as it names them; none: as they are heard.
        unseen: regional clusters that it does not count.
    """

    width_ms: int = 0
    bounds: PlanBounds = PlanBounds()
    tiers: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


class Pair(NamedTuple):
    """What is said of a window between two tiers; `group`: of what a consumer group has finished, else "".
    `remark`: what a person must know beside it."""

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
        """Behind the window."""
        return self.start_ms + self.width_ms


class Widths:
    """Which windows each place has, by their width. Most have but one."""

    def __init__(self, windows: Iterable[tuple[TierPlace, Window]]) -> None:
        self._starts: defaultdict[TierPlace, dict[int, list[int]]] = defaultdict(dict)
        for place, (start_ms, width_ms) in sorted(windows):
            if start_ms != UNTIMED:
                self._starts[place].setdefault(width_ms, []).append(start_ms)

    def others(self, place: TierPlace, start_ms: int, width_ms: int) -> list[int]:
        """Of windows at the same time that are not of the same width."""
        found = []
        for width, starts in self._starts.get(place, {}).items():
            if width == width_ms:
                continue
            at = bisect_left(starts, start_ms + width_ms) - 1  # the last that begins before its end
            if at >= 0 and starts[at] + width > start_ms:
                found.append(width)
        return found


class _Column(NamedTuple):
    """One side of a pair: a tier's clusters that are counted. `of`: its name in what is held (`_column`);
    `only`: of one cluster alone, else ""."""

    of: tuple[str, str]
    live: frozenset[str]
    only: str = ""

    @property
    def tier(self) -> str:
        """Its tier."""
        return self.of[0]


class _Between(NamedTuple):
    """A pair of tiers, and what is the same for all of its windows."""

    group: str
    first: _Column
    second: _Column
    patience_ms: int
    complete_ms: int


HeldWindows = Mapping[tuple[str, str], Mapping[str, Sequence[WindowRecord]]]  # of a window: column -> cluster


class Pairing:
    """The pairs of a topic.

    Args:
        places: all that is known of its tiers, by place.
        live: the places that are counted.
        plan: by which.
    """

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
        self._of: defaultdict[tuple[str, str], list[TierPlace]] = defaultdict(list)
        for place in places:
            self._of[_column(*place)].append(place)
        groups = sorted(at for at in self._of if at[1])
        order = _in_order(plan, {tier for (tier, group), of in columns.items() if of and not group})
        if CONSUMER in order and groups and (CONSUMER, "") not in self._of:
            order.remove(CONSUMER)
        tiers = [_Column((tier, ""), frozenset(columns[tier, ""])) for tier in order]
        self._pairs = [self._between("", *pair) for pair in pairwise(tiers)]
        for at in groups:
            before = self._before(at[1], tiers, columns)
            if columns[at] and before is not None:
                self._pairs.append(
                    self._between(group_of(at[1])[1], before, _Column(at, frozenset(columns[at])))
                )

    def _between(self, group: str, first: _Column, second: _Column) -> _Between:
        records = [
            record
            for column in (first, second)
            for cluster in sorted(column.live)
            for record in self._places.get((column.tier, cluster), ())
        ]
        patience_ms = lateness(records, self._plan.bounds) + self._plan.bounds.silence_ms
        return _Between(group, first, second, patience_ms, complete_ms(records))

    @staticmethod
    def _before(
        place: str, tiers: Sequence[_Column], columns: Mapping[tuple[str, str], Collection[str]]
    ) -> _Column | None:
        """What a group's figures are compared with (rule 3); None: nothing."""
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
        """What is to be said of the window. `windows`: of all places; `widths`: of all of the topic."""
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
        pair: _Between,
        start_ms: int,
        width_ms: int,
        held: Sequence[Mapping[str, Sequence[WindowRecord]]],
        widths: Widths,
        now_ms: int,
    ) -> Pair:
        end_ms, columns = start_ms + width_ms, (pair.first, pair.second)
        before, after = (
            self._side(column, end_ms, of, now_ms) for column, of in zip(columns, held, strict=True)
        )
        verdict = compare(before, after, end_ms, now_ms, pair.patience_ms)
        unseen = self._plan.unseen if pair.second.tier == AGGREGATE else ()
        if verdict.extra and verdict.state is WindowState.DUPLICATED and unseen:  # rule 4
            verdict = verdict._replace(state=WindowState.ABSENT, absent=unseen)
        odd = {
            column.tier: found
            for column in columns
            if (found := self._others(column, start_ms, width_ms, widths))
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
            "; ".join(_other(tier, found, width_ms) for tier, found in odd.items()),
        )

    def _side(
        self, column: _Column, end_ms: int, held: Mapping[str, Sequence[WindowRecord]], now_ms: int
    ) -> TierSide:
        """A tier's part. A cluster that is not counted any more has one in windows that it has."""
        records = [record for of_cluster in held.values() for record in of_cluster]
        meant = sorted(column.live | held.keys())
        clusters = [self._places.get((column.tier, cluster), ()) for cluster in meant]
        return side(column.tier, end_ms, records, clusters, now_ms, self._plan.bounds.silence_ms)

    def _others(self, column: _Column, start_ms: int, width_ms: int, widths: Widths) -> list[int]:
        meant = [place for place in self._of.get(column.of, ()) if column.only in ("", place[1])]
        return sorted({width for place in meant for width in widths.others(place, start_ms, width_ms)})


def complete_ms(records: Iterable[TierRecord]) -> int:
    """Windows that begin before it may lack what was there before it was counted; -1: none does."""
    return max((record.complete_ms for record in records), default=-1)


def _column(tier: str, cluster: str) -> tuple[str, str]:
    """What its figures are added up under: the tier, and which group's place it is ("": a cluster)."""
    return tier, cluster if group_of(cluster)[1] else ""


def _held(column: _Column, held: HeldWindows) -> Mapping[str, Sequence[WindowRecord]]:
    of = held.get(column.of, {})
    return {column.only: of[column.only]} if column.only in of else {} if column.only else of


def _in_order(plan: ComparisonTerms, tiers: Collection[str]) -> list[str]:
    """Rule 1."""
    return [tier for tier in plan.tiers or ORDER if tier in tiers or tier in plan.tiers]


def _other(tier: str, widths_ms: Sequence[int], width_ms: int) -> str:
    told = ", ".join(map(str, widths_ms[:MOST_WIDTHS]))
    return f"{tier} also counts in windows of {told} ms, which those of {width_ms} ms lack"
