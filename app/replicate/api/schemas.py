"""The REST answers about routes; `app.web.http.schemas` has those about everything else."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from app.kernel.json_types import JsonObject
from app.web.http.schemas import Deployed, Partition, Put, ResetRow, Route, Spans


class NewestBarrier(TypedDict):
    """The newest offset sync: the next offsets of the source and of the copy, and when it was made."""

    source_end: int
    target_end: int
    at_ms: int


class RoutePartition(Partition):
    """One partition that a route copies. `halted`: why it halts before a gap. `stuck`: the offsets [from,
    before) that cannot be copied and wait for an operator. Counts are of records, since the owner began.

    These count since copying began: `lost` offsets were deleted from the source before they were copied, the
    last ones found missing at `lost_ms`. `uncompared` copies could not be compared, in a route that compares
    all. `begun_anew` is how often the source was truncated or recreated, `destination_losses` the same of the
    destination. `throttled` are sentences about delays by a broker's quota."""

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
    throttled: list[str]


class RouteDeployed(Deployed):
    """`made_by`: the failover definition that the route is derived from; "": a user defined it."""

    made_by: str


class RouteDetail(TypedDict):
    """One route: its definition as PUT takes it, and its partitions. `begins_ms`: when the start of a route
    with `start: latest` was recorded; null: not yet, or another start."""

    definition: JsonObject
    status: Route
    partitions: list[RoutePartition]
    deployed: RouteDeployed
    begins_ms: int | None


class RouteElsewhere(TypedDict):
    """A route of another region, and the ids of its clusters; "": not known."""

    region: str
    definition: JsonObject
    source_id: str
    target_id: str


class Elsewhere(TypedDict):
    """`clusters`: the ids of the clusters that are configured here; "": not known."""

    clusters: dict[str, str]
    routes: list[RouteElsewhere]


class RouteResetRow(ResetRow):
    """One partition of one topic."""

    topic: str


class RouteReset(TypedDict):
    """The moves that a reset would make, or (`execute`) made; `done` counts partitions."""

    key: str
    execute: bool
    done: int
    partitions: list[RouteResetRow]


class RouteSkipped(TypedDict):
    """The offsets that would be left out of a copy, or (`execute`) were; `count` is their number. `why`: the
    reason why they cannot be copied."""

    job: str
    execute: bool
    skipped: Spans
    count: int
    why: str


class RouteTopic(TypedDict):
    """A topic of the source that an entry of the route matches, and its copy. `why`: what it waits for, or
    why it is not copied. A `vanished` topic was copied and no longer exists, or may not be described."""

    topic: str
    partitions: int
    copy: str | None
    copy_partitions: int | None
    state: Literal["copied", "preparing", "blocked", "refused", "not-copied", "vanished"]
    why: str


class RouteTopics(TypedDict):
    """A page of the list. `read_s_ago`: seconds since the source was listed; null: never. `others`: the
    number of the source's topics that no entry matches."""

    items: list[RouteTopic]
    next: str | None
    read_s_ago: float | None
    others: int


class RoutePaused(TypedDict):
    """Whether the route is paused now."""

    key: str
    changed: bool
    paused: bool


class RouteEdited(Put):
    """A change of a route's topics; `done` describes it."""

    done: str
