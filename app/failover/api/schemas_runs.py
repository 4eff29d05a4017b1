"""What the API takes and answers of failover plans and runs."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import UNSET, Meta, UnsetType

from app.failover.plan.document import Plan
from app.web.http.request_bodies import Body, Reason

RunId = Annotated[str, Meta(min_length=1, max_length=80, description="the failover's id")]
Keys = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=512)]],
    Meta(max_length=2_000, description="group/topic; none: all that are active elsewhere and may be here"),
]
Force = Annotated[
    bool,
    Meta(description="active at once, without waiting for the region that had it: for one that is lost"),
]
RunState = Literal["planned", "expired", "executing", "done", "aborted"]


class MoveTo(Body, kw_only=True, frozen=True):
    """Which workloads become active in region `to`, whose worker is asked."""

    to: Annotated[str, Meta(min_length=1, max_length=100)]
    workloads: Keys = []
    force: Force = False
    reason: Reason = ""


class DrillBody(Body, kw_only=True, frozen=True):
    """As of a plan; `force`: the rehearsed failover is to be a forced one."""

    to: Annotated[str, Meta(min_length=1, max_length=100)]
    workloads: Keys = []
    force: Force = False


class ExecuteBody(Body, kw_only=True, frozen=True):
    """A planned failover, or one that is being carried out and is to be forced. `dry_run`: only whether it
    may."""

    id: RunId
    force: Force = False
    dry_run: bool = False


class AbortBody(Body, kw_only=True, frozen=True):
    """A failover that is planned, or being carried out."""

    id: RunId
    reason: Reason = ""


class FailbackBody(Body, kw_only=True, frozen=True):
    """The failover that took workloads away from here, in whichever region it was; none: the last one."""

    id: RunId | UnsetType = UNSET
    force: Force = False
    reason: Reason = ""


class RunRow(TypedDict):
    """How far a workload is. `region` had it when it was planned. `waits_for`: "" when nothing is waited for;
    `remedy` is what can be done about it."""

    workload: str
    region: str
    stage: Literal[
        "to-begin", "releasing", "positions", "activating", "returning", "active", "back", "left", "taken",
        "gone",
    ]  # fmt: skip
    waits_for: str
    remedy: str
    epoch: int | None
    note: str


class Run(TypedDict):
    """A failover to this region. `by` and `reason` are of its last state; `took_s` is from the command to its
    end, or until now. `result` says what became of it."""

    id: str
    to: str
    state: RunState
    forced: bool
    by: str
    reason: str
    made_ms: int
    expires_ms: int
    began_ms: int | None
    at_ms: int
    took_s: float | None
    back_of: str
    result: str
    workloads: int


class RunDetail(Run):
    """With how far each workload is, and the plan as it was read; null when it is not kept any more.
    `waits_for`: once nothing of it is under way, what the word that it has ended waits for; else ""."""

    waits_for: str
    remedy: str
    rows: list[RunRow]
    plan: Plan | None


class Executed(RunDetail):
    """`in_the_way`: why it may not begin (of a dry run); `changed`: whether it was begun, or is forced."""

    in_the_way: list[str]
    changed: bool
