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
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from app.dispatch.model.circuit_breaker import FAILURES
from app.dispatch.model.crash_suspicion import FINISHED_SHARE, CrashSuspicion, Loss, read_loss
from app.dispatch.model.dead_letter_budget import TRIAL_MIN_S
from app.dispatch.model.outcome import Action, DeliveryDecision, KafkaAction, decide, stash
from app.kernel.clock import now_ms
from app.kernel.grpc_status import CANCELLED, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, code_name

if TYPE_CHECKING:
    from app.dispatch.pump.delivery import BatchDelivery, Delivery
    from app.dispatch.push.unary import CallResult
    from app.dispatch.scheduler.receiver import ReceiverLink
    from app.dispatch.scheduler.workload import WorkloadRuntime

MAX_RETRY_AFTER_S = 3_600.0


class OutcomeHandler:
    def __init__(self, runtime: WorkloadRuntime) -> None:
        self._runtime = runtime

    def answered(self, delivery: Delivery, result: CallResult) -> None:
        """Takes an answer of the receiver, or of the network before it."""
        if result.code != 0 or result.action is not None:
            self._handle_failure(delivery, result)
        elif not delivery.pump.closed:
            runtime = self._runtime
            runtime.dead_letters.earn(runtime.clock())
            delivery.pump.finished(delivery.record, acknowledged=True)

    def batch_answered(self, batch: BatchDelivery, start: int, end: int, result: CallResult) -> None:
        """Takes the common answer of messages [start, end) of `batch`."""
        if result.code != 0 or result.action is not None:
            for index in range(start, end):
                self._handle_failure(batch.single(index), result)
        elif not batch.pump.closed:
            runtime = self._runtime
            runtime.dead_letters.earn(runtime.clock(), end - start)
            batch.pump.finished_run(batch.records, start, end)

    def _handle_failure(self, delivery: Delivery, result: CallResult) -> None:
        pump, runtime = delivery.pump, self._runtime
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
        if result.code == DEADLINE_EXCEEDED:
            delivery.timeouts += 1
        if result.local_error is not None or result.too_large:
            details = ""  # the decision's reason has them
            decision = stash(
                result.local_error or f"too large for the receiver: {result.details}",
                attempts_in_memory=delivery.attempts,
                policy=runtime.policy,
                random01=random.random(),  # noqa: S311 - jitter
            )
        else:
            assert delivery.link is not None
            breaker = delivery.link.breaker
            decision = self._decide(
                delivery, result.code, result.action, not breaker.closed, fails_all=breaker.failed
            )
            if decision.action is Action.HOLD and result.code == UNAVAILABLE:
                decision = self._blame(delivery, delivery.link, decision, details)
                is_limited = False  # rule 3: a suspect has its own limit
        wish_s = min(result.retry_after_s or 0.0, MAX_RETRY_AFTER_S)
        if decision.delay_s < wish_s:
            decision = replace(decision, delay_s=wish_s)
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
            policy=self._runtime.policy,
            breaker_open=breaker_open,
            fails_all=fails_all,
            random01=random.random(),  # noqa: S311 - jitter
        )

    def _blame(
        self, delivery: Delivery, link: ReceiverLink, held: DeliveryDecision, details: str
    ) -> DeliveryDecision:
        """`held`, or the decision about a message that is to blame for the loss of its receiver."""
        runtime, tracker, now_s = self._runtime, delivery.pump.tracker, self._runtime.clock()
        if (loss := read_loss(details)) in (Loss.UNREACHED, Loss.PLANNED):
            return held
        suspicion = delivery.suspicion = delivery.suspicion or CrashSuspicion()
        stuck = tracker.room <= 0 and tracker.unfinished <= max(1, tracker.capacity * (1 - FINISHED_SHARE))
        together = suspicion.is_suspect and link.suspects_sent > 1
        suspicion.lost(
            loss, now_s, taken=link.taken, heard=link.health.answers, stuck=stuck, together=together
        )
        age_s, tokens = now_s - delivery.first_sent_s, runtime.head_tokens
        if suspicion.has_failed(stuck=stuck, age_s=age_s, patience_s=runtime.head_after_s) and link.credit:
            failed = self._decide(delivery, INTERNAL, None, False, runtime.policy.in_memory_attempts)
            if failed.action is not Action.RETRY_IN_MEMORY and not tokens.wait_s(now_s):
                if failed.action is Action.DLQ or not runtime.ordered:  # otherwise it stays in place
                    tokens.take(now_s)
                    link.credit -= 1
                return replace(failed, reason=suspicion.reason)
        return replace(held, delay_s=runtime.policy.backoff.delay_s(suspicion.blamed, random.random()))  # noqa: S311

    def _is_withheld(
        self, delivery: Delivery, decision: DeliveryDecision, code: int, is_limited: bool
    ) -> bool:
        """Whether rule 3 withholds the message; if not, spends the token of its dead letter."""
        if decision.action is Action.HOLD:
            link = delivery.link
            return link is not None and link.breaker.failed and code not in FAILURES
        budget = self._runtime.dead_letters
        return decision.action is Action.DLQ and is_limited and not budget.try_spend(self._runtime.clock())

    def _withhold(self, delivery: Delivery, decision: DeliveryDecision, details: str, code: str) -> None:
        """Keeps the message until it may be tried again; this attempt does not count."""
        runtime, now_s = self._runtime, self._runtime.clock()
        runtime.withholding.record_withheld(
            delivery, code, f"{decision.reason}: {details}" if details else decision.reason
        )
        delivery.attempts = max(0, delivery.attempts - 1)
        link = delivery.link
        if link is None or link is not runtime.link_of(delivery):
            delivery.link = None  # the definition has changed, so it is routed again
            delivery.pump.later(delivery, TRIAL_MIN_S)
        else:
            link.withhold(delivery, now_s)

    def carry_out(
        self, delivery: Delivery, decision: DeliveryDecision, details: str, code: str, *, sent: bool = False
    ) -> None:
        """Carries out a decision about a delivery that is not in flight; `sent`: after its receiver's
        answer."""
        pump, runtime = delivery.pump, self._runtime
        match decision.action:
            case Action.ACK:
                if sent:
                    runtime.dead_letters.earn(runtime.clock())
                pump.finished(delivery.record, acknowledged=True, sent=sent)
            case Action.HOLD:
                delivery.attempts = max(0, delivery.attempts - 1)
                link = delivery.link
                if link is None or link.breaker.closed or link is not runtime.link_of(delivery):
                    delivery.link = None  # the definition may have changed, so it is routed again
                    pump.later(delivery, decision.delay_s)  # with a delay, because only this message failed
                else:
                    link.hold(delivery)
            case Action.RETRY_IN_MEMORY:
                pump.later(delivery, decision.delay_s)
            case Action.RETRY_TOPIC if runtime.ordered:
                self._retry_in_place(delivery, decision)
            case Action.RETRY_TOPIC | Action.DLQ:
                tier = decision.tier if decision.action is Action.RETRY_TOPIC else None
                topic = runtime.dlq_topic if tier is None else runtime.retry_topics[tier]
                words = f"{decision.reason}: {details}" if details else decision.reason
                due_ms = None
                if tier is not None and decision.delay_s > runtime.policy.tiers[tier].delay_s:
                    due_ms = now_ms() + ceil(decision.delay_s * 1000)  # the receiver asked for a longer delay
                runtime.retry_publisher.start(
                    delivery, topic, tier, words, code, runtime.send,
                    lambda: self._keep_in_place(delivery, decision, words, code), due_ms,
                )  # fmt: skip

    def _keep_in_place(self, delivery: Delivery, decision: DeliveryDecision, reason: str, code: str) -> None:
        """Rule 5: no retry topic takes the message."""
        runtime, budget = self._runtime, self._runtime.dead_letters
        leaves = delivery.verdict is not None or (
            not delivery.pump.may_hold(delivery.record) and budget.try_spend(runtime.clock())
        )
        if leaves and runtime.policy.dlq_enabled:
            runtime.retry_publisher.start(delivery, runtime.dlq_topic, None, reason, code, runtime.send)
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
