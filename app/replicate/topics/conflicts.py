"""Which routes must not run together: what stands in the control log, whoever put it there."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from app.replicate.model.copy_graph import Beside, find_duplicate, find_loop
from app.replicate.model.regular_language import TooComplicated
from app.replicate.model.route import Route


class Refused(NamedTuple):
    """Routes that must not run together, and why."""

    names: frozenset[str]
    message: str
    remedy: str


def conflicts(routes: list[Route], changed: Collection[str], beside: Beside) -> list[Refused]:
    """Sets of routes that must not run together; some of them may be other regions'.

    `changed` are the names of those that are new or changed; the others are known to be sound together. Of
    which nothing can be proved is refused in turn: a version that could have deployed it.
    """
    found: list[Refused] = []
    left = list(routes)
    try:
        while (refused := _conflict(left, changed, beside)) is not None:
            found.append(refused)
            left, beside = _without(refused, left, beside)
    except TooComplicated:
        found += _one_by_one(left, changed, beside)
    return found


def _conflict(routes: list[Route], changed: Collection[str], beside: Beside) -> Refused | None:
    """Raises TooComplicated."""
    if loop := find_loop(routes, changed=changed, beside=beside):
        return Refused(frozenset(name for name, _, _ in loop.hops), f"would loop: {loop}", loop.remedy)
    if double := find_duplicate(routes, beside):
        return Refused(frozenset(double.routes), f"would copy twice: {double}", double.remedy)
    return None


def _one_by_one(routes: list[Route], changed: Collection[str], beside: Beside) -> list[Refused]:
    """Those that are new, each beside all that are sound: what cannot be proved need not be all of them."""
    found: list[Refused] = []
    sound = [route for route in routes if route.name not in changed]
    for route in sorted((one for one in routes if one.name in changed), key=lambda one: one.name):
        together = [*sound, route]
        try:
            refused = _conflict(together, {route.name}, beside)
        except TooComplicated as error:
            message, _, remedy = str(error).rpartition("; ")
            refused = Refused(frozenset({route.name}), message, remedy)
        if refused is None:
            sound = together
        else:
            found.append(refused)
            sound, beside = _without(refused, together, beside)
    return found


def _without(refused: Refused, routes: list[Route], beside: Beside) -> tuple[list[Route], Beside]:
    left = [route for route in routes if route.name not in refused.names]
    return left, Beside(beside.ids, tuple(one for one in beside.routes if one.name not in refused.names))
