"""What the API answers of routes, as `shapes` does of everything else."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from app.console.shapes import Deployed, Partition, Put, Route


class RouteDetail(TypedDict):
    """One route: its definition as PUT takes it back, and its partitions."""

    definition: dict[str, Any]
    status: Route
    partitions: list[Partition]
    deployed: Deployed


class RouteTopic(TypedDict):
    """A topic of the source that an entry of the route means, and its copy. `why` says what it waits for, or
    why it is not copied."""

    topic: str
    partitions: int
    copy: str | None
    copy_partitions: int | None
    state: Literal["copied", "preparing", "blocked", "refused", "not-copied"]
    why: str


class RouteTopics(TypedDict):
    """A piece of the list; `read_s_ago`: when the source was listed, null while it never was. `others` counts
    the topics there that the route does not mean."""

    items: list[RouteTopic]
    next: str | None
    read_s_ago: float | None
    others: int


class RoutePaused(TypedDict):
    """Whether a route is paused now."""

    key: str
    changed: bool
    paused: bool


class RouteEdited(Put):
    """What became of a topic in a route; `done` says it in words."""

    done: str
