"""What the API answers of moves and placement, as `app.web.http.schemas` does of everything else."""

from __future__ import annotations

from typing import Literal, TypedDict

from app.placement.model.plan import Notice


class MovedPartition(TypedDict):
    """Where a partition stands, and where it begins in the other cluster."""

    partition: int
    position: int | None
    end: int | None
    unfinished: int | None
    since: str | None
    to: int | None
    again: int | None


class MovedLetters(TypedDict):
    """What becomes of the dead letters."""

    offsets: int
    action: Literal["copy", "leave"]


# What a cluster move would do.
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
        "unfinished": int,
        "waiting": dict[str, int],
        "left_there": dict[str, int],
        "dlq": MovedLetters,
        "execute": Literal[False],
    },
)

# A job's move, with its reason; null: nobody.
PlacementMove = TypedDict("PlacementMove", {"job": str, "from": str | None, "to": str | None, "reason": str})


class PlacementPlan(TypedDict):
    """What a round would do. `plan` is its id, to be given to apply; `levels`: how full workers would be."""

    plan: str
    moves: list[PlacementMove]
    notices: list[Notice]
    levels: dict[str, float]


class PlacementApplied(PlacementPlan):
    """What was asked for: `wished` moves, which the leader makes one after the other."""

    wished: int


class Drained(TypedDict):
    """Whether a worker gives its jobs away, and how many it has."""

    worker: str
    draining: bool
    changed: bool
    jobs: int
    execute: bool
