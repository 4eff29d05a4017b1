"""One workload on one worker: decides which message goes to which receiver, when, and how fast.

The pumps of all the workload's jobs on this worker (main topic and retry tiers) share a `WorkloadRuntime`. It
decides *when* the next message is sent; the pumps decide *which*. All of this runs as callbacks in the event
loop, without a task or a future for each message.

Rules
1. A message is sent only while the lease holds and snapshots are saved; this is checked again after a wait
   for a stream's credit. The receiver and the rates must have room (`app.dispatch.scheduler.send_gate`).
2. Jobs take turns and share the room (`app.dispatch.scheduler.fair_scheduler`), so neither a deep backlog nor
   hanging messages of one partition starve another one.
3. The order is: held messages (the receiver was away), fresh messages, withheld ones
   (`app.dispatch.scheduler.dead_letter_trials`), suspects (`app.dispatch.scheduler.crash_suspects`).

`app.dispatch.scheduler.outcomes` carries out what happens after an answer.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from app.dispatch.definition import Workload
from app.dispatch.pump.delivery import BatchDelivery, Delivery, OnStay, PostponedMessage
from app.dispatch.pump.line_head import HeadDecisions
from app.dispatch.pump.receiver_backlog import take_waiting
from app.dispatch.pump.retry_publisher import CopyProducer, RetryPublisher
from app.dispatch.pump.settings import DispatchSettings
from app.dispatch.push.metadata import Metadata, SenderRole
from app.dispatch.push.receiver import ReceiverClients, was_taken
from app.dispatch.push.stream.results import UNSENT
from app.dispatch.scheduler.crash_suspects import send_suspects
from app.dispatch.scheduler.dead_letter_trials import (
    MAX_WHY_CHARS,
    WithheldDeadLetters,
    send_withheld,
)
from app.dispatch.scheduler.fair_scheduler import FairScheduler
from app.dispatch.scheduler.isolation_router import IsolationRouter
from app.dispatch.scheduler.limits import WorkloadLimits
from app.dispatch.scheduler.outcomes import OutcomeHandler
from app.dispatch.scheduler.receivers import Receivers
from app.dispatch.scheduler.send_gate import SendGate
from app.kernel.grpc_status import OK
from app.kernel.lease import Lease
from app.kernel.limit_shares import LimitNeed, WorkerShare
from app.kernel.repeated_trouble import RepeatedTrouble
from app.kernel.token_bucket import TokenBucket

if TYPE_CHECKING:
    from app.dispatch.model.head_of_line import StashVerdict
    from app.dispatch.model.latency_trace import PartitionTrace
    from app.dispatch.model.outcome import DeliveryDecision
    from app.dispatch.pump.delivery import DeliveryPump
    from app.dispatch.push.call_result import CallResult
    from app.dispatch.scheduler.receiver_queues import ReceiverQueues
    from app.kafka.fetch.decoder import UndecodableBatch
    from app.kafka.records.record import Record
    from app.kernel.job import JobId
    from app.payload.interceptors import InterceptorChain

LEASE_RETRY_S = 0.05
MAX_BATCH = 512  # messages sent together over a stream


class WorkloadRuntime:
    """The runtime of one workload (`app.dispatch.pump.delivery.Dispatcher`).

    Args:
        clients: Makes the gRPC clients of receivers.
        copies: Takes the copies for retry topics and the DLQ.
        make_delayed: Makes the topic of delayed messages; returns how many partitions it has.
        chain: The interceptors; None: there are none.

    Attributes:
        settings: What the definition in force asks for.
        limits: How much of that this worker may use, and has used.
        receivers: The receivers, with the messages that wait for them.
        decisions: The messages that blocked their partition and were moved away.
        withheld: How messages fail that may not be dead-lettered now.
        undecodable: Batches and records that cannot be decoded.
    """

    def __init__(
        self,
        workload: Workload,
        clients: ReceiverClients,
        copies: CopyProducer,
        lease: Lease,
        make_delayed: Callable[[], Awaitable[int]],
        chain: InterceptorChain | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease = lease
        self.clock = clock
        self.chain = chain
        self.role_metadata: Metadata = ()  # for unary calls; receivers announce the role over streams
        self.settings = DispatchSettings(workload)
        self.limits = WorkloadLimits(workload, clock)
        self.decisions = HeadDecisions()
        self.undecodable = RepeatedTrouble()
        self._role: SenderRole | None = None
        self._sending = False
        self._publisher = RetryPublisher(copies, lease, make_delayed, clock)
        self._turns = FairScheduler()
        self._gate = SendGate(self._turns, self.limits, clock, self.send)
        self.receivers = Receivers(workload, clients, lease, clock, self.send)
        self.withheld = WithheldDeadLetters(self.receivers)
        self._outcomes = OutcomeHandler(
            self.settings, self.receivers, self.limits, self.withheld, self._publisher, clock, self.send
        )
        self._isolation = IsolationRouter(
            self.settings, self.receivers, self._turns, self._gate, self._outcomes
        )

    @property
    def workload(self) -> Workload:
        """The definition in force."""
        return self.settings.workload

    def change(self, workload: Workload, chain: InterceptorChain | None) -> None:
        """Applies a changed definition; messages in flight end under the old one.

        If targets changed, waiting messages go back to their pumps and are routed again. A message in flight
        that has to be sent again finds its target by `Receivers.chosen_for`.
        """
        former = self.workload
        self.chain = chain
        self.settings.change(workload)
        for delivery in self.receivers.change(former, workload):
            delivery.receiver = None
            delivery.pump.put_back(delivery)
            self.offer(delivery.pump)
        self.limits.change(workload)
        self.send_soon()

    def announce_role(self, role: SenderRole | None) -> None:
        """Tells receivers this region's role from now on; None: the workload has no role."""
        if role != self._role:
            self._role = role
            self.role_metadata = () if role is None else role.metadata()
            self.receivers.announce_role(role)

    def apply_share(self, share: WorkerShare) -> None:
        """Applies this worker's share of the workload's limits."""
        self.receivers.apply_share(share)
        if self.limits.apply_share(share):
            self.send_soon()

    def need(self, now_s: float) -> LimitNeed | None:
        """This worker's need of the limits, for its heartbeat; None: the workload has no limits."""
        return self.limits.need(now_s, self.receivers.most_in_flight, len(self._turns))

    # -- for the pumps -----------------------------------------------------------------------------

    @property
    def head_tokens(self) -> TokenBucket:
        return self.limits.head_tokens

    @property
    def backlog_bucket(self) -> TokenBucket:
        return self.limits.backlog_bucket

    @property
    def sends_calls(self) -> bool:
        return not self.receivers.main.receiver.streams

    def join(self, pump: DeliveryPump) -> None:
        self._turns.join(pump)

    def leave(self, pump: DeliveryPump) -> None:
        self._turns.leave(pump)

    def offer(self, pump: DeliveryPump) -> None:
        self._turns.offer(pump)

    def is_serving(self, delivery: Delivery | None, now_s: float) -> bool:
        receiver = delivery.receiver if delivery is not None else None
        receiver = receiver or self.receivers.main.receiver
        return receiver.takes and self.lease.may_push(now_s)

    def is_turn_of(self, suspect: Delivery) -> bool:
        queues = self.receivers.of(suspect)
        return queues is not None and queues.is_turn_of(suspect)

    def take_waiting(self, pump: DeliveryPump, offset: int) -> Delivery | None:
        return take_waiting(self.receivers.waiting(), pump, offset)

    def carry_out(self, delivery: Delivery, decision: DeliveryDecision) -> None:
        self._outcomes.carry_out(delivery, decision, "", "CANCELED")

    def head_moved(self, job: JobId, verdict: StashVerdict) -> None:
        self.decisions.record(job, verdict)

    def postpone(
        self, pump: DeliveryPump, messages: Sequence[PostponedMessage],
        on_moved: Callable[[list[Record]], None], on_stay: OnStay, on_end: Callable[[], None],
    ) -> None:  # fmt: skip
        self._publisher.postpone(pump, messages, on_moved, on_stay, on_end)

    def stash_batch(self, pump: DeliveryPump, error: UndecodableBatch, finished: Callable[[], None]) -> None:
        self.undecodable.record(f"{pump.job.topic}-{pump.job.partition}, {error}"[:MAX_WHY_CHARS])
        settings = self.settings
        self._publisher.start_raw(
            pump, error, lambda: settings.dlq_topic if settings.policy.dlq_enabled else None, finished
        )

    # -- sending -----------------------------------------------------------------------------------

    def send(self) -> None:
        if self._sending:
            return
        self._sending = True
        try:
            self._send()
        finally:
            self._sending = False

    def send_soon(self) -> None:
        self._gate.send_soon(self.receivers.main.receiver)

    def _send(self) -> None:
        now_s, turns, gate, routing = self.clock(), self._turns, self._gate, self.receivers.routing
        all_queues = self.receivers.by_address.values()
        if not (turns or any(queues.has_messages for queues in all_queues)):
            return
        if not self.lease.may_push(now_s):
            gate.call_at(now_s + LEASE_RETRY_S)
            return
        budget = self.limits.dead_letters
        for queues in all_queues:
            has_turn = queues.probe_held or not turns or routing is not None
            if queues.held and (queues.receiver.closed or has_turn):
                gate.send_held(queues, now_s)
            if queues.withheld and not queues.receiver.closed and queues.probe_held:
                send_withheld(queues, gate, budget, self._has_fresh(), now_s)
        if routing is not None:
            self._isolation.send(routing, self.limits.rate_wait_s(now_s), now_s)
        else:
            self._send_fresh(self.receivers.main, now_s)
        for queues in all_queues:
            if queues.withheld:
                send_withheld(queues, gate, budget, self._has_fresh(), now_s)
            if queues.suspects:
                send_suspects(queues, gate, self._has_fresh(), now_s)

    def _has_fresh(self) -> bool:
        """Fresh messages wait in the pumps; with isolation they wait for their target instead."""
        return bool(self._turns) and self.receivers.routing is None

    def _send_fresh(self, queues: ReceiverQueues, now_s: float) -> None:
        turns, receiver = self._turns, queues.receiver
        while turns and (room := self._gate.room(receiver, now_s)):
            queues.probe_held = True
            while (found := turns.first(room, receiver)) is not None:
                pump, allowance = found
                if self._send_from(pump, allowance, queues, now_s):
                    turns.took()
                    break
                turns.done()
            else:
                receiver.forgo(now_s)
                if not turns and queues.has_messages:
                    self.send_soon()  # it is their turn now, and no timer runs
                return

    def _send_from(self, pump: DeliveryPump, limit: int, queues: ReceiverQueues, now_s: float) -> bool:
        """Sends up to `limit` messages of the pump; returns whether it had any."""
        receiver = queues.receiver
        endpoint = receiver.chosen
        assert endpoint is not None
        if (stream := endpoint.stream) is not None and self.chain is None:
            if (rate := self.limits.messages) is not None:
                limit = min(limit, max(1, int(rate.available(now_s))))
            if records := pump.next_records(min(limit, MAX_BATCH)):
                self.limits.spend(records, now_s)
                BatchDelivery(pump, receiver, endpoint, stream, records, now_s).start()
                return True
        while (delivery := pump.next_delivery()) is not None:
            delivery.receiver = receiver
            if receiver.failed and delivery.attempts:  # a fresh message is a better probe
                queues.withhold(delivery, now_s)
                continue
            if delivery.suspicion is None or not delivery.suspicion.is_suspect:
                self._gate.start(delivery, receiver, now_s)
                return True
            queues.suspects.append(delivery)
        return False

    # -- answers -----------------------------------------------------------------------------------

    def answered(self, delivery: Delivery, result: CallResult) -> None:
        """Takes an answer of the receiver, or of the network before it."""
        receiver, queues = delivery.receiver, self.receivers.of(delivery)
        assert receiver is not None
        if result is UNSENT:
            self._count_answer(delivery, result, 1)
            delivery.come_back()
        else:
            if result.is_renewal:
                result = self._outcomes.granted(delivery, result)
            if queues is not None and delivery in queues.suspects_out:
                queues.suspect_answered(delivery, result.code)
            self._count_answer(delivery, result, 1)  # first: the breaker's state is a reason of the outcome
            trace, sent_s = delivery.pump.trace, delivery.started_s
            self._outcomes.answered(delivery, result)
            if trace is not None and not (delivery.was_answered or delivery.canceled):
                delivery.was_answered = True
                self._trace(trace, delivery.pump, [delivery.record], sent_s, result)
            if queues is not None:
                queues.came_back(delivery, self.clock(), taken=was_taken(result))
        self.receivers.close_when_idle(receiver)
        self._gate.send_soon(receiver)  # one response, or one turn of the loop, may answer thousands

    def batch_answered(self, batch: BatchDelivery, start: int, end: int, result: CallResult) -> None:
        self._count_answer(batch, result, end - start)
        if result is UNSENT:
            batch.come_back(start, end)
        else:
            self._outcomes.batch_answered(batch, start, end, result)
            if batch.pump.trace is not None:
                records = batch.records[start:end]
                self._trace(batch.pump.trace, batch.pump, records, batch.started_s, result)
        self.receivers.close_when_idle(batch.receiver)
        self._gate.send_soon(batch.receiver)

    def _trace(
        self,
        trace: PartitionTrace,
        pump: DeliveryPump,
        records: Sequence[Record],
        sent_s: float,
        result: CallResult,
    ) -> None:
        if pump.closed or pump.draining or result.local_error is not None:
            return
        now_s = self.clock()
        trace.answered(records, sent_s, now_s)
        if result.code == OK and result.action is None:
            trace.acknowledged(pump.version, records, now_s)

    def not_sent(self, delivery: Delivery) -> None:
        if (queues := self.receivers.of(delivery)) is not None:
            queues.suspects_out.discard(delivery)
            queues.came_back(delivery, self.clock(), taken=False)

    def _count_answer(self, sent: Delivery | BatchDelivery, result: CallResult, count: int) -> None:
        receiver, endpoint, now_s = sent.receiver, sent.endpoint, self.clock()
        assert receiver is not None
        assert endpoint is not None
        spent = self.limits.is_spent(now_s)
        receiver.answered(endpoint, sent.pump, result, count, sent.started_s, now_s, spent=spent)

    async def close(self) -> None:
        """Ends the timer and the connections; the pumps must be closed already."""
        self._gate.close()
        await self.receivers.close()
