"""Which routes must not run together: what stands in the control log, whoever put it there."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from app.replicate.model.copy_graph import OtherRegions, find_duplicate, find_loop
from app.replicate.model.regular_language import TooComplicated
from app.replicate.model.route import Route


class ConflictingRoutes(NamedTuple):
    """Routes that must not run together, and why."""

    names: frozenset[str]
    message: str
    remedy: str


def conflicts(
    routes: list[Route], changed: Collection[str], other_regions: OtherRegions
) -> list[ConflictingRoutes]:
    """Sets of routes that must not run together; some of them may be other regions'.

    `changed` are the names of those that are new or changed; the others are known to be sound together. Of
    which nothing can be proved is refused in turn: a version that could have deployed it.
    """
    found: list[ConflictingRoutes] = []
    left = list(routes)
    try:
        while (refused := _conflict(left, changed, other_regions)) is not None:
            found.append(refused)
            left, other_regions = _without(refused, left, other_regions)
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
    """Those that are new, each beside all that are sound: what cannot be proved need not be all of them."""
    found: list[ConflictingRoutes] = []
    sound = [route for route in routes if route.name not in changed]
    for route in sorted((one for one in routes if one.name in changed), key=lambda one: one.name):
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
            sound, other_regions = _without(refused, together, other_regions)
    return found


def _without(
    refused: ConflictingRoutes, routes: list[Route], other_regions: OtherRegions
) -> tuple[list[Route], OtherRegions]:
    left = [route for route in routes if route.name not in refused.names]
    return left, OtherRegions(
        other_regions.ids, tuple(one for one in other_regions.routes if one.name not in refused.names)
    )
