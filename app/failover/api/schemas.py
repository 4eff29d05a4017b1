"""The API's answers about regions: roles, and failover definitions."""

from __future__ import annotations

from typing import Literal, TypedDict

from app.kernel.json_types import JsonObject
from app.offsets.api.schemas import PassiveSync
from app.web.http.schemas import Deployed


class WorkloadRole(TypedDict):
    """The active (or primary) region of a workload with a mode; null and `unknown` until it is recorded.

    `released`: the epoch that each other region has read and released the workload for. `since_ms`, `by` and
    `reason` belong to the last decision. `plan` is the failover that made it, "" for none. `offsets` says how
    the positions here follow the active region; null if the workload is not passive here, or this region's
    leader does not answer.
    """

    workload: str
    mode: Literal["active-active", "active-passive"]
    region: str | None
    epoch: int | None
    state: Literal["moving", "active", "unknown"]
    active_here: bool
    previous: str
    since_ms: int | None
    by: str
    reason: str
    plan: str
    regions: list[str]
    released: dict[str, int]
    offsets: PassiveSync | None


class RegionSeen(TypedDict):
    """A region, and the age (seconds, by its own clock) of the newest record of its control log that arrived
    here.

    The age is null for this region, and for one of which nothing has arrived.
    """

    region: str
    own: bool
    copy_age_s: float | None


class Returned(TypedDict):
    """A region that lay still, and acts for no shared workload until it has heard the others.

    `since_ms`: when its leader first said so; null: no leader has said so yet.
    """

    since_ms: int | None
    why: str
    remedy: str


class FailoverStatus(TypedDict):
    """Regions and roles, as this region knows them. `returned`: null, unless it has just returned."""

    region: str
    returned: Returned | None
    regions: list[RegionSeen]
    roles: list[WorkloadRole]


class FailoverDetail(TypedDict):
    """A failover definition in the form that PUT accepts, and the routes that this region derives from it."""

    name: str
    definition: JsonObject
    etag: str
    routes: list[str]
    deployed: Deployed
