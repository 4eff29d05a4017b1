"""This worker's share of a workload's limits: rates, catch-up, moved heads and dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.dispatch.model.dead_letter_budget import DeadLetterBudget
from app.dispatch.model.head_of_line import changed_tokens, shared_tokens
from app.kernel.limit_shares import ALL, LimitNeed, LimitUsage, WorkerShare
from app.kernel.token_bucket import TokenBucket

if TYPE_CHECKING:
    from app.dispatch.definition import Workload
    from app.kafka.records.record import Record

# while the worker has no share of the rates; a new share wakes it at once
NO_SHARE_RETRY_INTERVAL_S = 0.25
DEFAULT_BACKLOG_RATE = 1_000.0  # for a running backlog after its rate was removed from the definition


class WorkloadLimits:
    """The limits of one workload, as far as this worker may use them.

    Attributes:
        messages, bytes: The rates of `spec.flow`; None: there is none, or this worker had no share of it yet.
        backlog_bucket: The rate of `spec.catchUp`.
        head_tokens: How many messages that block their partition may be moved away.
        dead_letters: How many failed messages may be dead-lettered.
        slot_usage: Whether a fixed number of calls in flight holds the worker back.
    """

    def __init__(self, workload: Workload, clock: Callable[[], float]) -> None:
        dlq = workload.spec.dlq
        self.messages: TokenBucket | None = None
        self.bytes: TokenBucket | None = None
        self.backlog_bucket = TokenBucket(DEFAULT_BACKLOG_RATE)
        self.dead_letters = DeadLetterBudget(clock(), dlq.share, dlq.per_minute, dlq.burst)
        self.slot_usage = LimitUsage()
        self._rate_usage = LimitUsage()
        self._backlog_rate = DEFAULT_BACKLOG_RATE
        self._clock = clock
        self._share = ALL
        self._define(workload)
        self.head_tokens = shared_tokens(self._heads_per_minute)

    def _define(self, workload: Workload) -> None:
        spec = workload.spec
        self._workload, self._flow, self._dlq = workload, spec.flow, spec.dlq
        self._heads_per_minute = workload.head_of_line().per_minute
        if spec.catch_up is not None:
            self._backlog_rate = spec.catch_up.rate

    def change(self, workload: Workload) -> None:
        """Applies a changed definition."""
        self._define(workload)
        self.apply_share(self._share)

    def apply_share(self, share: WorkerShare) -> bool:
        """Applies this worker's share; returns whether it may send more than before."""
        gains = share.rate > self._share.rate or share.slots > self._share.slots
        self._share = share
        flow, now_s = self._flow, self._clock()
        self.messages = _bucket(self.messages, flow.messages_per_second, share.rate, now_s)
        self.bytes = _bucket(self.bytes, flow.bytes_per_second, share.rate, now_s)
        if share.topic > 0:
            self.backlog_bucket.change(self._backlog_rate * share.topic, now_s)
        if share.jobs > 0:
            self.head_tokens = changed_tokens(self.head_tokens, self._heads_per_minute * share.jobs, now_s)
        self.dead_letters.change(now_s, self._dlq.share, self._dlq.per_minute * share.jobs, self._dlq.burst)
        return gains

    def need(self, now_s: float, in_flight: int, jobs: int) -> LimitNeed | None:
        """This worker's need of the limits, for its heartbeat; None: the workload has no limits.

        Args:
            in_flight: Messages at the receiver that has most of them.
            jobs: Jobs with messages to send.
        """
        if not self._flow.is_limited:
            return None
        used, wants = round(self._rate_usage.per_s(now_s), 4), self._rate_usage.wants(now_s)
        wants_slots = self.slot_usage.wants(now_s)
        return LimitNeed(self._workload.key, used, wants, in_flight, wants_slots, max(1, jobs))

    def spend(self, records: Sequence[Record], now_s: float) -> None:
        """Counts messages that are sent."""
        flow, used = self._flow, 0.0
        if self.messages is not None and flow.messages_per_second:
            self.messages.take(now_s, len(records))
            used = len(records) / flow.messages_per_second
        if self.bytes is not None and flow.bytes_per_second:
            size_bytes = max(1, sum(len(record.value or b"") for record in records))
            self.bytes.take(now_s, size_bytes)
            used = max(used, size_bytes / flow.bytes_per_second)
        if used:
            self._rate_usage.add(now_s, used)

    def rate_wait_s(self, now_s: float) -> float:
        """Seconds until the rates allow the next message."""
        flow = self._flow
        if self._share.rate <= 0 and (flow.messages_per_second or flow.bytes_per_second):
            self._rate_usage.short(now_s)
            return NO_SHARE_RETRY_INTERVAL_S
        wait_s = 0.0
        if self.messages is not None:
            wait_s = self.messages.wait_s(now_s)
        if self.bytes is not None:
            wait_s = max(wait_s, self.bytes.wait_s(now_s))
        if wait_s:
            self._rate_usage.short(now_s)
        return wait_s

    def is_spent(self, now_s: float) -> bool:
        """Whether there is a DLQ, but no message may be dead-lettered now."""
        return self._dlq.enabled and self.dead_letters.is_spent(now_s)


def _bucket(
    former: TokenBucket | None, rate_per_s: float | None, share: float, now_s: float
) -> TokenBucket | None:
    """The bucket for this worker's share of a rate; keeps saved tokens and debts."""
    if rate_per_s is None:
        return None
    if share <= 0:
        return former  # without a share nothing is sent (`rate_wait_s`)
    if former is None:
        return TokenBucket(rate_per_s * share)
    former.change(rate_per_s * share, now_s)
    return former
