"""Messages of a workload with several targets: each goes to its own, and waits for no other's.

A target beside the main one that is away or slow must not fill the trackers, and stop production with it.
What waits for one goes to the first retry topic, or again to the one that it is from (where order is asked
for, and without tiers, to the DLQ), when `MAX_HELD_APART` wait already, or when half a tracker has been read
behind it and the target is away or has let it wait for `PATIENCE_S`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.outcome import Action, Decision, stash
from app.core.routing import Refusal, Routing

if TYPE_CHECKING:
    from app.pump.delivery import Delivery
    from app.pump.receiver import ReceiverLink
    from app.pump.workload import WorkloadRuntime

MAX_HELD_APART = 1_000
PATIENCE_S = 1.0
LOOK_S = 0.1


class Apart:
    """Of one workload on this worker."""

    def __init__(self, runtime: WorkloadRuntime) -> None:
        self._runtime = runtime
        self._look_at_s = 0.0

    def send(self, routing: Routing, now_s: float) -> None:
        """Sends what is ready."""
        runtime = self._runtime
        while (delivery := runtime.turns.next()) is not None:
            chosen = routing.choose(delivery.record.headers)
            if isinstance(chosen, Refusal):
                action = Action.ACK if chosen.skip else Action.DLQ
                decision = Decision(action, None, 0.0, chosen.reason)
                runtime.outcomes.carry_out(delivery, decision, "", "UNMATCHED")
                continue
            link = runtime.links[chosen]
            delivery.link = link
            if link.breaker.failed and delivery.attempts:
                link.withhold(delivery, now_s)
                continue
            if link is not runtime.link and len(link.held) >= MAX_HELD_APART:
                self._move_away(delivery, f"{chosen} does not keep up")
                continue
            delivery.started_s = now_s
            link.hold(delivery)
            runtime.send_held(link, now_s)
        waited_for = [link for link in runtime.links.values() if link.held or link.suspects]
        if waited_for == [runtime.link] or not waited_for:
            return
        if now_s < self._look_at_s:
            runtime.call_at(self._look_at_s)
            return
        self._look_at_s = now_s + LOOK_S
        for link in waited_for:
            if link is not runtime.link:
                self._relieve(link, now_s)

    def _relieve(self, link: ReceiverLink, now_s: float) -> None:
        """Moves away what waits for it too long."""
        runtime, is_away = self._runtime, not (link.breaker.closed and link.health.serving)
        if runtime.head_decision(None) is None:
            return  # the definition lets nothing be moved away
        for queue in (link.held, link.suspects):
            for delivery in list(queue):
                tracker = delivery.pump.tracker
                if tracker.end - delivery.record.offset <= tracker.capacity // 2 or delivery.pump.paused:
                    continue
                if not is_away and now_s < delivery.started_s + PATIENCE_S:
                    runtime.call_at(now_s + LOOK_S)
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
            from_tier = delivery.told_origin().tier
            tier = from_tier if from_tier is not None and from_tier < len(tiers) else 0
            decision = Decision(Action.RETRY_TOPIC, tier, tiers[tier].delay_s, why)
        runtime.outcomes.carry_out(delivery, decision, "", "UNAVAILABLE")
