"""The delivery table, status by status, and what holds for all of it."""

from __future__ import annotations

from typing import Any

import pytest
from grpc import StatusCode
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.outcome import (
    Action,
    DeliveryDecision,
    KafkaAction,
    RetryPolicy,
    RetryTopic,
    decide,
    stash,
)
from app.kernel.backoff import Backoff
from app.kernel.grpc_status import code_name

TIERS = (RetryTopic(60, 2), RetryTopic(600, 1))
POLICY = RetryPolicy(in_memory_attempts=3, tiers=TIERS)
NO_TIERS = RetryPolicy(in_memory_attempts=3)

DONE = (0, 6)
NEVER = (3, 5, 9, 10, 11, 15)
OVERLOAD = (4, 8)
REFUSED = (7, 12, 16)
FAILED = (1, 2, 13, 17, 42, -1, 2**31)

policies = st.builds(
    RetryPolicy,
    in_memory_attempts=st.integers(1, 5),
    backoff=st.just(Backoff(0.1, 5, 2, 0.5)),
    tiers=st.lists(st.builds(RetryTopic, st.floats(0, 1_000), st.integers(1, 4)), max_size=3).map(tuple),
    dlq_enabled=st.booleans(),
)
trailers = (
    st.none()
    | st.sampled_from(["Retry", "renew", "stash", "SKIP", " skip ", "", "ack", "Retry2"])
    | st.text()
)


def answer(code: int, kafka_action: str | None = None, **changes: Any) -> DeliveryDecision:
    """The decision for a first delivery from the main topic, but for `changes`."""
    usual: dict[str, Any] = {
        "attempts_in_memory": 1, "tier": None, "tier_attempt": 1, "policy": POLICY, "breaker_open": False,
    }  # fmt: skip
    return decide(code, kafka_action, **usual | changes)


def target(decision: DeliveryDecision) -> tuple[Action, int | None]:
    return decision.action, decision.tier


def test_names_are_those_of_grpc() -> None:
    assert {code_name(code.value[0]) for code in StatusCode} == {code.name for code in StatusCode}
    assert (code_name(17), code_name(-1)) == ("CODE_17", "CODE_-1")


@pytest.mark.parametrize("code", DONE)
@pytest.mark.parametrize("breaker_open", [True, False])
def test_ok_and_already_exists_acknowledge(code: int, breaker_open: bool) -> None:
    assert answer(code, breaker_open=breaker_open).action is Action.ACK


@pytest.mark.parametrize("code", NEVER)
@pytest.mark.parametrize("tier", [None, 0, 1])
def test_a_message_that_no_retry_helps_goes_to_the_dlq_at_once(code: int, tier: int | None) -> None:
    decision = answer(code, tier=tier, breaker_open=True)
    assert decision.action is Action.DLQ
    assert code_name(code) in decision.reason


@given(st.integers(1, 10**6), st.sampled_from([None, 0, 1]), st.integers(1, 100), policies, st.booleans())
def test_unavailable_is_held_and_never_burnt(
    attempts: int, tier: int | None, tier_attempt: int, policy: RetryPolicy, breaker_open: bool
) -> None:
    decision = answer(
        14, attempts_in_memory=attempts, tier=tier, tier_attempt=tier_attempt, policy=policy,
        breaker_open=breaker_open,
    )  # fmt: skip
    assert decision.action is Action.HOLD
    assert decision.delay_s > 0


@pytest.mark.parametrize("code", OVERLOAD)
def test_overload_goes_to_the_retry_topic_and_waits_while_the_breaker_is_open(code: int) -> None:
    assert target(answer(code)) == (Action.RETRY_TOPIC, 0)
    assert answer(code).delay_s == 60
    assert answer(code, breaker_open=True).action is Action.HOLD


@pytest.mark.parametrize("code", OVERLOAD + REFUSED + FAILED)
def test_without_retry_topics_attempts_in_memory_are_bounded_and_then_comes_the_dlq(code: int) -> None:
    actions = [answer(code, policy=NO_TIERS, attempts_in_memory=attempt).action for attempt in (1, 2, 3, 4)]
    assert actions == [Action.RETRY_IN_MEMORY, Action.RETRY_IN_MEMORY, Action.DLQ, Action.DLQ]


@pytest.mark.parametrize("code", REFUSED + FAILED)
def test_failures_are_retried_in_memory_and_then_in_the_retry_topic(code: int) -> None:
    decisions = [answer(code, attempts_in_memory=attempt) for attempt in (1, 2, 3)]
    assert [target(decision) for decision in decisions] == [
        (Action.RETRY_IN_MEMORY, None), (Action.RETRY_IN_MEMORY, None), (Action.RETRY_TOPIC, 0),
    ]  # fmt: skip
    assert 0 < decisions[0].delay_s < decisions[1].delay_s


@pytest.mark.parametrize("code", REFUSED)
def test_a_receiver_that_refuses_everything_burns_no_attempt_once_the_breaker_is_open(code: int) -> None:
    assert answer(code, attempts_in_memory=3, breaker_open=True).action is Action.HOLD


@pytest.mark.parametrize("code", FAILED)
def test_an_open_breaker_holds_no_message_whose_failure_is_its_own(code: int) -> None:
    assert answer(code, breaker_open=True).action is Action.RETRY_IN_MEMORY


@pytest.mark.parametrize("code", FAILED)
def test_an_answer_of_a_receiver_that_fails_everything_costs_no_attempt(code: int) -> None:
    assert answer(code, breaker_open=True, fails_all=True, attempts_in_memory=3).action is Action.HOLD


@pytest.mark.parametrize("code", [2, 4, 7])
def test_the_way_leads_through_every_tier_with_its_attempts_to_the_dlq(code: int) -> None:
    way = []
    tier, tier_attempt = None, 1
    while True:
        decision = answer(code, tier=tier, tier_attempt=tier_attempt, attempts_in_memory=3)
        way.append(target(decision))
        if decision.action is Action.DLQ:
            break
        tier_attempt = tier_attempt + 1 if tier == decision.tier else 1
        tier = decision.tier
    topic = Action.RETRY_TOPIC
    assert way == [(topic, 0), (topic, 0), (topic, 1), (Action.DLQ, None)]


@pytest.mark.parametrize("code", range(17))
@pytest.mark.parametrize("breaker_open", [True, False])
def test_the_trailer_overrides_every_status(code: int, breaker_open: bool) -> None:
    assert answer(code, "Skip", breaker_open=breaker_open).action is Action.ACK
    assert answer(code, "Stash", breaker_open=breaker_open).action is Action.DLQ
    assert target(answer(code, "Retry", breaker_open=breaker_open)) == (Action.RETRY_TOPIC, 0)


@pytest.mark.parametrize("word", ["RETRY", "retry", " Retry "])
def test_the_trailer_is_read_in_any_case(word: str) -> None:
    assert KafkaAction.read(word) is KafkaAction.RETRY


@pytest.mark.parametrize("code", range(17))
@pytest.mark.parametrize("breaker_open", [False, True])
def test_more_time_is_no_attempt(code: int, breaker_open: bool) -> None:
    for policy in (POLICY, NO_TIERS):
        renewed = answer(code, "Renew", policy=policy, breaker_open=breaker_open)
        assert (renewed.action, renewed.delay_s) == (Action.RENEW, 0.0)


@given(st.integers(0, 16), st.text().filter(lambda text: KafkaAction.read(text) is None))
def test_an_unknown_trailer_is_ignored(code: int, word: str) -> None:
    assert answer(code, word) == answer(code)


def test_a_receivers_retry_is_bounded_without_retry_topics_too() -> None:
    actions = [answer(0, "retry", policy=NO_TIERS, attempts_in_memory=attempt).action for attempt in (1, 3)]
    assert actions == [Action.RETRY_IN_MEMORY, Action.DLQ]


@given(
    code=st.integers(-5, 30), trailer=trailers, attempts=st.integers(1, 10**6),
    tier=st.none() | st.integers(0, 5), tier_attempt=st.integers(1, 10), policy=policies,
    breaker_open=st.booleans(), fails_all=st.booleans(), random01=st.floats(0, 1),
)  # fmt: skip
def test_every_answer_has_a_decision_that_can_be_carried_out_and_drops_nothing(
    *, code: int, trailer: str | None, attempts: int, tier: int | None, tier_attempt: int,
    policy: RetryPolicy, breaker_open: bool, fails_all: bool, random01: float,
) -> None:  # fmt: skip
    decision = decide(
        code, trailer, attempts_in_memory=attempts, tier=tier, tier_attempt=tier_attempt, policy=policy,
        breaker_open=breaker_open, fails_all=fails_all, random01=random01,
    )  # fmt: skip
    assert decision.reason
    assert (decision.tier is not None) == (decision.action is Action.RETRY_TOPIC)
    match decision.action:
        case Action.ACK:
            assert code in DONE or KafkaAction.read(trailer) is KafkaAction.SKIP
        case Action.RETRY_TOPIC:
            assert decision.tier is not None
            assert decision.delay_s == policy.tiers[decision.tier].delay_s
        case Action.DLQ:
            assert policy.dlq_enabled
        case Action.RETRY_IN_MEMORY | Action.HOLD:
            assert 0 < decision.delay_s <= policy.backoff.cap_s
    if decision.action is Action.RETRY_IN_MEMORY and policy.dlq_enabled:
        assert attempts < policy.in_memory_attempts


@given(st.integers(0, 16), policies, st.none() | st.integers(0, 3))
def test_with_a_dlq_every_message_ends(code: int, policy: RetryPolicy, tier: int | None) -> None:
    """Followed through memory, tiers and DLQ, whatever is answered is at an end after finitely many steps."""
    if code == 14:
        return  # held for as long as the receiver is away, by intent
    attempts, tier_attempt = 1, 1
    for _ in range(200):
        decision = answer(
            code, attempts_in_memory=attempts, tier=tier, tier_attempt=tier_attempt, policy=policy
        )
        if decision.action in (Action.ACK, Action.DLQ):
            return
        if decision.action is Action.RETRY_IN_MEMORY:
            attempts += 1
            continue
        tier_attempt = tier_attempt + 1 if tier == decision.tier else 1
        tier, attempts = decision.tier, 1
    assert not policy.dlq_enabled


@pytest.mark.parametrize("code", NEVER + FAILED)
def test_without_a_dlq_nothing_is_dropped(code: int) -> None:
    with_tiers = RetryPolicy(tiers=TIERS, dlq_enabled=False)
    bare = RetryPolicy(dlq_enabled=False)
    slowest = answer(code, tier=1, tier_attempt=9, attempts_in_memory=3, policy=with_tiers)
    assert target(slowest) == (Action.RETRY_TOPIC, 1)
    forever = answer(code, attempts_in_memory=10**6, policy=bare)
    assert (forever.action, forever.delay_s) == (Action.RETRY_IN_MEMORY, bare.backoff.cap_s)


@given(policies, st.integers(1, 100))
def test_an_undeliverable_message_is_handled_like_invalid_argument(policy: RetryPolicy, n: int) -> None:
    ours = stash("too large", attempts_in_memory=n, policy=policy)
    theirs = answer(3, attempts_in_memory=n, policy=policy)
    assert (ours.action, ours.tier, ours.delay_s) == (theirs.action, theirs.tier, theirs.delay_s)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RetryTopic(-1), "delay -1 s"),
        (lambda: RetryTopic(float("nan")), "delay nan s"),
        (lambda: RetryTopic(1, 0), "attempts 0"),
        (lambda: RetryPolicy(in_memory_attempts=0), "in_memory_attempts 0"),
    ],
)
def test_a_policy_that_never_delivers_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
