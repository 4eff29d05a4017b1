"""The control log's fold for regions: definitions side by side, and roles that compaction cannot set back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog import codec
from app.controllog.events import (
    AnyControlEvent,
    FailoverDeleted,
    FailoverPut,
    RegionPulse,
    RolePut,
    RoleReleased,
    RouteDeleted,
    RoutePut,
    WorkloadDeleted,
    compaction_key,
)
from app.controllog.state import ControlState

KEY = "billing/orders"


def failover(etag: str = "e1", expected: str | None = None) -> FailoverPut:
    return FailoverPut(
        at_ms=0, key="failover:orders", definition={}, etag=etag, actor="me", expected=expected
    )  # fmt: skip


def route(etag: str = "r1", **fields: Any) -> RoutePut:
    return RoutePut(at_ms=0, key="orders", definition={}, etag=etag, actor="me", **fields)


def role(region: str, epoch: int, state: Any = "active", key: str = KEY) -> RolePut:
    return RolePut(at_ms=0, key=key, region=region, epoch=epoch, state=state, actor="me")


EVENTS: list[AnyControlEvent] = [
    failover(), FailoverDeleted(at_ms=1, key="failover:orders", actor="me", expected="e1"),
    route(made_by="orders"), role("west", 65, "moving"),
    RoleReleased(at_ms=1, key=KEY, region="east", epoch=65),
    RegionPulse(at_ms=1, region="east", heard={"west": 5}),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_come_back_from_the_wire(event: AnyControlEvent) -> None:
    assert codec.control_event(codec.encode(event)) == event


def test_a_route_of_an_older_version_has_no_maker() -> None:
    older = b'{"event":"route-put","at_ms":0,"key":"orders","definition":{},"etag":"r","actor":"me"}'
    event = codec.control_event(older)
    assert isinstance(event, RoutePut)
    assert event.made_by == ""


def test_of_two_changes_of_a_definition_at_once_one_is_refused() -> None:
    state = ControlState()
    assert state.apply(failover("e1", ""))
    assert not state.apply(failover("e2", ""))
    assert state.apply(failover("e2", "e1"))
    assert state.standing(failover("e3", "e1")) == state.failovers["failover:orders"]
    assert not state.apply(FailoverDeleted(at_ms=0, key="failover:orders", actor="me", expected="e1"))
    assert state.apply(FailoverDeleted(at_ms=0, key="failover:orders", actor="me", expected="e2"))
    assert state.failovers == {}


def test_a_definition_a_route_and_a_workload_of_one_name_are_three_things() -> None:
    state = ControlState()
    state.apply(failover())
    state.apply(route())
    state.apply(RouteDeleted(at_ms=0, key="orders", actor="me"))
    assert list(state.failovers) == ["failover:orders"]
    assert compaction_key(failover()) != compaction_key(route())


def test_a_role_outlives_its_workload_since_receivers_remember_its_epoch() -> None:
    state = ControlState()
    state.apply(role("west", 65))
    state.apply(WorkloadDeleted(at_ms=0, key=KEY, actor="me"))

    assert state.roles.is_active(KEY, "west")


where, epochs = st.sampled_from(["east", "west"]), st.integers(-1, 200)
role_events = st.lists(
    st.builds(role, where, epochs, st.sampled_from(["moving", "active"]))
    | st.builds(
        lambda region, epoch: RoleReleased(at_ms=0, key=KEY, region=region, epoch=epoch), where, epochs
    ),
    max_size=12,
)


@given(role_events, st.randoms(use_true_random=False))
def test_roles_are_the_same_after_any_compaction_and_in_any_order(
    events: list[AnyControlEvent], random: Any
) -> None:
    whole, compacted, shuffled = ControlState(), ControlState(), ControlState()
    for event in events:
        whole.apply(event)
    last = {compaction_key(event): event for event in events}
    for event in [event for event in events if last[compaction_key(event)] is event]:
        compacted.apply(event)
    for event in random.sample(events, len(events)):
        shuffled.apply(event)

    for other in (compacted, shuffled):
        assert other.roles.of(KEY) == whole.roles.of(KEY)
        assert other.roles.released(KEY) == whole.roles.released(KEY)
