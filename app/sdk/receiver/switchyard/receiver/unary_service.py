"""The unary contract on the receiver: one call for each message, with the verdict as status and trailers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from switchyard.receiver.delivery_time import DeliveryTime, UnaryTime
from switchyard.receiver.outcomes import milliseconds
from switchyard.receiver.verdicts import (
    Ack,
    Failed,
    Message,
    NoVerdict,
    RegionRole,
    Renew,
    Retry,
    Skip,
    Verdict,
    checked,
    failure_text,
    plain_text,
    spread,
)

HEADER_PREFIX = "kafka-header-"
ACTION, RETRY_AFTER, TIMEOUT = "kafka-action", "kafka-retry-after-ms", "kafka-timeout-ms"
REGION, PRIMARY, PRIMARY_EPOCH = "switchyard-region", "switchyard-primary", "switchyard-primary-epoch"
VALUE_NULL = "kafka-value-null"  # "true": the empty body is a tombstone
# They say how the worker changed a Protobuf value. Over streams they are headers, so they are here, too.
ADDED = ("switchyard-payload-format", "switchyard-payload-message", "switchyard-schema-id")


@dataclass(slots=True)
class HandlerRoute:
    """A handler, and how to call it.

    Attributes:
        own: The handler as registered.
        handler: The function to call: `own`, or `own` wrapped in interceptors.
        batch: Whether it takes lists of messages.
        tasks: Whether it is asynchronous. Without `async def` its answers to a streamed batch show it.
    """

    own: object
    handler: Any
    batch: bool
    tasks: bool

    async def one(self, message: Message) -> Verdict:
        """The verdict on one message.

        Raises:
            NoVerdict: The handler returned no verdict. Exceptions of the handler pass through.
        """
        answer = self.handler([message] if self.batch else message)
        if inspect.isawaitable(answer):
            answer = await answer
        verdict = spread(answer, 1)[0] if self.batch else checked(answer)
        if isinstance(verdict, Failed):
            raise verdict.error
        return verdict


class UnarySide:
    """Accepts calls, and counts those in progress, so that a stopping receiver can wait for them."""

    def __init__(self, routes: dict[str, HandlerRoute]) -> None:
        self.routes = routes  # by gRPC method
        self.stopping = False
        self.active = 0
        self._handlers: dict[str, Any] = {}

    def find(self, method: str) -> Any:
        """The gRPC handler of `method`; None: there is none."""
        found = self._handlers.get(method)
        if found is None and method in self.routes:
            handler = self._handler_of(self.routes[method])
            found = self._handlers[method] = grpc.unary_unary_rpc_method_handler(handler)
        return found

    def _handler_of(self, route: HandlerRoute) -> Any:
        async def handle(value: bytes, context: Any) -> bytes:
            if self.stopping:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the receiver is shutting down")
            self.active += 1
            try:
                return await _answer(route, value, context)
            finally:
                self.active -= 1

        return handle


async def _answer(route: HandlerRoute, value: bytes, context: Any) -> bytes:
    message = read_message(value, context.invocation_metadata() or (), UnaryTime(context))
    try:
        verdict = await route.one(message)
    except NoVerdict as error:
        await context.abort(grpc.StatusCode.INTERNAL, failure_text(error))
        raise
    except Exception as error:
        await context.abort(grpc.StatusCode.UNKNOWN, failure_text(error))
        raise
    if verdict is None or isinstance(verdict, Ack):
        return b""
    if isinstance(verdict, Skip):
        context.set_trailing_metadata(((ACTION, "Skip"),))
        return b""
    if isinstance(verdict, Retry | Renew):
        wishes = [(RETRY_AFTER, milliseconds(verdict.after))]
        if isinstance(verdict, Renew):
            wishes.append((TIMEOUT, milliseconds(verdict.seconds)))
        trailers = [(name, str(wish)) for name, wish in wishes if wish]
        context.set_trailing_metadata(((ACTION, type(verdict).__name__), *trailers))
        words = "retry later" if isinstance(verdict, Retry) else "the receiver asks for more time"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
    else:
        context.set_trailing_metadata(((ACTION, "Stash"),))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, plain_text(verdict.reason))
    return b""


def read_message(
    value: bytes, metadata: Sequence[tuple[str, str | bytes]], time: DeliveryTime | None = None
) -> Message:
    """The message of a call. A number that cannot be read counts as missing: time -1, attempt 1, else 0."""
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
    headers += [(name, text[name].encode()) for name in ADDED if name in text]
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
        tombstone=not value and text.get(VALUE_NULL) == "true",
        role=_role(text) if REGION in text else None,
        _time=time,
    )


def _role(text: Mapping[str, str]) -> RegionRole:
    return RegionRole(text[REGION], text.get(PRIMARY) == "true", _number(text.get(PRIMARY_EPOCH)))


def _number(text: str | None, default: int = 0) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else default
