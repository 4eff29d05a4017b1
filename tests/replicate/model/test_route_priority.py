"""Which routes send first on a worker: shares, the rest for others, no starvation."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.replicate.model.route_priority import (
    LEAST_BYTES_S,
    PRIORITY_HOLD_S,
    SAVED_BYTES,
    WEIGHTS,
    Priority,
    RoutePriorities,
)

BATCH = 64 * 1024
TURN_S = 0.001
BY_RANK: list[Priority] = ["high", "normal", "low"]


def bytes_by_priority(
    routes: list[Priority], seconds: float, turns: RoutePriorities | None = None, *, presses: bool = True
) -> Counter[Priority]:
    """Bytes by priority, if all have a backlog and in each turn a route that may send copies a batch."""
    turns = turns or RoutePriorities()
    found, now_s, at = Counter[Priority](), 100.0, 0
    while now_s < 100.0 + seconds:
        for offset in range(len(routes)):
            route = routes[(at + offset) % len(routes)]
            if not turns.wait_s(route, now_s):
                turns.spend(route, route, now_s, BATCH, presses=presses)
                found[route] += BATCH
                at += offset + 1
                break
        now_s += TURN_S
    return found


def test_a_route_of_high_priority_is_not_slowed_by_many_of_low_priority() -> None:
    found = bytes_by_priority(["high"] + ["low"] * 50, 10.0)
    share = found["low"] / found.total()
    assert 1 / 20 < share < 1 / 12
    assert bytes_by_priority(["high"] * 51, 10.0).total() == found.total(), "no capacity is wasted"


@given(st.lists(st.sampled_from(BY_RANK), min_size=2, max_size=8))
def test_beside_a_pressing_priority_the_others_get_at_most_their_share_and_none_starves(
    routes: list[Priority],
) -> None:
    found = bytes_by_priority(routes, 1.0)
    present = [one for one in BY_RANK if one in routes]
    highest = present[0]
    for lower in present[1:]:
        assert found[lower] >= LEAST_BYTES_S / 2
        # Beside its share: what is due in any case, what was saved up, a batch on its way.
        most = found[highest] * WEIGHTS[lower] / WEIGHTS[highest] + 4 * LEAST_BYTES_S + SAVED_BYTES
        assert found[lower] <= most + BATCH


@pytest.mark.parametrize("low", ["low", "normal"])
def test_a_replica_that_does_not_press_leaves_the_rest_to_others(low: Priority) -> None:
    found = bytes_by_priority(["high", low], 5.0, presses=False)  # both have caught up, or their own limits
    assert found["high"] == pytest.approx(found[low], rel=0.01)
    turns = RoutePriorities()
    for who in (1, 2):
        turns.spend("high", who, 0.0, 1 << 30, presses=True)
    for _ in range(32):
        assert turns.yields(low, PRIORITY_HOLD_S / 2)
        turns.spend(low, 3, PRIORITY_HOLD_S / 2, SAVED_BYTES, presses=True)
    assert turns.wait_s(low, PRIORITY_HOLD_S / 2)
    assert not turns.wait_s(low, PRIORITY_HOLD_S + 0.01), "the replicas stand still"
    turns.spend("high", 2, 0.0, 1, presses=False)
    assert turns.wait_s(low, PRIORITY_HOLD_S / 2), "another replica presses"
    turns.spend("high", 1, 0.0, 1, presses=False)
    assert not turns.wait_s(low, PRIORITY_HOLD_S / 2), "all have caught up"


def test_routes_of_the_same_or_a_higher_priority_are_never_held_back() -> None:
    turns = RoutePriorities()
    turns.spend("normal", 1, 0.0, 1 << 30, presses=True)
    assert not turns.wait_s("normal", 0.1)
    assert not turns.wait_s("high", 0.1)


def test_a_replica_that_presses_no_more_is_forgotten() -> None:
    """Jobs leave a worker while they press, and others come, for as long as the worker runs."""
    turns = RoutePriorities()
    for job in range(1_000):
        turns.spend("high", job, job / 10, BATCH, presses=True)
    assert turns.yields("low", 100.0)
    assert sum(map(len, turns._pressing.values())) <= 10 * PRIORITY_HOLD_S + 1
    turns.spend("low", "a", 100.0 + PRIORITY_HOLD_S, BATCH, presses=False)
    assert not any(turns._pressing.values())
