"""The stream contract's client: `switchyard.v1.Receiver/Deliver`, one target per endpoint of a workload.

    target = StreamTarget(open_channel, Sender("billing", "orders", "w1"), timeout_s=10,
                          on_room=runtime.send, on_lost=runtime.stream_lost)
    if target.room >= len(records):
        target.send(OutBatch("orders", 3, records, 0, 1, on_results))

Thousands of messages are in flight, so results arrive by callback; a message needs no object but its
protobuf. `OutBatch.on_results` reports each message given to `send` once:

| what happened                       | result                                                       |
|-------------------------------------|--------------------------------------------------------------|
| acknowledged                        | code 0                                                       |
| skipped, retried, stashed, renewed  | as of a unary call: code, `action`, details, `retry_after_s` |
| no result within its timeout        | DEADLINE_EXCEEDED                                            |
| failed                              | code and details                                             |
| the stream was lost                 | UNAVAILABLE: the receiver may have handled it                |
| the receiver refuses the stream     | UNIMPLEMENTED, PERMISSION_DENIED, UNAUTHENTICATED            |
| given up by `cancel`, drain, close  | CANCELLED                                                    |
| given back: it was not sent         | `UNSENT`                                                     |
| larger than the receiver takes      | `too_large`                                                  |
| protobuf cannot carry it            | `local_error`                                                |

If the receiver lacks the method, `supported` becomes False and the messages end as UNAVAILABLE. Under the
contract `auto` the caller then delivers by unary calls. An ingress may give the same answer during a
roll-out, so the stream is opened again from time to time. No message waits for that.

Behind a load balancer there are several streams, each over a connection that leads to some receiver. They are
one endpoint, which is away when all are. A batch goes over the stream with the most room. `replacement` ends
them in turn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from app.dispatch.push.call_result import CallResult
from app.dispatch.push.metadata import SenderRole
from app.dispatch.push.stream.encoder import MAX_TIMEOUT_MS, OutBatch
from app.dispatch.push.stream.link import StreamLink
from app.dispatch.push.stream.replacement import Replacement
from app.dispatch.push.stream.results import RENEW
from app.dispatch.push.transport import StreamChannel
from app.kernel.grpc_status import CANCELLED, UNIMPLEMENTED
from switchyard.v1.receiver_pb2 import Open, Role

METHOD = "/switchyard.v1.Receiver/Deliver"
RETRY_MIN_S, RETRY_MAX_S = 5.0, 300.0  # between attempts at a receiver that lacked the method


class Sender(NamedTuple):
    """The workload whose messages a stream carries, and the worker that sends them."""

    group: str
    topic: str
    worker: str


class StreamTarget:
    """The streams of one workload to one endpoint.

    Args:
        open_channel: Makes the connection of one stream.
        streams: How many there are.
        max_age_s: After about this time each of them that carries messages is replaced; 0: never.

    Attributes:
        supported: Whether the receiver has the method, by its last answer; None: not known yet. While any
            stream is up, it has.
        retry_s: How long after a refusal the stream is opened again. Doubles with each refusal in a row.
        timeout_s: For batches that are sent without a timeout of their own.
        may_send: Whether anything may be sent now; called before each request. While it is False, waiting
            messages end as `UNSENT`.
        on_room: Is called, from the event loop, when `room` may have grown or a stream is up.
        on_lost: Is called with the result when a stream ended unasked, or could not be opened. The second
            argument says whether this has happened to all streams since one was up.
    """

    def __init__(
        self,
        open_channel: Callable[[], StreamChannel],
        sender: Sender,
        *,
        timeout_s: float,
        on_room: Callable[[], None],
        on_lost: Callable[[CallResult, bool], None],
        streams: int = 1,
        max_age_s: float = 0.0,
    ) -> None:
        self.supported: bool | None = None
        self.timeout_s = timeout_s
        self.may_send: Callable[[], bool] = lambda: True
        self.on_room = on_room
        self.on_lost = on_lost
        self._sender = sender
        self._open_channel = open_channel
        self._role: Role | None = None
        self._lost: set[StreamLink] = set()  # since one was up
        self._max_request = 0  # what receivers have taught all streams
        self._links = [self._link() for _ in range(streams)]
        self._replacement = Replacement(self._links, self._link, self._may_send_now, max_age_s)
        self._draining = False
        self.retry_s = RETRY_MIN_S
        self._retry: asyncio.TimerHandle | None = None

    def _link(self) -> StreamLink:
        link = StreamLink(
            self._open_channel,
            self._open_message,
            lambda: self._on_link_room(link),
            lambda result, accepted: self._on_link_lost(link, result, accepted),
            lambda: self._role,
            self._may_send_now,
        )
        link.max_request = self._max_request
        return link

    def _may_send_now(self) -> bool:
        return self.may_send()

    def announce_role(self, role: SenderRole | None) -> None:
        """Sends the role now, and first in every new stream; None: the workload has one region."""
        wire_role = None if role is None else Role(region=role.region, primary=role.primary, epoch=role.epoch)
        if wire_role != self._role:
            self._role = wire_role
            for link in self._all():
                link.announce_role()

    def _all(self) -> list[StreamLink]:
        beside = self._replacement.beside
        return [*self._links, *beside] if beside else self._links

    @property
    def is_up(self) -> bool:
        """Whether any stream is up that takes messages."""
        return any(link.up for link in self._links)

    @property
    def room(self) -> int:
        """How many messages of one batch would be sent at once; 0 while not connected."""
        if len(self._links) == 1:
            return self._links[0].room
        return max(link.room for link in self._links)

    @property
    def credit(self) -> int:
        """How many messages all streams together would send at once."""
        return sum(link.room for link in self._links)

    @property
    def in_flight(self) -> int:
        return sum(link.load[1] for link in self._all())

    def connect(self) -> None:
        """Opens every stream that is down, after a backoff of a second at most."""
        if not self._draining:
            for link in self._links:
                link.connect()

    def send(self, batch: OutBatch, timeout_s: float | None = None, longest_s: float = 0.0) -> None:
        """Sends a batch, in parts if need be. Beyond `room` it waits, at most `timeout_s` (or the target's).
        The receiver may ask for more time, up to `longest_s`.

        Raises:
            ValueError: The batch is empty, or under way already.
        """
        if self._draining:
            result = CallResult(CANCELLED, "the target is closed")
            asyncio.get_running_loop().call_soon(batch.on_results, 0, len(batch.records), result)
            return
        self.connect()
        links = self._links
        link = links[0] if len(links) == 1 else max(links, key=_preference)
        link.queue(batch, self.timeout_s if timeout_s is None else timeout_s, longest_s)

    def cancel(self, batch: OutBatch, start: int, end: int) -> None:
        """Gives up the indexes [start, end) that have no result; they end as CANCELLED."""
        for link in self._all():
            if link.cancel(batch, start, end):
                return

    def cancel_unsent(self, batch: OutBatch) -> None:
        """Gives back the batch's unsent messages, which the receiver never sees; they end as `UNSENT`."""
        any(link.cancel_unsent(batch) for link in self._all())

    async def drain(self) -> None:
        """Takes no more batches, gives up unsent messages, and returns when all sent ones have a result."""
        self._draining = True
        await asyncio.gather(*(link.drain() for link in self._all()))

    async def close(self) -> None:
        """Ends the streams; messages without a result end as CANCELLED."""
        self._draining = True
        if self._retry is not None:
            self._retry.cancel()
        await self._replacement.close()
        await asyncio.gather(*(link.close() for link in self._links))

    def _open_message(self) -> Open:
        group, topic, worker = self._sender
        timeout_ms = min(int(self.timeout_s * 1000), MAX_TIMEOUT_MS)
        return Open(group=group, topic=topic, worker=worker, features=RENEW, timeout_ms=timeout_ms)

    def _on_link_room(self, link: StreamLink) -> None:
        if self._draining:
            return
        if link is self._replacement.successor:
            self._replacement.succeed()
        self._lost.clear()
        self._mark_supported()
        self.on_room()

    def _on_link_lost(self, link: StreamLink, result: CallResult, accepted: bool) -> None:
        if self._draining:
            return
        if link.max_request != self._max_request:
            self._teach(link.max_request)
        if link is self._replacement.successor:
            self._replacement.fail()
            return
        if accepted:
            self._mark_supported()
        elif self.is_up:
            link.rest(RETRY_MIN_S)
        elif result.code == UNIMPLEMENTED:
            self.supported = False
        if self.supported is False and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(self.retry_s, self._reconnect)
            self.retry_s = min(RETRY_MAX_S, 2 * self.retry_s)
        self._lost.add(link)
        is_whole = self._lost.issuperset(self._links)
        if is_whole:
            self._lost.clear()
        self.on_lost(result, is_whole)

    def _teach(self, max_request: int) -> None:
        """Tells all streams the limit that one has learned, so that no other ends for it."""
        self._max_request = max_request
        for link in self._all():
            link.learn(max_request)

    def _mark_supported(self) -> None:
        self.supported = True
        self.retry_s = RETRY_MIN_S

    def _reconnect(self) -> None:
        self._retry = None
        self.connect()


def _preference(link: StreamLink) -> tuple[int, int, float]:
    """The stream with the greatest gets the next batch. Chance decides among equals: all shall be used."""
    return link.room, -sum(link.load), random.random()  # noqa: S311 - nothing secret
