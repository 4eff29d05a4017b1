"""How messages reach a receiver: `target.transport` chooses, for unary calls and for streams.

| `target.transport` | module            |                                                       |
|--------------------|-------------------|-------------------------------------------------------|
| `http2`            | `http2_transport` | Switchyard's own client, at the least cost            |
| `grpc`             | `grpc_transport`  | the library grpcio, which also asks other DNS servers |

Bad data raises nothing.
"""

from __future__ import annotations

from typing import Protocol

from app.dispatch.push.call_result import CallResult, Done
from app.dispatch.push.metadata import CallMetadata

UNREAD_BYTES = 1024 * 1024  # of a stream's messages that have arrived; then the receiver must wait


class CallHandle(Protocol):
    """A unary call under way."""

    def cancel(self) -> object:
        """Gives up the call; `done` gets CANCELLED unless the call has ended already."""


class UnaryTarget(Protocol):
    """A receiver's method at an address: the body is a record's value, the answer's is ignored.

    Thousands of calls are in flight, so results arrive by callback. `done` is called exactly once, later,
    from the event loop, whatever happens.
    """

    def call(self, value: bytes | None, metadata: CallMetadata, timeout_s: float, done: Done) -> CallHandle:
        """Sends one message; a `value` of None is a tombstone."""

    async def close(self) -> None:
        """Closes the connections; calls under way end as CANCELLED."""


class StreamCall(Protocol):
    """One stream under way, of messages as bytes."""

    async def read(self) -> bytes | None:
        """The receiver's next message; None: the stream has ended, and `result` says how."""

    async def write(self, message: bytes) -> bool:
        """Sends a message, and returns when the connection has taken it. False: the stream has ended."""

    def end_writing(self) -> None:
        """Tells the receiver that no more messages come."""

    def cancel(self) -> None:
        """Ends the stream."""

    @property
    def result(self) -> CallResult:
        """How the stream ended."""


class StreamChannel(Protocol):
    """A receiver's method for streams at an address."""

    def open(self) -> StreamCall:
        """Begins a stream; it need not be connected yet."""

    async def close(self) -> None:
        """Closes the connections; streams under way end as CANCELLED."""
