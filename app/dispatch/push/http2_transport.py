"""Calls by Switchyard's own client of gRPC (`app.grpc_client`), as `transport` promises them."""

from __future__ import annotations

import asyncio
import time
from collections import deque

import structlog

from app.dispatch.model.crash_suspicion import Loss as ReceiverLoss
from app.dispatch.push.answer_limits import MAX_STREAM_BYTES, MAX_UNARY_BYTES
from app.dispatch.push.call_result import CallResult, Done, read_result
from app.dispatch.push.http_answer import answer_words
from app.dispatch.push.metadata import VALUE_NULL, CallMetadata, SharedMetadata
from app.dispatch.push.transport import UNREAD_BYTES
from app.grpc_client import calls
from app.grpc_client.address import Address, Proxy
from app.grpc_client.calls import Loss
from app.grpc_client.channel import Channel, ChannelOptions
from app.grpc_client.connection import ConnectionOptions
from app.grpc_client.header_encoder import Fields
from app.grpc_client.metadata import read_metadata
from app.grpc_client.resolver import Target
from app.grpc_client.servers import Servers
from app.grpc_client.status import StatusCode
from app.kernel.grpc_status import OK, UNAVAILABLE

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 5.0
LEAST_CHANNELS = 4  # for unary calls
# Beside the status and the receiver's wishes, trailers may have a stack trace.
MAX_HEADER_BYTES = 64 * 1024
MAX_SHARED = 10_000  # partitions, tiers and roles whose metadata is remembered
ACCEPTED = (b"grpc-status", b"0")
_LOSSES = {
    Loss.UNPROCESSED: ReceiverLoss.UNREACHED,
    Loss.PLANNED: ReceiverLoss.PLANNED,
    Loss.BROKEN: ReceiverLoss.DIED,
}


class Http2UnaryTarget:
    """A receiver's unary method, over as many connections as its calls need."""

    def __init__(self, address: str, method: str) -> None:
        """Raises ValueError: an address that only `transport: grpc` knows, such as a DNS server's."""
        self.address = address
        self._method = method
        self._servers = _servers(address, MAX_UNARY_BYTES, at_least=LEAST_CHANNELS)
        self._fields: dict[SharedMetadata, Fields] = {}

    def call(self, value: bytes | None, metadata: CallMetadata, timeout_s: float, done: Done) -> _Handle:
        """See `UnaryTarget.call`."""
        shared, own = metadata
        fields = self._fields.get(shared) or self._remember(shared)
        if value is None:
            own = [*own, VALUE_NULL]
        started_s = time.monotonic()

        def end(call: calls.UnaryCall) -> None:
            done(_unary_result(call, time.monotonic() - started_s))

        return _Handle(self._servers.pick().unary(fields, value or b"", own, timeout_s, end))

    def _remember(self, shared: SharedMetadata) -> Fields:
        if len(self._fields) >= MAX_SHARED:
            self._fields.clear()
        fields = self._fields[shared] = self._servers.pick().method(self._method, shared.fields)
        return fields

    async def close(self) -> None:
        """Closes the connections; calls under way end as CANCELLED."""
        await self._servers.close()


class _Handle:
    __slots__ = ("_call",)

    def __init__(self, call: calls.UnaryCall) -> None:
        self._call = call

    def cancel(self) -> None:
        """Gives up the call, a moment later: `done` must not come within this."""
        asyncio.get_running_loop().call_soon(self._call.cancel)


class Http2StreamChannel:
    """A receiver's method for streams."""

    def __init__(self, address: str, method: str) -> None:
        """Raises ValueError: as `Http2UnaryTarget`."""
        self._servers = _servers(address, MAX_STREAM_BYTES, at_least=1)
        self._fields = self._servers.pick().method(method)

    def open(self) -> Http2StreamCall:
        """See `StreamChannel.open`."""
        return Http2StreamCall(self._servers.pick(), self._fields)

    async def close(self) -> None:
        """Closes the connections; streams under way end as CANCELLED."""
        await self._servers.close()


class Http2StreamCall:
    """One stream. The receiver has to wait while `UNREAD_BYTES` are not read."""

    def __init__(self, channel: Channel, fields: Fields) -> None:
        self._arrived: deque[bytes] = deque()
        self._unread_bytes = 0
        self._has_news = asyncio.Event()
        self._may_write = asyncio.Event()
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
            await self._may_write.wait()
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


def _servers(address: str, max_message_bytes: int, *, at_least: int) -> Servers:
    target = Target.parse(address)
    proxy = _proxy(target.places[0])
    limits = ConnectionOptions(max_message_bytes=max_message_bytes, max_header_bytes=MAX_HEADER_BYTES)

    def open_channel(place: Address) -> Channel:
        options = ChannelOptions(
            authority=target.authority, proxy=proxy, connect_timeout_s=CONNECT_TIMEOUT_S,
            connection=limits,
        )  # fmt: skip
        return Channel(place, options)

    connects_ahead = at_least > 1  # a stream has one connection
    return Servers(
        target, open_channel, at_least=at_least, connects_ahead=connects_ahead, looks_up=proxy is None
    )


def _proxy(place: Address) -> Proxy | None:
    """The proxy of the environment. One that cannot be is left out, as gRPC's C core does, with a warning."""
    try:
        return Proxy.from_environment(place)
    except ValueError as error:
        log.warning("no proxy is used", receiver=str(place), why=str(error))
        return None


def _unary_result(call: calls.UnaryCall, latency_s: float) -> CallResult:
    trailers = call.trailers
    if call.code is StatusCode.OK and not any(name.startswith(b"kafka-") for name, _ in trailers):
        return CallResult(OK, latency_s=latency_s)
    code, details, loss = _outcome(call)
    if call.answer is None and ACCEPTED in trailers:  # an answer without a message is an answer, too
        code, details = OK, ""
    result = read_result(code, details, read_metadata(trailers), latency_s, loss)
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
    if call.loss is Loss.UNPROCESSED:
        # No receiver had the message, whatever the reason: its attempt does not count.
        code = StatusCode.UNAVAILABLE
    if call.head is not None and call.head.refusal:
        details = answer_words(call.head.http_status)
    return int(code), details, _LOSSES.get(call.loss)
