"""The API's answers about moves and placement; `app.web.http.schemas` has the others."""

from __future__ import annotations

from typing import Literal, TypedDict

from app.placement.model.plan import Notice


class MovedPartition(TypedDict):
    """A partition's position, and where it begins in the other cluster."""

    partition: int
    position: int | None
    end: int | None
    unfinished: int | None
    since: str | None
    to: int | None
    again: int | None
    by: Literal["offset syncs", "time"] | None


class MovedLetters(TypedDict):
    """The dead letters, and what the move does with them."""

    offsets: int
    action: Literal["copy", "leave"]


# The plan of a move to another cluster.
ForeseenMove = TypedDict(
    "ForeseenMove",
    {
        "key": str,
        "from": str,
        "to": str,
        "margin_ms": int,
        "partitions": list[MovedPartition],
        "complete": bool,
        "again": int,
        "logged": int,
        "behind": bool,
        "needs_force": bool,
        "unfinished": int,
        "waiting": dict[str, int],
        "left_there": dict[str, int],
        "dlq": MovedLetters,
        "execute": Literal[False],
    },
)

# A job's move, with its reason; null: no worker.
PlacementMove = TypedDict("PlacementMove", {"job": str, "from": str | None, "to": str | None, "reason": str})


class PlacementPlan(TypedDict):
    """The plan of a round. `plan` is its id, for apply; `levels`: how full the workers would be."""

    plan: str
    moves: list[PlacementMove]
    notices: list[Notice]
    levels: dict[str, float]


class PlacementApplied(PlacementPlan):
    """The applied plan: `wished` moves, which the leader makes one after the other."""

    wished: int


class Drained(TypedDict):
    """Whether a worker hands over its jobs, and how many it has."""

    worker: str
    draining: bool
    changed: bool
    jobs: int
    execute: bool
