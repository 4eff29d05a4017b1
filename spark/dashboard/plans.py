"""Which tiers of a topic are compared, and by which audit plan: of the tables of all regions. Pure.

Rules (what is said of a window: `app.core.audit.pairing`, as at the console)
1. A region's plans are for the places that it has heard. Of several that count a place the first by region
   and name does; the topic's is that of its first place.
2. The tiers of clusters and of groups are compared if a plan counts them now; those of a topic that no plan
   counts any more, and those of clients, if they were heard when the window ended, or shortly before.
3. All regions are seen here: only a regional cluster that no region's plan counts for the topic is unseen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.core.audit.pairing import OF_CLUSTERS, Pair, Pairing, Place, Plan, Widths
from app.core.audit.plans import Stated
from app.core.audit.tiers import Bounds, TierRecord, group_of
from app.core.audit.windows import WindowRecord
from app.core.topology import REGIONAL

Tiers = Mapping[str, Mapping[Place, Sequence[TierRecord]]]  # by topic
Heard = Mapping[tuple[str, Place], Collection[str]]  # by topic and place: the regions that have heard it


class Plans:
    """The plans of all regions. `consumed`: by region and workload (group/topic) the cluster it reads."""

    def __init__(self, stated: Iterable[tuple[str, Stated]], consumed: Mapping[tuple[str, str], str]) -> None:
        self._of: defaultdict[str, list[Stated]] = defaultdict(list)
        for region, one in sorted(stated, key=lambda pair: (pair[0], pair[1].name)):
            self._of[region].append(one)
        self._consumed = consumed

    def of(self, topic: str, place: Place, regions: Collection[str]) -> Stated | None:
        """The plan that counts a place (rule 1)."""
        tier, (cluster, group) = place[0], group_of(place[1])
        for region in sorted(regions):
            for plan in self._of.get(region, ()):
                if not group and plan.counts(tier, cluster, topic):
                    return plan
                if group and plan.counts_consumers and self._reads(plan, region, topic, cluster, group):
                    return plan
        return None

    def _reads(self, plan: Stated, region: str, topic: str, cluster: str, group: str) -> bool:
        is_read = self._consumed.get((region, f"{group}/{topic}")) == cluster
        return is_read and any(plan.counts(tier, cluster, topic) for tier in OF_CLUSTERS)


class Compared(NamedTuple):
    """How a topic is compared. `counted`: always; `heard`: when they were heard."""

    places: Mapping[Place, Sequence[TierRecord]]
    counted: frozenset[Place]
    heard: frozenset[Place]
    plan: Plan


def compared(tiers: Tiers, heard: Heard, plans: Plans, silence_ms: int) -> dict[str, Compared]:
    """By topic."""
    regional = {
        cluster
        for places in tiers.values()
        for tier, cluster in places
        if tier == REGIONAL and not group_of(cluster)[1]
    }
    found = {}
    for topic, places in tiers.items():
        by_place = {place: plans.of(topic, place, heard[topic, place]) for place in sorted(places)}
        counted = frozenset(place for place, stated in by_place.items() if stated is not None)
        first = next((stated for stated in by_place.values() if stated is not None), None)
        if first is None:
            found[topic] = Compared(
                places, counted, frozenset(places), Plan(bounds=Bounds(silence_ms=silence_ms))
            )
            continue
        unseen = regional - {cluster for tier, cluster in counted if tier == REGIONAL}
        plan = first.plan._replace(
            bounds=first.plan.bounds._replace(silence_ms=silence_ms), unseen=tuple(sorted(unseen))
        )
        clients = {place for place in places if place[0] not in OF_CLUSTERS and not group_of(place[1])[1]}
        found[topic] = Compared(places, counted, frozenset(clients), plan)
    return found


class Comparer:
    """Compares windows of many topics, one after the other. `widths`: of topics that have several."""

    def __init__(self, topics: Mapping[str, Compared], widths: Mapping[str, Widths], now_ms: int) -> None:
        self._topics = topics
        self._widths = widths
        self._now_ms = now_ms
        self._pairings: dict[tuple[str, frozenset[Place]], Pairing] = {}

    def pairs(
        self, topic: str, start_ms: int, width_ms: int, windows: Sequence[tuple[Place, WindowRecord]]
    ) -> Iterator[Pair]:
        """What is to be said of a window; `windows`: of all places."""
        of = self._topics.get(topic, NOTHING)
        held = {place for place, _ in windows}
        unknown = held - of.places.keys()  # their tier's record is gone
        live = (
            of.counted
            | unknown
            | {
                place
                for place in of.heard
                if place in held or _is_heard(of.places[place], start_ms + width_ms, of.plan.bounds)
            }
        )
        if (topic, live) not in self._pairings:
            places = {**of.places, **dict.fromkeys(unknown, ())}
            self._pairings[topic, live] = Pairing(places, live, of.plan)
        widths = self._widths.get(topic, NO_WIDTHS)
        yield from self._pairings[topic, live].compared(start_ms, width_ms, windows, widths, self._now_ms)


NOTHING = Compared({}, frozenset(), frozenset(), Plan())
NO_WIDTHS = Widths(())


def _is_heard(records: Sequence[TierRecord], end_ms: int, bounds: Bounds) -> bool:
    heard = [source.heard_ms for record in records for source in record.sources.values()]
    return max(heard, default=-1) >= end_ms - bounds.give_up_ms
