"""A client's connection and a server of `h2` in memory, on a clock that tests move.

Bytes move only when a test delivers them, in parts as small as it likes. Callbacks run only in
`ManualLoop.turn`. So each order of events can be tried, and every run repeats.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Self, TypeVarTuple

from h2.config import H2Configuration
from h2.connection import AllowedStreamIDs, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RequestReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes, Settings
from h2.stream import H2Stream
from h2.windows import WindowManager
from hyperframe.frame import GoAwayFrame

from app.grpc_client.calls import Call
from app.grpc_client.connection import Connection, ConnectionOptions
from app.grpc_client.deadlines import Deadlines
from app.grpc_client.frames import PREFACE
from app.grpc_client.header_encoder import Field, Fields
from app.grpc_client.status import StatusCode

_Ts = TypeVarTuple("_Ts")

MAX_WINDOW = 2**31 - 1
MAX_TURNS = 1_000  # of callbacks that add callbacks
PSEUDO: tuple[Field, ...] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test.Service/Method"),
    (b":authority", b"server.example"),
)
METHOD = Fields((*PSEUDO, (b"te", b"trailers"), (b"content-type", b"application/grpc")))
HEAD: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK: list[Field] = [(b"grpc-status", b"0")]


class ManualLoop(asyncio.AbstractEventLoop):
    """An event loop whose callbacks run in `turn`, and whose clock only `advance` moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.errors: list[str] = []  # what a real loop would log
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()

    @classmethod
    def new(cls) -> Self:
        """Makes one. It is abstract to a type checker: there is much that no connection needs."""
        return cls()

    def __enter__(self) -> Self:
        _set_running_loop(self)
        return self

    def __exit__(self, *_: object) -> None:
        _set_running_loop(None)

    def time(self) -> float:
        return self.now_s

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(f"{context['message']}: {context.get('exception')!r}")

    def turn(self) -> None:
        """Runs the callbacks that are due, and those that they add."""
        for _ in range(MAX_TURNS):
            while self._timers and self._timers[0][0] <= self.now_s:
                self._ready.append(heapq.heappop(self._timers)[2])
            if not self._ready:
                return
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        raise AssertionError("callbacks add callbacks without end")

    def advance(self, seconds: float) -> None:
        """Moves the clock. Timers on the way run at their time."""
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            self.now_s = max(self.now_s, self._timers[0][0])
            self.turn()
        self.now_s = end_s
        self.turn()


class MemoryTransport(asyncio.Transport):
    """Keeps what the client writes until a test takes it."""

    def __init__(self, loop: ManualLoop, protocol: Connection) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_lost = False
        self._loop = loop
        self._protocol = protocol
        self._is_closing = False
        self._is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._is_closing, "written after the connection was closed"
        assert data, "a write of nothing"
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """`pause` and `resume` say when the network takes more."""

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._is_paused:
                self._loop.call_soon(self.lose)

    def abort(self) -> None:
        self._is_closing = True
        self._loop.call_soon(self.lose)

    def lose(self, error: Exception | None = None) -> None:
        """The connection is gone, whoever ended it."""
        if not self.is_lost:
            self.is_lost = self._is_closing = True
            self._protocol.connection_lost(error)

    def pause(self) -> None:
        """The network takes no more."""
        if not self._is_paused and not self.is_lost:
            self._is_paused = True
            self._protocol.pause_writing()

    def resume(self) -> None:
        if self._is_paused and not self.is_lost:
            self._is_paused = False
            self._protocol.resume_writing()
            if self._is_closing:
                self._loop.call_soon(self.lose)


@dataclass(slots=True)
class ServerStream:
    """A call as the server sees it."""

    fields: list[Field]
    body: bytearray = field(default_factory=bytearray)
    has_request: bool = False  # the client's side has ended
    reset_code: int | None = None  # by the client
    has_ended: bool = False  # the server's side, or all of it
    acts: list[tuple[str, Any]] = field(default_factory=list)  # what the server sent, in order
    unsent: deque[tuple[bytes, int | None]] = field(default_factory=deque)  # DATA frames, and their padding
    trailers: list[Field] | None = None  # to be sent after those

    @property
    def is_open(self) -> bool:
        return not self.has_ended and self.reset_code is None

    @property
    def has_head(self) -> bool:
        return any(kind == "head" for kind, _ in self.acts)


class Window(WindowManager):
    """Takes an empty frame while the window is below 0, as RFC 9113, 6.9.1 wants it; `h2` raises."""

    def window_consumed(self, size: int) -> None:
        if size:
            super().window_consumed(size)


class ServerConnection(H2Connection):
    def _begin_new_stream(self, stream_id: int, allowed_ids: AllowedStreamIDs) -> H2Stream:
        stream = super()._begin_new_stream(stream_id, allowed_ids)
        stream._inbound_window_manager = Window(self.local_settings.initial_window_size)
        return stream


class MemoryServer:
    """A server of `h2`, which raises when the client breaks HTTP/2. A test says what it answers."""

    def __init__(self, settings: Mapping[SettingCodes, int] | None = None) -> None:
        self.h2 = ServerConnection(H2Configuration(client_side=False, header_encoding=None))
        given = {SettingCodes.MAX_CONCURRENT_STREAMS: 100, **(settings or {})}
        self.h2.local_settings = Settings(client=False, initial_values=given)
        self.h2.max_inbound_frame_size = self.h2.local_settings.max_frame_size
        self.streams: dict[int, ServerStream] = {}
        self.unread = bytearray()  # sent, and not at the client yet
        self.awaits_settings = True  # until the client has acknowledged them
        self._window_growth = 0  # of all streams, by settings that the client has yet to acknowledge
        self._unparsed = bytearray()
        self.acknowledged_pings: list[bytes] = []
        self.goaway: ConnectionTerminated | None = None  # the client's
        self.last_stream_id = MAX_WINDOW  # of this server's own GOAWAY
        self.h2.initiate_connection()
        self.flush()

    @property
    def is_alive(self) -> bool:
        return self.goaway is None

    def flush(self) -> None:
        self.unread += self.h2.data_to_send()

    def receive(self, data: bytes) -> list[Event]:
        """Takes bytes of the client. Raises an error of `h2` where they break the protocol."""
        self._unparsed += data
        events = list[Event]()
        while frame := self._next_frame():
            # One at a time: `h2` takes new settings into account only for the bytes that come next.
            events += self.h2.receive_data(frame)
        for event in events:
            self._on_event(event)
        self.flush()
        return events

    def _next_frame(self) -> bytes:
        """The next whole frame, or the preface; empty: none is there yet."""
        size = (
            len(PREFACE) if self._unparsed.startswith(b"P") else 9 + int.from_bytes(self._unparsed[:3], "big")
        )
        if len(self._unparsed) < size:
            return b""
        taken = bytes(self._unparsed[:size])
        del self._unparsed[:size]
        return taken

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self.streams[event.stream_id] = ServerStream([(bytes(n), bytes(v)) for n, v in event.headers])
        elif isinstance(event, DataReceived):
            self.streams[event.stream_id].body += event.data
        elif isinstance(event, StreamEnded):
            self.streams[event.stream_id].has_request = True
        elif isinstance(event, StreamReset):
            if event.remote_reset:
                self.streams[event.stream_id].reset_code = int(event.error_code)
        elif isinstance(event, SettingsAcknowledged):
            self.awaits_settings = False
            self._window_growth = 0
        elif isinstance(event, PingAckReceived):
            self.acknowledged_pings.append(event.ping_data)
        elif isinstance(event, ConnectionTerminated):
            self.goaway = event

    def head(self, stream_id: int, fields: list[Field] | None = None) -> None:
        self._act(stream_id, "head", fields or HEAD)
        self.h2.send_headers(stream_id, fields or HEAD)
        self.flush()

    def interim(self, stream_id: int) -> None:
        self.h2.send_headers(stream_id, [(b":status", b"103"), (b"link", b"<style.css>")])
        self.flush()

    def end(self, stream_id: int, fields: list[Field]) -> None:
        """Trailers; without a head before them, this is the whole answer."""
        self._act(stream_id, "end", fields, ends=True)
        self.h2.send_headers(stream_id, fields, end_stream=True)
        self.flush()

    def data(self, stream_id: int, data: bytes, padding: int | None = None, *, ends: bool = False) -> bool:
        """A DATA frame. False: the client's window has no room for it."""
        size = len(data) + (0 if padding is None else padding + 1)
        if size > self.h2.local_flow_control_window(stream_id):
            return False
        self.h2.send_data(stream_id, data, end_stream=ends, pad_length=padding)
        self._act(stream_id, "data", data, ends=ends)
        self.flush()
        return True

    def reset(self, stream_id: int, code: int) -> None:
        self._act(stream_id, "reset", code, ends=True)
        self.h2.reset_stream(stream_id, code)
        self.flush()

    def _act(self, stream_id: int, kind: str, value: object, *, ends: bool = False) -> None:
        stream = self.streams[stream_id]
        stream.acts.append((kind, value))
        if ends and kind == "data":
            stream.acts.append(("data end", None))
        stream.has_ended |= ends

    def go_away(self, last_stream_id: int, code: int = ErrorCodes.NO_ERROR, words: bytes = b"") -> None:
        """Says that it takes no more calls, and goes on; `h2` itself would stop."""
        self.last_stream_id = min(self.last_stream_id, last_stream_id)
        self.unread += GoAwayFrame(0, last_stream_id, int(code), words).serialize()

    def window(self, stream_id: int) -> int:
        """What the client may send on a stream, or on the connection (0), as `h2` counts it."""
        if stream_id == 0:
            return int(self.h2._inbound_flow_control_window_manager.current_window_size)
        return int(self.h2.streams[stream_id]._inbound_window_manager.current_window_size)

    def widen(self, stream_id: int, increment: int) -> None:
        """A WINDOW_UPDATE, as far as a window may grow."""
        growth = self._window_growth if stream_id else 0
        increment = min(increment, MAX_WINDOW - self.window(stream_id) - growth)
        if increment > 0:
            self.h2.increment_flow_control_window(increment, stream_id or None)
            self.flush()

    def change(self, settings: Mapping[SettingCodes, int]) -> None:
        """Sends new settings. `h2` confuses two changes at once."""
        assert not self.awaits_settings
        self.awaits_settings = True
        window = self.h2.local_settings.initial_window_size
        self._window_growth = max(0, settings.get(SettingCodes.INITIAL_WINDOW_SIZE, window) - window)
        self.h2.update_settings({int(name): value for name, value in settings.items()})
        self.flush()


class Pair:
    """A connection and its server, and the bytes between them."""

    def __init__(
        self,
        loop: ManualLoop,
        owner: Pool,
        options: ConnectionOptions | None = None,
        settings: Mapping[SettingCodes, int] | None = None,
    ) -> None:
        self.loop = loop
        self.owner = owner
        self.connection = Connection(owner, "server.example:50051", options or ConnectionOptions())
        self.transport = MemoryTransport(loop, self.connection)
        self.server = MemoryServer(settings)
        self.received_bytes = 0  # by the client
        self.connection.connection_made(self.transport)

    def to_server(self, size: int | None = None) -> list[Event]:
        """Delivers the next bytes of the client; None: all."""
        taken = bytes(self.transport.written[:size])
        del self.transport.written[: len(taken)]
        return self.server.receive(taken) if taken else []

    def to_client(self, size: int | None = None) -> None:
        """Delivers the next bytes of the server; None: all. A connection that is closed gets none."""
        taken = bytes(self.server.unread[:size])
        del self.server.unread[: len(taken)]
        self.received_bytes += len(taken)
        was_ready = self.connection.is_ready
        if taken and not self.transport.is_closing():
            self.connection.data_received(taken)
        if self.connection.is_ready and not was_ready:
            self.owner.start_waiting()  # a channel awaits this; afterwards it is told of room

    def settle(self) -> None:
        """Delivers all there is, until nothing moves any more."""
        for _ in range(MAX_TURNS):
            self.loop.turn()
            if not (self.transport.written or self.server.unread):
                return
            self.to_server()
            self.to_client()
        raise AssertionError("client and server answer each other without end")


class Pool:
    """What a channel does for its calls, without connecting: they wait for room, expire and move."""

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.current: Pair | None = None
        self.waiting: deque[Call] = deque()
        self.deadlines: Deadlines[Call] = Deadlines(loop, self.expire)
        self.drained: list[Connection] = []
        self.lost: set[Connection] = set()
        self.expired: list[Call] = []
        self.moved: list[Call] = []
        self.pauses_s: list[float] = []

    def begin(self, call: Call, timeout_s: float | None = None) -> None:
        if timeout_s is not None:
            call.deadline_s = self.loop.time() + timeout_s
            call.slot = self.deadlines.add(call, call.deadline_s)
        self.waiting.append(call)
        self.start_waiting()

    def start_waiting(self) -> None:
        while self.waiting and self.current is not None and self.current.connection.has_room:
            self.current.connection.start(self.waiting.popleft())

    def expire(self, call: Call) -> None:
        self.expired.append(call)
        call.give_up(StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")

    def ended(self, call: Call) -> None:
        if call.slot >= 0:
            self.deadlines.remove(call, call.slot)
        if call in self.waiting:
            self.waiting.remove(call)

    def on_room(self, connection: Connection) -> None:
        if self.current is not None and self.current.connection is connection:
            self.start_waiting()

    def on_draining(self, connection: Connection) -> None:
        self.drained.append(connection)

    def on_lost(self, connection: Connection) -> None:
        assert connection not in self.lost
        assert not connection.calls
        self.lost.add(connection)

    def move(self, call: Call, pause_s: float) -> bool:
        assert call.code is None, "a call that has ended was moved"
        if not call.begin_again():
            return False
        self.moved.append(call)
        self.pauses_s.append(pause_s)  # which a channel keeps
        self.waiting.appendleft(call)
        self.loop.call_soon(self.start_waiting)
        return True


def body(messages: Iterable[bytes]) -> bytes:
    """Messages as DATA frames carry them."""
    return b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in messages)
