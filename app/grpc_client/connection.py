"""One HTTP/2 connection to a server. It ends by itself when the server breaks the rules.

Source: RFC 9113, and gRPC's "PROTOCOL-HTTP2" and "keepalive".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, cast

from app.grpc_client import frames
from app.grpc_client.answers import End, Head, is_interim, read_end, read_head
from app.grpc_client.calls import Call, Loss, UnaryCall
from app.grpc_client.frames import ConnectionFault, ErrorCode
from app.grpc_client.header_decoder import FieldList, HeaderDecoder, HeadersTooLarge
from app.grpc_client.header_encoder import Field, HeaderEncoder, header_list_size
from app.grpc_client.outbox import Outbox
from app.grpc_client.status import StatusCode, code_of_reset
from app.grpc_client.tls import CERTIFICATE_REMEDY

PLAIN_REMEDY = "if it speaks TLS, connect with TLS"
CONNECTION_WINDOW = 16 * 2**20
MAX_HEADER_BLOCK_FRAMES = 64  # HEADERS and CONTINUATION, which may be empty
MAX_EMPTY_FRAMES = 1_000  # in a row: DATA that brings nothing, and informational answers
MAX_RESETS = 100  # in a row, without any answer
MAX_QUOTED = 60
REFUSAL_PAUSE_S = 0.01  # before a call that the server refused goes on; it doubles with each refusal
CANCELLED_PAUSE_S = 0.01  # until a GOAWAY comes that explains why the server cancelled a call
TIMEOUT_UNIT_S = 0.001  # of `grpc-timeout`: a server's deadline may be this much earlier
ABORT_AFTER_S = 1.0
# Until a PING of the server is answered, if nothing else is sent before: grpc-go and gRPC-Java send one with
# nearly every answer to a call, to learn how much they may send.
PING_ACK_WAIT_S = 0.005
KEEPALIVE_S = 310.0  # servers may forbid more than one ping in five minutes
KEEPALIVE_TIMEOUT_S = 10.0
MAX_KEEPALIVE_S = 7_200.0
TOO_MANY_PINGS = b"too_many_pings"
_KEEPALIVE = b"keepaliv"


@dataclass(slots=True)
class Keepalive:
    """When a silent server is asked whether it is there. The connections to a server share one, because it
    may find that they ask too often.

    Attributes:
        time_s: After this long without a sign of the server it gets a ping; without calls the connection is
            closed.
        timeout_s: A server that does not answer the ping is gone. So is one whose system acknowledges nothing
            of what was sent, for this long (TCP_USER_TIMEOUT, where the system has it).
    """

    time_s: float = KEEPALIVE_S
    timeout_s: float = KEEPALIVE_TIMEOUT_S

    def slow_down(self) -> None:
        """The server ended a connection because of its pings (gRPC's "keepalive": the time doubles)."""
        self.time_s = max(self.time_s, min(2 * self.time_s, MAX_KEEPALIVE_S))


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Limits of one connection. Sizes are bytes, times seconds.

    Attributes:
        max_message_bytes: Of one message of an answer.
        max_header_bytes: Of one header block of an answer, decompressed, by RFC 9113's count. A larger one
            ends its call; one that is many times larger ends the connection.
        max_streams: Calls at once, also where the server allows more.
        keepalive: When a silent server is asked whether it is there.
    """

    max_message_bytes: int = 4 * 2**20
    max_header_bytes: int = 64 * 1024
    max_streams: int = 1_000
    keepalive: Keepalive = field(default_factory=Keepalive)


class _Cancelled(NamedTuple):
    """A call that the server cancelled by its trailers, or by a reset (`is_local`)."""

    call: Call
    message: str
    fields: FieldList
    is_local: bool


class Owner(Protocol):
    """Whom a connection tells."""

    def on_room(self, connection: Connection) -> None:
        """A call ended, or the server takes more."""

    def on_draining(self, connection: Connection) -> None:
        """It takes no more calls. Those under way may go on."""

    def on_lost(self, connection: Connection) -> None:
        """It is closed, and each of its calls has ended. `on_draining` came before."""

    def move(self, call: Call, pause_s: float) -> bool:
        """Takes a call that the server has not begun, to go on after the pause. False: it is to end."""


class Connection(asyncio.Protocol):
    """Made for a transport that is open, TLS included. `peer` names the server in reasons."""

    def __init__(self, owner: Owner, peer: str, options: ConnectionOptions) -> None:
        self._owner = owner
        self._peer = peer
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._outbox = Outbox(self._loop)
        self._encoder = HeaderEncoder()
        self._decoder = HeaderDecoder(options.max_header_bytes)
        self._rest = b""
        self.calls: dict[int, Call] = {}
        self._next_stream_id = 1
        self._max_streams = options.max_streams
        self._max_header_list: int | None = None  # what the server takes
        wanted = options.max_message_bytes + frames.MIN_FRAME_SIZE
        self._stream_window = min(max(frames.DEFAULT_WINDOW, wanted), frames.MAX_WINDOW)
        self._unacknowledged = 0  # bytes of DATA whose window the server did not get back
        self._empty_frames = self._resets = 0
        self._block: list[bytes] | None = None  # parts of a header block that goes on
        self._block_stream, self._block_flags = 0, 0
        self._head: Head | None = None  # the last ones, as answers are alike
        self._end: End | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.is_ready = False
        self.is_draining = False
        self._goaway = ""  # why it drains, in the server's words or this client's
        self._last_stream_id = frames.MAX_STREAM_ID  # that the server may still work on
        self.is_planned = False  # its end, by the server
        self.is_left = False  # this client takes it for no more calls
        self._reason = ""
        self._cancelled: list[_Cancelled] = []  # by the server, and not told yet
        self._keepalive: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        self._awaits_ping = False
        self._is_secure = False

    # asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base
        self._is_secure = transport.get_extra_info("ssl_object") is not None
        self._outbox.attach(self._transport)
        self._outbox.write(
            frames.PREFACE
            + frames.settings(
                {
                    frames.ENABLE_PUSH: 0,
                    frames.INITIAL_WINDOW_SIZE: self._stream_window,
                    frames.MAX_HEADER_LIST_SIZE: self._options.max_header_bytes,
                }
            )
            + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
        )
        self._heard_s = self._loop.time()
        self._set_keepalive(self._options.keepalive.time_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
        self._outbox.detach()
        self._transport = None
        reason = self._reason or self._goaway or self._why_lost(exc)
        self._tell_draining()
        self._end_cancelled()
        loss = Loss.PLANNED if self.is_planned else Loss.BROKEN
        for call in list(self.calls.values()):
            self._end_call(
                call, StatusCode.UNAVAILABLE, f"the connection to {self._peer} ended: {reason}", loss
            )
        if not self._ready.done():
            self._ready.set_exception(ConnectionResetError(reason))
            self._ready.exception()  # nobody may wait for it any more
        self._owner.on_lost(self)

    def _why_lost(self, error: Exception | None) -> str:
        if not self.is_ready and self._rest:
            return _no_http2(self._rest)
        why = f"{type(error).__name__}: {error}" if error else "the server closed it"
        return why if self.is_ready else f"{why}; {CERTIFICATE_REMEDY if self._is_secure else PLAIN_REMEDY}"

    def eof_received(self) -> None:
        """The server sends nothing any more. What is not yet sent to it must not delay the end."""
        self._drain(self._goaway or self._why_lost(None), is_planned=self.is_planned)
        self._loop.call_later(ABORT_AFTER_S, self._abort)

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()
        self._owner.on_room(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return  # TLS may bring more; after a fault it would be read as other frames than it is
        self._heard_s = self._loop.time()
        if self._rest:
            data = self._rest + data
            self._rest = b""
        try:
            self._read(data)
        except ConnectionFault as fault:
            self._fail(fault.code, str(fault))

    async def wait_ready(self) -> None:
        """Until the server's settings came, so that calls may start. Raises ConnectionResetError."""
        await self._ready

    # Calls

    @property
    def is_fruitless(self) -> bool:
        """Whether no call was answered here."""
        return self._head is None

    @property
    def is_full(self) -> bool:
        """Whether the server allows no more calls at once."""
        return len(self.calls) >= self._max_streams

    @property
    def has_room(self) -> bool:
        return (
            self.is_ready
            and not self.is_draining
            and len(self.calls) < self._max_streams
            and self._outbox.takes_calls
        )

    def start(self, call: Call) -> None:
        """Begins a call; only while there is room."""
        metadata = call.metadata
        if call.deadline_s is not None:
            metadata = [(b"grpc-timeout", grpc_timeout(call.deadline_s - self._loop.time())), *metadata]
        if self._max_header_list is not None and not self._fits(call, metadata, self._max_header_list):
            return
        block = self._encoder.encode(call.fields, metadata)
        stream_id = self._next_stream_id
        self._next_stream_id = stream_id + 2
        call.connection, call.stream_id = self, stream_id
        self.calls[stream_id] = call
        if isinstance(call, UnaryCall):
            self._outbox.request(call, block)
        else:
            self._outbox.open(call, block)
            self._loop.call_soon(self._outbox.send, call)  # later, as `on_drained` may come of it
        if self._next_stream_id > frames.MAX_STREAM_ID:
            self._drain_here("its stream numbers are used up")

    def send_body(self, call: Call) -> None:
        self._outbox.send(call)

    def reset(self, call: Call, code: ErrorCode) -> None:
        """Tells the server that a call is given up. The caller ends the call."""
        self._outbox.write(frames.rst_stream(call.stream_id, code))
        self._forget(call)

    def acknowledge(self, call: Call) -> None:
        """Gives the server the window of a call back, for what came."""
        if call.unacknowledged:
            self._outbox.write(frames.window_update(call.stream_id, call.unacknowledged))
            call.unacknowledged = 0

    def expired(self, call: Call) -> None:
        """The call's deadline has passed. A server that leaves no window for all calls takes no others."""
        if not call.is_all_sent and not self._outbox.has_window:
            self._drain_here("the server leaves no window for what is to be sent")

    def drain(self) -> None:
        """Takes no more calls, and closes when those under way have ended."""
        self._drain_here("this client closes it")

    def close(self, reason: str) -> None:
        """Closes at once. Calls under way end."""
        self._fail(ErrorCode.NO_ERROR, reason)

    def _fits(self, call: Call, metadata: Sequence[Field], limit: int) -> bool:
        """Whether the server takes the call's headers; if not, the call ends soon."""
        size = call.fields.size + header_list_size(metadata)
        if size <= limit:
            return True
        reason = f"the call's metadata has {size} bytes, and the server takes {limit}"
        self._loop.call_soon(call.refuse_metadata, reason)
        return False

    def _forget(self, call: Call) -> None:
        if self.calls.pop(call.stream_id, None) is None:
            return
        if not call.is_all_sent:
            self._outbox.forget(call)
        call.connection = None
        if self.is_draining:
            if not self.calls:
                self._loop.call_soon(self._close_if_idle)
        else:
            self._owner.on_room(self)

    def _end_call(self, call: Call, code: StatusCode, message: str, loss: Loss) -> None:
        self._forget(call)
        call.finish(code, message, loss=loss, is_planned=loss is Loss.PLANNED, is_local=True)

    def _refused(self, call: Call, message: str, pause_s: float) -> None:
        """The server has not begun this call."""
        self._forget(call)
        if not self._owner.move(call, pause_s):
            call.finish(
                StatusCode.UNAVAILABLE,
                message,
                loss=Loss.UNPROCESSED,
                is_planned=self.is_planned,
                is_local=True,
            )

    # What comes

    def _read(self, data: bytes) -> None:
        at, end = 0, len(data)
        unpack, size = frames.HEADER.unpack_from, frames.HEADER_BYTES
        while end - at >= size:
            high, low, kind, flags, stream_id = unpack(data, at)
            length = high << 8 | low
            if not self.is_ready and kind != frames.SETTINGS:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, _no_http2(data))
            if length > frames.MIN_FRAME_SIZE:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            begin, at_next = at + size, at + size + length
            if at_next > end:
                break
            self._on_frame(kind, flags, stream_id & frames.MAX_STREAM_ID, data[begin:at_next])
            at = at_next
        self._rest = data[at:]

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block_stream):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame within a header block")
        if kind == frames.HEADERS:
            self._on_headers(flags, stream_id, frames.unpadded(flags, payload, may_have_priority=True))
        elif kind == frames.DATA:
            self._on_data(flags, stream_id, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == frames.CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == frames.RST_STREAM:
            self._on_reset(stream_id, payload)
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, though push is off")
        elif kind == frames.PRIORITY:
            pass
        elif kind in (frames.SETTINGS, frames.PING, frames.GOAWAY):
            if stream_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"frame type {kind} on a stream")
            self._on_control(kind, flags, payload)

    def _on_control(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == frames.SETTINGS:
            self._on_settings(flags, payload)
        elif kind == frames.GOAWAY:
            self._on_goaway(payload)
        elif len(payload) != frames.PING_BYTES:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a PING of {len(payload)} bytes")
        elif flags & frames.ACK:
            if self._awaits_ping:
                self._awaits_ping = False
                self._set_keepalive(self._options.keepalive.time_s)
        else:
            self._outbox.reply(frames.ping(payload, frames.ACK), PING_ACK_WAIT_S)

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            if payload or not self.is_ready:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a SETTINGS acknowledgement that is none")
            return
        changes = frames.parse_settings(payload)
        self._outbox.reply(frames.SETTINGS_ACK)  # first: what follows may use the new values at once
        window: int | None = None
        for name, value in changes:
            if name == frames.MAX_CONCURRENT_STREAMS:
                self._max_streams = min(value, self._options.max_streams)
            elif name == frames.INITIAL_WINDOW_SIZE:
                window = value  # the last one counts; each costs a look at all open streams
            elif name == frames.MAX_FRAME_SIZE_ID:
                self._outbox.max_frame_size = value
            elif name == frames.HEADER_TABLE_SIZE:
                self._encoder.limit_table(value)
            elif name == frames.MAX_HEADER_LIST_SIZE:
                self._max_header_list = value
        if window is not None:
            self._outbox.set_stream_window(window)
        if self.is_ready:
            self._owner.on_room(self)
        else:
            self.is_ready = True
            if not self._ready.done():
                self._ready.set_result(None)

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        increment = frames.parse_long("WINDOW_UPDATE", payload) & frames.MAX_WINDOW
        self._check_stream(stream_id)
        if increment:
            self._outbox.widen(stream_id, increment)
            if stream_id == 0:
                self._owner.on_room(self)
        elif stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a WINDOW_UPDATE of 0")
        elif call := self.calls.get(stream_id):
            self._break_call(call, ErrorCode.PROTOCOL_ERROR, "the server sent a WINDOW_UPDATE of 0")

    def _on_goaway(self, payload: bytes) -> None:
        last, code, debug = frames.parse_goaway(payload)
        text = _printable(debug)
        said = f"GOAWAY {frames.code_name(code)}" + (f" ({text})" if text else "")
        is_pinged = code == ErrorCode.ENHANCE_YOUR_CALM and debug == TOO_MANY_PINGS
        if is_pinged:
            self._options.keepalive.slow_down()
        # The server closes the connection when it is done. A call that is lost with it is lost by plan. One
        # that is lost because of our pings is not to blame, either.
        self._drain(said, is_planned=is_pinged or code == ErrorCode.NO_ERROR)
        if last >= self._last_stream_id:
            return
        self._last_stream_id = last
        for stream_id, call in list(self.calls.items()):
            if stream_id > last and call.code is None:  # a caller may end others when its own ends
                self._refused(call, f"{self._peer} took no more calls: {said}", 0.0)

    def _on_reset(self, stream_id: int, payload: bytes) -> None:
        code = frames.parse_long("RST_STREAM", payload)
        self._check_stream(stream_id, may_be_connection=False)
        call = self.calls.get(stream_id)
        if call is None:
            return
        reason = f"{self._peer} reset the call: {frames.code_name(code)}"
        if code != ErrorCode.REFUSED_STREAM or len(self.calls) == 1:  # others may keep the server busy
            self._resets += 1
        if self._resets == MAX_RESETS:
            self._drain_here(f"the server reset {MAX_RESETS} calls in a row")
        if code == ErrorCode.REFUSED_STREAM and call.head is None:
            self._refused(call, reason, REFUSAL_PAUSE_S * 2**call.moves)
            return
        status = self._due_or(code_of_reset(code), call)
        if status is StatusCode.CANCELLED:
            self._forget(call)
            self._was_cancelled(_Cancelled(call, reason, (), is_local=True))
        else:
            self._end_call(call, status, reason, Loss.BROKEN)

    def _due_or(self, code: StatusCode, call: Call) -> StatusCode:
        """A server keeps a call's deadline, too, and may be first to cancel it (so reads it the C core)."""
        if code is not StatusCode.CANCELLED or call.deadline_s is None:
            return code
        is_due = self._loop.time() >= call.deadline_s - TIMEOUT_UNIT_S
        return StatusCode.DEADLINE_EXCEEDED if is_due else code

    def _on_headers(self, flags: int, stream_id: int, block: bytes) -> None:
        self._check_stream(stream_id, may_be_connection=False)
        if flags & frames.END_HEADERS:
            self._on_block(stream_id, block, ends=bool(flags & frames.END_STREAM))
        else:
            self._block, self._block_stream, self._block_flags = [block], stream_id, flags

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a CONTINUATION without a header block")
        block.append(payload)
        # Coded, a block is smaller than the fields it has.
        if len(block) > MAX_HEADER_BLOCK_FRAMES or sum(map(len, block)) > self._decoder.max_read_size:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "an answer's header block is too large")
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(
                self._block_stream, b"".join(block), ends=bool(self._block_flags & frames.END_STREAM)
            )

    def _on_block(self, stream_id: int, block: bytes, *, ends: bool) -> None:
        call = self.calls.get(stream_id)
        try:
            fields = self._decoder.decode(block)
        except HeadersTooLarge as error:
            if call is not None:
                self._leave(call, ends=ends)
                call.refuse_answer(str(error))
            return
        if call is None:
            return
        if call.head is None:
            if self._head is None or self._head.fields is not fields:
                if is_interim(fields):
                    if ends:
                        self._break_call(
                            call, ErrorCode.PROTOCOL_ERROR, "an informational answer ends the call"
                        )
                    self._count_empty()
                    return
                self._head = read_head(fields)
            call.head = self._head
            self._resets = 0
            if call.head.refusal:
                self._refuse(call, call.head, ends=ends)
                return
            if not ends:
                return
        elif not ends:
            self._break_call(
                call, ErrorCode.PROTOCOL_ERROR, "the server sent trailers that do not end the call"
            )
            return
        if self._end is None or self._end.fields is not fields:
            self._end = read_end(fields)
        self._finish(call, self._end)

    def _leave(self, call: Call, *, ends: bool) -> None:
        """Forgets a call that has its outcome. `ends`: its answer has ended."""
        if not ends or not call.is_all_sent:
            # The rest of the answer, or of the message that it came before, would be in vain.
            self._outbox.write(frames.rst_stream(call.stream_id, ErrorCode.CANCEL))
        self._forget(call)

    def _refuse(self, call: Call, head: Head, *, ends: bool) -> None:
        """What answers is no gRPC server: none of its fields are trailers of gRPC's."""
        self._leave(call, ends=ends)
        call.finish(head.code, head.refusal)

    def _finish(self, call: Call, end: End) -> None:
        self._leave(call, ends=True)
        if end.code is StatusCode.OK and (missing := call.missing):
            call.finish(StatusCode.INTERNAL, missing, end.fields, is_local=True)
            return
        code = self._due_or(end.code, call)
        if code is StatusCode.CANCELLED:
            self._was_cancelled(_Cancelled(call, end.message, end.fields, is_local=False))
        else:
            call.finish(code, end.message, end.fields)

    def _was_cancelled(self, cancelled: _Cancelled) -> None:
        """A server that goes cancels what it cannot finish. The C core's may do so just before its GOAWAY."""
        self._cancelled.append(cancelled)
        if self._goaway:
            self._end_cancelled()
        elif len(self._cancelled) == 1:
            self._loop.call_later(CANCELLED_PAUSE_S, self._end_cancelled)

    def _end_cancelled(self) -> None:
        ended, self._cancelled = self._cancelled, []
        is_planned = self.is_planned
        for call, message, fields, is_local in ended:
            loss = Loss.PLANNED if is_planned else Loss.BROKEN if is_local else Loss.NONE
            call.finish(
                StatusCode.CANCELLED, message, fields, loss=loss, is_planned=is_planned, is_local=is_local
            )

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._check_stream(stream_id, may_be_connection=False)
        size = len(payload)
        self._unacknowledged += size
        if self._unacknowledged > CONNECTION_WINDOW // 2:
            self._outbox.write(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        if flags & frames.PADDED:
            payload = frames.unpadded(flags, payload)
        if payload or flags & frames.END_STREAM:
            self._empty_frames = 0
        else:
            self._count_empty()
        call = self.calls.get(stream_id)
        if call is None:
            return
        if call.head is None:
            self._break_call(call, ErrorCode.PROTOCOL_ERROR, "the server sent data before headers")
            return
        call.unacknowledged += size
        if call.unacknowledged > self._stream_window:
            self._break_call(
                call, ErrorCode.FLOW_CONTROL_ERROR, "the server sent more than its window allows"
            )
            return
        if payload and not call.read(payload, self._options.max_message_bytes):
            return
        if flags & frames.END_STREAM:
            self._break_call(call, ErrorCode.NO_ERROR, "the answer ended without a gRPC status")
        elif call.unacknowledged > self._stream_window // 2 and call.is_reading:
            self.acknowledge(call)

    def _count_empty(self) -> None:
        self._empty_frames += 1
        if self._empty_frames > MAX_EMPTY_FRAMES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without data")

    def _break_call(self, call: Call, code: ErrorCode, reason: str) -> None:
        """Ends a call whose server broke the rules for it alone."""
        self.reset(call, code)
        call.finish(StatusCode.INTERNAL, reason, loss=Loss.BROKEN, is_local=True)

    def _check_stream(self, stream_id: int, *, may_be_connection: bool = True) -> None:
        if stream_id == 0:
            if not may_be_connection:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream's frame on the connection")
        elif stream_id >= self._next_stream_id or not stream_id & 1:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"a frame for stream {stream_id}, which no call opened"
            )

    # Its end

    def _drain_here(self, why: str) -> None:
        """The server has no plan to end it: if it breaks meanwhile, its calls are broken."""
        if not self.is_draining:
            self.is_left = True
            self._drain(why, is_planned=False)

    def _drain(self, said: str, *, is_planned: bool) -> None:
        self._goaway, self.is_planned = said, is_planned
        self._tell_draining()
        self._loop.call_soon(self._close_if_idle)

    def _tell_draining(self) -> None:
        if not self.is_draining:
            self.is_draining = True
            self._owner.on_draining(self)

    def _close_if_idle(self) -> None:
        if not self.calls and self._transport is not None:
            self._fail(ErrorCode.NO_ERROR, self._goaway)

    def _fail(self, code: ErrorCode, reason: str) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._reason = reason
        if code:
            self.is_planned = False
        self._tell_draining()
        self._outbox.write(frames.goaway(0, code, reason if code else ""))
        self._outbox.flush()
        self._outbox.detach()
        self._transport.close()
        # A server that does not read must not keep the connection, or its calls, for long.
        self._loop.call_later(ABORT_AFTER_S, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Keepalive

    def _set_keepalive(self, after_s: float) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
        self._keepalive = self._loop.call_later(after_s, self._on_keepalive)

    def _on_keepalive(self) -> None:
        if self._transport is None:
            return
        keepalive = self._options.keepalive
        silent_s = self._loop.time() - self._heard_s
        if self._awaits_ping and silent_s >= keepalive.timeout_s:
            self._reason = f"it did not answer a ping for {keepalive.timeout_s:g} s"
            self.is_planned = False
            self._transport.abort()
        elif self._awaits_ping:
            self._set_keepalive(keepalive.timeout_s - silent_s)
        elif silent_s < keepalive.time_s:
            self._set_keepalive(keepalive.time_s - silent_s)
        elif self.calls:
            self._awaits_ping = True
            self._outbox.write(frames.ping(_KEEPALIVE))
            self._set_keepalive(keepalive.timeout_s)
        else:
            self._drain_here("it had no calls")  # servers do not like pings without calls


def grpc_timeout(left_s: float) -> bytes:
    """The header `grpc-timeout`: at most eight digits and a unit. Never 0, which servers refuse."""
    milliseconds = max(1, int(left_s * 1_000))
    if milliseconds < 100_000_000:
        return b"%dm" % milliseconds
    return b"%dS" % min(milliseconds // 1_000, 99_999_999)


def _printable(text: bytes) -> str:
    """What a peer said, for people: it may be anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200].decode(errors="replace"))


def _no_http2(data: bytes) -> str:
    if data[:2] == b"\x15\x03":
        return "the server speaks TLS; say so in the target"
    if data[:5] == b"HTTP/":
        return f"the server speaks HTTP/1, not HTTP/2: {_printable(data[:MAX_QUOTED].splitlines()[0])!r}"
    return f"the server does not speak HTTP/2: it begins with {data[:16]!r}"
