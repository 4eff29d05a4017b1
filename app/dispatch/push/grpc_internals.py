"""The private attributes of grpc.aio's calls that this project uses, in one function each.

A new grpcio may rename one of them; then no call of `tests/dispatch/push` ends. The functions run for every
message, so they do nothing else.

Upstream issue: grpc #36066, a failed write replaces the receiver's own status by INTERNAL (`send_bytes`). No
issue is known for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol


class CallStatus(Protocol):
    """How a call ended."""

    def code(self) -> int:
        """The gRPC status number."""

    def details(self) -> str | None:
        """The receiver's message."""

    def trailing_metadata(self) -> Sequence[tuple[str, str | bytes]] | None:
        """The trailers of the answer."""


class CythonCall(Protocol):
    """grpc.aio's inner call."""

    _status: CallStatus | None

    def send_serialized_message(self, message: bytes) -> Awaitable[None]:
        """Sends bytes on a stream."""


class StreamCall(Protocol):
    """A call of a stream."""

    _cython_call: CythonCall


class UnaryCall(StreamCall, Protocol):
    """A call with one answer."""

    _call_response: asyncio.Task[object]


def when_ended(call: UnaryCall, on_end: Callable[[asyncio.Task[object]], None]) -> None:
    """Calls `on_end` once with the call's own task, from the event loop.

    For metadata that it does not send, grpcio raises in this task and sets no status. The call's public
    `add_done_callback` does not report that.
    """
    call._call_response.add_done_callback(on_end)


def status_of(call: UnaryCall) -> CallStatus | None:
    """The status of a call that has ended, without awaiting; None: it was cancelled before it had one."""
    return call._cython_call._status


async def send_bytes(call: StreamCall, data: bytes) -> None:
    """Sends without `call.write`, which after a failure replaces the receiver's own status by INTERNAL.

    The status says whether it has the contract, or which message was too large.

    Raises:
        InternalError: The call has ended; reading from it shows how.
    """
    await call._cython_call.send_serialized_message(data)
