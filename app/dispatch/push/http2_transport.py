"""Calls by Switchyard's own client of gRPC (`app.grpc_client`), as `transport` promises them."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from app.dispatch.model.crash_suspicion import Loss as ReceiverLoss
from app.dispatch.push.answer_limits import MAX_STREAM_BYTES, MAX_UNARY_BYTES
from app.dispatch.push.call_result import CallResult, Done, read_result
from app.dispatch.push.fixed_metadata import SECRETS, FixedMetadata
from app.dispatch.push.health import (
    HEALTH_CHECK_TIMEOUT_S,
    MAX_HEALTH_BYTES,
    METHOD,
    ReceiverHealth,
    health_request,
    read_health,
)
from app.dispatch.push.http_answer import answer_words
from app.dispatch.push.metadata import VALUE_NULL, CallMetadata, SharedMetadata
from app.dispatch.push.transport import UNREAD_BYTES
from app.grpc_client import calls
from app.grpc_client.address import Address, Proxy
from app.grpc_client.calls import Loss
from app.grpc_client.channel import Channel, ChannelOptions
from app.grpc_client.connection import ConnectionOptions, Keepalive
from app.grpc_client.header_encoder import Field, Fields
from app.grpc_client.metadata import read_metadata
from app.grpc_client.pool import Pool
from app.grpc_client.status import StatusCode
from app.kernel.grpc_status import OK, UNAVAILABLE

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 5.0
HUNG_S = 20.0  # a stream's receiver that takes nothing for so long is hung, though it may answer pings
# Beside the status and the receiver's wishes, trailers may have a stack trace.
MAX_HEADER_BYTES = 64 * 1024
MAX_SHARED = 10_000  # partitions, tiers and roles whose metadata is remembered
ACCEPTED = (b"grpc-status", b"0")
NO_METADATA = SharedMetadata(())
_LOSSES = {
    Loss.UNPROCESSED: ReceiverLoss.UNREACHED,
    Loss.PLANNED: ReceiverLoss.PLANNED,
    Loss.BROKEN: ReceiverLoss.DIED,
}


@dataclass(frozen=True, slots=True)
class Server:
    """An endpoint's address, and how it is met.

    Attributes:
        authority: The name that calls are made to.
        proxy: An HTTP proxy on the way.
        connections: How many there are for unary calls, and how many for streams. There may be several
            servers behind the address.
        max_age_s: Each connection is replaced after about this time; 0: never.
        tls: Gives the context of each connection; None: without TLS.
        server_name: The name in its certificate; "": the address's host.
        metadata: Of all calls; None: there is none.
        keepalive: Of all connections there.
    """

    address: Address
    authority: str
    proxy: Proxy | None = None
    connections: int = 1
    max_age_s: float = 0.0
    tls: Callable[[], ssl.SSLContext] | None = None
    server_name: str = ""
    metadata: FixedMetadata | None = None
    keepalive: Keepalive = field(default_factory=Keepalive)

    def channel(self, max_message_bytes: int) -> Channel:
        limits = ConnectionOptions(
            max_message_bytes=max_message_bytes, max_header_bytes=MAX_HEADER_BYTES,
            keepalive=self.keepalive,
        )  # fmt: skip
        options = ChannelOptions(
            tls=self.tls, server_name=self.server_name, authority=self.authority, proxy=self.proxy,
            connect_timeout_s=CONNECT_TIMEOUT_S, connection=limits,
        )  # fmt: skip
        return Channel(self.address, options)


class MethodFields:
    """The header fields that calls of a method share, by their other metadata. They are made once, because a
    connection remembers how it sends them, and again when a token is renewed."""

    def __init__(self, metadata: FixedMetadata | None, method: str) -> None:
        self._metadata, self._method = metadata, method
        self._fixed: tuple[Field, ...] = ()
        self._made: dict[SharedMetadata, Fields] = {}

    def of(self, shared: SharedMetadata, pick: Callable[[], Channel]) -> Fields:
        """For calls over the channels that `pick` gives. Raises KeyError: a token is not there."""
        metadata = self._metadata
        if metadata is not None and metadata.fields is not self._fixed:
            self._fixed = metadata.fields
            self._made.clear()
        return self._made.get(shared) or self._make(shared, pick())

    def _make(self, shared: SharedMetadata, channel: Channel) -> Fields:
        if len(self._made) >= MAX_SHARED:
            self._made.clear()
        secret = SECRETS if self._metadata is None else self._metadata.secret
        made = self._made[shared] = channel.method(self._method, (*shared.fields, *self._fixed), secret)
        return made


class Http2UnaryTarget:
    """An endpoint's unary method, over as many connections as its calls need."""

    def __init__(self, server: Server, method: str) -> None:
        self._pool = Pool(lambda: server.channel(MAX_UNARY_BYTES), server.connections, server.max_age_s)
        self._fields = MethodFields(server.metadata, method)

    def call(self, value: bytes | None, metadata: CallMetadata, timeout_s: float, done: Done) -> _Handle:
        """See `UnaryTarget.call`."""
        shared, own = metadata
        fields = self._fields.of(shared, self._pool.pick)
        if value is None:
            own = [*own, VALUE_NULL]

        def end(call: calls.UnaryCall) -> None:
            done(_unary_result(call))

        return _Handle(self._pool.pick().unary(fields, value or b"", own, timeout_s, end))

    async def close(self) -> None:
        """Closes the connections; calls under way end as CANCELLED."""
        await self._pool.close()


class _Handle:
    __slots__ = ("_call",)

    def __init__(self, call: calls.UnaryCall) -> None:
        self._call = call

    def cancel(self) -> None:
        """Gives up the call, a moment later: `done` must not come within this."""
        asyncio.get_running_loop().call_soon(self._call.cancel)


class Http2StreamChannel:
    """An endpoint's method for streams."""

    def __init__(self, server: Server, method: str) -> None:
        self._channel = server.channel(MAX_STREAM_BYTES)
        self._fields = MethodFields(server.metadata, method).of(NO_METADATA, lambda: self._channel)

    def open(self) -> Http2StreamCall:
        """See `StreamChannel.open`."""
        return Http2StreamCall(self._channel, self._fields)

    async def close(self) -> None:
        """Closes the connection; streams under way end as CANCELLED."""
        await self._channel.close()


class Http2StreamCall:
    """One stream. The receiver has to wait while `UNREAD_BYTES` are not read."""

    def __init__(self, channel: Channel, fields: Fields) -> None:
        self._arrived: deque[bytes] = deque()
        self._unread_bytes = 0
        self._has_news = asyncio.Event()
        self._may_write = asyncio.Event()
        self._is_hung = False
        self._call = channel.stream(fields, (), None, self._receive, self._end, self._drained)

    async def read(self) -> bytes | None:
        """See `StreamCall.read`."""
        while not self._arrived:
            if self._call.code is not None:
                return None
            self._has_news.clear()
            await self._has_news.wait()
        message = self._arrived.popleft()
        was_full = self._unread_bytes >= UNREAD_BYTES
        self._unread_bytes -= len(message)
        if was_full and self._unread_bytes < UNREAD_BYTES:
            self._call.resume_reading()
        return message

    async def write(self, message: bytes) -> bool:
        """See `StreamCall.write`."""
        call = self._call
        call.send(message)
        while call.unsent_bytes and call.code is None:
            self._may_write.clear()
            unsent_bytes = call.unsent_bytes
            try:
                async with asyncio.timeout(HUNG_S):
                    await self._may_write.wait()
            except TimeoutError:
                if call.unsent_bytes == unsent_bytes:
                    self._is_hung = True
                    call.cancel()
        return call.code is None

    def end_writing(self) -> None:
        """See `StreamCall.end_writing`."""
        self._call.close_sending()

    def cancel(self) -> None:
        """See `StreamCall.cancel`."""
        self._call.cancel()

    @property
    def result(self) -> CallResult:
        """See `StreamCall.result`."""
        if self._is_hung:
            return CallResult(UNAVAILABLE, f"the receiver took nothing of a request for {HUNG_S:g} s")
        code, details, loss = _outcome(self._call)
        return _with_facts(CallResult(code, details, loss=loss), self._call)

    def _receive(self, call: calls.StreamCall, message: bytes) -> None:
        self._arrived.append(message)
        self._unread_bytes += len(message)
        self._has_news.set()
        if self._unread_bytes >= UNREAD_BYTES:
            call.pause_reading()

    def _end(self, _: calls.StreamCall) -> None:
        self._has_news.set()
        self._may_write.set()

    def _drained(self, _: calls.StreamCall) -> None:
        self._may_write.set()


class Http2HealthClient:
    """Checks an endpoint over a connection of its own: others may be busy.

    A load balancer leads the check to one of its servers. If that one is not well, the client asks others,
    over other connections. While none is well, it asks one server a check.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._last = ReceiverHealth.SERVING
        self._channel = server.channel(MAX_HEALTH_BYTES)
        self._fields = MethodFields(server.metadata, METHOD)

    async def check(self, service: str = "", timeout_s: float = HEALTH_CHECK_TIMEOUT_S) -> ReceiverHealth:
        """See `HealthClient.check`."""
        until_s = time.monotonic() + timeout_s
        found, was_held = ReceiverHealth.UNREACHABLE, self._last.holds
        for _ in range(1 if self._last is found else self._server.connections):
            health = await self._check(service, until_s - time.monotonic())
            is_reached = health is not ReceiverHealth.UNREACHABLE
            found = health if is_reached else found
            if is_reached and not health.holds:
                break
            if self._server.connections > 1:
                await self._renew()
            if (health.holds and was_held) or time.monotonic() >= until_s:
                break
        self._last = found
        return found

    async def _renew(self) -> None:
        """Makes another channel for the next check: one that could not connect tries again late."""
        former, self._channel = self._channel, self._server.channel(MAX_HEALTH_BYTES)
        await former.close()

    async def _check(self, service: str, timeout_s: float) -> ReceiverHealth:
        ended: asyncio.Future[calls.UnaryCall] = asyncio.get_running_loop().create_future()

        def end(call: calls.UnaryCall) -> None:
            if not ended.done():  # the check was given up
                ended.set_result(call)

        fields = self._fields.of(NO_METADATA, lambda: self._channel)
        self._channel.unary(fields, health_request(service), (), timeout_s, end)
        call = await ended
        assert call.code is not None
        return read_health(call.code, call.answer or b"")

    async def close(self) -> None:
        await self._channel.close()


def proxy_to(place: Address) -> Proxy | None:
    """The proxy of the environment. One that cannot be is left out, as gRPC's C core does, with a warning."""
    try:
        return Proxy.from_environment(place)
    except ValueError as error:
        log.warning("no proxy is used", receiver=str(place), why=str(error))
        return None


def _unary_result(call: calls.UnaryCall) -> CallResult:
    trailers = call.trailers
    if call.code is StatusCode.OK and not any(name.startswith(b"kafka-") for name, _ in trailers):
        return CallResult(OK)
    code, details, loss = _outcome(call)
    if call.answer is None and ACCEPTED in trailers:  # an answer without a message is an answer, too
        code, details = OK, ""
    result = read_result(code, details, read_metadata(trailers), loss)
    return _with_facts(result, call)


def _with_facts(result: CallResult, call: calls.Call) -> CallResult:
    """What the client knows better than the words of a status."""
    result.too_large = result.too_large or call.is_metadata_too_large
    result.answer_too_large = result.answer_too_large or call.is_too_large
    result.is_planned_end = result.is_planned_end or (result.code == UNAVAILABLE and call.is_planned)
    return result


def _outcome(call: calls.Call) -> tuple[int, str, ReceiverLoss | None]:
    """Status, details, and what became of the receiver; `http_answer` knows the words."""
    code, details = call.code, call.message
    assert code is not None
    if call.loss in (Loss.UNPROCESSED, Loss.PLANNED):
        # No receiver had the message, or none that stays, whatever the reason: its attempt does not count.
        code = StatusCode.UNAVAILABLE
    if call.head is not None and call.head.refusal:
        details = answer_words(call.head.http_status)
    return int(code), details, _LOSSES.get(call.loss)
