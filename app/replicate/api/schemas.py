"""What the API answers of routes, as `app.web.http.schemas` does of everything else."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from app.web.http.schemas import Deployed, Partition, Put, ResetRow, Route, Spans


class NewestBarrier(TypedDict):
    """The newest entry of the offset map: where the source's and the copy's next records lie, and when."""

    source_end: int
    target_end: int
    at_ms: int


class RoutePartition(Partition):
    """One partition that a route copies. `halted` says why it goes on no more (at a gap), `stuck` which
    offsets [from, before) cannot be copied and wait for somebody. Counts are of records, since its owner
    began; but `lost` offsets were gone from the source before they were copied since copying began here, the
    last of them found missing at `lost_ms`. Since then, too: `uncompared` copies of a route that compares all
    could not be, `begun_anew` times the source was truncated or made anew, `destination_losses` times the
    destination was."""

    halted: str
    stuck: Annotated[list[int], Meta(min_length=2, max_length=2)] | None
    rate: float | None
    verbatim: int
    encoded: int
    left_out: int
    lost: int
    lost_ms: int | None
    compared: int
    differing: int
    uncompared: int
    begun_anew: int
    destination_losses: int
    limited: bool
    barrier: NewestBarrier | None


class RouteDeployed(Deployed):
    """`made_by`: the failover definition that the route is derived from, "" for one that somebody defined."""

    made_by: str


class RouteDetail(TypedDict):
    """One route: its definition as PUT takes it back, and its partitions. `begins_ms`: when it was recorded
    where it begins, with `start: latest`; null while it is not, and without."""

    definition: dict[str, Any]
    status: Route
    partitions: list[RoutePartition]
    deployed: RouteDeployed
    begins_ms: int | None


class RouteElsewhere(TypedDict):
    """A route of another region, and the ids of its clusters; "" while they are not known."""

    region: str
    definition: dict[str, Any]
    source_id: str
    target_id: str


class Elsewhere(TypedDict):
    """`clusters` has the ids of those that are configured here, "" of one that was never heard."""

    clusters: dict[str, str]
    routes: list[RouteElsewhere]


class RouteResetRow(ResetRow):
    """One partition of one topic."""

    topic: str


class RouteReset(TypedDict):
    """What a reset would do, or (`execute`) did; `done` counts partitions."""

    key: str
    execute: bool
    done: int
    partitions: list[RouteResetRow]


class RouteSkipped(TypedDict):
    """What would be, or (`execute`) was left out of a copy; `count` offsets. `why` it cannot be copied."""

    job: str
    execute: bool
    skipped: Spans
    count: int
    why: str


class RouteTopic(TypedDict):
    """A topic of the source that an entry of the route means, and its copy. `why` says what it waits for, or
    why it is not copied. One that `vanished` was copied, and has no partitions, or may not be described."""

    topic: str
    partitions: int
    copy: str | None
    copy_partitions: int | None
    state: Literal["copied", "preparing", "blocked", "refused", "not-copied", "vanished"]
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
