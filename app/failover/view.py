"""The role of a workload, as its page and the list of workloads show it. Pure."""

from __future__ import annotations

from typing import Literal, TypedDict

from app.controllog.events import WorkloadPut
from app.controllog.roles import ACTIVE_PASSIVE
from app.controllog.state import ControlState
from app.kernel.json_types import JsonObject


class Role(TypedDict):
    """The active (or primary) region of a workload with a mode, under which epoch and since when.

    The fields are null and `state` is `unknown` until a role is recorded. `by` and `reason` belong to the
    last decision.
    """

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
) -> JsonObject | None:
    """A `Role`, as `region` knows it; None: the workload has no mode.

    `returned`: the region has just returned and does not act by its roles yet.
    """
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


def passive_why(role: JsonObject | None, region: str) -> str:
    """Why the workload has no jobs in `region`; "": it should have some. `role`: its `role_fields` there."""
    if role is None or role["mode"] != ACTIVE_PASSIVE or role["active_here"] or role["region"] is None:
        return ""
    if role["state"] == "moving":
        return f"its role is moving to region {role['region']}"
    if role["region"] == region:
        return f"region {region} has just returned, and has not read yet what others decided"
    return f"region {role['region']} is active for it"
