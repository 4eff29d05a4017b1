"""`Receiver`: a gRPC server that calls handlers, for both contracts. The package has an example."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from switchyard.receiver.addresses import is_port, listening_address, why_not_bound
from switchyard.receiver.admission import AdmissionWindow, TaskGate
from switchyard.receiver.interceptors import HandlerChain, Interceptor, Outcome
from switchyard.receiver.stream_service import METHOD, StreamSide
from switchyard.receiver.testing import TestClient
from switchyard.receiver.unary_service import HandlerRoute, UnarySide, read_message
from switchyard.receiver.verdicts import (
    MAX_REASON_CHARS,
    Ack,
    BatchHandler,
    Failed,
    Handler,
    Message,
    RegionRole,
    Renew,
    Retry,
    Skip,
    Stash,
    Verdict,
    spread,
)

MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # above Kafka's usual limits; gRPC's default is 4 MB
MAX_METADATA_BYTES = 2 * 1024 * 1024  # key and headers; from 8 kB on, gRPC's default refuses some at random
MAX_PENDING_CALLS = 1 << 20  # gRPC's default of 1,000 cancels some calls of larger bursts
WINDOW = 10_000  # deliveries in flight on a stream: 100,000/s with a handler of 100 ms
WINDOW_BYTES = 16 * 1024 * 1024
MAX_TASKS = 10_000  # asynchronous handlers of streamed messages, over all streams
STOP_POLL_INTERVAL_S = 0.005  # while stopping
SERVICE = METHOD.split("/")[1]
MOST_RECEIVED = "grpc.max_receive_message_length"
UNLIMITED = 2**31 - 1  # bytes of a message; gRPC's -1

OPTIONS: dict[str, int] = {
    "grpc.so_reuseport": 0,
    MOST_RECEIVED: MAX_MESSAGE_BYTES,
    "grpc.max_metadata_size": MAX_METADATA_BYTES,
    "grpc.absolute_max_metadata_size": MAX_METADATA_BYTES,
    "grpc.server.max_pending_requests": MAX_PENDING_CALLS,
    "grpc.server.max_pending_requests_hard_limit": MAX_PENDING_CALLS,
}

AnyHandler = TypeVar("AnyHandler", bound=Callable[[Any], Any])
AnyInterceptor = TypeVar("AnyInterceptor", bound=Interceptor)


class Receiver:
    """A gRPC server with one handler for each (group, topic).

    Args:
        host: The address to listen on. The default serves this host only; "0.0.0.0" or "::" serves others.
        port: The port to listen on; 0: a free one.
        max_concurrent: Calls at once; more are refused. A stream counts as one call; a worker
            may have several (`target.connections`).
        window: Deliveries in flight on a stream.
        window_bytes: Bytes in flight on a stream. The default is 16 MiB, or twice a larger message size in
            `options`. A message that exceeds what is left of them waits, and so do others behind it.
        max_tasks: Asynchronous handlers of streamed messages at once; more wait.
        stream: False: unary calls only.
        interceptors: Run around every handler, in this order (`switchyard.receiver.interceptors`).
        options: More of gRPC's channel arguments, such as ("grpc.max_connection_age_ms", 600_000), or
            ("grpc.max_receive_message_length", 50_000_000) for messages above 16 MiB.
        credentials: For TLS, from `grpc.ssl_server_credentials` or `grpc.dynamic_ssl_server_credentials`.
    """

    # more than eight: the settings of the library, each by keyword
    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        max_concurrent: int | None = None,
        window: int = WINDOW,
        window_bytes: int | None = None,
        max_tasks: int = MAX_TASKS,
        stream: bool = True,
        interceptors: Iterable[Interceptor] = (),
        options: Iterable[tuple[str, int]] = (),
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        chosen = {**OPTIONS, **dict(options)}  # of two values for an argument, gRPC takes the first
        most_bytes = chosen[MOST_RECEIVED] if chosen[MOST_RECEIVED] > 0 else UNLIMITED
        if window_bytes is None:
            is_larger = MAX_MESSAGE_BYTES < most_bytes < UNLIMITED
            window_bytes = 2 * most_bytes if is_larger else WINDOW_BYTES
        if min(window, window_bytes, max_tasks) < 1:
            raise ValueError(
                f"window {window}, window_bytes {window_bytes}, max_tasks {max_tasks} must be above 0"
            )
        self.host = host
        self.port = port
        self._max_concurrent = max_concurrent
        self._options = list(chosen.items())
        self._credentials = credentials
        self._routes: dict[tuple[str, str], HandlerRoute] = {}  # by group and topic
        self._chain = HandlerChain(interceptors)
        self._unary = UnarySide({})
        window_limits = AdmissionWindow(window, window_bytes, most_bytes)
        self._stream = StreamSide(self._routes, window_limits, TaskGate(max_tasks)) if stream else None
        self._health: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._server: aio.Server | None = None
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._shut_down = False

    def on(self, *, topic: str, group: str, method: str | None = None) -> Callable[[Handler], Handler]:
        """Decorates the handler of a topic's messages for a group. `method`: the gRPC method of unary calls.

        Raises:
            TypeError: The handler does not take exactly one argument.
            ValueError: The group and topic, or the method, have a handler already.
        """
        return self._register(topic, group, method, "message", batch=False)

    def on_batch(
        self, *, topic: str, group: str, method: str | None = None
    ) -> Callable[[BatchHandler], BatchHandler]:
        """Decorates a handler of lists of messages, each of one partition and in order.

        It returns a verdict for each message, or one for all. Unary calls come as lists of one.

        Raises:
            TypeError, ValueError: As `on`.
        """
        return self._register(topic, group, method, "list of messages", batch=True)

    def intercept(self, interceptor: AnyInterceptor) -> AnyInterceptor:
        """Adds an interceptor at the end of the chain, around every handler; also decorates a function.

        Raises:
            TypeError: It is no interceptor, or asynchronous.
        """
        self._chain.add(interceptor)
        for route in self._routes.values():
            route.handler = self._chain.around(route.own, batch=route.batch)
        return interceptor

    def _register(
        self, topic: str, group: str, method: str | None, argument: str, *, batch: bool
    ) -> Callable[[AnyHandler], AnyHandler]:
        def register(handler: AnyHandler) -> AnyHandler:
            required = [
                parameter
                for parameter in inspect.signature(handler).parameters.values()
                if parameter.default is parameter.empty
                and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
            ]
            name = getattr(handler, "__name__", repr(handler))
            if len(required) != 1 or required[0].kind is inspect.Parameter.KEYWORD_ONLY:
                raise TypeError(f"handler {name} must take exactly one argument, the {argument}")
            path = method or f"/kafka.consumerproxy.{group}/{topic}"
            if path in self._unary.routes or (group, topic) in self._routes:
                raise ValueError(f"{group}/{topic} ({path}) has a handler already; {name} would replace it")
            called = self._chain.around(handler, batch=batch)
            route = HandlerRoute(handler, called, batch, tasks=inspect.iscoroutinefunction(handler))
            self._unary.routes[path] = self._routes[group, topic] = route
            return handler

        return register

    async def start(self) -> int:
        """Starts to listen; returns the port.

        Raises:
            RuntimeError: It cannot listen on the address; the message says why, and what to do.
        """
        server = aio.server(maximum_concurrent_rpcs=self._max_concurrent, options=self._options)
        server.add_generic_rpc_handlers((_Generic(self._unary, self._stream),))
        for service in ("", SERVICE) if self._stream else ("",):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        address, port = listening_address(self.host, self.port), 0
        if is_port(self.port):  # gRPC listens on 4464 instead of 70,000
            with contextlib.suppress(RuntimeError):  # it names no reason
                if self._credentials is None:
                    port = server.add_insecure_port(address)
                else:
                    port = server.add_secure_port(address, self._credentials)
        if not port:
            why = why_not_bound(self.host, self.port)
            if self._credentials is not None:
                why += "; or the credentials are wrong: check the certificate and its key"
            raise RuntimeError(f"cannot listen on {address}: {why}")
        self.port, self._server = port, server
        await server.start()
        return port

    async def stop(self, grace_s: float = 5.0) -> None:
        """Reports NOT_SERVING, refuses new messages, and waits at most `grace_s` for the others."""
        if self._server is None:
            return
        deadline_s = time.monotonic() + grace_s
        await self._health.enter_graceful_shutdown()
        self._unary.stopping = True
        if self._stream is not None:
            self._stream.stopping.set()
        # `Server.stop` would refuse health checks while it waits, so this loop waits first.
        while self._active() and time.monotonic() < deadline_s:  # noqa: ASYNC110 - it polls two counters
            await asyncio.sleep(STOP_POLL_INTERVAL_S)
        await self._server.stop(max(0.0, deadline_s - time.monotonic()))

    def _active(self) -> int:
        return self._unary.active + (self._stream.active if self._stream is not None else 0)

    def run(self) -> None:
        """Serves until SIGTERM, SIGINT or `shutdown`. In a thread other than the main one, signals stay with
        the program, and only `shutdown` ends it.

        Raises:
            RuntimeError: As `start`.
        """
        asyncio.run(self.serve())

    def shutdown(self) -> None:
        """Has `run` or `serve` stop as at SIGTERM. Any thread may call it; it returns at once."""
        self._shut_down = True
        if self._serving is not None:
            loop, stop = self._serving
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(stop.set)

    async def serve(self, started: Callable[[int], None] = lambda port: None) -> None:
        """As `run`, in the present event loop. Calls `started` with the port.

        It takes the signals of the main thread. Beside a server that needs them, call `start` and `stop`.
        """
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._serving = loop, stop
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(NotImplementedError):
                    loop.add_signal_handler(number, stop.set)
        try:
            started(await self.start())
            if not self._shut_down:
                await stop.wait()
            await self.stop()
        finally:
            self._serving, self._shut_down = None, False

    def handles(self, topic: str, group: str) -> bool:
        """Whether the topic has a handler for the group."""
        return (group, topic) in self._routes

    async def handle(self, message: Message) -> Verdict:
        """Runs the message's handler without a network (see `TestClient`).

        Raises:
            KeyError: There is no handler.
            TypeError: It returned no verdict. Exceptions of the handler pass through.
        """
        return await self._routes[message.group, message.topic].one(message)

    async def handle_batch(self, messages: list[Message]) -> list[Verdict]:
        """Runs the handler for messages of one group and topic, as `handle`."""
        route = self._routes[messages[0].group, messages[0].topic]
        if not route.batch:
            return [await route.one(message) for message in messages]
        answer = route.handler(messages)
        if inspect.isawaitable(answer):
            answer = await answer
        verdicts: list[Verdict] = []
        for verdict in spread(answer, len(messages)):
            if isinstance(verdict, Failed):
                raise verdict.error
            verdicts.append(verdict)
        return verdicts

    def test_client(self, *, renews: bool = False) -> TestClient:
        """A client that delivers to the handlers in memory; see `TestClient`."""
        return TestClient(self, renews=renews)


class _Generic(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Finds the handler of a call by its method; requests and answers stay bytes."""

    def __init__(self, unary: UnarySide, stream: StreamSide | None) -> None:
        self._unary = unary
        self._stream = stream

    def service(self, details: Any) -> Any:
        if details.method == METHOD and self._stream is not None:
            return self._stream.handler
        return self._unary.find(details.method)


__all__ = [
    "MAX_MESSAGE_BYTES", "MAX_METADATA_BYTES", "MAX_REASON_CHARS", "Ack", "Interceptor", "Message", "Outcome",
    "Receiver", "RegionRole", "Renew", "Retry", "Skip", "Stash", "TestClient", "Verdict", "read_message",
]  # fmt: skip
