"""`Receiver`: gRPC server for handlers of messages. See the package."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

HEADER_PREFIX = "kafka-header-"
MAX_REASON_CHARS = 500
MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # Kafka's usual limits are below; gRPC's own 4 MB is not
MAX_METADATA_BYTES = 2 * 1024 * 1024  # key and headers; gRPC's own 8 kB refuses larger ones at random
MAX_PENDING_CALLS = 1 << 20  # gRPC's own 1,000 cancels calls of larger bursts at random

OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
]


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is done."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Not now: to the retry topic. `after` (seconds) is a wish; the tier's delay decides."""

    after: float | None = None


@dataclass(frozen=True, slots=True)
class Stash:
    """Never: to the dead letter queue, with the reason."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Skip:
    """Not for us: acknowledged as it is."""


Verdict = Ack | Retry | Stash | Skip | None


@dataclass(frozen=True, slots=True)
class Message:
    """A delivered message. `headers` are the record's own, in order, names in lower case."""

    topic: str
    group: str
    value: bytes
    partition: int = 0
    offset: int = 0
    key: bytes | None = None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    timestamp_ms: int = -1
    retry_count: int = 0
    attempt: int = 1
    traceparent: str = ""


Handler = Callable[[Message], Verdict | Awaitable[Verdict]]


class Receiver:
    """See the package. One handler for each (group, topic)."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, max_concurrent: int | None = None) -> None:
        self.host = host
        self.port = port
        self._max_concurrent = max_concurrent
        self._handlers: dict[str, Handler] = {}  # by gRPC method
        self._methods: dict[tuple[str, str], str] = {}  # by group and topic
        self._server: aio.Server | None = None

    def on(self, *, topic: str, group: str, method: str | None = None) -> Callable[[Handler], Handler]:
        """Decorates the handler of a topic's messages for a group.

        Raises:
            TypeError: it does not take exactly one argument.
            ValueError: there is one already.
        """

        def register(handler: Handler) -> Handler:
            required = [
                parameter
                for parameter in inspect.signature(handler).parameters.values()
                if parameter.default is parameter.empty
                and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
            ]
            name = getattr(handler, "__name__", repr(handler))
            if len(required) != 1 or required[0].kind is inspect.Parameter.KEYWORD_ONLY:
                raise TypeError(f"handler {name} must take exactly one argument, the message")
            path = method or f"/kafka.consumerproxy.{group}/{topic}"
            if path in self._handlers or (group, topic) in self._methods:
                raise ValueError(f"{group}/{topic} ({path}) has a handler already; {name} would replace it")
            self._handlers[path] = handler
            self._methods[group, topic] = path
            return handler

        return register

    async def start(self) -> int:
        """Listens; returns the port.

        Raises:
            RuntimeError: the address cannot be bound.
        """
        self._server = aio.server(maximum_concurrent_rpcs=self._max_concurrent, options=OPTIONS)
        self._server.add_generic_rpc_handlers((_Generic(self._handlers),))
        servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)
        self.port = self._server.add_insecure_port(f"{self.host}:{self.port}")
        await self._server.start()
        return self.port

    async def stop(self, grace_s: float = 5.0) -> None:
        """Takes no new messages and lets those in progress end within `grace_s`."""
        if self._server is not None:
            await self._server.stop(grace_s)

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

    async def handle(self, message: Message) -> Verdict:
        """Runs the handler of the message's group and topic, without a network (see `TestClient`).

        Raises:
            KeyError: there is no handler.
            TypeError: it returned what is no verdict. Whatever the handler raises.
        """
        verdict = self._handlers[self._methods[message.group, message.topic]](message)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if not isinstance(verdict, Verdict):
            raise TypeError(f"the handler returned {type(verdict).__name__}, which is no verdict")
        return verdict

    def test_client(self) -> TestClient:
        """Delivers to the handlers in memory."""
        return TestClient(self)


class TestClient:
    """Delivers messages to a receiver's handlers without a network."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def deliver(self, *, topic: str, group: str, value: bytes, **fields: Any) -> Verdict:
        """What the handler says of the message: a verdict (`Ack()` for None); raises what it raises."""
        message = Message(topic=topic, group=group, value=value, **fields)
        return await self._receiver.handle(message) or Ack()


class _Generic(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Finds the handler by method, with nothing between it and the bytes."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers
        self._behaviours: dict[str, Any] = {}

    def service(self, details: Any) -> Any:
        found = self._behaviours.get(details.method)
        if found is None and details.method in self._handlers:
            behaviour = _behaviour(self._handlers[details.method])
            found = self._behaviours[details.method] = grpc.unary_unary_rpc_method_handler(behaviour)
        return found


def _behaviour(handler: Handler) -> Any:
    async def behave(value: bytes, context: Any) -> bytes:
        message = read_message(value, context.invocation_metadata() or ())
        try:
            verdict = handler(message)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except Exception as error:
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}"[:MAX_REASON_CHARS]
            )
            raise
        if verdict is None or isinstance(verdict, Ack):
            return b""
        match verdict:
            case Retry():
                action, code, text = "Retry", grpc.StatusCode.RESOURCE_EXHAUSTED, "retry later"
            case Stash():
                action, code, text = "Stash", grpc.StatusCode.FAILED_PRECONDITION, verdict.reason
            case Skip():
                context.set_trailing_metadata((("kafka-action", "Skip"),))
                return b""
            case _:
                text = f"the handler returned {type(verdict).__name__}, which is no verdict"
                await context.abort(grpc.StatusCode.INTERNAL, text)
        context.set_trailing_metadata((("kafka-action", action),))
        await context.abort(code, text[:MAX_REASON_CHARS])
        return b""

    return behave


def read_message(value: bytes, metadata: Sequence[tuple[str, str | bytes]]) -> Message:
    """The message of a call's body and metadata. Numbers that cannot be read count as 0."""
    text: dict[str, str] = {}
    headers: list[tuple[str, bytes]] = []
    key: bytes | None = None
    for name, item in metadata:
        if isinstance(item, bytes):
            if name == "kafka-key-bin":
                key = item
            elif name.startswith(HEADER_PREFIX):
                headers.append((name[len(HEADER_PREFIX) : -4], item))
        else:
            text[name] = item
    return Message(
        topic=text.get("kafka-topic", ""),
        group=text.get("kafka-consumergroup", ""),
        value=value,
        partition=_number(text.get("kafka-partition")),
        offset=_number(text.get("kafka-offset")),
        key=key,
        headers=headers,
        timestamp_ms=_number(text.get("kafka-timestamp"), -1),
        retry_count=_number(text.get("kafka-retrycount")),
        attempt=_number(text.get("kafka-attemptcount"), 1),
        traceparent=text.get("traceparent", ""),
    )


def _number(text: str | None, default: int = 0) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else default
