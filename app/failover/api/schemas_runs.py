"""The API's requests and answers about failover plans and runs."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import UNSET, Meta, UnsetType

from app.failover.plan.document import Plan
from app.web.http.request_bodies import Body, Reason

RunId = Annotated[str, Meta(min_length=1, max_length=80, description="the failover's id")]
Keys = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=512)]],
    Meta(
        max_length=2_000,
        description="group/topic; none: all that are active in other regions and may be active here",
    ),
]
Force = Annotated[
    bool,
    Meta(description="do not wait for the former region to stop: for a region that is lost"),
]
RunState = Literal["planned", "expired", "executing", "done", "aborted"]


class MoveTo(Body, kw_only=True, frozen=True):
    """The workloads that become active in region `to`. The request goes to a worker of that region."""

    to: Annotated[str, Meta(min_length=1, max_length=100)]
    workloads: Keys = []
    force: Force = False
    reason: Reason = ""


class DrillBody(Body, kw_only=True, frozen=True):
    """As for a plan. `force`: rehearse a forced failover."""

    to: Annotated[str, Meta(min_length=1, max_length=100)]
    workloads: Keys = []
    force: Force = False


class ExecuteBody(Body, kw_only=True, frozen=True):
    """A failover that is planned, or one that executes and becomes forced.

    `dry_run`: only check whether it may begin.
    """

    id: RunId
    force: Force = False
    dry_run: bool = False


class AbortBody(Body, kw_only=True, frozen=True):
    """A failover that is planned or executes."""

    id: RunId
    reason: Reason = ""


class FailbackBody(Body, kw_only=True, frozen=True):
    """The failover that took workloads away from here, in whichever region it ran; default: the last."""

    id: RunId | UnsetType = UNSET
    force: Force = False
    reason: Reason = ""


class RunRow(TypedDict):
    """The stage of a workload. `region` had it when the failover was planned.

    `waits_for` is "" when it waits for nothing; `remedy` says what to do about it.
    """

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
    """A failover to this region. `by` and `reason` belong to its last state.

    `took_s` is the time from its start to its end, or until now. `result` is its outcome.
    """

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
    """A failover with the stage of each workload, and its plan; null: the plan is no longer kept.

    `waits_for` is what the record of its end waits for, once no workload is moving; else "".
    """

    waits_for: str
    remedy: str
    rows: list[RunRow]
    plan: Plan | None


class Executed(RunDetail):
    """`in_the_way`: why it may not begin (dry run). `changed`: whether it began or became forced."""

    in_the_way: list[str]
    changed: bool
