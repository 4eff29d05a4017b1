"""What the API answers of regions: roles, failover definitions."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from app.offsets.api.schemas import PassiveSync
from app.web.http.schemas import Deployed


class WorkloadRole(TypedDict):
    """Which region is active (or primary) for a workload with a mode; null and `unknown` until it is
    recorded.

    `released`: the epoch that each other region has heard of and let go for. `since_ms`, `by` and `reason`
    are of the last decision, `plan` the failover that made it, "" for none. `offsets` says how positions here
    follow the active region's; null where it is not passive, and when this region's leader does not answer.
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
    """A region, and how old (seconds, by its own clock) the newest word is that came here of its control log;
    null when none did, and of this region."""

    region: str
    own: bool
    copy_age_s: float | None


class Returned(TypedDict):
    """A region that lay still, and acts for nothing of several regions until it has heard the others.
    `since_ms`: since its leader says so; null: no leader has said so yet."""

    since_ms: int | None
    why: str
    remedy: str


class FailoverStatus(TypedDict):
    """Regions and roles as this one knows them. `returned`: null of a region that goes on."""

    region: str
    returned: Returned | None
    regions: list[RegionSeen]
    roles: list[WorkloadRole]


class FailoverDetail(TypedDict):
    """A failover definition as PUT takes it back, and the routes that this region has by it."""

    name: str
    definition: dict[str, Any]
    etag: str
    routes: list[str]
    deployed: Deployed
