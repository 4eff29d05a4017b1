"""The unary contract, seen from the receiver: one call a message, the verdict as status and trailers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from switchyard.receiver.outcomes import after_ms
from switchyard.receiver.verdicts import (
    Ack,
    Failed,
    Message,
    NoVerdict,
    RegionRole,
    Retry,
    Skip,
    Verdict,
    checked,
    failure_text,
    plain_text,
    spread,
)

HEADER_PREFIX = "kafka-header-"
ACTION, RETRY_AFTER = "kafka-action", "kafka-retry-after-ms"
REGION, PRIMARY, PRIMARY_EPOCH = "switchyard-region", "switchyard-primary", "switchyard-primary-epoch"
VALUE_NULL = "kafka-value-null"  # "true": a tombstone, whose body is empty too


@dataclass(slots=True)
class HandlerRoute:
    """A handler, and how to call it.

    Attributes:
        own: as it was registered.
        handler: what is called: the same, or with interceptors around it.
        batch: it takes lists of messages.
        tasks: it is asynchronous; found out when it first returns an awaitable, if it does not say so.
    """

    own: Any
    handler: Any
    batch: bool
    tasks: bool

    async def one(self, message: Message) -> Verdict:
        """The verdict on one message.

        Raises:
            NoVerdict: what was returned is none. Whatever the handler raises.
        """
        answer = self.handler([message] if self.batch else message)
        if inspect.isawaitable(answer):
            answer = await answer
        verdict = spread(answer, 1)[0] if self.batch else checked(answer)
        if isinstance(verdict, Failed):
            raise verdict.error
        return verdict


class UnarySide:
    """Takes calls; counts those in progress, so that a receiver that stops can wait for them."""

    def __init__(self, routes: dict[str, HandlerRoute]) -> None:
        self.routes = routes  # by gRPC method
        self.stopping = False
        self.active = 0
        self._handlers: dict[str, Any] = {}

    def find(self, method: str) -> Any:
        """What gRPC calls for `method`; None when nobody handles it."""
        found = self._handlers.get(method)
        if found is None and method in self.routes:
            behaviour = self._behaviour(self.routes[method])
            found = self._handlers[method] = grpc.unary_unary_rpc_method_handler(behaviour)
        return found

    def _behaviour(self, route: HandlerRoute) -> Any:
        async def behave(value: bytes, context: Any) -> bytes:
            if self.stopping:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the receiver is shutting down")
            self.active += 1
            try:
                return await _answer(route, value, context)
            finally:
                self.active -= 1

        return behave


async def _answer(route: HandlerRoute, value: bytes, context: Any) -> bytes:
    message = read_message(value, context.invocation_metadata() or ())
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
    if isinstance(verdict, Retry):
        wish = after_ms(verdict)
        trailers: tuple[tuple[str, str], ...] = ((ACTION, "Retry"),)
        if wish:
            trailers = (*trailers, (RETRY_AFTER, str(wish)))
        context.set_trailing_metadata(trailers)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "retry later")
    else:
        context.set_trailing_metadata(((ACTION, "Stash"),))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, plain_text(verdict.reason))
    return b""


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
        tombstone=not value and text.get(VALUE_NULL) == "true",
        role=_role(text) if REGION in text else None,
    )


def _role(text: Mapping[str, str]) -> RegionRole:
    return RegionRole(text[REGION], text.get(PRIMARY) == "true", _number(text.get(PRIMARY_EPOCH)))


def _number(text: str | None, default: int = 0) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else default
