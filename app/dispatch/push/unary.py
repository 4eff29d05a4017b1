"""The unary contract: one gRPC call per message. The body is the record's value, the answer is empty.

Thousands of calls are in flight, so results arrive by callback, without a task of Switchyard's per call.
`done` is called exactly once, later, from the event loop, whatever happens. Bad data raises nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc import aio

from app.dispatch.model.crash_suspicion import is_planned_end
from app.dispatch.push.answer_limits import MAX_UNARY_BYTES
from app.dispatch.push.channel_options import CONNECTION_OPTIONS
from app.dispatch.push.grpc_internals import status_of, when_ended
from app.dispatch.push.http_answer import why_no_receiver
from app.dispatch.push.metadata import VALUE_NULL
from app.dispatch.push.size_refusal import METADATA_WORDS, is_about_answer, size_refusal
from app.kernel.grpc_status import (
    CANCELLED,
    INTERNAL,
    OK,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
)

CHANNELS = 4  # connections to a receiver; flow control and the stream limit bound a single one
MAX_DETAIL_CHARS = 1_000
ACTION = "kafka-action"  # a trailer of the answer: what becomes of the message
RETRY_AFTER = "kafka-retry-after-ms"  # a trailer of the answer: how long the message waits
MAX_DIGITS = 12
MIN_METADATA_LIMIT_BYTES = 8 * 1024  # the smallest limit of a gRPC implementation for a call's metadata
METADATA_ENTRY_BYTES = 32  # HTTP/2 adds this to each name and value (RFC 9113, 6.5.2)

OPTIONS = [
    *CONNECTION_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_receive_message_length", MAX_UNARY_BYTES),
]


class CallResult:
    """How a call ended.

    Attributes:
        code: gRPC status number.
        details: The receiver's status message, bounded.
        answer_too_large: The answer exceeds the limit. Whether the receiver took the message is not known.
        action: The trailer `kafka-action`, if there was one.
        latency_s: From `call` to the answer.
        too_large: The receiver, or a proxy on the way, refused the message for its size.
        is_planned_end: The receiver ended the connection on purpose, and the call was lost with it.
        local_error: Why the call was not made; then `code` means nothing.
        retry_after_s: The receiver's wish, with the action Retry; None: it has none.
    """

    __slots__ = (
        "action", "answer_too_large", "code", "details", "is_planned_end", "latency_s", "local_error",
        "retry_after_s", "too_large",
    )  # fmt: skip

    def __init__(
        self,
        code: int,
        details: str = "",
        action: str | None = None,
        latency_s: float = 0.0,
        *,
        local_error: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.code = code
        self.details = details[:MAX_DETAIL_CHARS]
        self.action = action
        self.latency_s = latency_s
        self.too_large = code != OK and action is None and size_refusal(code, details) is not None
        self.answer_too_large = is_about_answer(code, details)
        self.is_planned_end = code == UNAVAILABLE and is_planned_end(details)
        self.local_error = local_error
        self.retry_after_s = retry_after_s

    @classmethod
    def local(cls, reason: str, action: str | None = None) -> CallResult:
        """The result of a message that was not sent. `action` decides about it; None: it is stashed."""
        return cls(INTERNAL, reason, action, local_error=reason)


Done = Callable[[CallResult], None]


class CallHandle:
    __slots__ = ("_call",)

    def __init__(self, call: Any) -> None:
        self._call = call

    def cancel(self) -> None:
        """Gives up the call; `done` gets CANCELLED unless the call has ended already."""
        self._call.cancel()


class UnaryTarget:
    """A receiver's method, over a pool of channels."""

    def __init__(self, address: str, method: str, *, channels: int = CHANNELS) -> None:
        self.address = address
        self._channels = [aio.insecure_channel(address, options=OPTIONS) for _ in range(channels)]
        # No serializers: bytes are sent as they are, and the answer is ignored.
        self._calls = [channel.unary_unary(method, None, None) for channel in self._channels]
        self._next = 0

    def call(
        self,
        value: bytes | None,
        metadata: Sequence[tuple[str, str | bytes]],
        timeout_s: float,
        done: Done,
    ) -> CallHandle | None:
        """Sends one message; a `value` of None is a tombstone. None: gRPC refuses it, as `done` reports."""
        self._next = (self._next + 1) % len(self._calls)
        started_s = time.monotonic()
        if value is None:
            metadata = (*metadata, VALUE_NULL)
        try:
            call: Any = self._calls[self._next](value or b"", metadata=metadata, timeout=timeout_s)
        except Exception as error:  # noqa: BLE001 - gRPC raises various errors for bad data
            asyncio.get_running_loop().call_soon(done, CallResult.local(f"gRPC refuses the message: {error}"))
            return None

        def on_end(task: asyncio.Task[object]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                # For metadata that it does not send, grpcio raises here and sets no status.
                done(CallResult.local(f"gRPC refuses the message: {type(error).__name__}; check its headers"))
            else:
                done(_result(call, started_s, metadata))

        when_ended(call, on_end)
        return CallHandle(call)

    async def close(self) -> None:
        """Closes the channels; calls under way end as CANCELLED."""
        for channel in self._channels:
            await channel.close(None)


def _result(call: Any, started_s: float, metadata: Sequence[tuple[str, str | bytes]]) -> CallResult:
    """The result of a finished call, without awaiting: grpc.aio keeps the status ready."""
    latency_s = time.monotonic() - started_s
    status = status_of(call)
    if status is None:
        return CallResult(CANCELLED, "cancelled", latency_s=latency_s)
    code = status.code()
    trailers = status.trailing_metadata()
    action = after_s = None
    for name, value in trailers or ():
        if name == ACTION:
            action = value if isinstance(value, str) else None
        elif name == RETRY_AFTER:
            after_s = int(value) / 1000 if str(value).isdecimal() and len(value) < MAX_DIGITS else None
    if code == 0 and action is None:
        return CallResult(0, latency_s=latency_s)
    details = status.details() or ""
    if code == RESOURCE_EXHAUSTED and not details and _size(metadata) > MIN_METADATA_LIMIT_BYTES:
        # C core lists the names of the metadata that it refuses, but drops the list if that is long itself.
        details = f"{METADATA_WORDS} ({_size(metadata)} bytes were sent)"
    if away := why_no_receiver(details):
        return CallResult(UNAVAILABLE, away, action, latency_s, retry_after_s=after_s)
    return CallResult(int(code), details, action, latency_s, retry_after_s=after_s)


def _size(metadata: Sequence[tuple[str, str | bytes]]) -> int:
    """Size in bytes, as HTTP/2 counts it."""
    return sum(METADATA_ENTRY_BYTES + len(name) + len(value) for name, value in metadata)


__all__ = ["CallHandle", "CallResult", "UnaryTarget", "grpc"]
