"""Decides what happens to a message after the receiver's answer: a pure function of every status.

| answer (gRPC status)                             | decision                                              |
|--------------------------------------------------|-------------------------------------------------------|
| OK 0, ALREADY_EXISTS 6                           | ACK                                                   |
| INVALID_ARGUMENT 3, NOT_FOUND 5,                 | DLQ: no retry will help                               |
| FAILED_PRECONDITION 9, ABORTED 10,               |                                                       |
| OUT_OF_RANGE 11, DATA_LOSS 15                    |                                                       |
| UNAVAILABLE 14                                   | HOLD: no receiver took it, the attempt does not count |
| DEADLINE_EXCEEDED 4, RESOURCE_EXHAUSTED 8        | breaker open: HOLD; else the next retry topic         |
| UNIMPLEMENTED 12, UNAUTHENTICATED 16,            | breaker open: HOLD; else as the next row. They may    |
| PERMISSION_DENIED 7                              | concern one message. If they concern every message,   |
|                                                  | the breaker opens before the topic is in the DLQ      |
| CANCELLED 1, UNKNOWN 2, INTERNAL 13, any other   | breaker open because of them: HOLD; else in memory,   |
|                                                  | `in_memory_attempts` deliveries; then the next retry  |
|                                                  | topic                                                 |
| trailer `kafka-action: Skip`                     | ACK, with any status                                  |
| trailer `kafka-action: Stash`                    | DLQ, with any status                                  |
| trailer `kafka-action: Renew`                    | RENEW, with any status. When the message has had all  |
|                                                  | the time that it may have, the caller makes it Retry  |
| trailer `kafka-action: Retry`                    | the next retry topic, with any status; it waits there |
|                                                  | for the tier's delay, or for the receiver's wish      |
|                                                  | (`kafka-retry-after-ms`) if that is longer            |

The next retry topic: from the main topic, tier 0. From a tier it is the same tier until its `attempts`
deliveries are used, then the next; the DLQ follows the last tier. Without tiers: in memory,
`in_memory_attempts` deliveries, then the DLQ. Without a DLQ no message is dropped: the last tier repeats, or
without tiers the attempts in memory.

Callers may decide otherwise: `app.dispatch.model.crash_suspicion` about a message that is to blame for
UNAVAILABLE, `app.dispatch.model.dead_letter_budget` about the number of dead letters, except those that the
receiver stashes.

Invariant: a message ends only by ACK, or by the copy of RETRY_TOPIC or DLQ. DLQ is decided only if there is
one, and RETRY_TOPIC only names a tier that exists (tests/dispatch/model/test_outcome.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from app.kernel.backoff import Backoff
from app.kernel.grpc_status import code_name

ATTEMPTS_IN_MEMORY = 3
DEFAULT_BACKOFF = Backoff()
HOLD_BACKOFF = DEFAULT_BACKOFF  # no definition changes this: no receiver took the message


class _Class(Enum):
    DONE = "done"
    NEVER = "never"  # no retry will help
    AWAY = "away"
    OVERLOAD = "overload"
    REFUSED = "refused"
    FAILED = "failed"


_CLASSES = {
    **dict.fromkeys((0, 6), _Class.DONE),
    **dict.fromkeys((3, 5, 9, 10, 11, 15), _Class.NEVER),
    14: _Class.AWAY,
    **dict.fromkeys((4, 8), _Class.OVERLOAD),
    **dict.fromkeys((7, 12, 16), _Class.REFUSED),
}


class Action(StrEnum):
    ACK = "ack"
    RETRY_IN_MEMORY = "retry-in-memory"  # deliver again after `delay_s`; the attempt counts
    RETRY_TOPIC = "retry-topic"  # copy to the tier's topic, then nack
    DLQ = "dlq"  # copy to the DLQ, then nack
    RENEW = "renew"  # deliver again with more time, after `delay_s`; the attempt does not count
    HOLD = "hold"  # deliver again when the breaker allows; the attempt does not count


class KafkaAction(StrEnum):
    """The receiver's own decision, in the trailer `kafka-action`."""

    RETRY = "retry"
    STASH = "stash"
    SKIP = "skip"
    RENEW = "renew"

    @classmethod
    def read(cls, trailer: str | None) -> KafkaAction | None:
        """The action that a trailer's value names, in any case; None for any other value."""
        word = (trailer or "").strip().lower()
        return cls(word) if word in _KAFKA_ACTIONS else None


_KAFKA_ACTIONS = frozenset(action.value for action in KafkaAction)


@dataclass(frozen=True, slots=True)
class RetryTopic:
    """A retry topic: a message waits `delay_s` in it, and is delivered from it at most `attempts` times.

    Raises:
        ValueError: The delay is negative, or there is no attempt.
    """

    delay_s: float
    attempts: int = 1

    def __post_init__(self) -> None:
        if not self.delay_s >= 0:
            raise ValueError(f"retry tier delay {self.delay_s} s must be at least 0")
        if self.attempts < 1:
            raise ValueError(f"retry tier attempts {self.attempts} must be at least 1; or leave the tier out")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A workload's treatment of failed messages.

    Attributes:
        in_memory_attempts: Deliveries before a message leaves memory, including the first.
        backoff: Waits between them.
        tiers: Retry topics, in order.
        dlq_enabled: Whether there is a dead letter queue.

    Raises:
        ValueError: `in_memory_attempts` is below 1.
    """

    in_memory_attempts: int = ATTEMPTS_IN_MEMORY
    backoff: Backoff = DEFAULT_BACKOFF
    tiers: tuple[RetryTopic, ...] = ()
    dlq_enabled: bool = True

    def __post_init__(self) -> None:
        if self.in_memory_attempts < 1:
            raise ValueError(f"in_memory_attempts {self.in_memory_attempts} must be at least 1, the first")


@dataclass(frozen=True, slots=True)
class DeliveryDecision:
    """An action with its details.

    Attributes:
        tier: The tier to copy to, with RETRY_TOPIC; else None.
        delay_s: Seconds until the next delivery (0 with ACK and DLQ).
        reason: For people, and for the copy's headers.
    """

    action: Action
    tier: int | None
    delay_s: float
    reason: str


def decide(
    code: int,
    kafka_action: str | None,
    *,
    attempts_in_memory: int,
    tier: int | None,
    tier_attempt: int,
    policy: RetryPolicy,
    breaker_open: bool,
    fails_all: bool = False,
    random01: float = 1.0,
) -> DeliveryDecision:
    """The decision of the module's table.

    Args:
        code: The gRPC status number.
        kafka_action: The trailer's value; None: there was none. Unknown values are ignored.
        attempts_in_memory: Deliveries since the message was read, including this one.
        tier: The retry tier from which it was read; None: the main topic.
        tier_attempt: Deliveries from this tier, including this one; ignored in the main topic.
        policy: The workload's.
        breaker_open: The breaker is not closed, after this answer.
        fails_all: It opened because the receiver fails every message (`CircuitBreaker.failed`).
        random01: Uniform in [0, 1], for the jitter of the backoff; 1: none.
    """
    why = code_name(code)
    override = KafkaAction.read(kafka_action)
    if override is not None:
        why = f"kafka-action {override.value} (with {why})"
    kind = _CLASSES.get(code, _Class.FAILED)
    backoff_s = policy.backoff.delay_s(attempts_in_memory, random01)
    retry = DeliveryDecision(Action.RETRY_IN_MEMORY, None, backoff_s, f"{why}; delivery {attempts_in_memory}")
    attempts_left = attempts_in_memory < policy.in_memory_attempts

    if override is KafkaAction.SKIP or (override is None and kind is _Class.DONE):
        return DeliveryDecision(Action.ACK, None, 0.0, why)
    if override is KafkaAction.RENEW:
        return DeliveryDecision(Action.RENEW, None, 0.0, why)
    if override is KafkaAction.STASH or (override is None and kind is _Class.NEVER):
        return stash(why, attempts_in_memory=attempts_in_memory, policy=policy, random01=random01)
    if override is None:
        if kind is _Class.AWAY or (breaker_open and kind in (_Class.OVERLOAD, _Class.REFUSED)):
            return DeliveryDecision(Action.HOLD, None, HOLD_BACKOFF.delay_s(1, random01), f"{why}; held")
        if kind is _Class.FAILED and fails_all:
            return DeliveryDecision(Action.HOLD, None, HOLD_BACKOFF.delay_s(1, random01), f"{why}; held")
        if kind in (_Class.FAILED, _Class.REFUSED) and attempts_left:
            return retry
    if not policy.tiers and attempts_left:
        return retry
    return _next_topic(why, retry, tier, tier_attempt, policy)


def stash(
    why: str, *, attempts_in_memory: int, policy: RetryPolicy, random01: float = 1.0
) -> DeliveryDecision:
    """The decision for a message that can never be delivered: the DLQ, or without one the slowest retry."""
    if policy.dlq_enabled:
        return DeliveryDecision(Action.DLQ, None, 0.0, why)
    if policy.tiers:
        last = len(policy.tiers) - 1
        return DeliveryDecision(
            Action.RETRY_TOPIC, last, policy.tiers[last].delay_s, f"{why}; there is no DLQ"
        )
    delay_s = policy.backoff.delay_s(attempts_in_memory, random01)
    return DeliveryDecision(Action.RETRY_IN_MEMORY, None, delay_s, f"{why}; there is no DLQ")


def _next_topic(
    why: str, retry: DeliveryDecision, tier: int | None, tier_attempt: int, policy: RetryPolicy
) -> DeliveryDecision:
    """The next retry topic, or the DLQ behind the last. A removed tier counts as used up."""
    tiers = policy.tiers
    if tier is None:
        target = 0
    elif tier < len(tiers) and tier_attempt < tiers[tier].attempts:
        target = tier
    else:
        target = tier + 1
    if target < len(tiers):
        return DeliveryDecision(Action.RETRY_TOPIC, target, tiers[target].delay_s, why)
    if policy.dlq_enabled:
        return DeliveryDecision(Action.DLQ, None, 0.0, f"{why}; attempts used up")
    if tiers:
        return DeliveryDecision(
            Action.RETRY_TOPIC, len(tiers) - 1, tiers[-1].delay_s, f"{why}; there is no DLQ"
        )
    return DeliveryDecision(Action.RETRY_IN_MEMORY, None, retry.delay_s, f"{why}; there is no DLQ")
