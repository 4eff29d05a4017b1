"""Finds routes in the control log that must not run together."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from app.replicate.model.copy_graph import OtherRegions, find_duplicate, find_loop
from app.replicate.model.regular_language import TooComplicated
from app.replicate.model.route import Route


class ConflictingRoutes(NamedTuple):
    names: frozenset[str]
    message: str
    remedy: str


def conflicts(
    routes: list[Route], changed: Collection[str], other_regions: OtherRegions
) -> list[ConflictingRoutes]:
    """Sets of routes that must not run together; some may be other regions' routes.

    `changed` are the names of new or changed routes; the others are known to be sound together. If nothing
    can be proved about a route, it is refused in turn. Only another version of Switchyard can have deployed
    it."""
    found: list[ConflictingRoutes] = []
    left = list(routes)
    try:
        while (refused := _conflict(left, changed, other_regions)) is not None:
            found.append(refused)
            left, other_regions = _drop_refused(refused, left, other_regions)
    except TooComplicated:
        found += _one_by_one(left, changed, other_regions)
    return found


def _conflict(
    routes: list[Route], changed: Collection[str], other_regions: OtherRegions
) -> ConflictingRoutes | None:
    """Raises TooComplicated."""
    if loop := find_loop(routes, changed=changed, other_regions=other_regions):
        return ConflictingRoutes(
            frozenset(name for name, _, _ in loop.hops), f"would loop: {loop}", loop.remedy
        )
    if double := find_duplicate(routes, other_regions):
        return ConflictingRoutes(frozenset(double.routes), f"would copy twice: {double}", double.remedy)
    return None


def _one_by_one(
    routes: list[Route], changed: Collection[str], other_regions: OtherRegions
) -> list[ConflictingRoutes]:
    """Checks each new route beside all sound ones, so that an unprovable route condemns no other."""
    found: list[ConflictingRoutes] = []
    sound = [route for route in routes if route.name not in changed]
    for route in sorted((new for new in routes if new.name in changed), key=lambda new: new.name):
        together = [*sound, route]
        try:
            refused = _conflict(together, {route.name}, other_regions)
        except TooComplicated as error:
            message, _, remedy = str(error).rpartition("; ")
            refused = ConflictingRoutes(frozenset({route.name}), message, remedy)
        if refused is None:
            sound = together
        else:
            found.append(refused)
            sound, other_regions = _drop_refused(refused, together, other_regions)
    return found


def _drop_refused(
    refused: ConflictingRoutes, routes: list[Route], other_regions: OtherRegions
) -> tuple[list[Route], OtherRegions]:
    left = [route for route in routes if route.name not in refused.names]
    return left, OtherRegions(
        other_regions.ids, tuple(route for route in other_regions.routes if route.name not in refused.names)
    )
