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
    from app.dispatch.scheduler.receiver import ReceiverLink
    from app.dispatch.scheduler.workload import WorkloadRuntime

log = structlog.get_logger(__name__)

MOST_WAITING = 256  # of a partition for one target: as many as are decoded at once
MAX_HELD_APART = 1_000
ISOLATION_WAIT_S = 1.0
AWAY_POLL_INTERVAL_S = 0.1


class IsolationRouter:
    def __init__(self, runtime: WorkloadRuntime) -> None:
        self._runtime = runtime
        self._next_look_s = 0.0
        self._on_fallback: set[str] = set()  # targets whose messages go to a fallback now

    def send(self, routing: ReceiverRouting, now_s: float) -> None:
        """Sends ready messages, and moves waiting ones that may wait no longer."""
        runtime, production = self._runtime, routing.production
        if runtime.fallbacks:
            self._refresh_away(now_s)
        if wait_s := runtime.rate_wait_s(now_s):
            runtime.call_at(now_s + wait_s)
        else:
            up = [link for at, link in runtime.links.items() if at in production and not link.is_away]
            while delivery := runtime.scheduler.next(
                lambda pump: all(link.held.count(pump) < MOST_WAITING for link in up)
            ):
                self._route(delivery, routing, production, now_s)
        waited_for = [link for link in runtime.links.values() if link.held or link.suspects]
        if waited_for == [runtime.link] or not waited_for:
            return
        if now_s < self._next_look_s:
            runtime.call_at(self._next_look_s)
            return
        self._next_look_s = now_s + AWAY_POLL_INTERVAL_S
        if runtime.fallbacks:
            runtime.call_at(self._next_look_s)
        for link in waited_for:
            self._move_to_fallback(link, now_s)
            if link is not runtime.link:
                self._relieve(link, now_s, production)

    def _route(
        self, delivery: Delivery, routing: ReceiverRouting, production: set[str], now_s: float
    ) -> None:
        """Sends the message to its target, or applies the rules."""
        runtime = self._runtime
        chosen = routing.choose(delivery.record.headers)
        if isinstance(chosen, RoutingRefusal):
            action = Action.ACK if chosen.skip else Action.DLQ
            decision = DeliveryDecision(action, None, 0.0, chosen.reason)
            runtime.outcomes.carry_out(delivery, decision, "", "UNMATCHED")
            return
        link = runtime.links[chosen]
        if link.held or link.in_flight:  # else it serves as a probe (rule 4)
            link = self._link_for(link, now_s)
        delivery.link = link
        if link.breaker.failed and delivery.attempts:
            link.withhold(delivery, now_s)
            return
        if len(link.held) >= MAX_HELD_APART and self._may_move(link, production):
            self._move_away(delivery, f"{link.address} is too slow")
            return
        delivery.started_s = now_s
        link.hold(delivery)
        runtime.send_held(link, now_s)

    def _refresh_away(self, now_s: float) -> None:
        runtime = self._runtime
        for address, link in runtime.links.items():
            runtime.fallbacks.update(address, now_s, is_away=link.is_away)

    def _link_for(self, link: ReceiverLink, now_s: float) -> ReceiverLink:
        """The link that gets this one's messages now."""
        runtime = self._runtime
        if not runtime.fallbacks:
            return link
        links = runtime.links
        address = runtime.fallbacks.choose(link.address, now_s, lambda at: links[at].is_away)
        if (address != link.address) is not (link.address in self._on_fallback):
            log.warning("the target of a zone's messages changed", target=link.address, now_to=address)
            self._on_fallback ^= {link.address}
        return links[address]

    def _move_to_fallback(self, link: ReceiverLink, now_s: float) -> None:
        """Rule 4, for messages that already wait."""
        fallback = self._link_for(link, now_s)
        if fallback is link:
            return
        waiting = list(link.held)
        for index, delivery in enumerate(waiting):
            tracker = delivery.pump.tracker
            is_last = index == len(waiting) - 1 and not link.in_flight
            is_young = now_s < (delivery.first_sent_s or delivery.started_s) + ISOLATION_WAIT_S
            if is_last and is_young and tracker.end - delivery.record.offset <= tracker.capacity // 2:
                break
            link.held.remove(delivery)
            delivery.link = fallback
            delivery.started_s = now_s
            fallback.hold(delivery)
        self._runtime.send_held(fallback, now_s)

    def _may_move(self, link: ReceiverLink, production: set[str]) -> bool:
        """Whether messages that wait for the target may leave their topic (rules 2 and 3)."""
        runtime = self._runtime
        if link is runtime.link or runtime.head_decision(None) is None:
            return False
        return link.address not in production or bool(runtime.policy.tiers and not runtime.ordered)

    def _relieve(self, link: ReceiverLink, now_s: float, production: set[str]) -> None:
        """Moves messages away that have waited too long, if they may move."""
        runtime, is_away = self._runtime, not (link.breaker.closed and link.health.serving)
        if not self._may_move(link, production):
            return
        for queue in (link.held, link.suspects):
            for delivery in list(queue):
                tracker = delivery.pump.tracker
                if tracker.end - delivery.record.offset <= tracker.capacity // 2 or delivery.pump.paused:
                    continue
                if not is_away and now_s < delivery.started_s + ISOLATION_WAIT_S:
                    runtime.call_at(now_s + AWAY_POLL_INTERVAL_S)
                    continue
                queue.remove(delivery)
                state = "is away" if is_away else "is too slow"
                self._move_away(
                    delivery, f"{link.address} {state}, and half a tracker was read behind the message"
                )

    def _move_away(self, delivery: Delivery, why: str) -> None:
        runtime, policy, tiers = self._runtime, self._runtime.policy, self._runtime.policy.tiers
        decision = stash(why, attempts_in_memory=1, policy=policy)
        if tiers and not runtime.ordered:  # it was not delivered, so it stays in its tier
            from_tier = delivery.message_origin().tier
            tier = from_tier if from_tier is not None and from_tier < len(tiers) else 0
            decision = DeliveryDecision(Action.RETRY_TOPIC, tier, tiers[tier].delay_s, why)
        runtime.outcomes.carry_out(delivery, decision, "", "UNAVAILABLE")
