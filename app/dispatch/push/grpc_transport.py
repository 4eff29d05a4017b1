"""Calls by the library grpcio, as `transport` promises them.

Unary calls are grpc.aio's. Streams are those of grpcio's threads, because a failed write of grpc.aio replaces
the receiver's status by INTERNAL (grpc issue #36066). That status says whether the receiver has the contract,
or which message was too large.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from types import ModuleType
from typing import Any, NamedTuple

import grpc
from grpc import aio

from app.dispatch.push.answer_limits import MAX_STREAM_BYTES, MAX_UNARY_BYTES
from app.dispatch.push.call_result import CallResult, Done, read_result
from app.dispatch.push.fixed_metadata import FixedMetadata
from app.dispatch.push.health import (
    HEALTH_CHECK_TIMEOUT_S,
    METHOD,
    ReceiverHealth,
    health_request,
    read_health,
)
from app.dispatch.push.metadata import VALUE_NULL, CallMetadata
from app.dispatch.push.size_refusal import METADATA_WORDS
from app.dispatch.push.transport import UNREAD_BYTES
from app.grpc_client.connection import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S
from app.grpc_client.credentials import Pem
from app.grpc_client.header_encoder import Field
from app.grpc_client.metadata import read_metadata
from app.kernel.grpc_status import CANCELLED, OK, RESOURCE_EXHAUSTED

CHANNELS = 4  # connections to a receiver; flow control and the stream limit bound a single one
MIN_METADATA_LIMIT_BYTES = 8 * 1024  # the smallest limit of a gRPC implementation for a call's metadata
METADATA_ENTRY_BYTES = 32  # HTTP/2 adds this to each name and value (RFC 9113, 6.5.2)

CONNECTION_OPTIONS: list[tuple[str, object]] = [
    # A receiver that is back is noticed within a second, not within gRPC's two minutes.
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long connecting may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_send_message_length", -1),
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # A status may contain a stack trace; beyond gRPC's default of 16 KiB it would not be read at all.
    ("grpc.max_metadata_size", 48 * 1024),
    ("grpc.absolute_max_metadata_size", 64 * 1024),
]
UNARY_OPTIONS = [
    *CONNECTION_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_receive_message_length", MAX_UNARY_BYTES),
]
STREAM_OPTIONS = [
    *CONNECTION_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_receive_message_length", MAX_STREAM_BYTES),
]
HEALTH_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
Options = Sequence[tuple[str, object]]
Pairs = Sequence[tuple[str, str | bytes]]


class GrpcTls(NamedTuple):
    """What channels trust and show, and the name in the server's certificate ("": the address's host)."""

    pem: Pem  # its representation has no key
    server_name: str = ""


class GrpcServer(NamedTuple):
    """An address that grpcio reads, and how to connect to it.

    Attributes:
        tls: None: without TLS.
        metadata: Of all calls; None: there is none.
        keepalive_s, keepalive_timeout_s: As `app.grpc_client.connection.Keepalive` has them.
    """

    address: str
    tls: GrpcTls | None = None
    metadata: FixedMetadata | None = None
    keepalive_s: float = KEEPALIVE_S
    keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S

    def channel(self, library: ModuleType, options: Options) -> Any:
        """A channel of `grpc` or `grpc.aio`."""
        time_ms, timeout_ms = round(self.keepalive_s * 1000), round(self.keepalive_timeout_s * 1000)
        options = [
            *options,
            ("grpc.keepalive_time_ms", time_ms),
            ("grpc.keepalive_timeout_ms", timeout_ms),  # for what was sent; the next is for pings
            ("grpc.http2.ping_timeout_ms", timeout_ms),
            ("grpc.http2.max_pings_without_data", 0),  # no limit: a stream may be idle
        ]
        if self.tls is None:
            return library.insecure_channel(self.address, options=options)
        if self.tls.server_name:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        pem = self.tls.pem
        credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
        return library.secure_channel(self.address, credentials, options=options)

    def fields(self) -> Sequence[Field]:
        """The metadata of the next call. Raises KeyError: a token is not there."""
        return () if self.metadata is None else self.metadata.fields


class GrpcUnaryTarget:
    """A receiver's unary method, over a pool of channels."""

    def __init__(self, server: GrpcServer, method: str) -> None:
        self._server = server
        self._channels = [server.channel(aio, UNARY_OPTIONS) for _ in range(CHANNELS)]
        # No serializers: bytes are sent as they are, and the answer is ignored.
        self._calls: list[Any] = [channel.unary_unary(method, None, None) for channel in self._channels]
        self._next = 0
        self._tasks: set[asyncio.Task[CallResult]] = set()

    def call(
        self, value: bytes | None, metadata: CallMetadata, timeout_s: float, done: Done
    ) -> asyncio.Task[CallResult]:
        """See `UnaryTarget.call`. The task is the call's handle."""
        self._next = (self._next + 1) % len(self._calls)
        fields = [*metadata.shared.fields, *self._server.fields(), *metadata.own]
        if value is None:
            fields.append(VALUE_NULL)
        task = asyncio.get_running_loop().create_task(
            _run(self._calls[self._next], value or b"", read_metadata(fields), timeout_s)
        )
        self._tasks.add(task)

        def end(ended: asyncio.Task[CallResult]) -> None:
            self._tasks.discard(ended)
            done(CallResult(CANCELLED, "cancelled") if ended.cancelled() else ended.result())

        task.add_done_callback(end)
        return task

    async def close(self) -> None:
        """Closes the channels; calls under way end as CANCELLED."""
        for channel in self._channels:
            await channel.close(None)


class GrpcStreamChannel:
    """A receiver's method for streams."""

    def __init__(self, server: GrpcServer, method: str) -> None:
        self._server = server
        self._channel = server.channel(grpc, STREAM_OPTIONS)
        self._method: Any = self._channel.stream_stream(method, None, None)

    def open(self) -> GrpcStreamCall:
        """See `StreamChannel.open`."""
        return GrpcStreamCall(self._method, read_metadata(self._server.fields()))

    async def close(self) -> None:
        """Closes the channel; streams under way end as CANCELLED."""
        await asyncio.to_thread(self._channel.close)


class GrpcStreamCall:
    """One stream, of three threads: one of ours reads, one of gRPC's takes what is written from a queue."""

    def __init__(self, method: Any, metadata: Pairs) -> None:
        self._loop = asyncio.get_running_loop()
        self._to_write: SimpleQueue[bytes | None] = SimpleQueue()  # None: no more
        self._arrived: deque[bytes] = deque()
        self._arrived_bytes = self._read_bytes = 0  # so far; the difference is not read
        self._has_room = threading.Event()
        self._has_news = asyncio.Event()
        self._may_write = asyncio.Event()
        self._has_ended = self._is_canceled = False
        self._call: Any = method(self._written(), metadata=metadata)
        threading.Thread(target=self._read_all, name="grpc stream", daemon=True).start()

    async def read(self) -> bytes | None:
        """See `StreamCall.read`."""
        while not self._arrived:
            if self._has_ended:
                return None
            self._has_news.clear()
            await self._has_news.wait()
        message = self._arrived.popleft()
        self._read_bytes += len(message)
        self._has_room.set()
        return message

    async def write(self, message: bytes) -> bool:
        """See `StreamCall.write`."""
        if not self._has_ended:
            self._may_write.clear()
            self._to_write.put(message)
            await self._may_write.wait()
        return not self._has_ended

    def end_writing(self) -> None:
        """See `StreamCall.end_writing`."""
        self._to_write.put(None)

    def cancel(self) -> None:
        """See `StreamCall.cancel`."""
        self._call.cancel()
        self._is_canceled = True
        self._has_room.set()

    @property
    def result(self) -> CallResult:
        """See `StreamCall.result`."""
        return CallResult(self._call.code().value[0], self._call.details() or "")

    # in gRPC's thread

    def _written(self) -> Iterator[bytes]:
        """gRPC asks for the next message when it has sent the one before."""
        while (message := self._to_write.get()) is not None:
            yield message
            self._in_loop(self._may_write.set)

    # in a thread of ours

    def _read_all(self) -> None:
        try:
            for message in self._call:
                self._arrived_bytes += len(message)
                self._in_loop(self._receive, message)
                while self._arrived_bytes - self._read_bytes >= UNREAD_BYTES and not self._is_canceled:
                    self._has_room.wait()
                    self._has_room.clear()
        except grpc.RpcError:
            pass  # the status has it
        finally:
            self._call.cancel()  # no effect on a call that has ended
            self._to_write.put(None)
            self._in_loop(self._end)

    def _in_loop(self, what: Callable[..., None], *arguments: bytes) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(what, *arguments)

    # in the loop

    def _receive(self, message: bytes) -> None:
        self._arrived.append(message)
        self._has_news.set()

    def _end(self) -> None:
        self._has_ended = True
        self._has_news.set()
        self._may_write.set()


class GrpcHealthClient:
    """Checks a server over a channel of its own."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._channel = server.channel(aio, HEALTH_OPTIONS)
        self._call: Any = self._channel.unary_unary(METHOD, None, None)

    async def check(self, service: str = "", timeout_s: float = HEALTH_CHECK_TIMEOUT_S) -> ReceiverHealth:
        """See `HealthClient.check`."""
        metadata = read_metadata(self._server.fields())
        try:
            request = health_request(service)
            return read_health(OK, await self._call(request, metadata=metadata, timeout=timeout_s))
        except aio.AioRpcError as error:
            return read_health(error.code().value[0], b"")

    async def close(self) -> None:
        await self._channel.close(None)


async def _run(method: Any, value: bytes, metadata: Pairs, timeout_s: float) -> CallResult:
    details = ""
    try:
        call = method(value, metadata=metadata, timeout=timeout_s)
        await call
        code, trailers = OK, await call.trailing_metadata()
    except aio.AioRpcError as error:
        code, trailers = error.code().value[0], error.trailing_metadata()
        details = error.details() or ""
    except Exception as error:  # noqa: BLE001 - gRPC raises various errors for bad data
        return CallResult.local(f"gRPC refuses the message: {type(error).__name__}; check its headers")
    if code == RESOURCE_EXHAUSTED and not details and _size(metadata) > MIN_METADATA_LIMIT_BYTES:
        # C core lists the names of the metadata that it refuses, but drops the list if that is long itself.
        details = f"{METADATA_WORDS} ({_size(metadata)} bytes were sent)"
    return read_result(code, details, trailers or ())


def _size(metadata: Pairs) -> int:
    """Size in bytes, as HTTP/2 counts it."""
    return sum(METADATA_ENTRY_BYTES + len(name) + len(value) for name, value in metadata)
