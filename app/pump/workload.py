"""One workload on one worker: its receiver, its share of calls in flight, its breaker, its retry path.

A `WorkloadRuntime` is shared by the pumps of all the workload's jobs on this worker (main topic and
retry tiers). It decides *when* the next message is sent; the pumps know *which*. Everything here runs in
the event loop, by callbacks: no task and no future a message.

Rules
1. A call is started only while the lease holds and snapshots are taken, the breaker allows it and fewer
   than `limit` are in flight.
2. Jobs take turns, so that a deep backlog of one partition does not starve another.
3. Held messages (the receiver was away) go first, with their attempts as they were.
4. A message is finished only by an acknowledgement of the receiver, or once its copy in the retry topic
   or DLQ is acknowledged by all in-sync replicas.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from app.config.definitions import Workload
from app.core.breaker import Breaker
from app.core.lease import Lease
from app.core.outcome import Action, Decision, RetryPolicy, Tier, code_name, decide, stash
from app.core.retry_headers import Header, moved_headers

if TYPE_CHECKING:
    from app.pump.dispatch import Delivery, DispatchPump
    from app.push.unary import CallResult, UnaryTarget

log = structlog.get_logger(__name__)

ADAPTIVE_LIMIT = 256  # calls in flight while `max_inflight: adaptive` has nothing measured yet
PRODUCE_RETRY_S = 0.5  # a copy that was not taken is tried again this much later
LEASE_RETRY_S = 0.05


class Copies(Protocol):
    """What the retry path needs of a producer."""

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[Header]
    ) -> Awaitable[Any]: ...


class WorkloadRuntime:
    """See the module. `limit` is set by the job manager: this worker's share of the workload's calls."""

    def __init__(
        self,
        workload: Workload,
        make_target: Callable[[Workload], UnaryTarget],
        copies: Copies,
        lease: Lease,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.key = workload.key
        self.lease = lease
        self.clock = clock
        self.breaker = Breaker()
        self.in_flight = 0
        self.limit = ADAPTIVE_LIMIT
        self.held: deque[Delivery] = deque()
        self._turns: deque[DispatchPump] = deque()
        self._copies = copies
        self._make_target = make_target
        self._target: UnaryTarget | None = None
        self._old_targets: list[UnaryTarget] = []
        self._sending = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self.workload = workload
        self.change(workload)

    def change(self, workload: Workload) -> None:
        """Takes a changed definition into force; messages in flight end under the old one."""
        spec = workload.spec
        if self._target is None or spec.target != self.workload.spec.target:
            if self._target is not None:
                self._old_targets.append(self._target)
            self._target = self._make_target(workload)
            self.breaker = Breaker()
        self.workload = workload
        self.timeout_s = spec.target.timeout
        self.max_in_flight = (
            spec.flow.max_inflight if isinstance(spec.flow.max_inflight, int) else ADAPTIVE_LIMIT
        )
        self.retry_topics = workload.retry_topics()
        self.dlq_topic = workload.dlq_topic()
        self.policy = RetryPolicy(
            tiers=tuple(Tier(delay_s=tier.delay, attempts=tier.attempts) for tier in spec.retry),
            dlq_enabled=spec.dlq.enabled,
        )

    # -- sending ---------------------------------------------------------------------------------

    def offer(self, pump: DispatchPump) -> None:
        """`pump` has messages ready; it takes its turn."""
        if not pump.in_turn:
            pump.in_turn = True
            self._turns.append(pump)

    def send(self) -> None:
        """Starts as many calls as rule 1 allows."""
        if self._sending:
            return
        self._sending = True
        try:
            self._send()
        finally:
            self._sending = False

    def _send(self) -> None:
        now_s = self.clock()
        if not (self.held or self._turns):
            return
        if not self.lease.may_push(now_s):
            self._wake_at(now_s + LEASE_RETRY_S)
            return
        breaker, turns, held = self.breaker, self._turns, self.held
        while self.in_flight < self.limit:
            if held:
                delivery: Delivery | None = held[0]
                if held[0].pump.draining:  # stopped or moved meanwhile: its next owner delivers it
                    held.popleft()
                    continue
            elif turns:
                delivery = None
            else:
                return
            if not breaker.allow(now_s):
                self._wake_at(max(breaker.next_probe_at_s, now_s + 0.01))
                return
            if delivery is not None:
                held.popleft()
            else:
                delivery = self._next(turns)
                if delivery is None:
                    breaker.forgo(now_s)
                    return
            self.in_flight += 1
            assert self._target is not None
            delivery.start(self._target, now_s)

    @staticmethod
    def _next(turns: deque[DispatchPump]) -> Delivery | None:
        while turns:
            pump = turns[0]
            delivery = pump.next_delivery()
            if delivery is not None:
                turns.rotate(-1)
                return delivery
            turns.popleft()
            pump.in_turn = False
        return None

    def _wake_at(self, at_s: float) -> None:
        if self._timer is not None and not self._timer.cancelled() and self._timer_at_s <= at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at_s - self.clock()), self._woken)

    def _woken(self) -> None:
        self._timer = None
        self.send()

    # -- outcomes --------------------------------------------------------------------------------

    def answered(self, delivery: Delivery, result: CallResult) -> None:
        """The receiver (or the way to it) answered `delivery`."""
        self.in_flight -= 1
        now_s = self.clock()
        pump = delivery.pump
        if result.code == 0 and result.action is None:
            self.breaker.on_success(now_s, delivery.started_s)
            if not pump.closed:
                pump.finished(delivery.record.offset, acknowledged=True)
        else:
            self._not_ok(delivery, result, now_s)
        self.send()

    def _not_ok(self, delivery: Delivery, result: CallResult, now_s: float) -> None:
        pump = delivery.pump
        if result.local_error is None:
            self.breaker.on_result(result.code, now_s, delivery.started_s)
        if pump.closed:
            return
        if delivery.canceled:
            self.held.append(delivery)
            return
        if result.local_error is not None or result.too_large:
            decision = stash(
                result.local_error or f"too large for the receiver: {result.details}",
                attempts_in_memory=delivery.attempts,
                policy=self.policy,
                random01=random.random(),  # noqa: S311 - jitter
            )
        else:
            origin = delivery.origin
            decision = decide(
                result.code,
                result.action,
                attempts_in_memory=delivery.attempts,
                tier=pump.tier,
                tier_attempt=(origin.tier_attempt if origin else 0) + 1,
                policy=self.policy,
                breaker_open=not self.breaker.closed,
                random01=random.random(),  # noqa: S311 - jitter
            )
        self.carry_out(delivery, decision, result, now_s)

    def carry_out(self, delivery: Delivery, decision: Decision, result: CallResult, now_s: float) -> None:
        """Does what was decided about a delivery that was answered."""
        pump = delivery.pump
        match decision.action:
            case Action.ACK:
                pump.finished(delivery.record.offset, acknowledged=True)
            case Action.HOLD:
                delivery.attempts = max(0, delivery.attempts - 1)
                if self.breaker.closed:
                    pump.later(delivery, decision.delay_s)  # it alone is not taken: it must not spin
                else:
                    self.held.append(delivery)
            case Action.RETRY_IN_MEMORY:
                pump.later(delivery, decision.delay_s)
            case Action.RETRY_TOPIC | Action.DLQ:
                if not self.lease.holds(now_s):
                    # Not ours to move any more, or not now: it is delivered again should it stay ours.
                    self.held.append(delivery)
                    return
                tier = decision.tier if decision.action is Action.RETRY_TOPIC else None
                words = f"{decision.reason}: {result.details}" if result.details else decision.reason
                task = asyncio.get_running_loop().create_task(
                    self._copy(delivery, tier, words, code_name(result.code))
                )
                pump.copying.add(task)
                task.add_done_callback(pump.copying.discard)

    async def _copy(self, delivery: Delivery, tier: int | None, reason: str, code: str) -> None:
        """Writes the copy until it is taken (rule 4), then finishes the message here."""
        pump, record = delivery.pump, delivery.record
        origin = delivery.told_origin()
        failed = replace(
            origin, attempt=origin.attempt + delivery.attempts, tier_attempt=origin.tier_attempt + 1
        )
        topic = self.dlq_topic if tier is None else self.retry_topics[tier]
        while not pump.closed:
            if not self.lease.holds(self.clock()):
                await asyncio.sleep(LEASE_RETRY_S)
                continue
            headers = moved_headers(
                record.headers, failed, tier=tier, reason=reason, code=code,
                moved_at_ms=time.time_ns() // 1_000_000,
            )  # fmt: skip
            try:
                await self._copies.send(topic, record.key, record.value, headers)
            except Exception as error:  # noqa: BLE001 - whatever the producer raises, the message stays
                pump.trouble = f"no copy in {topic}: {error}"
                log.warning(
                    "a copy was not taken and is tried again; the message stays unfinished",
                    topic=topic, job=str(pump.job), offset=record.offset, error=repr(error),
                )  # fmt: skip
                await asyncio.sleep(PRODUCE_RETRY_S)
                continue
            pump.trouble = ""
            if not pump.closed:
                pump.finished(record.offset, acknowledged=False, dead=tier is None)
                self.send()
            return

    async def copy_raw(self, value: bytes, headers: list[Header]) -> None:
        """Writes bytes that are no message (an undecodable batch) to the DLQ.

        Raises: whatever the producer raises; the caller tries again.
        """
        await self._copies.send(self.dlq_topic, None, value, headers)

    async def close(self) -> None:
        """Ends the timer and the channels; the pumps have been closed before."""
        if self._timer is not None:
            self._timer.cancel()
        self.held.clear()
        for target in [self._target, *self._old_targets]:
            if target is not None:
                await target.close()
