"""Selects the tiers of a topic that each region compares, and the audit plan that decides. Pure.

`app.audit.folds.tier_pairs` compares them, as it does for the console.

Rules
1. A region compares the places that it has heard, by its own plans. The aggregate clusters of several regions
   have copies of the same records, so their counts are never added. The region's first plan by name that
   counts a place counts there; the topic's plan is that of its first counted place. A region that hears no
   regional cluster of a topic uses those of the others. A region that knows no aggregate cluster does not
   miss one. Clients' reports to other regions count too, if the region counts their regional cluster.
2. Tiers of clusters and groups are compared if a plan counts them now. Clients are compared if they have the
   window, or reported until `give_up_ms` before its end. So are all tiers of a topic that no plan of the
   region counts now.
3. A regional cluster that the region does not count is unseen if it has reports of the topic. It is also
   unseen if no region's plan would count the topic there. Otherwise it has no records of the topic.
4. If several regions compare the same clusters, the first by name reports the pair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.audit.folds.plan_terms import PlanTerms
from app.audit.folds.tier import PlanBounds, TierRecord
from app.audit.folds.tier_pairs import OF_CLUSTERS, ComparisonTerms, Pair, Pairing, TierPlace, Widths
from app.audit.folds.window import WindowRecord
from app.failover.topology import AGGREGATE, REGIONAL
from switchyard.audit.model.places import group_of

Tiers = Mapping[str, Mapping[TierPlace, Sequence[TierRecord]]]  # by topic
Heard = Mapping[tuple[str, TierPlace], Collection[str]]  # by topic and place: the regions with reports of it


class Plans:
    """The audit plans of all regions. `consumed`: the cluster read, by region and group/topic."""

    def __init__(
        self, stated: Iterable[tuple[str, PlanTerms]], consumed: Mapping[tuple[str, str], str]
    ) -> None:
        self._of: defaultdict[str, list[PlanTerms]] = defaultdict(list)
        for region, one in sorted(stated, key=lambda pair: (pair[0], pair[1].name)):
            self._of[region].append(one)
        self._consumed = consumed

    def of(self, topic: str, place: TierPlace, region: str) -> PlanTerms | None:
        """The region's plan that counts a place (rule 1)."""
        tier, (cluster, group) = place[0], group_of(place[1])
        for plan in self._of.get(region, ()):
            if not group and plan.counts(tier, cluster, topic):
                return plan
            if group and plan.counts_consumers and self._reads(plan, region, topic, cluster, group):
                return plan
        return None

    def is_audited(self, topic: str) -> bool:
        """Whether any region's plan names the topic."""
        plans = (plan for of in self._of.values() for plan in of)
        return any(plan.topics.destination(topic) is not None for plan in plans)

    def _reads(self, plan: PlanTerms, region: str, topic: str, cluster: str, group: str) -> bool:
        is_read = self._consumed.get((region, f"{group}/{topic}")) == cluster
        return is_read and any(plan.counts(tier, cluster, topic) for tier in OF_CLUSTERS)


class Compared(NamedTuple):
    """How a region compares a topic: `counted` places always, `heard` ones near the time of their reports."""

    places: Mapping[TierPlace, Sequence[TierRecord]]
    counted: frozenset[TierPlace]
    heard: frozenset[TierPlace]
    plan: ComparisonTerms

    def has(self, place: TierPlace, *, is_own: bool) -> bool:
        """Whether a window of the place takes part. `is_own`: it is in the region's own table."""
        if _is_group(place):
            return is_own
        if place[0] not in OF_CLUSTERS:
            return is_own or (REGIONAL, place[1]) in self.counted
        return place in self.places


def compared(tiers: Tiers, heard: Heard, plans: Plans, silence_ms: int) -> dict[str, dict[str, Compared]]:
    """How each region compares each topic, by topic and region."""
    known: defaultdict[str, set[TierPlace]] = defaultdict(set)  # clusters by region
    for (_, place), regions in heard.items():
        for region in regions:
            if not _is_group(place):
                known[region].add(place)
    return {topic: dict(_by_region(topic, tiers[topic], heard, known, plans, silence_ms)) for topic in tiers}


def _by_region(
    topic: str,
    places: Mapping[TierPlace, Sequence[TierRecord]],
    heard: Heard,
    known: Mapping[str, Collection[TierPlace]],
    plans: Plans,
    silence_ms: int,
) -> Iterator[tuple[str, Compared]]:
    regional = {place for clusters in known.values() for place in clusters if place[0] == REGIONAL}
    watched = {
        place
        for region, clusters in known.items()
        for place in clusters
        if place[0] == REGIONAL and plans.of(topic, place, region) is not None
    }
    there = {place for place in places if place in regional}
    for region in sorted({region for place in places for region in heard[topic, place]}):
        own = {place for place in places if region in heard[topic, place]}
        by_place = {place: plans.of(topic, place, region) for place in sorted(own)}
        counted = {place for place, stated in by_place.items() if stated is not None}
        first = next((stated for stated in by_place.values() if stated is not None), None)
        if not own & there:  # rule 1
            own |= there
            counted |= there & watched
        clients = {place for place in places if _is_client(place) and (REGIONAL, place[1]) in counted} | set(
            filter(_is_client, own)
        )
        plan = ComparisonTerms() if first is None else first.plan
        unseen = () if first is None else sorted(name for _, name in (there | regional - watched) - counted)
        has_aggregate = any(tier == AGGREGATE for tier, _ in places)  # rule 1
        lacks = has_aggregate and not any(tier == AGGREGATE for tier, _ in known[region])
        yield (
            region,
            Compared(
                {place: places[place] for place in own | clients},
                frozenset(counted),
                frozenset(own if first is None else clients) - counted,
                plan._replace(
                    bounds=plan.bounds._replace(silence_ms=silence_ms),
                    unseen=tuple(unseen),
                    tiers=tuple(tier for tier in plan.tiers if not (lacks and tier == AGGREGATE)),
                ),
            ),
        )


class Comparer:
    """Compares windows of many topics. `widths`: of topics with several widths."""

    def __init__(
        self, topics: Mapping[str, Mapping[str, Compared]], widths: Mapping[str, Widths], now_ms: int
    ) -> None:
        self._topics = topics
        self._widths = widths
        self._now_ms = now_ms
        self._pairings: dict[tuple[str, str, frozenset[TierPlace]], Pairing] = {}

    def pairs(
        self, topic: str, start_ms: int, width_ms: int, windows: Sequence[tuple[str, TierPlace, WindowRecord]]
    ) -> Iterator[tuple[str, Pair]]:
        """The pairs of tiers in a window, with the region that reports each. `windows`: of all places."""
        of = self._topics.get(topic, {})
        placed = {place for one in of.values() for place in one.places}
        reported = set()
        for region in sorted({*of, *(region for region, _, _ in windows)}):
            its = of.get(region, NOTHING)
            held = [
                (place, record)
                for whose, place, record in windows
                if its.has(place, is_own=whose == region) or (place not in placed and whose == region)
            ]
            live = _live(its, {place for place, _ in held}, start_ms + width_ms)
            for pair in self._pairing(topic, region, its, live).compared(
                start_ms, width_ms, held, self._widths.get(topic, NO_WIDTHS), self._now_ms
            ):
                sides = frozenset(p for p in live if p[0] in (pair.from_tier, pair.to_tier))
                same = (pair.from_tier, pair.to_tier, pair.group, sides)
                if pair.group or same not in reported:  # rule 4; each region has its own groups
                    reported.add(same)
                    yield region, pair

    def _pairing(self, topic: str, region: str, of: Compared, live: frozenset[TierPlace]) -> Pairing:
        if (topic, region, live) not in self._pairings:
            places = {**dict.fromkeys(live, ()), **of.places}
            self._pairings[topic, region, live] = Pairing(places, live, of.plan)
        return self._pairings[topic, region, live]


def _live(of: Compared, held: Collection[TierPlace], end_ms: int) -> frozenset[TierPlace]:
    """The places to compare (rule 2), and places of held windows whose tier record is gone."""
    heard = {p for p in of.heard if p in held or _is_heard(of.places[p], end_ms, of.plan.bounds)}
    return of.counted | heard | {place for place in held if place not in of.places}


def _is_group(place: TierPlace) -> bool:
    return bool(group_of(place[1])[1])


def _is_client(place: TierPlace) -> bool:
    return place[0] not in OF_CLUSTERS and not _is_group(place)


NOTHING = Compared({}, frozenset(), frozenset(), ComparisonTerms())
NO_WIDTHS = Widths(())


def _is_heard(records: Sequence[TierRecord], end_ms: int, bounds: PlanBounds) -> bool:
    heard = [source.heard_ms for record in records for source in record.sources.values()]
    return max(heard, default=-1) >= end_ms - bounds.give_up_ms
