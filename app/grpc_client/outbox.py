"""The sending side of one connection: flow control, and one write for all that a turn of the loop sends.

Source: RFC 9113, section 5.2.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from struct import Struct

from app.grpc_client import frames
from app.grpc_client.calls import Call, UnaryCall
from app.grpc_client.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADER,
    HEADERS,
    ConnectionFault,
)
from app.grpc_client.messages import PREFIX_BYTES

_DATA_AND_PREFIX = Struct(">HBBBLBL")  # a DATA frame's header, and that of the message in it
LARGE_BYTES = 8 * 1024  # a larger part leaves without a copy
# Bytes on their way to the network at which calls wait, and those at which they go on. With asyncio's 64 KiB
# one message of 100 KB would stop all calls.
MOST_BUFFERED, FEW_BUFFERED = 2**20, 2**18
MAX_REPLIES = 1_000  # acknowledgements that a peer asks for between two writes, or does not read


class Outbox:
    """`max_frame_size` and the windows are the peer's; windows count bytes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = None
        self._out: list[bytes | memoryview] = []
        self._has_large = False
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None  # for replies that wait
        self._is_paused = False
        self._replies = 0  # not yet given to the network, or not read
        self._window = DEFAULT_WINDOW
        self._stream_window = DEFAULT_WINDOW
        self.max_frame_size = frames.MIN_FRAME_SIZE
        self._bodies: dict[int, Call] = {}  # calls whose sending has begun and not ended
        # Those of them that wait for the connection's window or the network; the others wait for their own
        # window, or have nothing to send.
        self._stalled: OrderedDict[int, Call] = OrderedDict()

    def attach(self, transport: asyncio.WriteTransport) -> None:
        transport.set_write_buffer_limits(high=MOST_BUFFERED, low=FEW_BUFFERED)
        self._transport = transport

    def detach(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport = None
        self._out.clear()
        self._bodies.clear()
        self._stalled.clear()

    @property
    def takes_calls(self) -> bool:
        """False while the network or the peer's window holds up what is there already."""
        return not self._is_paused and self.has_window

    @property
    def has_window(self) -> bool:
        return self._window > 0

    def write(self, data: bytes | memoryview) -> None:
        self._out.append(data)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.flush)

    def reply(self, data: bytes, wait_s: float = 0.0) -> None:
        """Writes what a frame of the peer asks for: with what else is sent within `wait_s`, or else then.
        Raises ConnectionFault for a flood of such frames."""
        self._replies += 1
        if self._replies > MAX_REPLIES:
            reason = f"more than {MAX_REPLIES} replies were asked for and not read"
            raise ConnectionFault(frames.ErrorCode.ENHANCE_YOUR_CALM, reason)
        if not wait_s:
            self.write(data)
            return
        self._out.append(data)
        if not self._is_scheduled and self._timer is None:
            self._timer = self._loop.call_later(wait_s, self._flush_replies)

    def _flush_replies(self) -> None:
        self._timer = None
        if not self._is_scheduled and self._transport is not None and not self._transport.is_closing():
            self.flush()

    def flush(self) -> None:
        self._is_scheduled = False
        if self._out and self._transport is not None:
            if self._has_large:
                self._transport.writelines(self._out)
            else:
                self._transport.write(b"".join(self._out))
        self._out.clear()
        self._has_large = False
        if not self._is_paused:
            self._replies = 0

    def request(self, call: UnaryCall, block: bytes) -> None:
        """Sends the header block and the message of a call."""
        message = call.request
        size = len(message) + PREFIX_BYTES
        limit = self.max_frame_size
        if size > self._window or size > self._stream_window or size > limit or len(block) > limit:
            call.begin_sending()
            self.open(call, block)
            self.send(call)
            return
        self._window -= size
        call.is_all_sent = True
        stream_id, length = call.stream_id, len(block)
        self._out += (
            HEADER.pack(length >> 8, length & 0xFF, HEADERS, END_HEADERS, stream_id),
            block,
            _DATA_AND_PREFIX.pack(
                size >> 8, size & 0xFF, DATA, END_STREAM, stream_id, 0, size - PREFIX_BYTES
            ),
        )
        if size > LARGE_BYTES:
            self._has_large = True
        self.write(message)

    def open(self, call: Call, block: bytes) -> None:
        """Sends a call's header block. Its messages follow by `send`."""
        call.send_window = self._stream_window
        self._bodies[call.stream_id] = call
        self.write(frames.headers(call.stream_id, block, self.max_frame_size))

    def send(self, call: Call) -> None:
        """Sends what the call has, as far as windows and network allow. The rest goes by itself later."""
        if call.stream_id not in self._bodies or call.stream_id in self._stalled:
            return
        if self._send_some(call):
            if call.has_waited:
                call.has_waited = False
                call.tell_drained()
            return
        call.has_waited = True
        if self._is_paused or self._window <= 0:
            self._stalled[call.stream_id] = call

    def forget(self, call: Call) -> None:
        """The call has ended."""
        self._bodies.pop(call.stream_id, None)
        self._stalled.pop(call.stream_id, None)

    def _send_some(self, call: Call) -> bool:
        """Whether nothing is left that waits."""
        while call.has_unsent:
            room = min(self._window, call.send_window, self.max_frame_size)
            if room <= 0 or self._is_paused:
                return False
            part = call.take(room)
            size = len(part)
            self._window -= size
            call.send_window -= size
            ends = call.ends_after_unsent and not call.has_unsent
            self._out.append(frames.header(DATA, END_STREAM if ends else 0, call.stream_id, size))
            if size > LARGE_BYTES:
                self._has_large = True
            self.write(part)
            if ends:
                self._all_sent(call)
        if call.ends_after_unsent and not call.is_all_sent:
            self.write(frames.frame(DATA, END_STREAM, call.stream_id, b""))
            self._all_sent(call)
        return True

    def _all_sent(self, call: Call) -> None:
        call.is_all_sent = True
        self._bodies.pop(call.stream_id, None)

    def _send_stalled(self) -> None:
        """The first sends until it is done or waits again, then the next."""
        while self._stalled and self._window > 0 and not self._is_paused:
            self.send(self._stalled.popitem(last=False)[1])

    def widen(self, stream_id: int, increment: int) -> None:
        """The peer's WINDOW_UPDATE; stream 0 is the connection. Raises ConnectionFault."""
        if stream_id == 0:
            self._window += increment
            if self._window > frames.MAX_WINDOW:
                raise ConnectionFault(
                    frames.ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large"
                )
            self._send_stalled()
            return
        call = self._bodies.get(stream_id)
        if call is None:
            return
        call.send_window += increment
        if call.send_window > frames.MAX_WINDOW:
            raise ConnectionFault(frames.ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is too large")
        self.send(call)

    def set_stream_window(self, size: int) -> None:
        """SETTINGS_INITIAL_WINDOW_SIZE, which moves open streams' windows, too. Raises ConnectionFault."""
        change, self._stream_window = size - self._stream_window, size
        for call in list(self._bodies.values()):
            call.send_window += change
            if call.send_window > frames.MAX_WINDOW:
                raise ConnectionFault(frames.ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is too large")
            self.send(call)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._replies = 0
        self._send_stalled()
