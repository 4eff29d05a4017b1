"""Failover definitions as they stand in the control log, and what follows from them here: which routes this
region runs, and between which regions a workload moves.

Rules
1. The routes that follow are ordinary routes in the control log, marked with who made them. The leader keeps
   them in step: writes what is missing or differs, deletes what follows no more.
2. What cannot be known now (a definition that cannot be read, a cluster not configured here) changes and
   deletes nothing.
3. A route that somebody defined under the same name stands in the way, and is told; it is never overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from app.controllog.definition_cache import DefinitionCache
from app.controllog.events import ALL, AnyControlEvent, Paused, RouteDeleted, RoutePut
from app.controllog.log import ControlLog
from app.controllog.topics import ControlTopics
from app.dispatch.definition import Workload
from app.failover.definition import PREFIX, FailoverDefinition, route_definition
from app.failover.topology import Derivation, Failover, Layout, derive, governing
from app.kernel.clock import now_ms
from app.replicate.definition import RouteDefinition
from app.replicate.definition_checks import conflicts as route_conflicts
from app.replicate.definition_checks import folded_copies
from app.replicate.model.route import Route
from app.worker.jobs.start_position import ReportIncident

DERIVED_ROUTES_INCIDENT = "failover-trouble"


class ReadableFailover(NamedTuple):
    """A definition that can be read."""

    definition: FailoverDefinition
    failover: Failover


class DerivedDefinitions(NamedTuple):
    """What follows from a set of definitions."""

    routes: Mapping[str, tuple[RouteDefinition, str]]  # with the definition that makes it, by name
    unknown: Mapping[str, tuple[str, str]]  # with the definition, and why


class DerivedRoutes:
    """See the module. Without a `layout`, of a worker that knows of no regions, nothing follows."""

    def __init__(self, control: ControlLog, layout: Layout | None, report_incident: ReportIncident) -> None:
        self.layout = layout
        self._control = control
        self._report_incident = report_incident
        self._parsed = DefinitionCache(lambda: control.view.failovers, _parsed, self._unread)
        self._stamp: tuple[tuple[str, str], ...] = ()
        self._following = DerivedDefinitions({}, {})
        self._governing: dict[str, Failover | None] = {}
        self._told: set[tuple[str, str]] = set()

    def all(self) -> dict[str, ReadableFailover]:
        """Those that can be read, by key."""
        keys = sorted(self._control.view.failovers)
        return {key: known for key in keys if (known := self._parsed.get(key)) is not None}

    def governing(self, topic: str) -> Failover | None:
        """The definition that says between which regions a workload of this topic moves."""
        self._refresh()
        if topic not in self._governing:
            self._governing[topic] = governing((known.failover for known in self.all().values()), topic)
        return self._governing[topic]

    def regions_of(self, workload: Workload) -> tuple[str, ...]:
        """The regions that the workload may be active in, in order of priority; () when nothing says so."""
        failover = self.governing(workload.metadata.topic)
        return () if failover is None else failover.regions

    def others(self) -> set[str]:
        """The other regions that any definition joins with this one."""
        own = "" if self.layout is None else self.layout.own
        joined = [known.failover.regions for known in self.all().values() if own in known.failover.regions]
        return {region for regions in joined for region in regions if region != own}

    def derived_definitions(self) -> DerivedDefinitions:
        """The routes that this region has to run."""
        self._refresh()
        return self._following

    def _refresh(self) -> None:
        """What follows is worked out anew when a definition has changed."""
        stamp = tuple(sorted((key, put.etag) for key, put in self._control.view.failovers.items()))
        if stamp == self._stamp:
            return
        self._stamp, self._governing = stamp, {}
        if self.layout is None:
            return
        known = {found.failover.name: found for found in self.all().values()}
        derived = _derived((found.failover for found in known.values()), self.layout)
        routes = {
            name: (route_definition(route, known[route.made_by].definition), route.made_by)
            for name, route in derived.routes.items()
        }
        self._following = DerivedDefinitions(routes, derived.unknown)

    def conflicts(self, wanted: FailoverDefinition, by_hand: Sequence[Route]) -> list[str]:
        """Why the definition cannot be in force beside the others and the routes that somebody defined; takes
        a moment, and may be asked in a thread."""
        if self.layout is None:
            return []
        others = [known.failover for key, known in self.all().items() if key != wanted.key]
        stand = self.derived_definitions().routes
        before = {name for name, (_, maker) in stand.items() if maker != wanted.name}
        derived = _derived([*others, wanted.failover()], self.layout).routes
        mine = {name for name, route in derived.items() if route.made_by == wanted.name} - before
        taken = sorted(mine & {route.name for route in by_hand})
        if taken:
            return [f"its route {taken[0]} is defined already; delete that one, or rename the definition"]
        routes = [*by_hand, *(route.route() for route in derived.values())]
        found = [f"{name}: {what}; {remedy}" for what, remedy, name in route_conflicts(routes, mine)]
        known = set(map(str, folded_copies([*by_hand, *(made.route() for made, _ in stand.values())])))
        twins = [pair for pair in folded_copies(routes) if mine & {pair.one[0], pair.other[0]}]
        return [
            *found,
            *(f"{pair.one[0]}: {pair}; {pair.remedy}" for pair in twins if str(pair) not in known),
        ]

    def steps(self) -> list[AnyControlEvent]:
        """What is to be written for the routes to be as they should (rules 1 to 3)."""
        if self.layout is None:
            return []
        following, view, at_ms = self.derived_definitions(), self._control.view, now_ms()
        events: list[AnyControlEvent] = []
        told: set[tuple[str, str]] = set()
        for name, (definition, maker) in following.routes.items():
            stands, etag = view.routes.get(name), definition.etag()
            if stands is not None and not stands.made_by:
                told.add((maker, f"its route {name} cannot be made: somebody defined one of this name; "
                          "delete that one, or rename the failover definition"))  # fmt: skip
            elif stands is None or (stands.etag, stands.made_by) != (etag, maker):
                put = RoutePut(
                    at_ms=at_ms, key=name, definition=definition.to_wire(), etag=etag, actor=actor(maker),
                    made_by=maker,
                )  # fmt: skip
                events.append(view.replacing(put, uuid4().hex))
        for name, (maker, why) in following.unknown.items():
            told.add((maker, f"its route {name} cannot be made: {why}"))
        for name, put in list(view.routes.items()):
            if not put.made_by or name in following.routes or name in following.unknown:
                continue
            if f"{PREFIX}{put.made_by}" in view.failovers and put.made_by not in self._readable():
                continue  # rule 2
            events += self._ended(name, put, at_ms)
        for maker, why in sorted(told - self._told):
            message, _, remedy = why.rpartition("; ")
            self._report_incident(DERIVED_ROUTES_INCIDENT, maker, message, remedy)
        self._told = told
        return events

    def _ended(self, name: str, put: RoutePut, at_ms: int) -> Iterator[AnyControlEvent]:
        by = actor(put.made_by)
        yield RouteDeleted(at_ms=at_ms, key=name, actor=by, expected=put.etag)
        if name in self._control.view.paused:  # a pause must not come back with the next definition
            yield Paused(at_ms=at_ms, key=name, partition=ALL, paused=False, actor=by)

    def _readable(self) -> set[str]:
        return {known.failover.name for known in self.all().values()}

    def _unread(self, key: str, why: str) -> None:
        self._report_incident(DERIVED_ROUTES_INCIDENT, key.removeprefix(PREFIX), why, "deploy it again")


def actor(maker: str) -> str:
    """Who writes a derived route, for the activity page."""
    return f"made by failover definition {maker}"


def _derived(failovers: Iterable[Failover], layout: Layout) -> Derivation:
    """The routes that this region has to run."""

    def needed(region: str) -> list[str]:
        return [topic.name for topic in ControlTopics(region).needed_by_other_regions]

    def followed(region: str) -> list[str]:
        return [topic.name for topic in ControlTopics(region).followed_by_other_regions]

    return derive(failovers, layout, needed, followed)


def _parsed(key: str, definition: Mapping[str, Any]) -> ReadableFailover:
    """Raises ValueError: it is another one's, or cannot be understood."""
    found = FailoverDefinition.from_wire(definition)
    if found.key != key:
        raise ValueError(f"it is of {found.key!r}, and stands under {key!r}")
    return ReadableFailover(found, found.failover())
