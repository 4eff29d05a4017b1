"""Derives from `Failover` definitions which routes a region runs. Pure.

    east-regional ──┬──▶ east-aggregate     producers write to their region's regional cluster; each region's
                    └──▶ west-aggregate     aggregate cluster collects the records of all regions
    west-regional ──┬──▶ west-aggregate
                    └──▶ east-aggregate

Rules
1. Each region runs the routes that lead into it, and no others. So for every pair of regions, and for a
   region with itself, exactly one region has the route. It does not matter who deploys the definitions, or in
   which order.
2. Topics keep their names. Routes lead from regional to aggregate clusters only, so they cannot loop.
3. When a region is lost, others need its control log, positions and offset map. A control route copies them
   into the other region's control cluster under the same names. There is one for a pair of regions, however
   many definitions name the pair.
4. Other regions need only the latest of some control events (`app.worker.tracker.fold`, rule 6). An old
   region has gigabytes of them, so a route of their own copies them from the end that the log has when the
   route is made.
5. A route whose cluster is not configured here is reported in `Derivation.unknown`. A route that already runs
   under this name continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from app.replicate.model.route import Route

REGIONAL, AGGREGATE = "regional", "aggregate"
RESERVED = "switchyard-"  # begins the names of control routes, and of no definition
CONFIGURE = "give each region one regional and one aggregate cluster under clusters in switchyard.yaml"


@dataclass(frozen=True, slots=True)
class Site:
    """The region and tier of a cluster."""

    region: str
    tier: str


@dataclass(frozen=True)
class Layout:
    """The clusters of all regions, as this region configures them.

    Attributes:
        own: This region.
        sites: The place of every cluster, by cluster name.
        control: The cluster with this region's control topics. Other regions keep theirs in their regional
            cluster.
    """

    own: str
    sites: Mapping[str, Site]
    control: str

    def cluster(self, region: str, tier: str) -> str:
        """The region's only cluster of the tier.

        Raises:
            LookupError: The region has none, or several. The remedy follows a semicolon.
        """
        found = sorted(name for name, site in self.sites.items() if site == Site(region, tier))
        if len(found) != 1:
            there = f"has {len(found)} clusters of tier {tier} ({', '.join(found)})"
            none = f"has no cluster of tier {tier}"
            raise LookupError(f"region {region} {there if found else none}; {CONFIGURE}")
        return found[0]

    def local(self, cluster: str) -> str:
        """This region's cluster of the same tier as `cluster`, which may belong to any region.

        Raises:
            LookupError: `cluster` is not configured, or `Layout.cluster` finds none.
        """
        site = self.sites.get(cluster)
        if site is None:
            raise LookupError(f"cluster {cluster} is not configured here; add it to switchyard.yaml")
        return cluster if site.region == self.own else self.cluster(self.own, site.tier)

    @property
    def names(self) -> list[str]:
        """The names of all regions, sorted."""
        return sorted({site.region for site in self.sites.values()})


@dataclass(frozen=True)
class Failover:
    """The part of a `Failover` definition that routes and roles are derived from. `regions` are in order of
    priority."""

    name: str
    regions: tuple[str, ...]
    topics: tuple[str, ...]
    exclude: tuple[str, ...] = ()

    def shares(self, topic: str) -> bool:
        """Whether the regions share the topic. Raises the same errors as `Route`."""
        return self._route.destination(topic) is not None

    @cached_property
    def _route(self) -> Route:
        return Route(self.name, "", "", self.topics, self.exclude)


@dataclass(frozen=True, slots=True)
class DerivedRoute:
    """A route that this region has to run.

    Attributes:
        made_by: The definition that it is derived from; the first by name, if several need it.
        region: The region of the source.
        is_control: Whether it copies control topics.
        from_end: Whether it begins at the end of its source (rule 4).
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
        """The model that the checks of routes use. Raises the same errors as `Route`."""
        return Route(self.name, self.source, self.target, self.topics, self.exclude)


@dataclass(frozen=True, slots=True)
class Derivation:
    """The result of `derive`.

    Attributes:
        routes: The routes to run, by name.
        unknown: The routes that cannot be derived now, by name: the definition, and the reason with its
            remedy.
    """

    routes: Mapping[str, DerivedRoute]
    unknown: Mapping[str, tuple[str, str]]


def derive(
    failovers: Iterable[Failover],
    layout: Layout,
    control_topics: Callable[[str], Sequence[str]],
    control_events: Callable[[str], Sequence[str]],
) -> Derivation:
    """The routes that region `layout.own` has to run.

    `control_topics` names the control topics of a region that other regions need, `control_events` those of
    which they need the latest events only (rule 4).
    """
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
    """The name of the route that copies control events (rule 4).

    Its end keeps it apart from every `control_route` into the same region, whatever the regions are called.
    """
    return f"{control_route(source, target)}.events"


def governing(failovers: Iterable[Failover], topic: str) -> Failover | None:
    """The definition that says between which regions a workload of `topic` moves; None: there is none.

    It is the first by name of those that share the topic, so regions with the same definitions agree.
    """
    return next((f for f in sorted(failovers, key=lambda f: f.name) if f.shares(topic)), None)
