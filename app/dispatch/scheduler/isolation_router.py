"""Sends the messages of a workload with several targets; one that is away or slow does not hold up others.

Rules (tests/dispatch/scheduler/test_isolation_router.py)
1. Messages are taken from their partitions and wait for their targets, so that no target delays another one.
   But a partition stops while `MOST_WAITING` of its messages wait for one production target that is there.
   Waiting messages count as held (`app.dispatch.pump.intake`), so bytes and the tracker bound them.
2. Messages for production wait in place until their target is back, and are never dead-lettered. With retry
   tiers and no order, those for a target other than the main one move to a tier, in the cases of rule 3. They
   go to the first tier, or stay in the tier that they came from.
3. A test environment must not fill the trackers, and thereby stop production. Its messages move to a retry
   tier, or without one (or with an order) to the DLQ, in two cases: `MAX_HELD_APART` wait already; or half a
   tracker was read behind them, and the target is away or has let them wait for `ISOLATION_WAIT_S`. If the
   DLQ is disabled, messages move only with `headOfLine.stash: retry`.
4. While a target that has a fallback is away, it gets one message at a time as a probe. After
   `ISOLATION_WAIT_S`, or half a tracker read behind it, the probe goes to the fallback, as all others do at
   once (`app.dispatch.model.receiver_routing.Fallbacks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from app.dispatch.model.outcome import Action, DeliveryDecision, stash
from app.dispatch.model.receiver_routing import ReceiverRouting, RoutingRefusal

if TYPE_CHECKING:
    from app.dispatch.pump.delivery import Delivery
    from app.dispatch.pump.settings import DispatchSettings
    from app.dispatch.scheduler.fair_scheduler import FairScheduler
    from app.dispatch.scheduler.outcomes import OutcomeHandler
    from app.dispatch.scheduler.receiver_queues import ReceiverQueues
    from app.dispatch.scheduler.receivers import Receivers
    from app.dispatch.scheduler.send_gate import SendGate

log = structlog.get_logger(__name__)

MOST_WAITING = 256  # of a partition for one target: as many as are decoded at once
MAX_HELD_APART = 1_000
ISOLATION_WAIT_S = 1.0
AWAY_POLL_INTERVAL_S = 0.1


class IsolationRouter:
    """Sends one workload's messages, as far as `gate` lets them go."""

    def __init__(
        self,
        settings: DispatchSettings,
        receivers: Receivers,
        turns: FairScheduler,
        gate: SendGate,
        outcomes: OutcomeHandler,
    ) -> None:
        self._settings = settings
        self._receivers = receivers
        self._turns = turns
        self._gate = gate
        self._outcomes = outcomes
        self._next_look_s = 0.0
        self._on_fallback: set[str] = set()  # targets whose messages go to a fallback now

    def send(self, routing: ReceiverRouting, rate_wait_s: float, now_s: float) -> None:
        """Sends ready messages, and moves waiting ones that may wait no longer.

        Args:
            rate_wait_s: Seconds until the workload's rates allow the next message.
        """
        receivers, gate, production = self._receivers, self._gate, routing.production
        if receivers.fallbacks:
            self._refresh_away(now_s)
        if rate_wait_s:
            gate.call_at(now_s + rate_wait_s)
        else:
            up = [
                queues for at, queues in receivers.by_address.items()
                if at in production and not queues.receiver.is_away
            ]  # fmt: skip
            while delivery := self._turns.next(
                lambda pump: all(queues.held.count(pump) < MOST_WAITING for queues in up)
            ):
                self._route(delivery, routing, production, now_s)
        waited_for = [queues for queues in receivers.by_address.values() if queues.held or queues.suspects]
        if waited_for == [receivers.main] or not waited_for:
            return
        if now_s < self._next_look_s:
            gate.call_at(self._next_look_s)
            return
        self._next_look_s = now_s + AWAY_POLL_INTERVAL_S
        if receivers.fallbacks:
            gate.call_at(self._next_look_s)
        for queues in waited_for:
            self._move_to_fallback(queues, now_s)
            if queues is not receivers.main:
                self._relieve(queues, now_s, production)

    def _route(
        self, delivery: Delivery, routing: ReceiverRouting, production: set[str], now_s: float
    ) -> None:
        """Sends the message to its target, or applies the rules."""
        chosen = routing.choose(delivery.record.headers)
        if isinstance(chosen, RoutingRefusal):
            action = Action.ACK if chosen.skip else Action.DLQ
            decision = DeliveryDecision(action, None, 0.0, chosen.reason)
            self._outcomes.carry_out(delivery, decision, "", "UNMATCHED")
            return
        queues = self._receivers.by_address[chosen]
        if queues.held or queues.receiver.in_flight:  # else it serves as a probe (rule 4)
            queues = self._now_for(queues, now_s)
        receiver = delivery.receiver = queues.receiver
        if receiver.failed and delivery.attempts:
            queues.withhold(delivery, now_s)
            return
        if len(queues.held) >= MAX_HELD_APART and self._may_move(queues, production):
            self._move_away(delivery, f"{receiver.address} is too slow")
            return
        delivery.started_s = now_s
        queues.hold(delivery)
        self._gate.send_held(queues, now_s)

    def _refresh_away(self, now_s: float) -> None:
        receivers = self._receivers
        for address, queues in receivers.by_address.items():
            receivers.fallbacks.update(address, now_s, is_away=queues.receiver.is_away)

    def _now_for(self, queues: ReceiverQueues, now_s: float) -> ReceiverQueues:
        """The queues that get this target's messages now."""
        fallbacks, by_address = self._receivers.fallbacks, self._receivers.by_address
        if not fallbacks:
            return queues
        target = queues.receiver.address
        address = fallbacks.choose(target, now_s, lambda at: by_address[at].receiver.is_away)
        if (address != target) is not (target in self._on_fallback):
            log.warning("the target of a zone's messages changed", target=target, now_to=address)
            self._on_fallback ^= {target}
        return by_address[address]

    def _move_to_fallback(self, queues: ReceiverQueues, now_s: float) -> None:
        """Rule 4, for messages that already wait."""
        fallback = self._now_for(queues, now_s)
        if fallback is queues:
            return
        waiting = list(queues.held)
        for index, delivery in enumerate(waiting):
            is_last = index == len(waiting) - 1 and not queues.receiver.in_flight
            is_young = now_s < (delivery.first_sent_s or delivery.started_s) + ISOLATION_WAIT_S
            if is_last and is_young and not _has_half_a_tracker_behind(delivery):
                break
            queues.held.remove(delivery)
            delivery.receiver = fallback.receiver
            delivery.started_s = now_s
            fallback.hold(delivery)
        self._gate.send_held(fallback, now_s)

    def _may_move(self, queues: ReceiverQueues, production: set[str]) -> bool:
        """Whether messages that wait for the target may leave their topic (rules 2 and 3)."""
        settings = self._settings
        if queues is self._receivers.main or settings.head_decision(None) is None:
            return False
        is_test = queues.receiver.address not in production
        return is_test or bool(settings.policy.tiers and not settings.ordered)

    def _relieve(self, queues: ReceiverQueues, now_s: float, production: set[str]) -> None:
        """Moves messages away that have waited too long, if they may move."""
        receiver = queues.receiver
        is_away = not receiver.takes
        if not self._may_move(queues, production):
            return
        for queue in (queues.held, queues.suspects):
            for delivery in list(queue):
                if delivery.pump.paused or not _has_half_a_tracker_behind(delivery):
                    continue
                if not is_away and now_s < delivery.started_s + ISOLATION_WAIT_S:
                    self._gate.call_at(now_s + AWAY_POLL_INTERVAL_S)
                    continue
                queue.remove(delivery)
                state = "is away" if is_away else "is too slow"
                self._move_away(
                    delivery, f"{receiver.address} {state}, and half a tracker was read behind the message"
                )

    def _move_away(self, delivery: Delivery, why: str) -> None:
        settings, policy = self._settings, self._settings.policy
        decision = stash(why, attempts_in_memory=1, policy=policy)
        if policy.tiers and not settings.ordered:  # it was not delivered, so it stays in its tier
            from_tier = delivery.message_origin().tier
            tier = from_tier if from_tier is not None and from_tier < len(policy.tiers) else 0
            decision = DeliveryDecision(Action.RETRY_TOPIC, tier, policy.tiers[tier].delay_s, why)
        self._outcomes.carry_out(delivery, decision, "", "UNAVAILABLE")


def _has_half_a_tracker_behind(delivery: Delivery) -> bool:
    tracker = delivery.pump.tracker
    return tracker.end - delivery.record.offset > tracker.limit // 2
