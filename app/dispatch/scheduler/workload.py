"""One workload on one worker: decides which message goes to which receiver, when, and how fast.

The pumps of all the workload's jobs on this worker (main topic and retry tiers) share a `WorkloadRuntime`. It
decides *when* the next message is sent; the pumps decide *which*. All of this runs as callbacks in the event
loop, without a task or a future for each message.

Rules
1. A message is sent only while the lease holds and snapshots are saved; this is checked again after a wait
   for a stream's credit. Its receiver must have room (`app.dispatch.scheduler.receiver`), and the workload's
   rates must allow it.
2. Jobs take turns and share the room (`app.dispatch.scheduler.fair_scheduler`), so neither a deep backlog nor
   hanging messages of one partition starve another one.
3. The order is: held messages (the receiver was away), fresh messages, withheld ones
   (`app.dispatch.scheduler.dead_letter_trials`), suspects (`app.dispatch.scheduler.crash_suspects`).

`app.dispatch.scheduler.outcomes` carries out what happens after an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from app.dispatch.definition import HeadOfLine, Workload
from app.dispatch.model.dead_letter_budget import DeadLetterBudget
from app.dispatch.model.head_of_line import changed_tokens, shared_tokens
from app.dispatch.model.header_filter import HeaderFilter
from app.dispatch.model.key_lanes import KeyLanes
from app.dispatch.model.outcome import Action, DeliveryDecision, RetryPolicy, RetryTopic
from app.dispatch.model.receiver_routing import Fallbacks, ReceiverRouting, RoutingRefusal, Unmatched
from app.dispatch.pump.delivery import BatchDelivery, Delivery
from app.dispatch.pump.line_head import HeadDecisions
from app.dispatch.pump.receiver_backlog import ReceiverBacklog
from app.dispatch.pump.retry_publisher import CopyProducer, RetryPublisher
from app.dispatch.push.metadata import Metadata, SenderRole
from app.dispatch.push.stream.results import UNSENT
from app.dispatch.scheduler.crash_suspects import send_suspects
from app.dispatch.scheduler.dead_letter_trials import (
    MAX_WHY_CHARS,
    WithheldDeadLetters,
    send_withheld,
)
from app.dispatch.scheduler.fair_scheduler import FairScheduler
from app.dispatch.scheduler.isolation_router import IsolationRouter
from app.dispatch.scheduler.outcomes import OutcomeHandler
from app.dispatch.scheduler.receiver import ReceiverClientFactory, ReceiverLink, was_taken
from app.kernel.lease import Lease
from app.kernel.limit_shares import ALL, LimitNeed, LimitUsage, WorkerShare
from app.kernel.repeated_trouble import RepeatedTrouble
from app.kernel.token_bucket import TokenBucket

if TYPE_CHECKING:
    from app.dispatch.pump.partition import DispatchPump
    from app.dispatch.push.unary import CallResult
    from app.kafka.fetch.decoder import UndecodableBatch
    from app.kafka.records.record import Record
    from app.payload.interceptors import InterceptorChain


LEASE_RETRY_S = 0.05
# while the worker has no share of the rates; a new share wakes it at once
NO_SHARE_RETRY_INTERVAL_S = 0.25
BUSY_PAUSE_S = 0.001
MAX_BATCH = 512  # messages sent together over a stream
DEFAULT_BACKLOG_RATE = 1_000.0  # for a running backlog after its rate was removed from the definition


class WorkloadRuntime:
    """The runtime of one workload. `DispatchController.share` gives it this worker's share of the limits."""

    def __init__(
        self,
        workload: Workload,
        targets: ReceiverClientFactory,
        copies: CopyProducer,
        lease: Lease,
        chain: InterceptorChain | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease = lease
        self.clock = clock
        self.retry_publisher = RetryPublisher(copies, lease, clock)
        self.outcomes = OutcomeHandler(self)
        self.decisions = HeadDecisions()
        self.messages: TokenBucket | None = None
        self.bytes: TokenBucket | None = None
        self.backlog_bucket = TokenBucket(DEFAULT_BACKLOG_RATE)
        self._backlog_rate = DEFAULT_BACKLOG_RATE
        self._share = ALL
        self.rate_usage, self.slot_usage = LimitUsage(), LimitUsage()
        self.scheduler = FairScheduler()
        self._isolation = IsolationRouter(self)
        self.fallbacks = Fallbacks({}, 0.0)
        self._targets = targets
        self._old_links: list[ReceiverLink] = []
        self._sending = self._is_send_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self.workload = workload
        self.chain = chain
        self.role_metadata: Metadata = ()  # for unary calls; links announce the role over streams
        self._role: SenderRole | None = None
        self.links: dict[str, ReceiverLink] = {}  # by address, the main target first
        self._apply(workload)
        self.head_tokens = shared_tokens(self._heads_per_minute)
        self.dead_letters = _dead_letters(workload, clock())
        self.withholding = WithheldDeadLetters(self)
        self.undecodable = RepeatedTrouble()

    def change(self, workload: Workload, chain: InterceptorChain | None) -> None:
        """Applies a changed definition; messages in flight end under the old one.

        If targets changed, waiting messages go back to their pumps and are routed again. A message in flight
        that has to be sent again finds its target by `link_of`.
        """
        former = self.workload
        self.chain = chain
        if _connection_key(workload) != _connection_key(former):
            self._old_links += self.links.values()
            self.links = {}
        self._apply(workload)
        for link in self.links.values():
            link.trials.reset()  # withheld messages may succeed now
            if workload.spec.isolation != former.spec.isolation:
                self._put_back(link)
        for link in list(self._old_links):
            self._put_back(link)
            self._close_when_idle(link)
        self.shared(self._share)
        self.send_soon()

    def announce_role(self, role: SenderRole | None) -> None:
        """Tells receivers this region's role from now on; None: the workload has no role."""
        if role != self._role:
            self._role = role
            self.role_metadata = () if role is None else role.metadata()
            for link in [*self.links.values(), *self._old_links]:
                link.announce_role(role)

    def _put_back(self, link: ReceiverLink) -> None:
        """Returns the link's waiting messages to their pumps, because they may have another target now."""
        for delivery in [*link.held, *link.withheld, *link.suspects]:
            delivery.link = None
            delivery.pump.put_back(delivery)
            self.offer(delivery.pump)
        link.held.clear()
        link.withheld.clear()
        link.suspects.clear()

    def _close_when_idle(self, link: ReceiverLink) -> None:
        if link in self._old_links and not link.in_flight:
            self._old_links.remove(link)
            asyncio.get_running_loop().create_task(link.close())

    def _apply(self, workload: Workload) -> None:
        spec = workload.spec
        self.workload = workload
        self.routing = _routing(workload)
        self.fallbacks = _fallbacks(workload).kept(self.fallbacks)
        addresses = [spec.target.address] if self.routing is None else self.routing.addresses
        for address in addresses:
            if address in self.links:
                self.links[address].change(workload)
            else:
                link = ReceiverLink(workload, address, self._targets, self.clock, self.send)
                self.links[address] = link
                link.announce_role(self._role)
                if link.stream is not None:
                    link.stream.may_send = lambda: self.lease.may_push(self.clock())
        for address in [address for address in self.links if address not in addresses]:
            self._old_links.append(self.links.pop(address))
        self.link = self.links[spec.target.address]
        self.ordered = spec.ordering != "none"
        self.delay_ms = int(spec.delay * 1000)
        self.heeds_not_before = spec.not_before == "header"
        passing = spec.headers
        self.header_filter = None if passing is None else HeaderFilter(passing.allow, passing.deny)
        self.retry_topics = workload.retry_topics()
        self.dlq_topic = workload.dlq_topic()
        head = spec.head_of_line or HeadOfLine()
        self.head_after_s, self._head_stash = workload.head_of_line_after_s(), head.stash
        self._heads_per_minute = head.per_minute
        if spec.catch_up is not None:
            self._backlog_rate = spec.catch_up.rate
        self.policy = RetryPolicy(
            tiers=tuple(RetryTopic(delay_s=tier.delay, attempts=tier.attempts) for tier in spec.retry),
            dlq_enabled=spec.dlq.enabled,
        )

    def shared(self, share: WorkerShare) -> None:
        """Applies this worker's share of the workload's limits."""
        gains = share.rate > self._share.rate or share.slots > self._share.slots
        self._share = share
        for link in self.links.values():
            link.share = share
        flow, now_s = self.workload.spec.flow, self.clock()
        self.messages = _bucket(self.messages, flow.messages_per_second, share.rate, now_s)
        self.bytes = _bucket(self.bytes, flow.bytes_per_second, share.rate, now_s)
        if share.topic > 0:
            self.backlog_bucket.change(self._backlog_rate * share.topic, now_s)
        if share.jobs > 0:
            self.head_tokens = changed_tokens(self.head_tokens, self._heads_per_minute * share.jobs, now_s)
        dlq = self.workload.spec.dlq
        self.dead_letters.change(now_s, dlq.share, dlq.per_minute * share.jobs, dlq.burst)
        if gains:
            self.send_soon()

    def need(self, now_s: float) -> LimitNeed | None:
        """This worker's need of the limits, for its heartbeat; None: the workload has no limits."""
        flow = self.workload.spec.flow
        if not flow.is_limited:
            return None
        return LimitNeed(
            self.workload.key,
            round(self.rate_usage.per_s(now_s), 4),
            self.rate_usage.wants(now_s),
            max(link.in_flight for link in [*self.links.values(), *self._old_links]),
            self.slot_usage.wants(now_s),
            max(1, len(self.scheduler)),
        )

    @property
    def in_flight(self) -> int:
        return sum(link.in_flight for link in self.links.values())

    def held(self) -> list[ReceiverBacklog | deque[Delivery]]:
        """The queues of messages that wait for a receiver."""
        return [queue for link in self.links.values() for queue in (link.held, link.withheld, link.suspects)]

    def is_spent(self, now_s: float) -> bool:
        """Whether there is a DLQ, but no message may be dead-lettered now."""
        return self.policy.dlq_enabled and self.dead_letters.is_spent(now_s)

    def is_serving(self, delivery: Delivery | None, now_s: float) -> bool:
        """Whether messages may be sent to the receiver of `delivery` (None: the main one)."""
        link = delivery.link if delivery is not None and delivery.link is not None else self.link
        return link.breaker.closed and link.health.serving and self.lease.may_push(now_s)

    def new_lanes(self) -> KeyLanes[Record] | None:
        """Lanes that keep a job's messages in the definition's order; None: it asks for no order."""
        ordering = self.workload.spec.ordering
        return None if ordering == "none" else KeyLanes(single=ordering == "partition")

    def head_decision(self, tier: int | None) -> DeliveryDecision | None:
        """The decision for a message of this tier that blocks its partition; None: it stays."""
        if self._head_stash == "retry" and tier is None and self.policy.tiers and not self.ordered:
            return DeliveryDecision(Action.RETRY_TOPIC, 0, self.policy.tiers[0].delay_s, "")
        return DeliveryDecision(Action.DLQ, None, 0.0, "") if self.policy.dlq_enabled else None

    # -- sending ---------------------------------------------------------------------------------

    def offer(self, pump: DispatchPump) -> None:
        self.scheduler.offer(pump)

    def send(self) -> None:
        if self._sending:
            return
        self._sending = True
        try:
            self._send()
        finally:
            self._sending = False

    def _send(self) -> None:
        now_s, links = self.clock(), self.links.values()
        if not (self.scheduler or any(link.held or link.withheld or link.suspects for link in links)):
            return
        if not self.lease.may_push(now_s):
            self.call_at(now_s + LEASE_RETRY_S)
            return
        for link in links:
            is_turn = link.probe_held or not self.scheduler or self.routing is not None
            if link.held and (link.breaker.closed or is_turn):
                self.send_held(link, now_s)
            if link.withheld and not link.breaker.closed and link.probe_held:
                send_withheld(self, link, now_s)
        if self.routing is not None:
            self._isolation.send(self.routing, now_s)
        else:
            self._send_fresh(self.link, now_s)
        for link in links:
            if link.withheld:
                send_withheld(self, link, now_s)
            if link.suspects:
                send_suspects(self, link, now_s)

    def _send_fresh(self, link: ReceiverLink, now_s: float) -> None:
        turns = self.scheduler
        while turns and (room := self.room(link, now_s)):
            link.probe_held = True
            while (found := turns.first(room, link)) is not None:
                pump, allowance = found
                if self._send_from(pump, allowance, link, now_s):
                    turns.took()
                    break
                turns.done()
            else:
                link.breaker.forgo(now_s)
                return

    def _send_from(self, pump: DispatchPump, limit: int, link: ReceiverLink, now_s: float) -> bool:
        """Sends up to `limit` messages of the pump; returns whether it had any."""
        if (stream := link.stream) is not None and self.chain is None:
            if self.messages is not None:
                limit = min(limit, max(1, int(self.messages.available(now_s))))
            if records := pump.next_records(min(limit, MAX_BATCH)):
                self._spend(records, now_s)
                BatchDelivery(pump, link, stream, records, now_s).start()
                return True
        while (delivery := pump.next_delivery()) is not None:
            delivery.link = link
            if link.breaker.failed and delivery.attempts:  # a fresh message is a better probe
                link.withhold(delivery, now_s)
                continue
            if delivery.suspicion is None or not delivery.suspicion.is_suspect:
                self.start(delivery, link, now_s)
                return True
            link.suspects.append(delivery)
        return False

    def send_held(self, link: ReceiverLink, now_s: float) -> None:
        """Sends held messages to this receiver, as far as it has room."""
        held = link.held
        held.pop_all(attrgetter("draining"))  # the job's next owner delivers them
        for paused in held.pop_all(attrgetter("paused")):
            paused.pump.put_back(paused)
        while held and (room := self.room(link, now_s)):
            delivery = held.pop_next(lambda pump: self.scheduler.allowance(pump, room, link))
            if delivery is None:
                return
            link.probe_held = False
            self.start(delivery, link, now_s)

    def room(self, link: ReceiverLink, now_s: float) -> int:
        """How many messages may go to the receiver now (rule 1); schedules the next look."""
        if wait_s := self.rate_wait_s(now_s):
            self.call_at(now_s + wait_s)
            return 0
        room = link.room(now_s)
        if room <= 0:
            if link.fixed is not None and link.in_flight >= link.limit:
                self.slot_usage.short(now_s)
            if wait_s := link.wait_s(now_s):
                self.call_at(now_s + wait_s)
        return max(0, room)

    def start(self, delivery: Delivery, link: ReceiverLink, now_s: float) -> None:
        self._spend((delivery.record,), now_s)
        delivery.start(link, now_s)

    def _spend(self, records: Sequence[Record], now_s: float) -> None:
        flow, used = self.workload.spec.flow, 0.0
        if self.messages is not None and flow.messages_per_second:
            self.messages.take(now_s, len(records))
            used = len(records) / flow.messages_per_second
        if self.bytes is not None and flow.bytes_per_second:
            size_bytes = max(1, sum(len(record.value or b"") for record in records))
            self.bytes.take(now_s, size_bytes)
            used = max(used, size_bytes / flow.bytes_per_second)
        if used:
            self.rate_usage.add(now_s, used)

    def rate_wait_s(self, now_s: float) -> float:
        """Seconds until the rates allow the next message."""
        flow = self.workload.spec.flow
        if self._share.rate <= 0 and (flow.messages_per_second or flow.bytes_per_second):
            self.rate_usage.short(now_s)
            return NO_SHARE_RETRY_INTERVAL_S
        wait_s = 0.0
        if self.messages is not None:
            wait_s = self.messages.wait_s(now_s)
        if self.bytes is not None:
            wait_s = max(wait_s, self.bytes.wait_s(now_s))
        if wait_s:
            self.rate_usage.short(now_s)
        return wait_s

    def call_at(self, at_s: float) -> None:
        """Calls `send` at that time or earlier."""
        if self._timer is not None and not self._timer.cancelled() and self._timer_at_s <= at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at_s - self.clock()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.send()

    def answered(self, delivery: Delivery, result: CallResult) -> None:
        """Takes an answer of the receiver, or of the network before it."""
        link = delivery.link
        if result is UNSENT:
            self._count_answer(delivery, result, 1)
            delivery.come_back()
        else:
            if link is not None and delivery in link.suspects_out:
                link.suspect_answered(delivery, result.code)
            self._count_answer(delivery, result, 1)
            self.outcomes.answered(delivery, result)
            if link is not None:
                link.back(delivery, self.clock(), taken=was_taken(result))
        if link is not None and link.stream is not None:
            self.send_soon(link)  # one response may answer thousands
        else:
            self.send()

    def batch_answered(self, batch: BatchDelivery, start: int, end: int, result: CallResult) -> None:
        """Takes the common answer of messages [start, end) of `batch`."""
        self._count_answer(batch, result, end - start)
        if result is UNSENT:
            batch.come_back(start, end)
        else:
            self.outcomes.batch_answered(batch, start, end, result)
        self.send_soon(batch.link)

    def send_soon(self, link: ReceiverLink | None = None) -> None:
        """Calls `send` once for all results that arrive together. While `link` (default: the main one) is
        busy, it also waits for those of the next moment, because larger runs cost both sides less."""
        if not self._is_send_due:
            self._is_send_due, link = True, link or self.link
            wait_s = BUSY_PAUSE_S if 2 * link.in_flight > link.limit else 0.0
            asyncio.get_running_loop().call_later(wait_s, self._send_due)

    def _send_due(self) -> None:
        self._is_send_due = False
        self.send()

    def _count_answer(self, sent: Delivery | BatchDelivery, result: CallResult, count: int) -> None:
        link = sent.link
        assert link is not None
        now_s = self.clock()
        link.answered(sent.pump, result, count, sent.started_s, now_s, self.is_spent(now_s))
        self._close_when_idle(link)

    def link_of(self, delivery: Delivery) -> ReceiverLink | None:
        """The link for `delivery` by the present definition; None: no target may have it."""
        if self.routing is None:
            return self.link
        chosen = self.routing.choose(delivery.record.headers)
        return None if isinstance(chosen, RoutingRefusal) else self.links[chosen]

    def stash_batch(self, pump: DispatchPump, error: UndecodableBatch, finished: Callable[[], None]) -> None:
        """Writes a batch that cannot be decoded to the DLQ unchanged; then calls `finished`."""
        self.undecodable.record(f"{pump.job.topic}-{pump.job.partition}, {error}"[:MAX_WHY_CHARS])
        self.retry_publisher.start_raw(
            pump, error, lambda: self.dlq_topic if self.policy.dlq_enabled else None, finished
        )

    async def close(self) -> None:
        """Ends the timer and the connections; the pumps must be closed already."""
        if self._timer is not None:
            self._timer.cancel()
        for link in [*self.links.values(), *self._old_links]:
            await link.close()


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


def _dead_letters(workload: Workload, now_s: float) -> DeadLetterBudget:
    dlq = workload.spec.dlq
    return DeadLetterBudget(now_s, dlq.share, dlq.per_minute, dlq.burst)


def _connection_key(workload: Workload) -> tuple[str, str, str]:
    """The part of a definition that connections depend on."""
    target = workload.spec.target
    return target.address, target.contract, workload.method()


def _fallbacks(workload: Workload) -> Fallbacks:
    isolation = workload.spec.isolation
    if isolation is None:
        return Fallbacks({}, 0.0)
    zones = {(target.environment, target.zone): target.address for target in isolation.targets}
    named = {
        target.address: zones[target.environment, target.fallback]
        for target in isolation.targets
        if target.fallback is not None and (target.environment, target.fallback) in zones
    }
    return Fallbacks(named, isolation.fallback_after)


def _routing(workload: Workload) -> ReceiverRouting | None:
    isolation = workload.spec.isolation
    if isolation is None:
        return None
    return ReceiverRouting(
        workload.spec.target.address,
        zone=isolation.zone,
        environment=isolation.environment,
        targets=[(target.environment, target.zone, target.address) for target in isolation.targets],
        unmatched=Unmatched(isolation.unmatched),
        production=isolation.production,
    )
