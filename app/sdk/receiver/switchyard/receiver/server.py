"""`Receiver`: gRPC server for handlers of messages, over both contracts. See the package."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

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
    Retry,
    Skip,
    Stash,
    Verdict,
    spread,
)

MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # Kafka's usual limits are below; gRPC's own 4 MB is not
MAX_METADATA_BYTES = 2 * 1024 * 1024  # key and headers; gRPC's own 8 kB refuses larger ones at random
MAX_PENDING_CALLS = 1 << 20  # gRPC's own 1,000 cancels calls of larger bursts at random
WINDOW = 10_000  # deliveries in flight on a stream: 100,000/s with a handler of 100 ms
WINDOW_BYTES = 16 * 1024 * 1024
MAX_TASKS = 10_000  # of asynchronous handlers of streamed messages, over all streams
STOP_POLL_INTERVAL_S = 0.005  # while stopping
SERVICE = METHOD.split("/")[1]

OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
]

AnyHandler = TypeVar("AnyHandler", bound=Callable[[Any], Any])
AnyInterceptor = TypeVar("AnyInterceptor", bound=Interceptor)


class Receiver:
    """See the package. One handler for each (group, topic).

    Args:
        host: to listen at.
        port: to listen at; 0: a free one.
        max_concurrent: calls at once; more are turned away. A stream counts as one call.
        window: deliveries that a stream may have in flight.
        window_bytes: likewise, in bytes.
        max_tasks: asynchronous handlers of streamed messages at once; more wait.
        stream: False: unary calls only.
        interceptors: around every handler, in this order (`switchyard.receiver.interceptors`).
        options: more of gRPC's channel arguments, such as ("grpc.max_connection_age_ms", 600_000).
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        max_concurrent: int | None = None,
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
        max_tasks: int = MAX_TASKS,
        stream: bool = True,
        interceptors: Iterable[Interceptor] = (),
        options: Iterable[tuple[str, int]] = (),
    ) -> None:
        if min(window, window_bytes, max_tasks) < 1:
            raise ValueError(
                f"window {window}, window_bytes {window_bytes}, max_tasks {max_tasks} must be above 0"
            )
        self.host = host
        self.port = port
        self._max_concurrent = max_concurrent
        self._options = [*OPTIONS, *options]
        self._routes: dict[tuple[str, str], HandlerRoute] = {}  # by group and topic
        self._chain = HandlerChain(interceptors)
        self._unary = UnarySide({})
        window_limits = AdmissionWindow(window, window_bytes, MAX_MESSAGE_BYTES)
        self._stream = StreamSide(self._routes, window_limits, TaskGate(max_tasks)) if stream else None
        self._health: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._server: aio.Server | None = None

    def on(self, *, topic: str, group: str, method: str | None = None) -> Callable[[Handler], Handler]:
        """Decorates the handler of a topic's messages for a group; `method` is that of unary calls.

        Raises:
            TypeError: it does not take exactly one argument.
            ValueError: there is one already.
        """
        return self._register(topic, group, method, "message", batch=False)

    def on_batch(
        self, *, topic: str, group: str, method: str | None = None
    ) -> Callable[[BatchHandler], BatchHandler]:
        """Decorates a handler of lists of messages (of one partition, in order).

        It returns a verdict for each, or one for all; unary calls come as lists of one.

        Raises:
            As `on`.
        """
        return self._register(topic, group, method, "list of messages", batch=True)

    def intercept(self, interceptor: AnyInterceptor) -> AnyInterceptor:
        """Adds an interceptor behind those that there are, around every handler; decorates a function, too.

        Raises:
            TypeError: it is none, or asynchronous.
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
        """Listens; returns the port.

        Raises:
            RuntimeError: the address cannot be bound.
        """
        self._server = aio.server(maximum_concurrent_rpcs=self._max_concurrent, options=self._options)
        self._server.add_generic_rpc_handlers((_Generic(self._unary, self._stream),))
        for service in ("", SERVICE) if self._stream else ("",):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port = self._server.add_insecure_port(f"{self.host}:{self.port}")
        await self._server.start()
        return self.port

    async def stop(self, grace_s: float = 5.0) -> None:
        """Says NOT_SERVING, takes no new messages, and lets those in progress end within `grace_s`."""
        if self._server is None:
            return
        deadline_s = time.monotonic() + grace_s
        await self._health.enter_graceful_shutdown()
        self._unary.stopping = True
        if self._stream is not None:
            self._stream.stopping.set()
        # The server itself would refuse health checks while it waits.
        while self._active() and time.monotonic() < deadline_s:  # noqa: ASYNC110 - two counts, looked at
            await asyncio.sleep(STOP_POLL_INTERVAL_S)
        await self._server.stop(max(0.0, deadline_s - time.monotonic()))

    def _active(self) -> int:
        return self._unary.active + (self._stream.active if self._stream is not None else 0)

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT."""
        asyncio.run(self.serve())

    async def serve(self, started: Callable[[int], None] = lambda port: None) -> None:
        """Serves until SIGTERM or SIGINT; `started` is told the port."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
        started(await self.start())
        await stop.wait()
        await self.stop()

    def handles(self, topic: str, group: str) -> bool:
        """Whether there is a handler."""
        return (group, topic) in self._routes

    async def handle(self, message: Message) -> Verdict:
        """Runs the handler of the message's group and topic, without a network (see `TestClient`).

        Raises:
            KeyError: there is no handler.
            TypeError: it returned what is no verdict. Whatever the handler raises.
        """
        return await self._routes[message.group, message.topic].one(message)

    async def handle_batch(self, messages: list[Message]) -> list[Verdict]:
        """Likewise, for messages of one group and topic."""
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

    def test_client(self) -> TestClient:
        """Delivers to the handlers in memory."""
        return TestClient(self)


class _Generic(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Finds what takes a call by its method, with nothing between it and the bytes."""

    def __init__(self, unary: UnarySide, stream: StreamSide | None) -> None:
        self._unary = unary
        self._stream = stream

    def service(self, details: Any) -> Any:
        if details.method == METHOD and self._stream is not None:
            return self._stream.handler
        return self._unary.find(details.method)


__all__ = [
    "MAX_MESSAGE_BYTES", "MAX_METADATA_BYTES", "MAX_REASON_CHARS", "Ack", "Interceptor", "Message", "Outcome",
    "Receiver", "RegionRole", "Retry", "Skip", "Stash", "TestClient", "Verdict", "read_message",
]  # fmt: skip
