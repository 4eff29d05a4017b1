"""The routes of the control log, parsed."""

from __future__ import annotations

from typing import NamedTuple

from app.controllog.definition_cache import DefinitionCache
from app.controllog.log import ControlLog
from app.kernel.incidents import ReportIncident
from app.kernel.json_types import JsonMapping
from app.replicate.definition import RouteDefinition
from app.replicate.model.route import Route


class ReadableRoute(NamedTuple):
    definition: RouteDefinition
    route: Route


class ReadableRoutes:
    """The routes that this version can read, by name."""

    def __init__(self, control: ControlLog, report_incident: ReportIncident) -> None:
        self._control = control
        self._cache = DefinitionCache(
            lambda: control.view.routes,
            _parsed,
            lambda name, why, is_over: report_incident(
                "route-trouble", name, why, "deploy it again", is_over
            ),
        )

    def get(self, name: str) -> ReadableRoute | None:
        """The last readable definition of the route; None: there is none."""
        return self._cache.get(name)

    def all(self) -> dict[str, ReadableRoute]:
        """The readable routes, by name."""
        found = {name: self._cache.get(name) for name in list(self._control.view.routes)}
        return {name: route for name, route in found.items() if route is not None}


def _parsed(name: str, definition: JsonMapping) -> ReadableRoute:
    """Raises ValueError: the definition is another route's, or invalid."""
    found = RouteDefinition.from_wire(definition)
    if found.key != name:
        raise ValueError(f"it is the definition of {found.key!r}, but is stored under {name!r}")
    return ReadableRoute(found, found.route())
