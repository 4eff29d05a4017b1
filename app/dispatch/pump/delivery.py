"""Messages on their way to a receiver: a single one (`Delivery`), or a run of a partition (`BatchDelivery`).

Both report every message to `WorkloadRuntime` exactly once. A batch holds first deliveries only; a message
that is not acknowledged continues as a `Delivery` of its own.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.dispatch.model.retry_headers import Header, MessageOrigin
from app.dispatch.push.metadata import InvalidHeaderName
from app.dispatch.push.stream.client import StreamTarget
from app.dispatch.push.stream.encoder import OutBatch
from app.dispatch.push.unary import CallResult
from app.payload.grpc_metadata import Metadata
from app.payload.interceptors import Message, Outgoing, Skip

if TYPE_CHECKING:
    from app.dispatch.model.crash_suspicion import CrashSuspicion
    from app.dispatch.model.outcome import DeliveryDecision
    from app.dispatch.pump.partition import DispatchPump
    from app.dispatch.scheduler.receiver import ReceiverLink
    from app.kafka.records.record import Record

_offset = attrgetter("offset")


class PendingCall(Protocol):
    def cancel(self) -> None: ...


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
        "attempts", "canceled", "first_sent_s", "handle", "link", "origin", "pump", "record", "sent_to",
        "started_s", "suspicion", "timeouts", "verdict",
    )  # fmt: skip

    def __init__(self, pump: DispatchPump, record: Record, origin: MessageOrigin | None) -> None:
        self.pump = pump
        self.record = record
        self.origin = origin
        self.attempts = 0
        self.timeouts = 0
        self.canceled = False
        self.verdict: DeliveryDecision | None = None  # decides, whatever the receiver answers now
        self.first_sent_s = self.started_s = 0.0
        self.handle: PendingCall | None = None
        self.link: ReceiverLink | None = None
        self.sent_to: ReceiverLink | None = None  # the last time
        self.suspicion: CrashSuspicion | None = None  # after the loss of its receiver

    def start(self, link: ReceiverLink, now_s: float) -> None:
        """Sends the message; `answered` is called exactly once, later."""
        pump, record = self.pump, self.record
        self.attempts += 1
        self.canceled = False
        self.started_s = now_s
        if link is not self.sent_to or not self.first_sent_s:
            self.first_sent_s = now_s  # the time at another receiver does not count as its age
        self.link = self.sent_to = link
        link.sent(pump, 1)
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
        timeout_s = link.timeout.for_message(timeouts)
        if (stream := link.stream) is not None:
            self._send_by(stream, value, added, timeout_s)
            return
        try:
            metadata = (*pump.metadata(self), *pump.runtime.role_metadata, *added)
        except InvalidHeaderName as error:
            asyncio.get_running_loop().call_soon(self.answered, CallResult.local(str(error)))
            return
        self.handle = link.target.call(value, metadata, timeout_s, self.answered)

    def _message(self) -> Message:
        origin, record = self.message_origin(), self.record
        return Message(
            origin.topic, origin.partition, origin.offset, record.key, record.value, tuple(record.headers),
            origin.timestamp_ms, origin.attempt + self.attempts,
        )  # fmt: skip

    def _send_by(self, stream: StreamTarget, value: bytes | None, added: Metadata, timeout_s: float) -> None:
        origin, record = self.message_origin(), self.record
        headers = [*self.pump.filter_headers(record.headers), *((name, _bytes(text)) for name, text in added)]
        message = _OriginalRecord(origin.offset, origin.timestamp_ms, record.key, value, headers)
        attempt = origin.attempt + self.attempts
        batch = OutBatch(
            origin.topic, origin.partition, [message], origin.retry_count, attempt, self._answered_by_stream
        )
        self.handle = _StreamHandle(stream, batch)
        stream.send(batch, timeout_s)

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
        if self.link is not None:
            self.link.suspects_out.discard(self)
            self.link.back(self, pump.runtime.clock(), taken=False)
            self.link = None
        if pump.closed:
            return
        if self.verdict is not None:
            pump.runtime.outcomes.carry_out(self, self.verdict, "", "CANCELED")
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

    __slots__ = ("link", "open_messages", "pump", "started_s", "stream", "verdicts")

    def __init__(
        self, pump: DispatchPump, link: ReceiverLink, stream: StreamTarget, records: list[Record],
        now_s: float,
    ) -> None:  # fmt: skip
        super().__init__(
            pump.job.topic, pump.job.partition, records, 0, 1, self.answered,
            header_filter=pump.runtime.header_filter,
        )  # fmt: skip
        self.pump = pump
        self.link = link
        self.stream = stream
        self.open_messages = len(records)
        self.started_s = now_s
        self.verdicts: dict[int, DeliveryDecision] = {}  # by offset

    def start(self) -> None:
        """Sends the batch; every message gets exactly one result, later."""
        self.link.sent(self.pump, self.open_messages)
        self.pump.batches.add(self)
        self.pump.batched += self.open_messages
        self.stream.send(self)

    def answered(self, start: int, end: int, result: CallResult) -> None:
        self.open_messages -= end - start
        self.pump.batched -= end - start
        if not self.open_messages:
            self.pump.batches.discard(self)
        self.pump.runtime.batch_answered(self, start, end, result)

    def single(self, index: int) -> Delivery:
        """The message at `index` as a delivery of its own, which counts this attempt."""
        record = self.records[index]
        delivery = Delivery(self.pump, record, None)
        delivery.attempts = 1
        delivery.first_sent_s = delivery.started_s = self.started_s
        delivery.link = delivery.sent_to = self.link
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


def recall(pump: DispatchPump) -> None:
    """Takes back, in order, messages that wait for the receiver's credit; they come back a moment later."""
    runs = sorted(pump.batches, key=lambda batch: batch.records[0].offset)
    for sent in pump.calls.values():
        sent.cancel_unsent()
    for run in runs:
        run.cancel_unsent()
