"""Connections against `h2` as their server, through all that either side may do, in any order.

The server raises an error when the client breaks HTTP/2 or its flow control. The machine compares what the
server gets with what was sent, and each call's outcome with what the server sent before it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

from h2.errors import ErrorCodes
from h2.events import DataReceived, RequestReceived, StreamEnded
from h2.settings import SettingCodes
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.grpc_client.calls import Call, Loss, StreamCall, UnaryCall
from app.grpc_client.connection import CANCELLED_PAUSE_S, Connection, ConnectionOptions, Keepalive
from app.grpc_client.header_encoder import Field, header_list_size
from app.grpc_client.status import StatusCode, code_of_reset
from tests.examples import as_profile
from tests.grpc_client.memory import (
    HEAD,
    MAX_WINDOW,
    METHOD,
    OK,
    ManualLoop,
    Pair,
    Pool,
    ServerStream,
    body,
)

OPTIONS = ConnectionOptions(max_message_bytes=40_000, max_streams=20, keepalive=Keepalive(1e9))
FRAME_BYTES = 16_384
MAX_FRAMES = 8  # of one message, else examples take too long
MAX_CALLS = 40
WIDE = 2**20
ROUNDS = 1_000  # until all calls must have ended
NUMBER = b"x-call"
HEADS: dict[str, list[Field]] = {
    "grpc": HEAD,
    "other": [(b":status", b"200"), (b"content-type", b"text/html")],
    "http": [(b":status", b"503")],
}

aims = st.integers(0, 9)
sizes = st.one_of(
    st.integers(0, 40),
    st.sampled_from([16_379, 16_380, 39_990, 40_000, 40_001, 65_530, 65_531, 70_000, 150_000]),
)
parts = st.one_of(st.none(), st.integers(1, 30), st.sampled_from([1_000, 16_393, 40_000]))
timeouts = st.sampled_from([None, None, None, None, None, -1.0, 0.03, 5.0])
increments = st.one_of(st.integers(1, 200), st.sampled_from([16_384, 65_535, 10**6, MAX_WINDOW]))
metadata_lists = st.lists(
    st.tuples(
        st.sampled_from([b"x-a", b"x-b", b"traceparent", b"key-bin"]),
        st.one_of(
            st.sampled_from([b"", b"v" * 126, b"v" * 127, b"v" * 20_000]),
            st.from_regex(rb"[a-zA-Z0-9+/]{0,9}", fullmatch=True),
        ),
    ),
    max_size=3,
)
changes = st.fixed_dictionaries(
    {},
    optional={
        SettingCodes.HEADER_TABLE_SIZE: st.sampled_from([0, 50, 300, 4_096, 65_536]),
        SettingCodes.MAX_CONCURRENT_STREAMS: st.sampled_from([0, 1, 3, 100, 2**32 - 1]),
        SettingCodes.INITIAL_WINDOW_SIZE: st.one_of(
            st.integers(0, 200), st.sampled_from([65_535, MAX_WINDOW])
        ),
        SettingCodes.MAX_FRAME_SIZE: st.sampled_from([FRAME_BYTES, 20_000, 2**24 - 1]),
        SettingCodes.MAX_HEADER_LIST_SIZE: st.sampled_from([500, 65_536]),
    },
)
ends = st.sampled_from(
    [
        OK,
        OK,
        [(b"grpc-status", b"5"), (b"grpc-message", b"no%20such%20thing"), (b"x-server", b"7")],
        [(b"grpc-status", b"1")],
        [(b"grpc-status", b"none"), (b"x-large", b"l" * 20_000)],  # more than one frame
        [(b"x-server", b"7")],
    ]
)


@dataclass(frozen=True)
class Outcome:
    """How a call must end."""

    code: StatusCode
    message: str = ""  # a part of it
    trailers: tuple[Field, ...] = ()
    loss: Loss = Loss.NONE
    is_local: bool = False
    is_too_large: bool = False


@dataclass(eq=False)
class Record:
    """A call, and what the machine knows of it."""

    number: int
    metadata: list[Field]
    timeout_s: float | None
    on_done: str = ""  # what the caller does then
    on_message: str = ""
    on_drained: str = ""
    sent: list[bytes] = field(default_factory=list)
    is_closed: bool = True
    received: list[bytes] = field(default_factory=list)
    local: StatusCode | None = None  # the code with which this side ended it
    pair: Pair | None = None  # where it is, or was at last
    is_done: bool = False

    def __post_init__(self) -> None:
        self.call: UnaryCall | StreamCall

    @property
    def is_unary(self) -> bool:
        return isinstance(self.call, UnaryCall)

    @property
    def stream(self) -> ServerStream | None:
        """What the server has of it; None: nothing yet."""
        return self.pair.server.streams.get(self.call.stream_id) if self.pair else None


def read_answer(stream: ServerStream, *, is_unary: bool) -> tuple[list[bytes], Outcome | None]:
    """The messages of an answer, and how it ends its call. This is the machine's own reading of gRPC."""
    messages, data = list[bytes](), b""
    broken = Outcome(StatusCode.INTERNAL, is_local=True)
    limit = OPTIONS.max_message_bytes
    for kind, value in stream.acts:
        if value is HEADS["other"]:
            return messages, Outcome(StatusCode.UNKNOWN, "content-type")
        if value is HEADS["http"]:
            return messages, Outcome(StatusCode.UNAVAILABLE, "HTTP status 503")
        if kind == "data":
            data += value
            while len(data) >= 5:
                size = int.from_bytes(data[1:5], "big")
                if data[0] > 1:
                    return messages, broken
                if size > limit:
                    return messages, Outcome(
                        StatusCode.RESOURCE_EXHAUSTED, str(limit), is_local=True, is_too_large=True
                    )
                if len(data) < 5 + size:
                    break
                if is_unary and messages:
                    return messages, broken
                messages.append(data[5 : 5 + size])
                data = data[5 + size :]
        elif kind == "data end":
            return messages, Outcome(StatusCode.INTERNAL, "status", loss=Loss.BROKEN, is_local=True)
        elif kind == "end":
            fields = dict(value)
            status = fields.get(b"grpc-status", b"")
            code = StatusCode(int(status)) if status.isdigit() else StatusCode.UNKNOWN
            trailers = tuple(value)
            if code is StatusCode.OK and (data or (is_unary and not messages)):
                return messages, Outcome(StatusCode.INTERNAL, "answer", trailers, is_local=True)
            message = fields.get(b"grpc-message", b"").replace(b"%20", b" ").decode()
            return messages, Outcome(code, message, trailers)
        elif kind == "reset":
            return messages, Outcome(
                code_of_reset(value), ErrorCodes(value).name, loss=Loss.BROKEN, is_local=True
            )
    return messages, None


def is_refused(stream: ServerStream) -> bool:
    return stream.acts == [("reset", ErrorCodes.REFUSED_STREAM)]


class CheckedPool(Pool):
    """Tells the machine what becomes of calls."""

    def __init__(self, loop: ManualLoop, machine: Connections) -> None:
        super().__init__(loop)
        self._machine = machine

    def expire(self, call: Call) -> None:
        self._machine.record_of(call).local = StatusCode.DEADLINE_EXCEEDED
        super().expire(call)

    def start_waiting(self) -> None:
        before = list(self.waiting)
        super().start_waiting()
        for call in before:
            if call.connection is not None and self.current is not None:
                self._machine.record_of(call).pair = self.current

    def move(self, call: Call, pause_s: float) -> bool:
        self._machine.check_unprocessed(self._machine.record_of(call))
        return super().move(call, pause_s)

    def on_draining(self, connection: Connection) -> None:
        super().on_draining(connection)
        assert connection.is_draining
        assert not connection.has_room


class Connections(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = ManualLoop.new()
        self.loop.__enter__()
        self.pool = CheckedPool(self.loop, self)
        self.pairs: list[Pair] = []
        self.records: list[Record] = []
        self.by_call: dict[Call, Record] = {}
        self.goaways: dict[Pair, tuple[ErrorCodes, int]] = {}  # the first: its code, and where it ends
        self.header_limits: dict[Pair, list[int]] = {}
        self.pings: dict[Pair, int] = {}
        self.raised = 0  # by callers' callbacks
        self.is_eager = False
        self.ending = ""

    # The connections

    @initialize(
        changed=changes,
        is_ready=st.booleans(),
        is_eager=st.sampled_from([True, True, False]),
        ending=st.sampled_from(["", "", "lose", "go away and lose"]),
    )
    def begin(self, changed: dict[SettingCodes, int], is_ready: bool, is_eager: bool, ending: str) -> None:
        """In an eager run all bytes move after each rule, so that examples come far."""
        self.ending = ending
        changed.pop(SettingCodes.HEADER_TABLE_SIZE, None)  # h2 takes that one later
        changed.pop(SettingCodes.MAX_HEADER_LIST_SIZE, None)
        self.open(changed)
        if is_ready:
            self.deliver_all()
        self.is_eager = is_eager

    def open(self, changed: dict[SettingCodes, int]) -> None:
        pair = Pair(self.loop, self.pool, OPTIONS, changed)
        self.pool.current = pair
        self.pairs.append(pair)
        self.header_limits[pair], self.pings[pair] = [], 0

    @property
    def live_pairs(self) -> list[Pair]:
        return [pair for pair in self.pairs if not pair.transport.is_lost]

    @precondition(lambda self: self.pool.current is None or self.pool.current.connection.is_draining)
    @rule()
    def open_another(self) -> None:
        self.open({})

    @precondition(lambda self: self.live_pairs)
    @rule(aim=aims, size=parts, is_upstream=st.booleans())
    def deliver_some(self, aim: int, size: int | None, is_upstream: bool) -> None:
        pair = self.live_pairs[aim % len(self.live_pairs)]
        if is_upstream:
            self.loop.turn()
            self.to_server(pair, size)
        else:
            self.to_client(pair, size)

    @rule()
    def deliver_all(self) -> None:
        for pair in self.live_pairs:
            for _ in range(3):
                self.loop.turn()
                self.to_server(pair)
                self.to_client(pair)
        self.turn()

    def turn(self) -> None:
        self.loop.turn()
        assert not (self.pool.waiting and self.pool.current and self.pool.current.connection.has_room)

    @precondition(lambda self: self.live_pairs)
    @rule(
        aim=aims,
        act=st.sampled_from(
            [
                "pause",
                "pause",
                "resume",
                "resume",
                "resume",
                "tick",
                "tick",
                "second",
                "hour",
                "close",
                "break",
            ]
        ),
    )
    def disturb_network(self, aim: int, act: str) -> None:
        transport = self.live_pairs[aim % len(self.live_pairs)].transport
        if act == "pause":
            transport.pause()
        elif act == "resume":
            transport.resume()
        elif seconds := {"tick": 0.05, "second": 1.0, "hour": 3_600.0}.get(act):
            self.loop.advance(seconds)
        elif len(self.records) > 5:
            transport.lose(ConnectionResetError("the network fell silent") if act == "break" else None)

    # The client

    def add(self, record: Record, call: UnaryCall | StreamCall) -> None:
        record.call = call
        self.records.append(record)
        self.by_call[call] = record
        self.pool.begin(call, record.timeout_s)

    def record_of(self, call: Call) -> Record:
        return self.by_call[call]

    def start_unary_call(self, record: Record, size: int) -> None:
        message = bytes([record.number % 256]) * size
        record.sent.append(message)
        metadata = [(NUMBER, b"%d" % record.number), *record.metadata]
        call = UnaryCall(METHOD, metadata, self.pool, message, lambda call: self.on_done(self.by_call[call]))
        self.add(record, call)

    @precondition(lambda self: len(self.records) < MAX_CALLS)
    @rule(
        size=sizes,
        metadata=metadata_lists,
        timeout_s=timeouts,
        on_done=st.sampled_from(["", "", "", "", "start", "cancel another", "raise"]),
        count=st.sampled_from([1, 1, 2, 5]),
    )
    def start_unary(
        self, size: int, metadata: list[Field], timeout_s: float | None, on_done: str, count: int
    ) -> None:
        for _ in range(count):
            self.start_unary_call(Record(len(self.records), metadata, timeout_s, on_done), size)

    @precondition(lambda self: len(self.records) < MAX_CALLS)
    @rule(
        metadata=metadata_lists,
        timeout_s=timeouts,
        on_done=st.sampled_from(["", "", "", "start", "cancel another", "raise"]),
        on_message=st.sampled_from(["", "", "", "", "send", "pause", "cancel", "raise"]),
        on_drained=st.sampled_from(["", "", "send", "send", "close", "cancel", "raise"]),
        first=st.lists(sizes, max_size=3),
    )
    def start_stream(
        self,
        metadata: list[Field],
        timeout_s: float | None,
        on_done: str,
        on_message: str,
        on_drained: str,
        first: list[int],
    ) -> None:
        record = Record(len(self.records), metadata, timeout_s, on_done, on_message, on_drained)
        record.is_closed = False
        call = StreamCall(
            METHOD,
            [(NUMBER, b"%d" % record.number), *metadata],
            self.pool,
            lambda _, message: self.on_message(record, message),
            lambda _: self.on_done(record),
            lambda _: self.on_drained(record),
        )
        record.call = call
        for size in first:
            self.send_message(record, size)  # before the call has begun
        self.add(record, call)

    def send_message(self, record: Record, size: int) -> None:
        message = bytes([len(record.sent) % 256]) * size
        record.sent.append(message)
        assert isinstance(record.call, StreamCall)
        record.call.send(message)

    @property
    def streams(self) -> list[Record]:
        return [record for record in self.records if not record.is_unary]

    @property
    def sending(self) -> list[Record]:
        return [record for record in self.streams if not record.is_closed]

    @precondition(lambda self: self.sending)
    @rule(aim=aims, size=sizes)
    def send(self, aim: int, size: int) -> None:
        self.send_message(self.sending[aim % len(self.sending)], size)

    @precondition(lambda self: self.sending)
    @rule(aim=aims)
    def close_sending(self, aim: int) -> None:
        self.close(self.sending[aim % len(self.sending)])

    def close(self, record: Record) -> None:
        assert isinstance(record.call, StreamCall)
        record.is_closed = True
        record.call.close_sending()

    @precondition(lambda self: self.streams)
    @rule(aim=aims, pauses=st.booleans())
    def read_or_not(self, aim: int, pauses: bool) -> None:
        call = self.streams[aim % len(self.streams)].call
        assert isinstance(call, StreamCall)
        if pauses:
            call.pause_reading()
        else:
            call.resume_reading()

    @precondition(lambda self: self.records)
    @rule(aim=st.integers(0, MAX_CALLS))
    def cancel(self, aim: int) -> None:
        if aim < len(self.records):
            self.cancel_call(self.records[-1 - aim])

    def cancel_call(self, record: Record) -> None:
        if record.call.code is None:
            record.local = StatusCode.CANCELLED
        record.call.cancel()
        assert record.is_done

    def on_message(self, record: Record, message: bytes) -> None:
        assert not record.is_done
        record.received.append(message)
        if record.on_message == "send" and not record.is_closed:
            self.send_message(record, len(message) // 2)
        elif record.on_message == "pause":
            assert isinstance(record.call, StreamCall)
            record.call.pause_reading()
        elif record.on_message == "cancel":
            self.cancel_call(record)
        elif record.on_message == "raise":
            record.local = StatusCode.INTERNAL
            self.fail()

    def on_drained(self, record: Record) -> None:
        assert not record.is_done
        act, record.on_drained = record.on_drained, ""
        if act == "send" and not record.is_closed:
            self.send_message(record, 70_000)
        elif act == "close" and not record.is_closed:
            self.close(record)
        elif act == "cancel":
            self.cancel_call(record)
        elif act == "raise":
            record.local = StatusCode.INTERNAL
            self.fail()

    def fail(self) -> None:
        self.raised += 1
        raise ValueError("a caller's defect")

    def on_done(self, record: Record) -> None:
        assert not record.is_done
        record.is_done = True
        self.check_outcome(record)
        if record.on_done == "start" and len(self.records) < MAX_CALLS:
            self.start_unary_call(Record(len(self.records), [], None), 10)
        elif record.on_done == "cancel another":
            others = [other for other in self.records if not other.is_done]
            if others:
                self.cancel_call(others[-1])
        elif record.on_done == "raise":
            self.fail()

    # The server

    @property
    def live_servers(self) -> list[Pair]:
        return [pair for pair in self.live_pairs if pair.server.is_alive]

    @property
    def open_streams(self) -> list[tuple[Pair, int]]:
        """Those that a server may still answer."""
        return [
            (pair, stream_id)
            for pair in self.live_servers
            for stream_id, stream in pair.server.streams.items()
            if stream.is_open and stream_id <= pair.server.last_stream_id
        ]

    @property
    def answerable(self) -> list[tuple[Pair, int]]:
        """Those of them whose end is not settled."""
        return [
            (pair, stream_id)
            for pair, stream_id in self.open_streams
            if pair.server.streams[stream_id].trailers is None
        ]

    def aimed(self, aim: int) -> tuple[Pair, int, ServerStream]:
        pair, stream_id = self.answerable[aim % len(self.answerable)]
        return pair, stream_id, pair.server.streams[stream_id]

    @precondition(lambda self: self.answerable)
    @rule(aim=aims, kind=st.sampled_from(["grpc", "grpc", "other", "http", "interim"]), ends=st.booleans())
    def answer_head(self, aim: int, kind: str, ends: bool) -> None:
        pair, stream_id, stream = self.aimed(aim)
        if stream.has_head:
            return
        if kind == "interim":
            pair.server.interim(stream_id)
        elif ends and kind != "grpc":
            pair.server.end(stream_id, HEADS[kind])
        else:
            pair.server.head(stream_id, HEADS[kind])

    def answer(self, pair: Pair, stream_id: int, data: bytes, part: int, padding: int | None) -> None:
        stream = pair.server.streams[stream_id]
        if not stream.has_head:
            pair.server.head(stream_id, HEAD)
        room = FRAME_BYTES if padding is None else FRAME_BYTES - 1 - padding
        part = min(max(part, len(data) // MAX_FRAMES), room)
        stream.unsent.extend((data[at : at + part], padding) for at in range(0, len(data), part))
        self.pump(pair)

    @precondition(lambda self: self.answerable)
    @rule(
        aim=aims,
        size=sizes,
        part=st.sampled_from([1, 2, 5, 1_000, FRAME_BYTES]),
        padding=st.sampled_from([None, None, 0, 1, 255]),
        count=st.sampled_from([1, 1, 3]),
    )
    def answer_messages(self, aim: int, size: int, part: int, padding: int | None, count: int) -> None:
        pair, stream_id, stream = self.aimed(aim)
        self.answer(pair, stream_id, body([bytes([len(stream.acts) % 256]) * size] * count), part, padding)

    @precondition(lambda self: self.answerable)
    @rule(aim=aims, data=st.sampled_from([b"", b"\0", b"\0\0\0\0", b"\2\0\0\0\0", b"\0\0\0\0\3a"]))
    def answer_bytes(self, aim: int, data: bytes) -> None:
        pair, stream_id, _ = self.aimed(aim)
        self.answer(pair, stream_id, data, FRAME_BYTES, None)

    @precondition(lambda self: self.answerable)
    @rule(aim=aims, fields=ends, is_only_data=st.sampled_from([False, False, True]))
    def answer_end(self, aim: int, fields: list[Field], is_only_data: bool) -> None:
        pair, stream_id, stream = self.aimed(aim)
        if is_only_data and not stream.has_head:
            pair.server.head(stream_id, HEAD)
        stream.trailers = [] if is_only_data else fields
        self.pump(pair)

    @precondition(lambda self: self.answerable)
    @rule(size=sizes, fields=ends, count=st.integers(1, 5))
    def answer_whole_calls(self, size: int, fields: list[Field], count: int) -> None:
        for pair, stream_id in self.answerable[:count]:
            self.answer(pair, stream_id, body([bytes(size)]), FRAME_BYTES, None)
            pair.server.streams[stream_id].trailers = fields
            self.pump(pair)

    @precondition(lambda self: self.open_streams)
    @rule(aim=aims, code=st.sampled_from([*ErrorCodes, *[ErrorCodes.REFUSED_STREAM] * 6]))
    def answer_reset(self, aim: int, code: ErrorCodes) -> None:
        pair, stream_id = self.open_streams[aim % len(self.open_streams)]
        pair.server.reset(stream_id, code)

    def pump(self, pair: Pair) -> None:
        """Sends what answers have left, as far as the client's windows allow."""
        for stream_id, stream in pair.server.streams.items():
            while stream.is_open and stream.unsent:
                if not pair.server.data(stream_id, *stream.unsent[0]):
                    break
                stream.unsent.popleft()
            if not stream.is_open or stream.unsent or stream.trailers is None:
                continue
            if stream.trailers:
                fields = stream.trailers
                if not stream.has_head:
                    stream.trailers = fields = [(b":status", b"200"), *fields]
                    if b"grpc-status" not in dict(fields):
                        fields.append((b"content-type", b"application/grpc"))
                pair.server.end(stream_id, fields)
            else:
                pair.server.data(stream_id, b"", ends=True)

    @precondition(lambda self: self.live_servers)
    @rule(aim=aims, increment=increments, is_connection=st.booleans())
    def widen(self, aim: int, increment: int, is_connection: bool) -> None:
        if is_connection or not self.open_streams:
            self.live_servers[aim % len(self.live_servers)].server.widen(0, increment)
        else:
            pair, stream_id = self.open_streams[aim % len(self.open_streams)]
            pair.server.widen(stream_id, increment)

    @precondition(lambda self: self.live_servers)
    @rule(aim=aims, changed=changes)
    def change_settings(self, aim: int, changed: dict[SettingCodes, int]) -> None:
        self.set(self.live_servers[aim % len(self.live_servers)], changed)

    def set(self, pair: Pair, changed: dict[SettingCodes, int]) -> None:
        server = pair.server
        if not changed or server.awaits_settings:
            return
        if (window := changed.get(SettingCodes.INITIAL_WINDOW_SIZE)) is not None:
            # A server's own mistake: with it, a window that was widened would become too large.
            widest = max([0, *map(server.window, server.h2.streams)])
            grown = window - server.h2.local_settings.initial_window_size
            if widest + grown > MAX_WINDOW:
                return
        self.header_limits[pair].append(changed.get(SettingCodes.MAX_HEADER_LIST_SIZE, 2**40))
        server.change(changed)

    @precondition(lambda self: self.live_servers)
    @rule(
        aim=aims,
        act=st.sampled_from(["ping", "ping", "ping", "go away", "go away", "go away twice"]),
        code=st.sampled_from([ErrorCodes.NO_ERROR, ErrorCodes.ENHANCE_YOUR_CALM]),
        keeps=st.integers(0, 3),
    )
    def manage(self, aim: int, act: str, code: ErrorCodes, keeps: int) -> None:
        """A server that goes away ends the calls that it has begun, and `keeps` others."""
        pair = self.live_servers[aim % len(self.live_servers)]
        if act == "ping":
            self.pings[pair] += 1
            pair.server.h2.ping(self.pings[pair].to_bytes(8, "big"))
            pair.server.flush()
        elif len(self.records) < 3:
            return  # else few examples come far
        elif act == "go away twice" and pair.server.last_stream_id == MAX_WINDOW:
            self.send_goaway(pair, MAX_WINDOW, code)
        else:
            begun = [stream_id for stream_id, s in pair.server.streams.items() if s.acts or s.unsent]
            last = max([0, *begun]) + 2 * keeps
            self.send_goaway(pair, min(last, pair.server.last_stream_id), code)

    def send_goaway(self, pair: Pair, last_stream_id: int, code: ErrorCodes) -> None:
        code, _ = self.goaways.get(pair, (code, 0))
        pair.server.go_away(last_stream_id, code, b"for a while\xff")
        self.goaways.setdefault(pair, (code, pair.received_bytes + len(pair.server.unread)))

    # What must hold

    def to_server(self, pair: Pair, size: int | None = None) -> None:
        for event in pair.to_server(size):
            if isinstance(event, RequestReceived):
                self.check_fields(pair, event.stream_id)
            elif isinstance(event, DataReceived):
                self.check_body(pair, event.stream_id)
            elif isinstance(event, StreamEnded):
                self.check_body(pair, event.stream_id, is_all=True)
        if pair.server.goaway is None:
            self.pump(pair)
        else:
            assert pair.server.goaway.error_code == ErrorCodes.NO_ERROR, pair.server.goaway.additional_data

    def to_client(self, pair: Pair, size: int | None = None) -> None:
        pair.to_client(size)
        if not pair.server.unread and not pair.transport.is_closing():
            # All that the server sent is known here.
            for stream_id in pair.connection.calls:
                stream = pair.server.streams.get(stream_id)
                if stream is not None:
                    record = self.by_call[pair.connection.calls[stream_id]]
                    messages, outcome = read_answer(stream, is_unary=record.is_unary)
                    assert outcome is None
                    if not record.is_unary:
                        assert record.received == messages

    def record_at(self, pair: Pair, stream_id: int) -> Record:
        fields = dict(pair.server.streams[stream_id].fields)
        return self.records[int(fields[NUMBER])]

    def check_fields(self, pair: Pair, stream_id: int) -> None:
        record, fields = self.record_at(pair, stream_id), list(pair.server.streams[stream_id].fields)
        shared = len(METHOD.fields)
        if record.timeout_s is not None:
            name, value = fields.pop(shared)
            assert name == b"grpc-timeout"
            assert value.endswith(b"m")
            assert 0 < int(value[:-1]) <= max(1, 1_000 * record.timeout_s)
        assert fields == [*METHOD.fields, *record.call.metadata]

    def check_body(self, pair: Pair, stream_id: int, *, is_all: bool = False) -> None:
        record, stream = self.record_at(pair, stream_id), pair.server.streams[stream_id]
        expected = body(record.sent)
        if is_all:
            assert stream.body == expected
            assert record.is_closed
        else:
            assert expected.startswith(stream.body)

    def check_unprocessed(self, record: Record) -> None:
        """The server has not begun the call, and said so."""
        assert record.pair is not None
        assert not record.received
        is_above = record.call.stream_id > record.pair.server.last_stream_id
        assert is_above or (record.stream is not None and is_refused(record.stream))

    def check_outcome(self, record: Record) -> None:
        call, pair = record.call, record.pair
        assert call.code is not None
        if call.loss is not Loss.UNPROCESSED:
            assert call.is_planned == (call.loss is Loss.PLANNED)
        if record.local is not None:
            assert (call.code, call.is_local, call.loss) == (record.local, True, Loss.NONE)
        elif call.loss is Loss.UNPROCESSED:
            assert (call.code, call.is_local) == (StatusCode.UNAVAILABLE, True)
            self.check_unprocessed(record)
        elif call.stream_id == 0:
            limits = [limit for of_pair in self.header_limits.values() for limit in of_pair]
            size = METHOD.size + header_list_size(call.metadata)
            if call.deadline_s is not None:
                size += header_list_size([(b"grpc-timeout", b"99999999S")])
            assert size > min(limits)
            assert (call.code, call.is_local) == (StatusCode.RESOURCE_EXHAUSTED, True)
            assert call.is_metadata_too_large
        elif pair is not None and pair.transport.is_lost and call.code is not StatusCode.CANCELLED:
            code, at_byte = self.goaways.get(pair, (ErrorCodes.INTERNAL_ERROR, 0))
            is_planned = code == ErrorCodes.NO_ERROR and pair.received_bytes >= at_byte
            assert call.loss is (Loss.PLANNED if is_planned else Loss.BROKEN)
            assert (call.code, call.is_local) == (StatusCode.UNAVAILABLE, True)
        else:
            self.check_answer(record)

    def check_answer(self, record: Record) -> None:
        call = record.call
        assert record.stream is not None
        messages, outcome = read_answer(record.stream, is_unary=record.is_unary)
        assert outcome is not None
        assert call.code is not None
        if outcome.code is StatusCode.CANCELLED and call.deadline_s is not None:
            # The server may have kept the deadline, too; it knows it by the millisecond.
            is_due = self.loop.time() >= call.deadline_s - 0.001
            outcome = replace(outcome, code=StatusCode.DEADLINE_EXCEEDED if is_due else outcome.code)
        if outcome.code is StatusCode.CANCELLED and call.loss is Loss.PLANNED:
            assert record.pair is not None
            assert self.goaways[record.pair][0] == ErrorCodes.NO_ERROR
            outcome = replace(outcome, loss=Loss.PLANNED)
        assert outcome.message in call.message
        found = Outcome(
            call.code, outcome.message, call.trailers, call.loss, call.is_local, call.is_too_large
        )
        assert found == outcome
        if isinstance(call, UnaryCall):
            assert call.answer == (messages[0] if messages else None)
        else:
            assert record.received == messages

    @invariant()
    def eager_bytes_move(self) -> None:
        if self.is_eager:
            if self.pool.current is None or self.pool.current.connection.is_draining:
                self.open({})
            self.deliver_all()

    @invariant()
    def callbacks_alone_raise(self) -> None:
        assert len([text for text in self.loop.errors if "a caller's defect" in text]) == self.raised
        assert len(self.loop.errors) == self.raised, self.loop.errors

    @invariant()
    def a_call_is_in_one_place_until_it_ends(self) -> None:
        places: list[Call] = list(self.pool.waiting)
        for pair in self.pairs:
            for stream_id, call in pair.connection.calls.items():
                assert (call.connection, call.stream_id) == (pair.connection, stream_id)
                places.append(call)
            places += [one.call for one in pair.connection._cancelled if one.call.code is None]
        assert len(set(places)) == len(places)
        for record in self.records:
            assert record.is_done == (record.call.code is not None)
            if record.is_done:
                assert record.call not in places
            elif record.call.stream_id:
                assert record.call in places

    @invariant()
    def the_outbox_holds_only_calls_under_way(self) -> None:
        for pair in self.pairs:
            outbox = pair.connection._outbox
            assert outbox._stalled.keys() <= outbox._bodies.keys() <= pair.connection.calls.keys()

    @invariant()
    def unsent_bytes_are_counted(self) -> None:
        for record in self.streams:
            call = record.call
            assert isinstance(call, StreamCall)
            assert call.unsent_bytes == sum(map(len, call._unsent)) - call._at

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.finish()
        finally:
            self.loop.__exit__()

    def finish(self) -> None:
        """Once windows are open and nothing stands in the way, each call ends, and nothing is left."""
        if self.ending:
            for pair in self.live_pairs:
                if "go away" in self.ending and pair.server.is_alive:
                    self.send_goaway(pair, max([0, *pair.server.streams]), ErrorCodes.NO_ERROR)
                    self.to_client(pair)
                pair.transport.lose()
        for record in self.records:
            record.on_done = record.on_message = record.on_drained = ""
            if not record.is_closed:
                self.close(record)
        for _ in range(ROUNDS):
            self.loop.advance(CANCELLED_PAUSE_S)
            self.loop.turn()
            if all(record.is_done for record in self.records):
                break
            self.help_on()
        assert all(record.is_done for record in self.records)
        for _ in range(3):
            self.help_on()
        for pair in self.live_servers:
            left = [one for one, stream in pair.server.h2.streams.items() if not stream.closed]
            assert all(one > pair.server.last_stream_id for one in left)
            assert len(pair.server.acknowledged_pings) == self.pings[pair]
            pair.connection.drain()
            pair.settle()
        for pair in self.pairs:
            assert pair.transport.is_lost
            assert pair.connection in self.pool.lost
            assert not pair.connection.calls
        assert not any(self.pool.deadlines._slots.values())
        self.callbacks_alone_raise()
        self.a_call_is_in_one_place_until_it_ends()
        self.the_outbox_holds_only_calls_under_way()

    def help_on(self) -> None:
        """Servers answer all that they have got; the network and all windows are open."""
        current = self.pool.current
        if current is None or current.connection.is_draining:
            self.open({})
        for record in self.streams:
            assert isinstance(record.call, StreamCall)
            record.call.resume_reading()
        for pair in self.live_pairs:
            pair.transport.resume()
            self.loop.turn()
            self.to_server(pair)
            if pair.server.is_alive:
                self.serve(pair)
            self.to_client(pair)
            self.loop.turn()

    def serve(self, pair: Pair) -> None:
        server = pair.server
        self.set(pair, {SettingCodes.MAX_CONCURRENT_STREAMS: 100, SettingCodes.MAX_HEADER_LIST_SIZE: 2**16})
        if server.window(0) <= 0:
            server.widen(0, WIDE)
        for stream_id, stream in list(server.streams.items()):
            if not stream.is_open or stream_id > server.last_stream_id:
                continue
            if server.window(stream_id) <= 0:
                server.widen(stream_id, WIDE - server.window(stream_id))
            if stream.has_request and stream.trailers is None:
                if not stream.acts:
                    self.answer(pair, stream_id, body([b"answer"]), FRAME_BYTES, None)
                stream.trailers = OK
        self.pump(pair)


Connections.TestCase.settings = settings(max_examples=as_profile(800), stateful_step_count=50, deadline=None)
TestConnections = Connections.TestCase
