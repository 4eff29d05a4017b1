"""What becomes of a message after its answer: finished, delivered again, or moved to another topic.

Rules
1. A message is finished only by an acknowledgement of the receiver, or once its copy in the retry topic
   or DLQ is acknowledged by all in-sync replicas.
2. Where order is asked for, a message waits in place for its next attempt, and what must not overtake it
   waits behind it; it leaves for the DLQ only.
3. Nothing is moved unless the lease holds: the copy waits for it (`app.pump.copies`).

What is decided is pure (`app.core.outcome`); here it is carried out.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from app.core.codes import CANCELLED, DEADLINE_EXCEEDED
from app.core.outcome import Action, Decision, code_name, decide, stash

if TYPE_CHECKING:
    from app.pump.delivery import BatchDelivery, Delivery
    from app.pump.workload import WorkloadRuntime
    from app.push.unary import CallResult

MAX_RETRY_AFTER_S = 3_600.0


class Outcomes:
    """Of one workload on this worker."""

    def __init__(self, runtime: WorkloadRuntime) -> None:
        self._runtime = runtime

    def answered(self, delivery: Delivery, result: CallResult) -> None:
        """The receiver (or the way to it) answered `delivery`."""
        if result.code != 0 or result.action is not None:
            self._not_ok(delivery, result)
        elif not delivery.pump.closed:
            delivery.pump.finished(delivery.record, acknowledged=True)

    def batch_answered(self, batch: BatchDelivery, start: int, end: int, result: CallResult) -> None:
        """Messages [start, end) of `batch` were answered alike."""
        if result.code != 0 or result.action is not None:
            for index in range(start, end):
                self._not_ok(batch.single(index), result)
        elif not batch.pump.closed:
            batch.pump.finished_run(batch.records, start, end)

    def _not_ok(self, delivery: Delivery, result: CallResult) -> None:
        pump, runtime = delivery.pump, self._runtime
        if pump.closed:
            return
        if delivery.verdict is not None:
            self.carry_out(delivery, delivery.verdict, "", code_name(result.code))
            return
        if delivery.canceled and result.code == CANCELLED:
            return  # its next owner delivers it
        if result.local_error is not None and result.action is not None:
            pump.finished(delivery.record, acknowledged=True)  # an interceptor skips it
            return
        if result.code == DEADLINE_EXCEEDED:
            delivery.timeouts += 1
        if result.local_error is not None or result.too_large:
            decision = stash(
                result.local_error or f"too large for the receiver: {result.details}",
                attempts_in_memory=delivery.attempts,
                policy=runtime.policy,
                random01=random.random(),  # noqa: S311 - jitter
            )
        else:
            origin = delivery.origin
            assert delivery.link is not None
            decision = decide(
                result.code,
                result.action,
                attempts_in_memory=delivery.attempts,
                tier=origin.tier if origin else None,
                tier_attempt=(origin.tier_attempt if origin else 0) + 1,
                policy=runtime.policy,
                breaker_open=not delivery.link.breaker.closed,
                random01=random.random(),  # noqa: S311 - jitter
            )
        if result.retry_after_s and decision.delay_s < result.retry_after_s:
            decision = replace(decision, delay_s=min(result.retry_after_s, MAX_RETRY_AFTER_S))
        code = "REJECTED" if result.local_error is not None else code_name(result.code)
        self.carry_out(delivery, decision, result.details, code)

    def carry_out(self, delivery: Delivery, decision: Decision, details: str, code: str) -> None:
        """Does what was decided about a delivery that is not on its way."""
        pump, runtime = delivery.pump, self._runtime
        match decision.action:
            case Action.ACK:
                pump.finished(delivery.record, acknowledged=True)
            case Action.HOLD:
                delivery.attempts = max(0, delivery.attempts - 1)
                link = runtime.link_of(delivery)
                if link.breaker.closed:
                    pump.later(delivery, decision.delay_s)  # it alone is not taken: it must not spin
                else:
                    link.held.append(delivery)
            case Action.RETRY_IN_MEMORY:
                pump.later(delivery, decision.delay_s)
            case Action.RETRY_TOPIC if runtime.ordered:
                self._retry_in_place(delivery, decision)
            case Action.RETRY_TOPIC | Action.DLQ:
                tier = decision.tier if decision.action is Action.RETRY_TOPIC else None
                topic = runtime.dlq_topic if tier is None else runtime.retry_topics[tier]
                words = f"{decision.reason}: {details}" if details else decision.reason
                dlq_topic = runtime.dlq_topic if runtime.policy.dlq_enabled else None
                runtime.copier.start(delivery, topic, tier, words, code, dlq_topic, runtime.send)

    @staticmethod
    def _retry_in_place(delivery: Delivery, decision: Decision) -> None:
        """Rule 2: the tier's delay passes here, and its attempts are counted here."""
        origin = delivery.told_origin()
        stays = origin.tier == decision.tier
        delivery.origin = replace(
            origin,
            attempt=origin.attempt + delivery.attempts,
            retry_count=origin.retry_count + 1,
            tier=decision.tier,
            tier_attempt=origin.tier_attempt + 1 if stays else 0,
        )
        delivery.attempts = 0
        delivery.pump.later(delivery, decision.delay_s)
