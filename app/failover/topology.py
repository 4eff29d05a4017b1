"""Regions and what is copied between them, derived from `Failover` definitions. Pure.

    east-regional ──┬──▶ east-aggregate     producers write to their region's regional cluster; each region's
                    └──▶ west-aggregate     aggregate cluster has what was written in all of them
    west-regional ──┬──▶ west-aggregate
                    └──▶ east-aggregate

Rules
1. Each region runs the routes that lead into it, and no others: of every pair of regions (a region and itself
   too) exactly one region has the route, whoever deploys the definitions and in whatever order.
2. Names stay: routes lead from regional clusters into aggregate ones only, so none of them can loop, and a
   record has the same topic everywhere.
3. What a region needs of another one once that is lost (its control log, positions, offset map) is copied
   into its own control cluster, under the same names, once however many definitions name the two.
4. Events of which only the end is of use there (`app.worker.tracker.fold`, rule 6) are copied by a route of
   their own, from the end that they have when it is made: a region that was there for long has gigabytes.
5. What cannot be derived, because this region's configuration lacks a cluster, is told by its name: what runs
   under that name goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from app.replicate.model.route import Route

REGIONAL, AGGREGATE = "regional", "aggregate"
RESERVED = "switchyard-"  # what no definition's name begins with: routes of control topics do
CONFIGURE = "give each region one regional and one aggregate cluster under clusters in switchyard.yaml"


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster's place."""

    region: str
    tier: str


@dataclass(frozen=True)
class Layout:
    """The clusters of all regions as this one is configured.

    Attributes:
        own: the region that this is.
        sites: every cluster's place, by its name.
        control: the cluster with this region's control topics; others have theirs in their regional one.
    """

    own: str
    sites: Mapping[str, Site]
    control: str

    def cluster(self, region: str, tier: str) -> str:
        """The one cluster of the tier in the region.

        Raises:
            LookupError: there is none, or several; what to do comes behind a semicolon.
        """
        found = sorted(name for name, site in self.sites.items() if site == Site(region, tier))
        if len(found) != 1:
            there = f"has {len(found)} clusters of tier {tier} ({', '.join(found)})"
            none = f"has no cluster of tier {tier}"
            raise LookupError(f"region {region} {there if found else none}; {CONFIGURE}")
        return found[0]

    def local(self, cluster: str) -> str:
        """This region's cluster of the same tier as `cluster`, which is any region's. Raises LookupError."""
        site = self.sites.get(cluster)
        if site is None:
            raise LookupError(f"cluster {cluster} is not configured here; add it to switchyard.yaml")
        return cluster if site.region == self.own else self.cluster(self.own, site.tier)

    @property
    def names(self) -> list[str]:
        """Every region there is, sorted."""
        return sorted({site.region for site in self.sites.values()})


@dataclass(frozen=True)
class Failover:
    """What a `Failover` definition says: which regions, in order of priority, and which topics they share."""

    name: str
    regions: tuple[str, ...]
    topics: tuple[str, ...]
    exclude: tuple[str, ...] = ()

    def shares(self, topic: str) -> bool:
        """Whether the topic is copied between its regions. Raises what `Route` raises."""
        return self._route.destination(topic) is not None

    @cached_property
    def _route(self) -> Route:
        return Route(self.name, "", "", self.topics, self.exclude)


@dataclass(frozen=True, slots=True)
class DerivedRoute:
    """A route that a region has to run.

    Attributes:
        name, source, target, topics, exclude: the route's.
        made_by: the definition that it is derived from, the first one of several.
        region: where its records come from.
        is_control: it copies control topics. from_end: only what is written once it was made.
    """

    name: str
    source: str
    target: str
    topics: tuple[str, ...]
    exclude: tuple[str, ...]
    made_by: str
    region: str
    is_control: bool = False
    from_end: bool = False

    def route(self) -> Route:
        """For the proofs about routes. Raises what `Route` raises."""
        return Route(self.name, self.source, self.target, self.topics, self.exclude)


@dataclass(frozen=True, slots=True)
class Derivation:
    """What follows from all definitions.

    Attributes:
        routes: those to run, by name.
        unknown: names of routes to run that cannot be derived now, each with the definition and the reason.
    """

    routes: Mapping[str, DerivedRoute]
    unknown: Mapping[str, tuple[str, str]]


def derive(
    failovers: Iterable[Failover],
    layout: Layout,
    control_topics: Callable[[str], Sequence[str]],
    control_events: Callable[[str], Sequence[str]],
) -> Derivation:
    """The routes that region `layout.own` has to run. Of a region, `control_topics` names those that the
    others need, `control_events` those of which they need the end (rule 4)."""
    routes: dict[str, DerivedRoute] = {}
    unknown: dict[str, tuple[str, str]] = {}
    own = layout.own

    def add(
        failover: Failover, region: str, name: str, control: Sequence[str] = (), *, from_end: bool = False
    ) -> None:
        if name in routes or name in unknown:
            return
        try:
            source = layout.cluster(region, REGIONAL)
            target = layout.control if control else layout.cluster(own, AGGREGATE)
        except LookupError as error:
            unknown[name] = failover.name, str(error)
            return
        exclude = () if control else failover.exclude
        routes[name] = DerivedRoute(
            name, source, target, tuple(control or failover.topics), exclude, failover.name, region,
            is_control=bool(control), from_end=from_end,
        )  # fmt: skip

    for failover in sorted(failovers, key=lambda failover: failover.name):
        if own not in failover.regions:
            continue
        for region in failover.regions:
            add(failover, region, data_route(failover.name, region, own))
            if region != own:
                add(failover, region, control_route(region, own), control_topics(region))
                add(failover, region, events_route(region, own), control_events(region), from_end=True)
    return Derivation(routes, unknown)


def data_route(failover: str, source: str, target: str) -> str:
    """The name of the route that copies a definition's topics from one region to another."""
    return f"{failover}-{source}-to-{target}"


def control_route(source: str, target: str) -> str:
    """The name of the route that copies control topics from one region to another."""
    return f"{RESERVED}{source}-to-{target}"


def events_route(source: str, target: str) -> str:
    """The name of the route that copies control events (rule 4); no `control_route` into the same region has
    it, whatever regions are called."""
    return f"{control_route(source, target)}.events"


def governing(failovers: Iterable[Failover], topic: str) -> Failover | None:
    """The definition that says between which regions a workload of `topic` moves: the first by name of those
    that share the topic. The same in every region that has the same definitions."""
    return next((f for f in sorted(failovers, key=lambda f: f.name) if f.shares(topic)), None)
