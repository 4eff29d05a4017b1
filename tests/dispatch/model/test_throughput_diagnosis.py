"""The diagnosis names the most severe true reason why a workload is not faster, and never an untrue one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.throughput_diagnosis import (
    HOLDING,
    FlowReport,
    RateShare,
    TargetStatus,
    ThroughputBound,
    ThroughputDiagnosis,
    gravest,
    hibernated,
    pace,
    passive,
    without_worker,
)

IDLE = FlowReport(jobs=2)


def target(**fields: object) -> TargetStatus:
    return msgspec.structs.replace(TargetStatus(address="billing:443", limit=100), **fields)


def flow(**fields: object) -> FlowReport:
    return FlowReport(**{"jobs": 2, **fields})  # type: ignore[arg-type] # the tests' own


SLOW = RateShare("messages", 50.0, -4.0)
CASES = [
    (ThroughputBound.LEASE, flow(blocked="lease"), target(), "lease is over"),
    (ThroughputBound.LEASE, flow(blocked="snapshots"), target(), "saved"),
    (
        ThroughputBound.LEASE,
        flow(blocked="snapshots", cpu_throttled=0.49),
        target(),
        "until acknowledged messages are saved; this container is throttled: its CPU quota",
    ),
    (ThroughputBound.LEASE, flow(blocked="lease", cpu_throttled=0.49), target(), "49%"),
    (ThroughputBound.HEALTH, IDLE, target(health="not-serving", held=3), "not serving; 3 messages wait"),
    (
        ThroughputBound.HEALTH,
        IDLE,
        target(health="unknown"),
        "billing:443 answers UNKNOWN to the gRPC health",
    ),
    (ThroughputBound.HEALTH, IDLE, target(health="service-unknown"), "answers SERVICE_UNKNOWN to the gRPC"),
    (
        ThroughputBound.BREAKER,
        IDLE,
        target(breaker="open", why_open="3 calls in a row found nobody", probe_in_ms=700),
        "3 calls in a row found nobody; the next probe in 0.7 s",
    ),
    (ThroughputBound.BREAKER, IDLE, target(breaker="half-open", probe_in_ms=0), "a probe is out"),
    (
        ThroughputBound.PAUSED,
        flow(paused=2, ready=5),
        target(),
        "all 2 of its partitions here were paused by an operator",
    ),
    (
        ThroughputBound.PAUSED,
        flow(paused=2, resting=["region west has it"]),
        target(),
        "all 2 of its partitions here pause, and workload resume does not end that: region west has it",
    ),
    (
        ThroughputBound.PAUSED,
        flow(paused=2, obscured=True),
        target(),
        "all 2 of its partitions here are paused",
    ),
    (
        ThroughputBound.DEAD_LETTERS,
        flow(withheld=7, failures="INTERNAL 7 times"),
        target(),
        "7 messages failed",
    ),
    (
        ThroughputBound.COPYING,
        flow(outgoing=2, backoff=1, not_taken=["no copy in orders__billing__dlq: it is gone"]),
        target(in_flight=4),
        "2 messages wait to be copied: no copy in orders__billing__dlq: it is gone",
    ),
    (ThroughputBound.COPYING, flow(outgoing=2), target(in_flight=4), "on their way to a retry topic"),
    (ThroughputBound.HEAD, flow(stuck=["orders-3 at offset 17"]), target(), "orders-3 at offset 17"),
    (
        ThroughputBound.RATE,
        flow(ready=1, rates=[SLOW]),
        target(),
        "50 messages/s is this worker's share, 5 are short",
    ),
    (
        ThroughputBound.CPU,
        flow(ready=1, cpu_throttled=0.49),
        target(in_flight=100, ceiling=100),
        "this container is throttled: its CPU quota was used up in 49% of the last minute's periods; "
        "raise the quota, or add workers",
    ),
    (ThroughputBound.CPU, flow(unread=9, cpu_throttled=0.49), target(in_flight=2), "49%"),
    (ThroughputBound.CPU, flow(behind=9, cpu_throttled=0.49), target(in_flight=2), "49%"),
    (ThroughputBound.RATE, flow(ready=1, rates=[SLOW], cpu_throttled=0.49), target(), "50 messages/s"),
    (ThroughputBound.LIMIT, flow(ready=1, cpu_throttled=0.02), target(in_flight=100), "flow.max_inflight"),
    (ThroughputBound.NONE, flow(cpu_throttled=0.49), target(), "every message is delivered"),
    (ThroughputBound.SLOW_START, flow(ready=1), target(allowed=4, in_flight=4), "4 of 100"),
    (ThroughputBound.LIMIT, flow(ready=1), target(in_flight=100), "flow.max_inflight"),
    (
        ThroughputBound.LIMIT,
        flow(ready=1),
        target(in_flight=95, ceiling=500, phase="hold"),
        "only made it slower",
    ),
    (
        ThroughputBound.LIMIT,
        flow(ready=1),
        target(in_flight=95, ceiling=500, phase="ramp"),
        "still measuring",
    ),
    (ThroughputBound.LIMIT, flow(ready=1), target(in_flight=95, ceiling=100, phase="ramp"), "the most"),
    (ThroughputBound.CREDIT, flow(ready=1), target(credit=0, in_flight=7), "no credit beyond the 7"),
    (ThroughputBound.CREDIT, flow(ready=1), target(credit=0), "no stream up"),
    (
        ThroughputBound.CAPACITY,
        flow(cramped=["orders-1 at offset 2"]),
        target(in_flight=10),
        "tracker.capacity",
    ),
    (ThroughputBound.ORDER, flow(behind=12), target(in_flight=1), "12 messages wait for an earlier one"),
    (ThroughputBound.MEMORY, flow(unread=9, budget_used=0.99), target(), "99%"),
    (ThroughputBound.CATCH_UP, flow(catching_up=1, unread=9), target(), "catchUp.rate"),
    (
        ThroughputBound.THROTTLED,
        flow(unread=9, throttles=["the broker's quota delays it"]),
        target(),
        "quota",
    ),
    (ThroughputBound.NONE, flow(throttles=["the broker's quota delays it"]), target(), "every message"),
    (ThroughputBound.FETCH, flow(unread=9), target(in_flight=2), "9 are not read yet"),
    (ThroughputBound.DELAY, flow(postponed=8, due_in_s=90.0), target(), "the first for 90.0 s"),
    (ThroughputBound.DELAY, flow(postponed=8, due_in_s=86_400.0), target(), "the first for 24.0 h"),
    (ThroughputBound.BACKOFF, flow(backoff=3), target(), "3 messages wait"),
    (ThroughputBound.NONE, IDLE, target(in_flight=4), "4 in flight"),
    (ThroughputBound.NONE, flow(unread=None), target(), "not known yet"),
    (ThroughputBound.NONE, IDLE, target(), "every message is delivered"),
]


@pytest.mark.parametrize(("bound", "of", "receiver", "words"), CASES)
def test_each_reason_is_reported_with_its_numbers(
    bound: ThroughputBound, of: FlowReport, receiver: TargetStatus, words: str
) -> None:
    diagnosis = pace(of, [receiver])
    assert diagnosis.bound is bound
    assert words in diagnosis.why
    by_operator = bound is ThroughputBound.PAUSED and not (of.resting or of.obscured)
    assert ("by an operator" in diagnosis.why) is by_operator


def test_every_reason_can_be_reported() -> None:
    others = {without_worker(1, 2).bound, hibernated("idle").bound, passive("in west").bound}
    assert {bound for bound, *_ in CASES} | others == set(ThroughputBound)


def test_a_limit_without_waiting_messages_holds_nothing_back() -> None:
    full = target(in_flight=100, credit=0)
    assert pace(flow(rates=[SLOW]), [full]).bound is ThroughputBound.NONE
    assert pace(flow(ready=1), [full]).bound is ThroughputBound.LIMIT


def test_with_several_receivers_the_one_with_waiting_messages_is_named() -> None:
    idle, full = target(address="main:1", in_flight=100), target(address="test:1", in_flight=100, held=2)
    assert "test:1" in pace(IDLE, [idle, full]).why


def test_a_receiver_that_is_away_is_named_though_another_is_only_full() -> None:
    full = target(address="main:1", in_flight=100, held=9)
    away = target(address="test:1", breaker="open", held=1)
    diagnosis = pace(IDLE, [full, away])
    assert diagnosis.bound is ThroughputBound.BREAKER
    assert "test:1" in diagnosis.why


def test_the_most_severe_reason_of_all_workers_is_reported() -> None:
    paces = [
        ThroughputDiagnosis(bound, "")
        for bound in (
            ThroughputBound.NONE,
            ThroughputBound.LIMIT,
            ThroughputBound.BREAKER,
            ThroughputBound.FETCH,
        )
    ]
    assert gravest(paces) is paces[2]
    assert gravest([]) is None


counts = st.integers(0, 5)
targets = st.builds(
    TargetStatus,
    address=st.just("h:1"),
    breaker=st.sampled_from(["closed", "open", "half-open"]),
    health=st.sampled_from(["", "serving", "not-serving", "unknown", "service-unknown", "unreachable"]),
    limit=st.integers(1, 20),
    allowed=st.integers(-1, 20),
    ceiling=st.sampled_from([0, 20]),
    in_flight=st.integers(0, 20),
    credit=st.integers(-1, 3),
    held=counts,
    probe_in_ms=st.integers(-1, 1000),
)
flows = st.builds(
    FlowReport,
    blocked=st.sampled_from(["", "", "", "lease", "snapshots"]),
    jobs=st.just(3),
    paused=st.integers(0, 3),
    stuck=st.lists(st.just("t-0 at offset 1"), max_size=5),
    cramped=st.lists(st.just("t-1 at offset 1"), max_size=5),
    ready=counts,
    behind=counts,
    postponed=counts,
    backoff=counts,
    catching_up=counts,
    unread=st.none() | counts,
    due_in_s=st.none() | st.floats(-10, 1e9),
    budget_used=st.floats(0, 1.2),
    cpu_throttled=st.floats(0, 1),
    withheld=counts,
    rates=st.lists(
        st.builds(RateShare, st.just("bytes"), st.floats(0.01, 1e9), st.floats(-1e9, 1e9)), max_size=2
    ),
)


@given(flows, st.lists(targets, min_size=1, max_size=3))
def test_the_reported_reason_is_true_for_any_numbers(of: FlowReport, receivers: list[TargetStatus]) -> None:
    diagnosis = pace(of, receivers)
    waits = bool(of.ready or any(receiver.held for receiver in receivers))
    true = {
        ThroughputBound.LEASE: bool(of.blocked),
        ThroughputBound.HEALTH: any(receiver.health in HOLDING for receiver in receivers),
        ThroughputBound.BREAKER: any(receiver.breaker != "closed" for receiver in receivers),
        ThroughputBound.PAUSED: of.paused == of.jobs,
        ThroughputBound.DEAD_LETTERS: of.withheld > 0,
        ThroughputBound.HEAD: bool(of.stuck),
        ThroughputBound.RATE: waits and any(rate.tokens < 1 for rate in of.rates),
        ThroughputBound.CPU: of.cpu_throttled >= 0.1 and bool(waits or of.behind or of.unread),
        ThroughputBound.SLOW_START: waits and any(0 <= r.allowed < r.limit for r in receivers),
        ThroughputBound.LIMIT: waits and any(r.in_flight >= 0.9 * r.limit for r in receivers),
        ThroughputBound.CREDIT: waits and any(receiver.credit == 0 for receiver in receivers),
        ThroughputBound.CAPACITY: bool(of.cramped),
        ThroughputBound.ORDER: of.behind > 0,
        ThroughputBound.MEMORY: bool(of.unread) and of.budget_used > 0.9,
        ThroughputBound.CATCH_UP: of.catching_up > 0,
        ThroughputBound.FETCH: bool(of.unread),
        ThroughputBound.DELAY: of.postponed > 0,
        ThroughputBound.BACKOFF: of.backoff > 0,
        ThroughputBound.NONE: True,
    }
    assert true[diagnosis.bound]
    # what stops is never hidden by what slows down
    graver = list(true)[: list(true).index(ThroughputBound.RATE)]
    assert diagnosis.bound in graver or not any(true[bound] for bound in graver)
    assert diagnosis.why
    assert "\n" not in diagnosis.why


def test_a_workload_that_cannot_read_is_not_told_to_fetch_slowly() -> None:
    why = "an open transaction holds up orders-0 at offset 1"
    found = pace(FlowReport(jobs=1, unread=301, not_fetched=[why]), [])
    assert (found.bound, found.why) == (ThroughputBound.FETCH, f"not all messages can be read: {why}")
