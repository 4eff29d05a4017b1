"""Messages of a workload with several targets: each goes to its own, and waits for no other's.

Rules
1. Messages are taken from their partitions whatever else waits, so that a target which is away or slow keeps
   no other's back; but a partition that has `MOST_WAITING` waiting for a target of production that is there
   goes at its pace. What waits counts as held (`app.dispatch.pump.intake`): its bytes, and the tracker, bound
   it.
2. What waits for a target of production that is away waits until it is back: with retry tiers (and no order
   to keep) in the first of them, or again in the one that it is from, else where it is. Nothing is
   dead-lettered.
3. A test environment must not fill the trackers, and stop production with it. What waits for its target goes
   to a retry tier as well, and without one to the DLQ, when `MAX_HELD_APART` wait already, or when half a
   tracker has been read behind it and the target is away or has let it wait for `ISOLATION_WAIT_S`.
4. A target that names a fallback has one message at a time as a probe while it is away, for
   `ISOLATION_WAIT_S` at most, or until half a tracker has been read behind it. That one then goes to the
   fallback, as the others do at once (`app.dispatch.model.receiver_routing.Fallbacks`).
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

MOST_WAITING = 256  # of a partition for one target that is there: as much as is decoded at once
MAX_HELD_APART = 1_000
ISOLATION_WAIT_S = 1.0
AWAY_POLL_INTERVAL_S = 0.1


class IsolationRouter:
    """Of one workload on this worker."""

    def __init__(self, runtime: WorkloadRuntime) -> None:
        self._runtime = runtime
        self._look_at_s = 0.0
        self._fallen: set[str] = set()  # targets whose messages go to another now

    def send(self, routing: ReceiverRouting, now_s: float) -> None:
        """Sends what is ready."""
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
                self._pass_on(delivery, routing, production, now_s)
        waited_for = [link for link in runtime.links.values() if link.held or link.suspects]
        if waited_for == [runtime.link] or not waited_for:
            return
        if now_s < self._look_at_s:
            runtime.call_at(self._look_at_s)
            return
        self._look_at_s = now_s + AWAY_POLL_INTERVAL_S
        if runtime.fallbacks:
            runtime.call_at(self._look_at_s)
        for link in waited_for:
            self._fall_back(link, now_s)
            if link is not runtime.link:
                self._relieve(link, now_s, production)

    def _pass_on(
        self, delivery: Delivery, routing: ReceiverRouting, production: set[str], now_s: float
    ) -> None:
        """To its target, or wherever else it has to go."""
        runtime = self._runtime
        chosen = routing.choose(delivery.record.headers)
        if isinstance(chosen, RoutingRefusal):
            action = Action.ACK if chosen.skip else Action.DLQ
            decision = DeliveryDecision(action, None, 0.0, chosen.reason)
            runtime.outcomes.carry_out(delivery, decision, "", "UNMATCHED")
            return
        link = runtime.links[chosen]
        if link.held or link.in_flight:  # else it serves as a probe (rule 4)
            link = self._fallback(link, now_s)
        delivery.link = link
        if link.breaker.failed and delivery.attempts:
            link.withhold(delivery, now_s)
            return
        if len(link.held) >= MAX_HELD_APART and self._may_move(link, production):
            self._move_away(delivery, f"{link.address} does not keep up")
            return
        delivery.started_s = now_s
        link.hold(delivery)
        runtime.send_held(link, now_s)

    def _refresh_away(self, now_s: float) -> None:
        """Rule 4: which targets are away, and since when."""
        runtime = self._runtime
        for address, link in runtime.links.items():
            runtime.fallbacks.update(address, now_s, is_away=link.is_away)

    def _fallback(self, link: ReceiverLink, now_s: float) -> ReceiverLink:
        """The link that this one's messages go to now."""
        runtime = self._runtime
        if not runtime.fallbacks:
            return link
        links = runtime.links
        address = runtime.fallbacks.choose(link.address, now_s, lambda at: links[at].is_away)
        if (address != link.address) is not (link.address in self._fallen):
            log.warning("a zone's messages go to another target", target=link.address, now_to=address)
            self._fallen ^= {link.address}
        return links[address]

    def _fall_back(self, link: ReceiverLink, now_s: float) -> None:
        """Rule 4, for what waits already."""
        other = self._fallback(link, now_s)
        if other is link:
            return
        waiting = list(link.held)
        for index, delivery in enumerate(waiting):
            tracker = delivery.pump.tracker
            is_last = index == len(waiting) - 1 and not link.in_flight
            is_young = now_s < (delivery.first_sent_s or delivery.started_s) + ISOLATION_WAIT_S
            if is_last and is_young and tracker.end - delivery.record.offset <= tracker.capacity // 2:
                break
            link.held.remove(delivery)
            delivery.link = other
            delivery.started_s = now_s
            other.hold(delivery)
        self._runtime.send_held(other, now_s)

    def _may_move(self, link: ReceiverLink, production: set[str]) -> bool:
        """What waits for it may leave its topic (rules 2 and 3)."""
        runtime = self._runtime
        if link is runtime.link or runtime.head_decision(None) is None:
            return False
        return link.address not in production or bool(runtime.policy.tiers and not runtime.ordered)

    def _relieve(self, link: ReceiverLink, now_s: float, production: set[str]) -> None:
        """Moves away what waits for it too long, where it may."""
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
                state = "is away" if is_away else "does not keep up"
                self._move_away(
                    delivery, f"{link.address} {state}, and half a tracker has been read behind it"
                )

    def _move_away(self, delivery: Delivery, why: str) -> None:
        runtime, policy, tiers = self._runtime, self._runtime.policy, self._runtime.policy.tiers
        decision = stash(why, attempts_in_memory=1, policy=policy)
        if tiers and not runtime.ordered:  # it was not tried: in the tier that it is from it goes round
            from_tier = delivery.message_origin().tier
            tier = from_tier if from_tier is not None and from_tier < len(tiers) else 0
            decision = DeliveryDecision(Action.RETRY_TOPIC, tier, tiers[tier].delay_s, why)
        runtime.outcomes.carry_out(delivery, decision, "", "UNAVAILABLE")
