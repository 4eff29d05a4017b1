"""What happens to a message after the receiver answered: one pure decision, total over every status.

| answer (gRPC status)                             | decision                                              |
|--------------------------------------------------|-------------------------------------------------------|
| OK 0, ALREADY_EXISTS 6                           | ACK                                                   |
| INVALID_ARGUMENT 3, NOT_FOUND 5,                 | DLQ: no retry will help                               |
| FAILED_PRECONDITION 9, ABORTED 10,               |                                                       |
| OUT_OF_RANGE 11, DATA_LOSS 15                    |                                                       |
| UNAVAILABLE 14                                   | HOLD: nobody took it, the attempt is not burnt        |
|                                                  | (one that is to blame:
`app.dispatch.model.crash_suspicion`)          |
| DEADLINE_EXCEEDED 4, RESOURCE_EXHAUSTED 8        | breaker open: HOLD; else the next retry topic         |
| UNIMPLEMENTED 12, UNAUTHENTICATED 16,            | breaker open: HOLD; else as below. They may be said   |
| PERMISSION_DENIED 7                              | of one message; said of every message they tell of a  |
|                                                  | deployment, and the breaker opens
(`app.dispatch.model.circuit_breaker`)|
|                                                  | before a topic is flushed into the DLQ                |
| CANCELLED 1, UNKNOWN 2, INTERNAL 13, any other   | breaker open because of them: HOLD; else in memory,   |
|                                                  | `in_memory_attempts` deliveries; then the next retry  |
|                                                  | topic                                                 |
| trailer `kafka-action: Skip`                     | ACK, whatever the status                              |
| trailer `kafka-action: Stash`                    | DLQ, whatever the status                              |
| trailer `kafka-action: Retry`                    | the next retry topic, whatever the status; it waits   |
|                                                  | there for the tier's delay, or for the receiver's     |
|                                                  | wish (`kafka-retry-after-ms`) when that is longer     |

The next retry topic: from the main topic tier 0; from a tier the same again until its `attempts`
deliveries are used, then the next; behind the last the DLQ. Without tiers: in memory,
`in_memory_attempts` deliveries, then the DLQ.
How many messages that DLQ was decided for may go there is limited (`app.dispatch.model.dead_letter_budget`),
but for those that the receiver stashes itself.
Without a DLQ nothing is dropped: the last tier again and again, or without tiers in memory for ever.

Invariant: a message ends only by ACK, or by a copy that RETRY_TOPIC and DLQ ask for; DLQ is decided only
where there is one, and RETRY_TOPIC only names a tier that exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from app.kernel.backoff import Backoff
from app.kernel.grpc_status import code_name

DEFAULT_BACKOFF = Backoff()


class _Class(Enum):
    """Statuses that are treated alike."""

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
    """What to do with the message."""

    ACK = "ack"
    RETRY_IN_MEMORY = "retry-in-memory"  # deliver again after `delay_s`; the attempt counts
    RETRY_TOPIC = "retry-topic"  # copy to the tier's topic, then nack
    DLQ = "dlq"  # copy to the DLQ, then nack
    HOLD = "hold"  # deliver again when the breaker allows; the attempt does not count


class KafkaAction(StrEnum):
    """The receiver's own decision, in the trailer `kafka-action`."""

    RETRY = "retry"
    STASH = "stash"
    SKIP = "skip"

    @classmethod
    def read(cls, trailer: str | None) -> KafkaAction | None:
        """The action that a trailer's value names, upper or lower case; None for any other value."""
        word = (trailer or "").strip().lower()
        return cls(word) if word in _KAFKA_ACTIONS else None


_KAFKA_ACTIONS = frozenset(action.value for action in KafkaAction)


@dataclass(frozen=True, slots=True)
class RetryTopic:
    """A retry topic: a message waits `delay_s` there, and is delivered from it `attempts` times at most.

    Raises:
        ValueError: the delay is negative or there is no attempt.
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
    """A workload's way through failure.

    Attributes:
        in_memory_attempts: deliveries before a message leaves memory, the first included.
        backoff: waits between them, and before a held message is tried while the breaker is closed.
        tiers: retry topics, in order.
        dlq_enabled: whether there is a dead letter queue.

    Raises:
        ValueError: `in_memory_attempts` is below 1.
    """

    in_memory_attempts: int = 3
    backoff: Backoff = DEFAULT_BACKOFF
    tiers: tuple[RetryTopic, ...] = ()
    dlq_enabled: bool = True

    def __post_init__(self) -> None:
        if self.in_memory_attempts < 1:
            raise ValueError(f"in_memory_attempts {self.in_memory_attempts} must be at least 1, the first")


@dataclass(frozen=True, slots=True)
class DeliveryDecision:
    """What to do, and why.

    Attributes:
        action: see `Action`.
        tier: the tier to copy to, with RETRY_TOPIC; else None.
        delay_s: seconds until it is delivered again (0 with ACK and DLQ).
        reason: for people; goes into the copy's headers.
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
    """What happens to a message after this answer (the module's table).

    Args:
        code: gRPC status number.
        kafka_action: value of the trailer, None when there was none; unknown values are ignored.
        attempts_in_memory: deliveries since the message was read, this one included.
        tier: the retry tier it was read from, None for the main topic.
        tier_attempt: deliveries from this tier, this one included; of no account in the main topic.
        policy: the workload's.
        breaker_open: the breaker is not closed, this answer included.
        fails_all: it opened because the receiver fails every message (`CircuitBreaker.failed`).
        random01: uniform in [0, 1], for the jitter of the backoff; 1 = none.
    """
    why = code_name(code)
    override = KafkaAction.read(kafka_action)
    if override is not None:
        why = f"kafka-action {override.value} (with {why})"
    kind = _CLASSES.get(code, _Class.FAILED)
    backoff_s = policy.backoff.delay_s(attempts_in_memory, random01)
    again = DeliveryDecision(Action.RETRY_IN_MEMORY, None, backoff_s, f"{why}; delivery {attempts_in_memory}")
    attempts_left = attempts_in_memory < policy.in_memory_attempts

    if override is KafkaAction.SKIP or (override is None and kind is _Class.DONE):
        return DeliveryDecision(Action.ACK, None, 0.0, why)
    if override is KafkaAction.STASH or (override is None and kind is _Class.NEVER):
        return stash(why, attempts_in_memory=attempts_in_memory, policy=policy, random01=random01)
    if override is None:
        if kind is _Class.AWAY or (breaker_open and kind in (_Class.OVERLOAD, _Class.REFUSED)):
            return DeliveryDecision(Action.HOLD, None, policy.backoff.delay_s(1, random01), f"{why}; held")
        if kind is _Class.FAILED and fails_all:
            return DeliveryDecision(Action.HOLD, None, policy.backoff.delay_s(1, random01), f"{why}; held")
        if kind in (_Class.FAILED, _Class.REFUSED) and attempts_left:
            return again
    if not policy.tiers and attempts_left:
        return again
    return _next_topic(why, again, tier, tier_attempt, policy)


def stash(
    why: str, *, attempts_in_memory: int, policy: RetryPolicy, random01: float = 1.0
) -> DeliveryDecision:
    """For a message that can never be delivered: the DLQ, or without one the slowest retry there is."""
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
    why: str, again: DeliveryDecision, tier: int | None, tier_attempt: int, policy: RetryPolicy
) -> DeliveryDecision:
    """The next retry topic, behind the last the DLQ. A tier the policy lost counts as used up."""
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
    return DeliveryDecision(Action.RETRY_IN_MEMORY, None, again.delay_s, f"{why}; there is no DLQ")
