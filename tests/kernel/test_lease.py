"""A worker stops before the leader may count it dead, and before too much is acknowledged but not saved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.kernel.lease import MAX_LATE_S, Lease

INTERVAL_S = 0.1
MAX_UNSAVED_S = INTERVAL_S + MAX_LATE_S
seconds = st.floats(0, 1e6, allow_nan=False)


def test_without_a_heartbeat_a_worker_may_do_nothing() -> None:
    lease = Lease(2.0)
    lease.saved(0.0, INTERVAL_S)

    assert not lease.holds(0.0)
    assert not lease.may_push(0.0)


def test_the_lease_counts_from_when_the_heartbeat_was_sent_not_when_it_was_acknowledged() -> None:
    lease = Lease(2.0)

    lease.renewed(10.0)

    assert lease.holds(11.999)
    assert not lease.holds(12.0)


@given(st.lists(seconds, min_size=1, max_size=10), seconds, st.floats(0.1, 60))
def test_it_holds_until_the_newest_heartbeat_runs_out_in_whatever_order_they_are_acknowledged(
    sent: list[float], now_s: float, duration_s: float
) -> None:
    lease = Lease(duration_s)
    for sent_at_s in sent:
        lease.renewed(sent_at_s)

    assert lease.holds(now_s) == (now_s < max(sent) + duration_s)


@given(sent_s=seconds, network_s=st.floats(0, 100), silence_s=st.floats(0, 100), margin_s=st.floats(0.01, 10))
def test_a_worker_stops_before_a_leader_that_waits_longer_counts_it_dead(
    sent_s: float, network_s: float, silence_s: float, margin_s: float
) -> None:
    lease, dead_after_s = Lease(2.0), 2.0 + margin_s
    lease.renewed(sent_s)
    arrived_s = sent_s + network_s
    now_s = arrived_s + silence_s

    counted_dead = now_s - arrived_s > dead_after_s

    assert not (counted_dead and lease.holds(now_s))


def test_a_lease_that_was_never_held_has_not_lapsed() -> None:
    lease = Lease(2.0)
    assert not lease.lapsed(100.0)
    lease.renewed(100.0)
    assert not lease.lapsed(101.9)
    assert lease.lapsed(102.0)


def test_delivery_waits_for_snapshots_and_continues_with_them() -> None:
    lease = Lease(10.0)
    lease.renewed(0.0)
    lease.saved(0.0, INTERVAL_S)

    assert lease.may_push(MAX_UNSAVED_S - 0.001)
    assert not lease.may_push(MAX_UNSAVED_S)
    assert lease.holds(MAX_UNSAVED_S)  # messages in flight may still be finished and saved
    lease.saved(MAX_UNSAVED_S, INTERVAL_S)
    assert lease.may_push(MAX_UNSAVED_S)


@given(st.lists(seconds, min_size=1, max_size=10), seconds)
def test_snapshots_taken_late_never_take_a_right_away(taken: list[float], now_s: float) -> None:
    lease = Lease(1e9)
    lease.renewed(0.0)
    for at_s in taken:
        lease.saved(at_s, INTERVAL_S)

    assert lease.may_push(now_s) == (now_s < max(taken) + INTERVAL_S + MAX_LATE_S)


def test_no_snapshot_makes_up_for_a_lease_that_ran_out() -> None:
    lease = Lease(1.0)
    lease.renewed(0.0)
    lease.saved(5.0, INTERVAL_S)

    assert not lease.may_push(5.0)
