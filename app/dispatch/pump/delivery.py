"""Messages on their way to a receiver: a single one (`Delivery`), or a run of a partition (`BatchDelivery`).

Both report every message to the `Dispatcher` exactly once. A batch holds first deliveries only; a message
that is not acknowledged continues as a `Delivery` of its own.

The two interfaces here let imports go one way: a pump (`app.dispatch.pump.partition`) knows its parts and the
`Dispatcher`, its parts know it as `DeliveryPump`, and the dispatcher (`app.dispatch.scheduler.workload`) lies
above both.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.dispatch.model.retry_headers import Header, MessageOrigin
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.metadata import CallMetadata, Metadata, wire_fields
from app.dispatch.push.stream.client import StreamTarget
from app.dispatch.push.stream.encoder import OutBatch
from app.payload.interceptors import Message, Outgoing, Skip

if TYPE_CHECKING:
    from app.dispatch.model.crash_suspicion import CrashSuspicion
    from app.dispatch.model.head_of_line import StashVerdict
    from app.dispatch.model.latency_trace import PartitionTrace
    from app.dispatch.model.outcome import DeliveryDecision
    from app.dispatch.pump.settings import DispatchSettings
    from app.dispatch.push.endpoint import Endpoint
    from app.dispatch.push.receiver import Receiver
    from app.kafka.fetch.decoder import UndecodableBatch
    from app.kafka.records.record import Record
    from app.kernel.job import JobId
    from app.kernel.token_bucket import TokenBucket
    from app.kernel.tracker import Tracker
    from app.kernel.troubles import Troubles
    from app.payload.interceptors import InterceptorChain

_offset = attrgetter("offset")


class PendingCall(Protocol):
    def cancel(self) -> object: ...


class PostponedMessage(NamedTuple):
    record: Record
    origin: MessageOrigin
    due_ms: int


# messages that stay in place, why ("": they are due too soon), and whether only for now
OnStay = Callable[[list[PostponedMessage], str, bool], None]


class Dispatcher(Protocol):
    """What a workload's pumps need of what sends their messages: `WorkloadRuntime`.

    Attributes:
        chain: The interceptors; None: there are none.
        role_metadata: This region's role, for unary calls.
        clock: The monotonic time in seconds.
    """

    settings: DispatchSettings
    chain: InterceptorChain | None
    role_metadata: Metadata
    clock: Callable[[], float]

    @property
    def backlog_bucket(self) -> TokenBucket:
        """The rate at which backlogs catch up."""
        ...

    @property
    def head_tokens(self) -> TokenBucket:
        """How many messages that block their partition may be moved away."""
        ...

    @property
    def sends_calls(self) -> bool:
        """Whether messages go by unary calls, not over a stream."""
        ...

    # the pumps' turns

    def join(self, pump: DeliveryPump) -> None: ...

    def leave(self, pump: DeliveryPump) -> None: ...

    def offer(self, pump: DeliveryPump) -> None:
        """The pump has messages ready, and waits for its turn."""
        ...

    def send(self) -> None:
        """Sends what may be sent now."""
        ...

    def send_soon(self) -> None:
        """Calls `send` once for everything that happens in this turn of the event loop."""
        ...

    # answers

    def answered(self, delivery: Delivery, result: CallResult) -> None: ...

    def batch_answered(self, batch: BatchDelivery, start: int, end: int, result: CallResult) -> None:
        """Takes the common answer of messages [start, end) of `batch`."""
        ...

    def not_sent(self, delivery: Delivery) -> None:
        """The message comes back from its receiver without having been sent."""
        ...

    # messages that block their partition, or are ended by an operator

    def is_serving(self, delivery: Delivery | None, now_s: float) -> bool:
        """Whether messages may be sent to the receiver of `delivery` (None: the main one)."""
        ...

    def is_turn_of(self, suspect: Delivery) -> bool:
        """Whether this suspect is in flight, or goes next."""
        ...

    def take_waiting(self, pump: DeliveryPump, offset: int) -> Delivery | None:
        """Takes a message out of the queue in which it waits for its receiver; None: it waits in none."""
        ...

    def carry_out(self, delivery: Delivery, decision: DeliveryDecision) -> None:
        """Ends a delivery that is not in flight, as decided."""
        ...

    def head_moved(self, job: JobId, verdict: StashVerdict) -> None: ...

    # copies

    def stash_batch(self, pump: DeliveryPump, error: UndecodableBatch, finished: Callable[[], None]) -> None:
        """Writes a batch that cannot be decoded to the DLQ unchanged; then calls `finished`."""
        ...

    def postpone(
        self, pump: DeliveryPump, messages: Sequence[PostponedMessage],
        on_moved: Callable[[list[Record]], None], on_stay: OnStay, on_end: Callable[[], None],
    ) -> None:  # fmt: skip
        """As `RetryPublisher.postpone`."""
        ...


class DeliveryPump(Protocol):
    """What deliveries, queues and copies need of the pump whose messages they have: `DispatchPump`.

    Attributes:
        topic_id: Kafka's; "": there is none.
        tier: The retry topic's; None: the main topic, or one of returned or delayed messages.
        open: The messages that were sent on their own, and are not finished, by offset.
        calls: The open ones that are on their way.
        batches, batched: The runs that are on their way, and the number of their messages.
        copying: The messages on their way to a retry topic or the DLQ.
        in_turn: It waits for its turn to send.
        version: Grows whenever something becomes finished.
        trace: Notes where messages wait; None: no trace runs.
    """

    job: JobId
    topic_id: str
    tier: int | None
    is_main: bool
    runtime: Dispatcher
    tracker: Tracker
    troubles: Troubles
    open: dict[int, Delivery]
    calls: dict[int, Delivery]
    batches: set[BatchDelivery]
    batched: int
    copying: dict[int, asyncio.Task[None]]
    in_turn: bool
    paused: bool
    closed: bool
    draining: bool
    delivered: int
    dead_lettered: int
    trace: PartitionTrace | None

    @property
    def version(self) -> int: ...

    @property
    def codec(self) -> int:
        """Kafka's number of the compression of its messages; 0: none."""
        ...

    @property
    def delay_ms(self) -> int:
        """How long after its append a message may be delivered."""
        ...

    # what is next

    def next_delivery(self) -> Delivery | None: ...

    def next_records(self, limit: int) -> list[Record]:
        """At most `limit` messages that may travel together; empty: `next_delivery` has the next one."""
        ...

    def refill(self) -> None:
        """Decodes while there is room, and joins the turns if there is something to send."""
        ...

    # what a delivery carries

    def metadata(self, delivery: Delivery) -> CallMetadata: ...

    def filter_headers(self, headers: Sequence[Header]) -> Sequence[Header]:
        """The headers that the receiver gets."""
        ...

    # what comes back

    def later(self, delivery: Delivery, delay_s: float) -> None:
        """Delivers the message again after `delay_s`; until then it does not count as a call in flight."""
        ...

    def put_back(self, delivery: Delivery) -> None: ...

    def put_back_unsent(self, records: Sequence[Record]) -> None:
        """Takes messages back that no receiver got; they may travel together again."""
        ...

    def remove_waiting(self, offset: int) -> Delivery | None:
        """Takes the message out of the queue in which it waits; None: it waits in none."""
        ...

    def hold(self, size: int) -> None:
        """Counts bytes that begin to wait for a receiver; negative: that have stopped waiting."""
        ...

    def may_hold(self, record: Record) -> bool:
        """Whether the message may wait in memory without stopping the pump's reading."""
        ...

    # what ends

    def finished(self, record: Record, *, acknowledged: bool, dead: bool = False, sent: bool = True) -> None:
        """Finishes a message: acknowledged, or safe in another topic (`dead`: the DLQ).

        `sent` is False for an acknowledged message that was passed over.
        """
        ...

    def finished_run(self, records: Sequence[Record], start: int, end: int) -> None:
        """Finishes the messages [start, end) of a run, which were acknowledged."""
        ...

    def stashed(self, error: UndecodableBatch) -> None:
        """The bytes of the batch are safe in the DLQ."""
        ...


class _OriginalRecord(NamedTuple):
    """A message for the stream's encoder, with the offset and timestamp of its first record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class _StreamHandle(NamedTuple):
    stream: StreamTarget
    batch: OutBatch

    def cancel(self) -> None:
        self.stream.cancel(self.batch, 0, 1)

    def cancel_unsent(self) -> None:
        self.stream.cancel_unsent(self.batch)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


class Delivery:
    """One message, over all its in-memory attempts."""

    __slots__ = (
        "attempts", "canceled", "endpoint", "first_sent_s", "handle", "origin", "pump", "receiver", "record",
        "renewals", "renewing_s", "sent_to", "started_s", "suspicion", "timeouts", "verdict",
        "wanted_timeout_s", "was_answered",
    )  # fmt: skip

    def __init__(self, pump: DeliveryPump, record: Record, origin: MessageOrigin | None) -> None:
        self.pump = pump
        self.record = record
        self.origin = origin
        self.attempts = 0
        self.was_answered = False  # known of messages that are traced, and of those of a batch
        self.timeouts = self.renewals = 0
        self.renewing_s = 0.0  # since when the receiver asks for more time; a first call's start
        self.wanted_timeout_s = 0.0  # for which it asked with its last answer
        self.canceled = False
        self.verdict: DeliveryDecision | None = None  # decides, whatever the receiver answers now
        self.first_sent_s = self.started_s = 0.0
        self.handle: PendingCall | None = None
        self.receiver: Receiver | None = None
        self.endpoint: Endpoint | None = None  # the last one that got the message
        self.sent_to: Receiver | None = None  # the last time
        self.suspicion: CrashSuspicion | None = None  # after the loss of its receiver

    def start(self, receiver: Receiver, now_s: float) -> None:
        """Sends the message; `answered` is called exactly once, later."""
        pump, record = self.pump, self.record
        self.attempts += 1
        self.canceled = False
        self.started_s = now_s
        if receiver is not self.sent_to or not self.first_sent_s:
            self.first_sent_s = now_s  # the time at another receiver does not count as its age
        self.receiver = self.sent_to = receiver
        endpoint = receiver.chosen
        assert endpoint is not None
        if self.renewals:
            endpoint = receiver.same(self.endpoint, endpoint, now_s)
        elif endpoint is self.endpoint:
            endpoint = receiver.another(endpoint, now_s)
        self.endpoint = endpoint
        receiver.sent(endpoint, pump, 1)
        pump.open[record.offset] = pump.calls[record.offset] = self
        value = record.value
        added: Metadata = ()
        if (chain := pump.runtime.chain) is not None:
            outgoing = chain.before(self._message())
            if not isinstance(outgoing, Outgoing):
                action = "Skip" if isinstance(outgoing, Skip) else None
                result = CallResult.local(outgoing.reason, action)
                asyncio.get_running_loop().call_soon(self.answered, result)
                return
            value, added = outgoing
        timeouts = self.timeouts + (self.origin.timeouts if self.origin is not None else 0)
        timeout_s = endpoint.timeout.for_message(timeouts)
        if self.wanted_timeout_s:
            timeout_s = max(timeout_s, min(self.wanted_timeout_s, self.left_s(now_s)))
        if (stream := endpoint.stream) is not None:
            self._send_by(stream, value, added, timeout_s, self.left_s(now_s))
            return
        try:
            metadata = pump.metadata(self)
            metadata.own.extend(wire_fields(added))
        except ValueError as error:  # of a header's name, or an interceptor's metadata
            asyncio.get_running_loop().call_soon(self.answered, CallResult.local(str(error)))
            return
        self.handle = endpoint.target.call(value, metadata, timeout_s, self.answered)

    @property
    def is_renewed(self) -> bool:
        """Whether the receiver has asked for more time since the message last failed."""
        return self.renewals > 0 or (
            isinstance(self.handle, _StreamHandle) and bool(self.handle.batch.renewed)
        )

    def _message(self) -> Message:
        origin, record = self.message_origin(), self.record
        return Message(
            origin.topic, origin.partition, origin.offset, record.key, record.value, tuple(record.headers),
            origin.timestamp_ms, origin.attempt + self.attempts,
        )  # fmt: skip

    def left_s(self, now_s: float) -> float:
        """How much time the receiver may ask for. It counts from the delivery for which it first did."""
        after_s = self.pump.runtime.settings.head_limits.after_s
        return after_s - (now_s - self.renewing_s) if self.renewals else after_s

    def _send_by(
        self, stream: StreamTarget, value: bytes | None, added: Metadata, timeout_s: float, longest_s: float
    ) -> None:
        origin, record = self.message_origin(), self.record
        headers = [*self.pump.filter_headers(record.headers), *((name, _bytes(text)) for name, text in added)]
        message = _OriginalRecord(origin.offset, origin.timestamp_ms, record.key, value, headers)
        attempt = origin.attempt + self.attempts
        batch = OutBatch(
            origin.topic, origin.partition, [message], origin.retry_count, attempt, self._answered_by_stream
        )
        self.handle = _StreamHandle(stream, batch)
        stream.send(batch, timeout_s, longest_s)

    def _answered_by_stream(self, _start: int, _end: int, result: CallResult) -> None:
        self.answered(result)

    def answered(self, result: CallResult) -> None:
        self.handle = None
        self.pump.calls.pop(self.record.offset, None)
        self.pump.runtime.answered(self, result)

    def cancel(self) -> None:
        """Gives up the call; its result still comes."""
        if self.handle is not None:
            self.handle.cancel()

    def cancel_unsent(self) -> None:
        """Takes the message back if it waits for the receiver's credit; the result comes a moment later."""
        if isinstance(self.handle, _StreamHandle):
            self.handle.cancel_unsent()

    def come_back(self) -> None:
        """Puts a message that was not sent back into its pump, without counting this attempt."""
        pump = self.pump
        self.attempts -= 1
        pump.runtime.not_sent(self)
        self.receiver = None
        if pump.closed:
            return
        if self.verdict is not None:
            pump.runtime.carry_out(self, self.verdict)
        elif not pump.draining:  # else the next owner delivers it
            pump.put_back(self)
            pump.runtime.offer(pump)

    def message_origin(self) -> MessageOrigin:
        """Where the message was first produced, by its headers or else by its present place."""
        if self.origin is not None:
            return self.origin
        pump, record = self.pump, self.record
        return MessageOrigin(pump.job.topic, pump.job.partition, record.offset, record.timestamp)


class BatchDelivery(OutBatch):
    """A run of messages of one partition, sent together for the first time."""

    __slots__ = ("endpoint", "open_messages", "pump", "receiver", "started_s", "stream", "verdicts")

    def __init__(
        self, pump: DeliveryPump, receiver: Receiver, endpoint: Endpoint, stream: StreamTarget,
        records: list[Record], now_s: float,
    ) -> None:  # fmt: skip
        super().__init__(
            pump.job.topic, pump.job.partition, records, 0, 1, self.answered,
            header_filter=pump.runtime.settings.header_filter,
        )  # fmt: skip
        self.pump = pump
        self.receiver = receiver
        self.endpoint = endpoint
        self.stream = stream
        self.open_messages = len(records)
        self.started_s = now_s
        self.verdicts: dict[int, DeliveryDecision] = {}  # by offset

    def start(self) -> None:
        """Sends the batch; every message gets exactly one result, later."""
        self.receiver.sent(self.endpoint, self.pump, self.open_messages)
        self.pump.batches.add(self)
        self.pump.batched += self.open_messages
        self.stream.send(self, longest_s=self.pump.runtime.settings.head_limits.after_s)

    def answered(self, start: int, end: int, result: CallResult) -> None:
        self.open_messages -= end - start
        self.pump.batched -= end - start
        if not self.open_messages:
            self.pump.batches.discard(self)
            # A batch that refers to itself keeps its messages until the garbage collector runs.
            self.on_results = _no_results
        self.pump.runtime.batch_answered(self, start, end, result)

    def single(self, index: int) -> Delivery:
        """The message at `index` as a delivery of its own, which counts this attempt."""
        record = self.records[index]
        delivery = Delivery(self.pump, record, None)
        delivery.attempts = 1
        delivery.was_answered = True
        delivery.first_sent_s = delivery.started_s = self.started_s
        delivery.receiver = delivery.sent_to = self.receiver
        delivery.endpoint = self.endpoint
        delivery.verdict = self.verdicts.get(record.offset)
        self.pump.open[record.offset] = delivery
        return delivery

    def come_back(self, start: int, end: int) -> None:
        """Puts messages [start, end), which were not sent, back into their pump."""
        pump, records = self.pump, self.records[start:end]
        if self.verdicts:
            for index in range(start, end):
                if self.records[index].offset in self.verdicts:
                    self.single(index).come_back()
            records = [record for record in records if record.offset not in self.verdicts]
        if records and not (pump.closed or pump.draining):
            pump.put_back_unsent(records)
            pump.runtime.offer(pump)

    def find(self, offset: int) -> int | None:
        index = bisect_left(self.records, offset, key=_offset)
        found = index < len(self.records) and self.records[index].offset == offset
        return index if found else None

    def cancel(self, start: int, end: int) -> None:
        self.stream.cancel(self, start, end)

    def cancel_unsent(self) -> None:
        self.stream.cancel_unsent(self)


def _no_results(_start: int, _end: int, _result: CallResult) -> None:
    raise AssertionError("every message of the batch has its answer")


def recall(pump: DeliveryPump) -> None:
    """Takes back, in order, messages that wait for the receiver's credit; they come back a moment later."""
    runs = sorted(pump.batches, key=lambda batch: batch.records[0].offset)
    for sent in pump.calls.values():
        sent.cancel_unsent()
    for run in runs:
        run.cancel_unsent()
