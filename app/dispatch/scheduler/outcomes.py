"""Carries out what happens to a message after its answer: finish it, deliver it again, or move it.

Rules (tests/dispatch/scheduler/test_outcomes.py)
1. A message is finished only by the receiver's acknowledgement, or by its copy in the retry topic or DLQ once
   all in-sync replicas have it.
2. With an order, a failed message waits in place for its next attempt, and the messages that must not
   overtake it wait behind it. It leaves only for the DLQ.
3. A failed message goes to the DLQ only while the budget allows it (`app.dispatch.model.dead_letter_budget`);
   otherwise it is withheld, and the attempt does not count. Messages that the receiver or an operator stashes
   go at once. So do those of a rule with its own limit (`app.dispatch.model.head_of_line`,
   `app.dispatch.model.crash_suspicion`).
4. A message moves only while the lease holds: its copy waits for it (`app.dispatch.pump.retry_publisher`).
5. A message that is too large for a retry topic waits in place, as in rule 2. It goes to the DLQ instead if
   it has to leave its partition, or if so much waits already that nothing more is read.

`app.dispatch.model.outcome` makes the decisions, as pure functions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from app.dispatch.model.circuit_breaker import FAILURES
from app.dispatch.model.crash_suspicion import FINISHED_SHARE, CrashSuspicion, Loss
from app.dispatch.model.dead_letter_budget import TRIAL_MIN_S
from app.dispatch.model.outcome import HOLD_BACKOFF, Action, DeliveryDecision, KafkaAction, decide, stash
from app.dispatch.push.call_result import CallResult
from app.kernel.clock import now_ms
from app.kernel.grpc_status import CANCELLED, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, code_name

if TYPE_CHECKING:
    from app.dispatch.pump.delivery import BatchDelivery, Delivery
    from app.dispatch.pump.retry_publisher import RetryPublisher
    from app.dispatch.pump.settings import DispatchSettings
    from app.dispatch.push.receiver import Receiver
    from app.dispatch.scheduler.dead_letter_trials import WithheldDeadLetters
    from app.dispatch.scheduler.limits import WorkloadLimits
    from app.dispatch.scheduler.receiver_queues import ReceiverQueues
    from app.dispatch.scheduler.receivers import Receivers

MAX_RETRY_AFTER_S = 3_600.0
MIN_RENEWAL_S = 0.05  # between deliveries of a message that the receiver wants soon, again and again


class OutcomeHandler:
    """The outcomes of one workload's messages. `send` is called when a message has left its pump."""

    def __init__(
        self,
        settings: DispatchSettings,
        receivers: Receivers,
        limits: WorkloadLimits,
        withheld: WithheldDeadLetters,
        publisher: RetryPublisher,
        clock: Callable[[], float],
        send: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._receivers = receivers
        self._limits = limits
        self._withheld = withheld
        self._publisher = publisher
        self._clock = clock
        self._send = send

    def answered(self, delivery: Delivery, result: CallResult) -> None:
        """Takes an answer of the receiver, or of the network before it."""
        if result.code != 0 or result.action is not None:
            self._handle_failure(delivery, result)
        elif not delivery.pump.closed:
            self._limits.dead_letters.earn(self._clock())
            delivery.pump.finished(delivery.record, acknowledged=True)

    def batch_answered(self, batch: BatchDelivery, start: int, end: int, result: CallResult) -> None:
        """Takes the common answer of messages [start, end) of `batch`."""
        if result.code != 0 or result.action is not None:
            for index in range(start, end):
                self._handle_failure(batch.single(index), result)
        elif not batch.pump.closed:
            self._limits.dead_letters.earn(self._clock(), end - start)
            batch.pump.finished_run(batch.records, start, end)

    def _handle_failure(self, delivery: Delivery, result: CallResult) -> None:
        pump = delivery.pump
        if pump.closed:
            return
        if delivery.verdict is not None:
            self.carry_out(delivery, delivery.verdict, "", code_name(result.code))
            return
        details, is_limited = result.details, KafkaAction.read(result.action) is not KafkaAction.STASH
        if delivery.canceled and result.code == CANCELLED:
            return  # its next owner delivers it
        if result.local_error is not None and result.action is not None:
            pump.finished(delivery.record, acknowledged=True, sent=False)  # an interceptor skips it
            return
        if result.code == DEADLINE_EXCEEDED and not result.is_renewal:
            delivery.timeouts += 1
        if result.local_error is not None or result.too_large:
            details = ""  # the decision's reason has them
            decision = stash(
                result.local_error or f"too large for the receiver: {result.details}",
                attempts_in_memory=delivery.attempts,
                policy=self._settings.policy,
                random01=random.random(),  # noqa: S311 - jitter
            )
        else:
            receiver = delivery.receiver
            assert receiver is not None
            assert delivery.endpoint is not None
            breaker = delivery.endpoint.breaker
            decision = self._decide(
                delivery, result.code, result.action, not breaker.closed, fails_all=breaker.failed
            )
            if decision.action is Action.HOLD and result.code == UNAVAILABLE:
                decision = self._blame(delivery, receiver, decision, result.loss)
                is_limited = False  # rule 3: a suspect has its own limit
        wish_s = min(result.retry_after_s or 0.0, MAX_RETRY_AFTER_S)
        if decision.action is Action.RENEW:
            decision = self._renewed(delivery, decision, result)
        else:
            delivery.renewals, delivery.wanted_timeout_s = 0, 0.0
            decision = replace(decision, delay_s=max(decision.delay_s, wish_s))
        code = "REJECTED" if result.local_error is not None else code_name(result.code)
        if self._is_withheld(delivery, decision, result.code, is_limited):
            self._withhold(delivery, decision, details, code)
            return
        self.carry_out(delivery, decision, details, code, sent=True)

    def _decide(
        self,
        delivery: Delivery,
        code: int,
        action: str | None,
        breaker_open: bool,
        attempts: int = 0,
        *,
        fails_all: bool = False,
    ) -> DeliveryDecision:
        origin = delivery.origin
        return decide(
            code,
            action,
            attempts_in_memory=max(attempts, delivery.attempts),
            tier=origin.tier if origin else None,
            tier_attempt=(origin.tier_attempt if origin else 0) + 1,
            policy=self._settings.policy,
            breaker_open=breaker_open,
            fails_all=fails_all,
            random01=random.random(),  # noqa: S311 - jitter
        )

    def granted(self, delivery: Delivery, result: CallResult) -> CallResult:
        """The result by which a receiver asks for more time; a Retry if the message has had all of it."""
        if delivery.left_s(self._clock()) > 0:
            return result
        return CallResult(result.code, result.details, "Retry", retry_after_s=result.retry_after_s)

    def _renewed(
        self, delivery: Delivery, decision: DeliveryDecision, result: CallResult
    ) -> DeliveryDecision:
        """The decision about a message for which the receiver asks for more time. Without a wish, it comes at
        once, and later after longer and longer waits."""
        if not delivery.renewals:
            delivery.renewing_s = delivery.started_s
        delivery.renewals += 1
        delivery.wanted_timeout_s = result.timeout_s or 0.0
        if result.retry_after_s is not None:
            wait_s = max(MIN_RENEWAL_S, result.retry_after_s)
        elif delivery.renewals == 1:
            wait_s = 0.0
        else:
            wait_s = HOLD_BACKOFF.delay_s(delivery.renewals - 1, random.random())  # noqa: S311 - jitter
        return replace(decision, delay_s=min(wait_s, delivery.left_s(self._clock())))

    def _blame(
        self, delivery: Delivery, receiver: Receiver, held: DeliveryDecision, loss: Loss | None
    ) -> DeliveryDecision:
        """`held`, or the decision about a message that is to blame for the loss of its receiver."""
        settings, tracker, now_s = self._settings, delivery.pump.tracker, self._clock()
        queues, policy = self._receivers.of(delivery), settings.policy
        if loss is None or loss in (Loss.UNREACHED, Loss.PLANNED):
            return held
        suspicion = delivery.suspicion = delivery.suspicion or CrashSuspicion()
        stuck = tracker.room <= 0 and tracker.unfinished <= max(1, tracker.limit * (1 - FINISHED_SHARE))
        together = suspicion.is_suspect and queues is not None and queues.suspects_sent > 1
        suspicion.lost(
            loss, now_s, taken=receiver.taken, heard=receiver.heard, stuck=stuck, together=together
        )
        age_s, tokens = now_s - delivery.first_sent_s, self._limits.head_tokens
        has_failed = suspicion.has_failed(stuck=stuck, age_s=age_s, patience_s=settings.head_limits.after_s)
        if has_failed and receiver.credit:
            failed = self._decide(delivery, INTERNAL, None, False, policy.in_memory_attempts)
            if failed.action is not Action.RETRY_IN_MEMORY and not tokens.wait_s(now_s):
                if failed.action is Action.DLQ or not settings.ordered:  # otherwise it stays in place
                    tokens.take(now_s)
                    receiver.credit -= 1
                return replace(failed, reason=suspicion.reason)
        return replace(held, delay_s=HOLD_BACKOFF.delay_s(suspicion.blamed, random.random()))  # noqa: S311

    def _is_withheld(
        self, delivery: Delivery, decision: DeliveryDecision, code: int, is_limited: bool
    ) -> bool:
        """Whether rule 3 withholds the message; if not, spends the token of its dead letter."""
        if decision.action is Action.HOLD:
            receiver = delivery.receiver
            return receiver is not None and receiver.failed and code not in FAILURES
        if decision.action is not Action.DLQ or not is_limited:
            return False
        return not self._limits.dead_letters.try_spend(self._clock())

    def _withhold(self, delivery: Delivery, decision: DeliveryDecision, details: str, code: str) -> None:
        """Keeps the message until it may be tried again; this attempt does not count."""
        self._withheld.record_withheld(
            delivery, code, f"{decision.reason}: {details}" if details else decision.reason
        )
        delivery.attempts = max(0, delivery.attempts - 1)
        queues = self._chosen_again(delivery)
        if queues is None:
            delivery.receiver = None  # the definition has changed, so it is routed again
            delivery.pump.later(delivery, TRIAL_MIN_S)
        else:
            queues.withhold(delivery, self._clock())

    def _chosen_again(self, delivery: Delivery) -> ReceiverQueues | None:
        """The receiver that has the message, if the present definition chooses it again."""
        if delivery.receiver is None:
            return None
        queues = self._receivers.chosen_for(delivery)
        return queues if queues is not None and queues.receiver is delivery.receiver else None

    def carry_out(
        self, delivery: Delivery, decision: DeliveryDecision, details: str, code: str, *, sent: bool = False
    ) -> None:
        """Carries out a decision about a delivery that is not in flight; `sent`: after its receiver's
        answer."""
        pump, settings = delivery.pump, self._settings
        match decision.action:
            case Action.ACK:
                if sent:
                    self._limits.dead_letters.earn(self._clock())
                pump.finished(delivery.record, acknowledged=True, sent=sent)
            case Action.HOLD:
                delivery.attempts = max(0, delivery.attempts - 1)
                receiver = delivery.receiver
                is_back = receiver is None or receiver.closed
                queues = None if is_back else self._chosen_again(delivery)
                if queues is None:
                    delivery.receiver = None  # the definition may have changed, so it is routed again
                    pump.later(delivery, decision.delay_s)  # with a delay, because only this message failed
                else:
                    queues.hold(delivery)
            case Action.RENEW:
                delivery.attempts = max(0, delivery.attempts - 1)
                pump.later(delivery, decision.delay_s)
            case Action.RETRY_IN_MEMORY:
                pump.later(delivery, decision.delay_s)
            case Action.RETRY_TOPIC if settings.ordered:
                self._retry_in_place(delivery, decision)
            case Action.RETRY_TOPIC | Action.DLQ:
                tier = decision.tier if decision.action is Action.RETRY_TOPIC else None
                topic = settings.dlq_topic if tier is None else settings.retry_topics[tier]
                words = f"{decision.reason}: {details}" if details else decision.reason
                due_ms = None
                if tier is not None and decision.delay_s > settings.policy.tiers[tier].delay_s:
                    due_ms = now_ms() + ceil(decision.delay_s * 1000)  # the receiver asked for a longer delay
                self._publisher.start(
                    delivery, topic, tier, words, code, self._send,
                    lambda: self._keep_in_place(delivery, decision, words, code), due_ms,
                )  # fmt: skip

    def _keep_in_place(self, delivery: Delivery, decision: DeliveryDecision, reason: str, code: str) -> None:
        """Rule 5: no retry topic takes the message."""
        settings, may_hold = self._settings, delivery.pump.may_hold(delivery.record)
        leaves = delivery.verdict is not None or (
            not may_hold and self._limits.dead_letters.try_spend(self._clock())
        )
        if leaves and settings.policy.dlq_enabled:
            self._publisher.start(delivery, settings.dlq_topic, None, reason, code, self._send)
            return
        delivery.verdict = None  # the messages behind it continue to wait
        self._retry_in_place(delivery, decision)

    @staticmethod
    def _retry_in_place(delivery: Delivery, decision: DeliveryDecision) -> None:
        """Waits for the tier's delay and counts its attempts in memory (rules 2 and 5)."""
        origin = delivery.message_origin()
        stays = origin.tier == decision.tier
        delivery.origin = replace(
            origin,
            attempt=origin.attempt + delivery.attempts,
            retry_count=origin.retry_count + 1,
            tier=decision.tier,
            tier_attempt=origin.tier_attempt + 1 if stays else 0,
        )
        delivery.attempts = 0
        delivery.first_sent_s = 0.0  # the delay does not count as its age
        delivery.pump.later(delivery, decision.delay_s)
