"""Keeps the routes that follow from failover definitions, and says between which regions a workload moves.

Rules
1. Derived routes are ordinary routes in the control log, with the definition that made them. The leader
   writes missing and changed routes, and deletes those that no longer follow from a definition.
2. A definition that cannot be read, or a cluster that is not configured here, changes and deletes nothing.
3. A user's own route of the same name is never overwritten. The leader reports an incident.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import uuid4

from app.controllog.definition_cache import DefinitionCache
from app.controllog.events import ALL, AnyControlEvent, Paused, RouteDeleted, RoutePut
from app.controllog.leader_reports import NewTerm, until_deposed
from app.controllog.log import ControlLog
from app.controllog.topics import ControlTopics
from app.dispatch.definition import Workload
from app.failover.definition import PREFIX, FailoverDefinition, route_definition
from app.failover.topology import Derivation, Failover, Layout, derive, governing
from app.kernel.clock import now_ms
from app.kernel.incidents import IsOver, ReportIncident
from app.kernel.json_types import JsonMapping
from app.replicate.definition import RouteDefinition
from app.replicate.definition_checks import conflicts as route_conflicts
from app.replicate.definition_checks import folded_copies
from app.replicate.model.route import Route

DERIVED_ROUTES_INCIDENT = "failover-trouble"


class ReadableFailover(NamedTuple):
    """A definition that could be read."""

    definition: FailoverDefinition
    failover: Failover


class DerivedDefinitions(NamedTuple):
    """The routes that follow from a set of definitions."""

    routes: Mapping[str, tuple[RouteDefinition, str]]  # name -> the route, and the definition that makes it
    unknown: Mapping[str, tuple[str, str]]  # name -> the definition that makes it, and why it is unknown


class DerivedRoutes:
    """The derived routes of a region. Without a `layout` the worker knows no regions, and there are none."""

    def __init__(self, control: ControlLog, layout: Layout | None, report_incident: ReportIncident) -> None:
        self.layout = layout
        self._control = control
        self._report_incident = report_incident
        self._new_term = NewTerm()
        self._parsed = DefinitionCache(lambda: control.view.failovers, _parsed, self._report_unreadable)
        self._stamp: tuple[tuple[str, str], ...] = ()
        self._following = DerivedDefinitions({}, {})
        self._governing: dict[str, Failover | None] = {}
        self._reported: set[tuple[str, str]] = set()

    def all(self) -> dict[str, ReadableFailover]:
        """The definitions that can be read, by key."""
        keys = sorted(self._control.view.failovers)
        return {key: known for key in keys if (known := self._parsed.get(key)) is not None}

    def governing(self, topic: str) -> Failover | None:
        """The definition that says between which regions a workload of this topic moves."""
        self._refresh()
        if topic not in self._governing:
            self._governing[topic] = governing((known.failover for known in self.all().values()), topic)
        return self._governing[topic]

    def regions_of(self, workload: Workload) -> tuple[str, ...]:
        """The regions in which the workload may be active, in order of priority; (): none."""
        failover = self.governing(workload.metadata.topic)
        return () if failover is None else failover.regions

    def others(self) -> set[str]:
        """The other regions that share topics with this one."""
        own = "" if self.layout is None else self.layout.own
        joined = [known.failover.regions for known in self.all().values() if own in known.failover.regions]
        return {region for regions in joined for region in regions if region != own}

    def derived_definitions(self) -> DerivedDefinitions:
        """The routes that this region has to run."""
        self._refresh()
        return self._following

    def _refresh(self) -> None:
        """Derives the routes again when a definition has changed."""
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
        """Why the definition cannot stand beside the others and the users' own routes.

        This is slow, and may run in a thread.
        """
        if self.layout is None:
            return []
        others = [known.failover for key, known in self.all().items() if key != wanted.key]
        stand = self.derived_definitions().routes
        before = {name for name, (_, maker) in stand.items() if maker != wanted.name}
        derived = _derived([*others, wanted.failover()], self.layout).routes
        mine = {name for name, route in derived.items() if route.made_by == wanted.name} - before
        taken = sorted(mine & {route.name for route in by_hand})
        if taken:
            return [f"its route {taken[0]} is defined already; delete that route, or rename the definition"]
        routes = [*by_hand, *(route.route() for route in derived.values())]
        found = [f"{name}: {what}; {remedy}" for what, remedy, name in route_conflicts(routes, mine)]
        known = set(map(str, folded_copies([*by_hand, *(made.route() for made, _ in stand.values())])))
        twins = [pair for pair in folded_copies(routes) if mine & {pair.one[0], pair.other[0]}]
        return [
            *found,
            *(f"{pair.one[0]}: {pair}; {pair.remedy}" for pair in twins if str(pair) not in known),
        ]

    def steps(self) -> list[AnyControlEvent]:
        """The events that the leader has to write so that the routes are right (rules 1 to 3)."""
        if self.layout is None:
            return []
        following, view, at_ms = self.derived_definitions(), self._control.view, now_ms()
        events: list[AnyControlEvent] = []
        incidents: set[tuple[str, str]] = set()
        for name, (definition, maker) in following.routes.items():
            stands, etag = view.routes.get(name), definition.etag()
            if stands is not None and not stands.made_by:
                incidents.add((maker, f"its route {name} cannot be made: somebody defined a route so named; "
                          "delete that route, or rename the failover definition"))  # fmt: skip
            elif stands is None or (stands.etag, stands.made_by) != (etag, maker):
                put = RoutePut(
                    at_ms=at_ms, key=name, definition=definition.to_wire(), etag=etag, actor=actor(maker),
                    made_by=maker,
                )  # fmt: skip
                events.append(view.replacing(put, uuid4().hex))
        for name, (maker, why) in following.unknown.items():
            incidents.add((maker, f"its route {name} cannot be made: {why}"))
        for name, put in list(view.routes.items()):
            if not put.made_by or name in following.routes or name in following.unknown:
                continue
            if f"{PREFIX}{put.made_by}" in view.failovers and put.made_by not in self._readable():
                continue  # rule 2
            events += self._deleted(name, put, at_ms)
        if self._new_term.has_begun(view.term):
            self._reported = set()
        for maker, why in sorted(incidents - self._reported):
            message, _, remedy = why.rpartition("; ")
            is_over = self._is_over(maker, why)
            self._report_incident(DERIVED_ROUTES_INCIDENT, maker, message, remedy, is_over)
        self._reported = incidents
        return events

    def _is_over(self, maker: str, why: str) -> IsOver:
        return until_deposed(self._control, lambda: (maker, why) not in self._reported)

    def _deleted(self, name: str, put: RoutePut, at_ms: int) -> Iterator[AnyControlEvent]:
        by = actor(put.made_by)
        yield RouteDeleted(at_ms=at_ms, key=name, actor=by, expected=put.etag)
        if name in self._control.view.paused:  # else the next route of this name begins paused
            yield Paused(at_ms=at_ms, key=name, partition=ALL, paused=False, actor=by)

    def _readable(self) -> set[str]:
        return {known.failover.name for known in self.all().values()}

    def _report_unreadable(self, key: str, why: str, is_over: IsOver) -> None:
        name = key.removeprefix(PREFIX)
        self._report_incident(DERIVED_ROUTES_INCIDENT, name, why, "deploy it again", is_over)


def actor(maker: str) -> str:
    """The author of a derived route, on the activity page."""
    return f"made by failover definition {maker}"


def _derived(failovers: Iterable[Failover], layout: Layout) -> Derivation:
    """The routes that this region has to run."""

    def needed(region: str) -> list[str]:
        return [topic.name for topic in ControlTopics(region).needed_by_other_regions]

    def followed(region: str) -> list[str]:
        return [topic.name for topic in ControlTopics(region).followed_by_other_regions]

    return derive(failovers, layout, needed, followed)


def _parsed(key: str, definition: JsonMapping) -> ReadableFailover:
    """Raises ValueError: it belongs to another key, or cannot be parsed."""
    found = FailoverDefinition.from_wire(definition)
    if found.key != key:
        raise ValueError(f"the definition of {found.key!r} is stored under {key!r}")
    return ReadableFailover(found, found.failover())
