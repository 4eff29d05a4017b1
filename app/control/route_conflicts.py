"""Which routes must not run together: what stands in the control log, whoever put it there."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import structlog

from app.core.route import Route
from app.core.routes_graph import Beside, find_duplicate, find_loop
from app.core.routes_words import TooComplicated

log = structlog.get_logger(__name__)


class Refused(NamedTuple):
    """Routes that must not run together, and why."""

    names: frozenset[str]
    message: str
    remedy: str


def conflicts(routes: list[Route], changed: Collection[str], beside: Beside) -> list[Refused]:
    """Sets of routes that must not run together; some of them may be other regions'."""
    found: list[Refused] = []
    left = list(routes)
    try:
        while True:
            if loop := find_loop(left, changed=changed, beside=beside):
                names = frozenset(name for name, _, _ in loop.hops)
                found.append(Refused(names, f"would loop: {loop}", loop.remedy))
            elif double := find_duplicate(left, beside):
                names = frozenset(double.routes)
                found.append(Refused(names, f"would copy twice: {double}", double.remedy))
            else:
                return found
            left = [route for route in left if route.name not in names]
            beside = Beside(beside.ids, tuple(route for route in beside.routes if route.name not in names))
    except TooComplicated as error:  # it was proved when it was deployed, by a version that could
        log.warning("it cannot be proved that routes do not loop", error=str(error))
        return found
