"""The stream contract's client: `switchyard.v1.Receiver/Deliver`, one target per workload and worker.

    channel = Http2StreamChannel("dns:///billing:443", METHOD)
    target = StreamTarget(channel, group="billing", topic="orders", worker="w1", timeout_s=10,
                          on_room=runtime.send, on_lost=runtime.stream_lost)
    if target.room >= len(records):
        target.send(OutBatch("orders", 3, records, 0, 1, on_results))

Thousands of messages are in flight, so results arrive by callback; a message needs no object but its
protobuf. `OutBatch.on_results` reports each message given to `send` once:

| what happened                       | result                                                       |
|-------------------------------------|--------------------------------------------------------------|
| acknowledged                        | code 0                                                       |
| skipped, retried, stashed, failed   | as of a unary call: code, `action`, details, `retry_after_s` |
| no result within its timeout        | DEADLINE_EXCEEDED                                            |
| the stream was lost                 | UNAVAILABLE: the receiver may have handled it                |
| the receiver refuses the stream     | UNIMPLEMENTED, PERMISSION_DENIED, UNAUTHENTICATED            |
| given up by `cancel`, drain, close  | CANCELLED                                                    |
| given back: it was not sent         | `UNSENT`                                                     |
| larger than the receiver takes      | `too_large`                                                  |
| protobuf cannot carry it            | `local_error`                                                |

If the receiver lacks the method, `supported` becomes False and the messages end as UNAVAILABLE. Under the
contract `auto` the caller then delivers by unary calls. An ingress may give the same answer during a
roll-out, so the stream is opened again from time to time. No message waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.dispatch.push.call_result import CallResult
from app.dispatch.push.metadata import SenderRole
from app.dispatch.push.stream.encoder import OutBatch
from app.dispatch.push.stream.link import StreamLink
from app.dispatch.push.transport import StreamChannel
from app.kernel.grpc_status import CANCELLED, UNIMPLEMENTED
from switchyard.v1.receiver_pb2 import Open, Role

METHOD = "/switchyard.v1.Receiver/Deliver"
RETRY_MIN_S, RETRY_MAX_S = 5.0, 300.0  # between attempts at a receiver that lacked the method
MAX_TIMEOUT_MS = (1 << 32) - 1


class StreamTarget:
    """The streams of one workload to one receiver.

    Attributes:
        supported: Whether the receiver has the method, by its last answer; None: not known yet.
        retry_s: How long after a refusal the stream is opened again. Doubles with each refusal in a row.
        timeout_s: For batches that are sent without a timeout of their own.
        may_send: Whether anything may be sent now; called before each request. While it is False, waiting
            messages end as `UNSENT`.
        on_room: Is called, from the event loop, when `room` may have grown or a stream is up.
        on_lost: Is called with the result when a stream ended unasked, or could not be opened.
    """

    def __init__(
        self,
        channel: StreamChannel,
        *,
        group: str,
        topic: str,
        worker: str,
        timeout_s: float,
        on_room: Callable[[], None],
        on_lost: Callable[[CallResult], None],
        streams: int = 1,
    ) -> None:
        self.supported: bool | None = None
        self.timeout_s = timeout_s
        self.may_send: Callable[[], bool] = lambda: True
        self.on_room = on_room
        self.on_lost = on_lost
        self._identity = (group, topic, worker)
        self._channel = channel
        self._role: Role | None = None
        self._links = [
            StreamLink(
                channel.open,
                self._open_message,
                self._on_link_room,
                self._on_stream_lost,
                lambda: self._role,
                self._link_may_send,
            )
            for _ in range(streams)
        ]
        self._draining = False
        self.retry_s = RETRY_MIN_S
        self._retry: asyncio.TimerHandle | None = None

    def announce_role(self, role: SenderRole | None) -> None:
        """Sends the role now, and first in every new stream; None: the workload has one region."""
        wire_role = None if role is None else Role(region=role.region, primary=role.primary, epoch=role.epoch)
        if wire_role != self._role:
            self._role = wire_role
            for link in self._links:
                link.announce_role()

    @property
    def room(self) -> int:
        """How many messages of one batch would be sent at once; 0 while not connected."""
        if len(self._links) == 1:
            return self._links[0].room
        return max(link.room for link in self._links)

    @property
    def in_flight(self) -> int:
        return sum(link.load[1] for link in self._links)

    def connect(self) -> None:
        """Opens every stream that is down, after a backoff of a second at most."""
        if not self._draining:
            for link in self._links:
                link.connect()

    def send(self, batch: OutBatch, timeout_s: float | None = None) -> None:
        """Sends a batch, in parts if need be. Beyond `room` it waits, at most `timeout_s` (or the target's).

        Raises:
            ValueError: The batch is empty, or under way already.
        """
        if self._draining:
            result = CallResult(CANCELLED, "the target is closed")
            asyncio.get_running_loop().call_soon(batch.on_results, 0, len(batch.records), result)
            return
        self.connect()
        links = self._links
        link = links[0] if len(links) == 1 else max(links, key=lambda each: (each.room, -sum(each.load)))
        link.queue(batch, self.timeout_s if timeout_s is None else timeout_s)

    def cancel(self, batch: OutBatch, start: int, end: int) -> None:
        """Gives up the indexes [start, end) that have no result; they end as CANCELLED."""
        for link in self._links:
            if link.cancel(batch, start, end):
                return

    def cancel_unsent(self, batch: OutBatch) -> None:
        """Gives back the batch's unsent messages, which the receiver never sees; they end as `UNSENT`."""
        any(link.cancel_unsent(batch) for link in self._links)

    async def drain(self) -> None:
        """Takes no more batches, gives up unsent messages, and returns when all sent ones have a result."""
        self._draining = True
        await asyncio.gather(*(link.drain() for link in self._links))

    async def close(self) -> None:
        """Ends the streams; messages without a result end as CANCELLED."""
        self._draining = True
        if self._retry is not None:
            self._retry.cancel()
        for link in self._links:
            await link.close()
        await self._channel.close()

    def _open_message(self) -> Open:
        group, topic, worker = self._identity
        timeout_ms = min(int(self.timeout_s * 1000), MAX_TIMEOUT_MS)
        return Open(group=group, topic=topic, worker=worker, timeout_ms=timeout_ms)

    def _link_may_send(self) -> bool:
        return self.may_send()

    def _on_link_room(self) -> None:
        self._mark_supported()
        self.on_room()

    def _on_stream_lost(self, result: CallResult, accepted: bool) -> None:
        if accepted:
            self._mark_supported()
        elif result.code == UNIMPLEMENTED:
            self.supported = False
        if self.supported is False and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(self.retry_s, self._reconnect)
            self.retry_s = min(RETRY_MAX_S, 2 * self.retry_s)
        self.on_lost(result)

    def _mark_supported(self) -> None:
        self.supported = True
        self.retry_s = RETRY_MIN_S

    def _reconnect(self) -> None:
        self._retry = None
        self.connect()
