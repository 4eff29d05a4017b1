"""Which region is active (or primary) for a workload, as its page and the list of workloads show it: pure."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from app.controllog.events import WorkloadPut
from app.controllog.roles import ACTIVE_PASSIVE
from app.controllog.state import ControlState


class Role(TypedDict):
    """Of a workload with a mode: the region that is active (or primary) for it, under which epoch, and since
    when; null and `unknown` until that is recorded. `by` and `reason` are of the last decision."""

    mode: Literal["active-active", "active-passive"]
    region: str | None
    epoch: int | None
    state: Literal["moving", "active", "unknown"]
    active_here: bool
    since_ms: int | None
    by: str
    reason: str


def role_fields(
    state: ControlState, put: WorkloadPut, region: str, *, returned: bool = False
) -> dict[str, Any] | None:
    """A `Role`, as `region` knows it; None: the workload has no mode. `returned`: the region has just come
    back, and acts by no role yet."""
    spec = put.definition.get("spec")
    mode = spec.get("mode") if isinstance(spec, dict) else None
    if mode is None:
        return None
    role = state.roles.of(put.key)
    return {
        "mode": mode,
        "region": None if role is None else role.region,
        "epoch": None if role is None else role.epoch,
        "state": "unknown" if role is None else role.state,
        "active_here": state.roles.is_active(put.key, region) and not returned,
        "since_ms": None if role is None else role.at_ms,
        "by": "" if role is None else role.actor,
        "reason": "" if role is None else role.reason,
    }


def passive_why(told: dict[str, Any] | None, region: str) -> str:
    """Why the workload has no jobs in `region`, of its `role_fields` there; "": it should have some."""
    if told is None or told["mode"] != ACTIVE_PASSIVE or told["active_here"] or told["region"] is None:
        return ""
    if told["state"] == "moving":
        return f"its role is moving to region {told['region']}"
    if told["region"] == region:
        return f"region {region} has just come back, and has not heard yet what others decided"
    return f"region {told['region']} is active for it"
