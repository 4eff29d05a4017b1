"""The stream contract's client: `switchyard.v1.Receiver/Deliver`, one target a workload and worker.

    target = StreamTarget("dns:///billing:443", group="billing", topic="orders", worker="w1", timeout_s=10,
                          on_room=runtime.send, on_lost=runtime.stream_lost)
    if target.room >= len(records):
        target.send(OutBatch("orders", 3, records, 0, 1, on_results))

Callbacks, as thousands of messages are in flight: nothing is made a message but its protobuf. Everything
that was given to `send` is told once through `OutBatch.on_results`:

| what happened                       | result                                                       |
|-------------------------------------|--------------------------------------------------------------|
| acknowledged                        | code 0                                                       |
| skipped, retried, stashed, failed   | as of a unary call: code, `action`, details, `retry_after_s` |
| no result within its timeout        | DEADLINE_EXCEEDED                                            |
| the stream was lost                 | UNAVAILABLE: the receiver may have handled it                |
| the receiver will not have it at all | UNIMPLEMENTED, PERMISSION_DENIED, UNAUTHENTICATED            |
| given up by `cancel`, drain, close  | CANCELLED                                                    |
| given back: it was not sent         | `UNSENT`                                                     |
| larger than the receiver takes      | `too_large`                                                  |
| protobuf cannot carry it            | `local_error`                                                |

A receiver without the method makes `supported` False, and what was sent UNAVAILABLE: unary is the way then,
where the contract is `auto`. An ingress says the same during a roll-out, so the stream is opened again from
time to time: no message waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from grpc import aio

from app.dispatch.push.answer_limits import MAX_STREAM_BYTES
from app.dispatch.push.channel_options import CONNECTING
from app.dispatch.push.metadata import SenderRole
from app.dispatch.push.stream.encoder import OutBatch
from app.dispatch.push.stream.link import StreamLink
from app.dispatch.push.stream.results import UNSENT, StreamResult
from app.kernel.grpc_status import CANCELLED, UNIMPLEMENTED
from switchyard.v1.receiver_pb2 import Open, Role

METHOD = "/switchyard.v1.Receiver/Deliver"
RETRY_MIN_S, RETRY_MAX_S = 5.0, 300.0  # between looks at a receiver that had no such method
MAX_TIMEOUT_MS = (1 << 32) - 1

OPTIONS = [
    *CONNECTING,
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_receive_message_length", MAX_STREAM_BYTES),
]


class StreamTarget:
    """See the module.

    Attributes:
        supported: whether the receiver has the contract, as last heard; None while that is not known.
        retry_s: how long after a refusal the stream is opened again; twice as long after each in a row.
        timeout_s: for batches sent from now on that are given none of their own.
        may_send: whether anything may be sent now; asked before each request. While it may not, what waits
            is told as `UNSENT`.
        on_room: told, from the loop, when `room` may have grown or a stream is up.
        on_lost: told when a stream ended that was not asked to, or could not be opened: how it ended.
    """

    def __init__(
        self,
        address: str,
        *,
        group: str,
        topic: str,
        worker: str,
        timeout_s: float,
        on_room: Callable[[], None],
        on_lost: Callable[[StreamResult], None],
        streams: int = 1,
    ) -> None:
        self.address = address
        self.supported: bool | None = None
        self.timeout_s = timeout_s
        self.may_send: Callable[[], bool] = lambda: True
        self.on_room = on_room
        self.on_lost = on_lost
        self._identity = (group, topic, worker)
        self._channel = aio.insecure_channel(address, options=OPTIONS)
        method: Any = self._channel.stream_stream(METHOD, None, None)
        self._role: Role | None = None
        self._links = [
            StreamLink(method, self._open, self._has_room, self._lost, lambda: self._role, self._may_send)
            for _ in range(streams)
        ]
        self._draining = False
        self.retry_s = RETRY_MIN_S
        self._retry: asyncio.TimerHandle | None = None

    def announce_role(self, role: SenderRole | None) -> None:
        """The receiver learns it now, and before the first message of every stream from now on; None: of a
        workload of one region."""
        told = None if role is None else Role(region=role.region, primary=role.primary, epoch=role.epoch)
        if told != self._role:
            self._role = told
            for link in self._links:
                link.announce_role()

    @property
    def room(self) -> int:
        """Messages that one batch may have, to be sent at once; 0 while not connected."""
        if len(self._links) == 1:
            return self._links[0].room
        return max(link.room for link in self._links)

    @property
    def in_flight(self) -> int:
        """Messages sent that have no result."""
        return sum(link.load[1] for link in self._links)

    def connect(self) -> None:
        """Opens every stream that is down, after a backoff of a second at most."""
        if not self._draining:
            for link in self._links:
                link.connect()

    def send(self, batch: OutBatch, timeout_s: float | None = None) -> None:
        """Sends a batch, in parts when it must; beyond `room` it waits, no longer than its timeout (that of
        all batches when none is given).

        Raises:
            ValueError: the batch is empty, or under way.
        """
        if self._draining:
            result = StreamResult(CANCELLED, "the target is closed")
            asyncio.get_running_loop().call_soon(batch.on_results, 0, len(batch.records), result)
            return
        self.connect()
        links = self._links
        link = links[0] if len(links) == 1 else max(links, key=lambda each: (each.room, -sum(each.load)))
        link.queue(batch, self.timeout_s if timeout_s is None else timeout_s)

    def cancel(self, batch: OutBatch, start: int, end: int) -> None:
        """Gives up the indexes [start, end) that have no result; they are told as CANCELLED."""
        for link in self._links:
            if link.cancel(batch, start, end):
                return

    def cancel_unsent(self, batch: OutBatch) -> None:
        """Gives what of it was not sent back: the receiver never hears of that; it is told as `UNSENT`."""
        any(link.cancel_unsent(batch) for link in self._links)

    async def drain(self) -> None:
        """Takes nothing more, gives up what was not sent, returns when all that was sent is told."""
        self._draining = True
        await asyncio.gather(*(link.drain() for link in self._links))

    async def close(self) -> None:
        """Ends the streams; what has no result is told as CANCELLED."""
        self._draining = True
        if self._retry is not None:
            self._retry.cancel()
        for link in self._links:
            await link.close()
        await self._channel.close(None)

    def _open(self) -> Open:
        group, topic, worker = self._identity
        timeout_ms = min(int(self.timeout_s * 1000), MAX_TIMEOUT_MS)
        return Open(group=group, topic=topic, worker=worker, timeout_ms=timeout_ms)

    def _may_send(self) -> bool:
        return self.may_send()

    def _has_room(self) -> None:
        self._is_there()
        self.on_room()

    def _lost(self, result: StreamResult, accepted: bool) -> None:
        if accepted:
            self._is_there()
        elif result.code == UNIMPLEMENTED:
            self.supported = False
        if self.supported is False and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(self.retry_s, self._reconnect)
            self.retry_s = min(RETRY_MAX_S, 2 * self.retry_s)
        self.on_lost(result)

    def _is_there(self) -> None:
        self.supported = True
        self.retry_s = RETRY_MIN_S

    def _reconnect(self) -> None:
        self._retry = None
        self.connect()


__all__ = ["METHOD", "UNSENT", "OutBatch", "StreamResult", "StreamTarget"]
