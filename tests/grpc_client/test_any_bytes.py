"""Servers that send anything. A connection stays usable or closes with a reason; each call ends once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.grpc_client import frames
from app.grpc_client.calls import Call, StreamCall, UnaryCall
from app.grpc_client.connection import MAX_HEADER_BLOCK_FRAMES, Connection, ConnectionOptions, Keepalive
from app.grpc_client.frames import PREFACE, ErrorCode
from app.grpc_client.header_decoder import MAX_REMEMBERED, READ_FACTOR
from app.grpc_client.status import StatusCode
from tests.examples import as_profile
from tests.grpc_client.memory import METHOD, ManualLoop, MemoryTransport, Pool

OPTIONS = ConnectionOptions(max_message_bytes=1_000, max_header_bytes=2_000, keepalive=Keepalive(1e9))
SETTINGS = frames.settings({})
HEAD = b"\x88\x0f\x10\x10application/grpc"  # :status 200 and content-type, which no table keeps
ANSWER = b"\0\0\0\0\x02ok"
TRAILERS = b"\0\x0bgrpc-status\x010"


def make_frame(kind: int, flag_bits: int, stream_id: int, payload: bytes) -> bytes:
    size = len(payload)
    return frames.HEADER.pack(size >> 8, size & 0xFF, kind, flag_bits, stream_id) + payload


stream_ids = st.one_of(
    st.sampled_from([0, 1, 1, 3, 3, 5, 2, 101, 2**31 - 1, 2**31]), st.integers(0, 2**32 - 1)
)
flags = st.one_of(st.sampled_from([0, 0x1, 0x4, 0x5, 0x5, 0x8, 0xD, 0x24, 0x2D]), st.integers(0, 255))
numbers = st.one_of(
    st.sampled_from([0, 1, 0x7, 0x8, 65_535, 2**31 - 1, 2**31, 2**32 - 1]), st.integers(0, 100)
)
longs = numbers.map(lambda number: number.to_bytes(4, "big"))
blocks = st.lists(
    st.one_of(
        st.sampled_from(
            [HEAD, TRAILERS, b"\x88", b"\x8e", b"\0\x07:status\x03103", b"\x40\x01x\x01y", b"\xbe"]
        ),
        st.binary(max_size=8),
    ),
    max_size=3,
).map(b"".join)
payloads: dict[int, st.SearchStrategy[bytes]] = {
    frames.DATA: st.one_of(
        st.sampled_from([ANSWER, ANSWER * 2, ANSWER[:3], b"\0\0\0\4\0", b""]), st.binary()
    ),
    frames.HEADERS: blocks,
    frames.PRIORITY: st.binary(min_size=5, max_size=5),
    frames.RST_STREAM: longs,
    frames.SETTINGS: st.lists(
        st.tuples(st.integers(0, 8), longs).map(lambda one: one[0].to_bytes(2, "big") + one[1]), max_size=4
    ).map(b"".join),
    frames.PUSH_PROMISE: st.binary(),
    frames.PING: st.binary(min_size=8, max_size=8),
    frames.GOAWAY: st.tuples(longs, longs, st.binary(max_size=300)).map(b"".join),
    frames.WINDOW_UPDATE: longs,
    frames.CONTINUATION: blocks,
    0xA: st.binary(),
}
wild_frames = st.one_of(
    *(st.builds(make_frame, st.just(kind), flags, stream_ids, payload) for kind, payload in payloads.items()),
    st.builds(make_frame, st.integers(0, 255), flags, stream_ids, st.binary(max_size=40)),
)
# Frames of a server that keeps most rules: else no sequence of frames comes far.
calls = st.sampled_from([1, 3, 5])
likely_frames = st.one_of(
    st.builds(make_frame, st.just(frames.HEADERS), st.just(0x4), calls, st.just(HEAD)),
    st.builds(make_frame, st.just(frames.HEADERS), st.sampled_from([0, 0x1, 0x4, 0x5]), calls, blocks),
    st.builds(make_frame, st.just(frames.HEADERS), st.just(0x5), calls, st.just(TRAILERS)),
    st.builds(make_frame, st.just(frames.CONTINUATION), st.sampled_from([0, 0x4]), calls, blocks),
    st.builds(make_frame, st.just(frames.DATA), st.sampled_from([0, 0, 1]), calls, payloads[frames.DATA]),
    st.builds(make_frame, st.just(frames.RST_STREAM), st.just(0), calls, longs),
    st.builds(make_frame, st.just(frames.WINDOW_UPDATE), st.just(0), st.one_of(st.just(0), calls), longs),
    st.builds(make_frame, st.just(frames.SETTINGS), st.just(0), st.just(0), payloads[frames.SETTINGS]),
    st.builds(make_frame, st.just(frames.PING), st.just(0), st.just(0), st.just(bytes(8))),
    st.builds(make_frame, st.just(frames.GOAWAY), st.just(0), st.just(0), payloads[frames.GOAWAY]),
)
any_frames = st.one_of(likely_frames, likely_frames, likely_frames, wild_frames)


def parsed(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """The frames that a client wrote: type, flags, stream and payload."""
    assert data.startswith(PREFACE)
    found, at = [], len(PREFACE)
    while at < len(data):
        high, low, kind, flag_bits, stream_id = frames.HEADER.unpack_from(data, at)
        end = at + frames.HEADER_BYTES + (high << 8 | low)
        assert end <= len(data)
        found.append((kind, flag_bits, stream_id, data[at + frames.HEADER_BYTES : end]))
        at = end
    return found


@dataclass
class Client:
    """A connection with three calls under way, once the server's settings came."""

    loop: ManualLoop

    def __post_init__(self) -> None:
        self.pool = Pool(self.loop)
        self.connection = Connection(self.pool, "server.example:50051", OPTIONS)
        self.transport = MemoryTransport(self.loop, self.connection)
        self.connection.connection_made(self.transport)
        self.loop.turn()
        self.done: list[Call] = []
        self.messages: list[tuple[int, bytes]] = []

    def start_calls(self) -> None:
        self.connection.data_received(SETTINGS)
        unary = UnaryCall(METHOD, [], self.pool, b"request", self.done.append)
        stream = StreamCall(METHOD, [], self.pool, self.receive, self.done.append)
        stream.send(b"one")
        stalled = UnaryCall(METHOD, [], self.pool, b"r" * 100_000, self.done.append)
        for call in (unary, stream, stalled):
            self.connection.start(call)
        self.loop.turn()

    def receive(self, call: StreamCall, message: bytes) -> None:
        assert call not in self.done
        self.messages.append((call.stream_id, message))

    def feed(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            if not self.transport.is_lost:
                self.connection.data_received(part)
                self.check_memory()
            self.loop.turn()
        assert not self.loop.errors

    def check_memory(self) -> None:
        connection = self.connection
        if self.transport.is_closing():
            return
        assert len(connection._rest) < frames.HEADER_BYTES + frames.MIN_FRAME_SIZE
        block = connection._block or []
        assert len(block) <= MAX_HEADER_BLOCK_FRAMES
        assert sum(map(len, block)) <= READ_FACTOR * OPTIONS.max_header_bytes + frames.MIN_FRAME_SIZE
        assert len(connection._decoder._remembered) <= MAX_REMEMBERED
        for call in connection.calls.values():
            if call._reader is not None:
                assert len(call._reader._buffer) <= OPTIONS.max_message_bytes + 5

    def end(self) -> None:
        """Whatever came, calls end once, and a connection that this side closed has said why."""
        calls = set(self.connection.calls.values())
        assert not calls.intersection(self.done)
        assert all(call.code is None for call in calls)
        written = parsed(bytes(self.transport.written))
        says_why = bool(written) and written[-1][0] == frames.GOAWAY
        assert says_why == self.transport.is_closing()
        self.transport.lose()
        self.loop.advance(10.0)
        assert not self.connection.calls
        assert not self.connection._outbox._bodies
        assert not self.connection._outbox._stalled
        assert len(self.done) == len(set(self.done))
        assert all(call.code is not None for call in self.done)
        assert not self.loop.errors

    @property
    def outcomes(self) -> list[tuple[int, StatusCode | None, bytes | None]]:
        return [(call.stream_id, call.code, getattr(call, "answer", None)) for call in self.done]


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@settings(max_examples=as_profile(1_000), deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6))
@example([b"HTTP/1.1 400 Bad Request\r\n\r\n"])
@example([b"HTTP/\n\n\n\n\n\n"])
@example([b"\x15\x03\x01\x00\x02\x02\x28"])
@example([b"\0\0\0\x04\1\0\0\0\0"])
@example([b"\0\0\0\x04\0\0\0\0\1"])
@example([b"\0\0"])
def test_any_bytes_at_the_beginning_end_in_a_connection_or_a_reason(parts: list[bytes]) -> None:
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.feed(parts)
        client.end()


@settings(max_examples=as_profile(1_000), deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_amid_calls_end_each_call_once(parts: list[bytes]) -> None:
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.start_calls()
        client.feed(parts)
        client.end()
        assert len(client.done) + len(client.pool.moved) == 3


@settings(max_examples=as_profile(4_000), deadline=None)
@given(st.lists(any_frames, max_size=12), st.one_of(st.none(), st.integers(1, 40)), st.booleans())
@example([make_frame(frames.DATA, 0x9, 1, b"\xff" + ANSWER)], None, False)
@example([make_frame(frames.DATA, 0x8, 1, b"")], None, False)
@example([make_frame(frames.HEADERS, 0x2D, 1, b"\0\0\0")], None, False)
@example([make_frame(frames.WINDOW_UPDATE, 0, 5, bytes(4))], None, False)
@example([make_frame(frames.GOAWAY, 0, 0, bytes(8) + b"\xff\n" * 100)], 1, False)
@example(
    [make_frame(frames.HEADERS, 0, 1, HEAD), *[make_frame(frames.CONTINUATION, 0, 1, b"")] * 100], None, False
)
def test_any_frames_end_each_call_once(sent: list[bytes], size: int | None, is_paused: bool) -> None:
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.start_calls()
        if is_paused:
            client.transport.pause()
        client.feed(sent if size is None else cut(b"".join(sent), size))
        client.transport.resume()
        client.loop.turn()
        client.end()
        assert len(client.done) + len(client.pool.moved) == 3


@settings(max_examples=as_profile(1_000), deadline=None)
@given(st.lists(any_frames, max_size=8), st.integers(1, 20))
def test_it_does_not_matter_how_the_network_cuts_frames(sent: list[bytes], size: int) -> None:
    data, found = b"".join(sent), []
    for parts in ([data], cut(data, size)):
        with ManualLoop.new() as loop:
            client = Client(loop)
            client.start_calls()
            for part in parts:
                client.connection.data_received(part)
            loop.turn()
            client.end()
            written = [one for one in parsed(bytes(client.transport.written)) if one[0] != frames.DATA]
            found.append((client.outcomes, client.messages, client.pool.moved == [], sorted(written)))
    assert found[0] == found[1]


def test_bytes_after_a_fault_are_not_read_as_frames() -> None:
    """A TLS transport brings what it has even after `close`."""
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.start_calls()
        answer = make_frame(frames.HEADERS, 0x4, 1, HEAD) + make_frame(frames.DATA, 0, 1, ANSWER)
        client.connection.data_received(make_frame(frames.PING, 0, 0, b"") + answer)
        client.connection.data_received(answer + make_frame(frames.HEADERS, 0x5, 1, TRAILERS))
        assert client.transport.is_closing()
        assert not client.done
        loop.turn()
        assert {call.code for call in client.done} == {StatusCode.UNAVAILABLE}


@pytest.mark.parametrize(
    ("part", "parts"),
    [(b"", MAX_HEADER_BLOCK_FRAMES), (b"x" * 1_000, READ_FACTOR * OPTIONS.max_header_bytes // 1_000)],
)
def test_a_server_that_never_ends_its_header_block_is_left(part: bytes, parts: int) -> None:
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.start_calls()
        client.feed([make_frame(frames.HEADERS, 0, 1, part)])
        client.feed([make_frame(frames.CONTINUATION, 0, 1, part)] * (parts - 2))
        assert not client.transport.is_closing()
        client.feed([make_frame(frames.CONTINUATION, 0, 1, part)] * 2)
        assert client.transport.is_closing()
        client.end()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (make_frame(frames.HEADERS, 0x4, 101, HEAD), ErrorCode.PROTOCOL_ERROR),  # no call opened it
        (make_frame(frames.HEADERS, 0x4, 2, HEAD), ErrorCode.PROTOCOL_ERROR),  # push is off
        (make_frame(frames.HEADERS, 0x4, 0, HEAD), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.HEADERS, 0x4, 1, b"\xbe"), ErrorCode.COMPRESSION_ERROR),
        (make_frame(frames.DATA, 0, 0, ANSWER), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.DATA, 0, 7, ANSWER), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.DATA, 0x8, 1, b"\5abcd"), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.DATA, 0, 1, bytes(frames.MIN_FRAME_SIZE + 1)), ErrorCode.FRAME_SIZE_ERROR),
        (make_frame(frames.RST_STREAM, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.RST_STREAM, 0, 7, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.RST_STREAM, 0, 1, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (make_frame(frames.SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (make_frame(frames.SETTINGS, 0, 0, b"\0\2\0\0\0\1"), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.SETTINGS, 0, 0, b"\0\4\x80\0\0\0"), ErrorCode.FLOW_CONTROL_ERROR),
        (make_frame(frames.SETTINGS, 0, 0, b"\0\5\0\0\x3f\xff"), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.PUSH_PROMISE, 0x4, 1, b"\0\0\0\2" + HEAD), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (make_frame(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (make_frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.WINDOW_UPDATE, 0, 7, b"\0\0\0\1"), ErrorCode.PROTOCOL_ERROR),
        (make_frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2, ErrorCode.FLOW_CONTROL_ERROR),
        (make_frame(frames.WINDOW_UPDATE, 0, 5, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
        (make_frame(frames.CONTINUATION, 0x4, 1, HEAD), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_server_that_breaks_http2_is_left_with_its_error_s_code(sent: bytes, code: ErrorCode) -> None:
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.start_calls()
        client.connection.data_received(sent)
        kind, _, stream_id, payload = parsed(bytes(client.transport.written))[-1]
        assert (kind, stream_id) == (frames.GOAWAY, 0)
        assert payload[:8] == bytes(4) + code.to_bytes(4, "big")
        loop.turn()
        assert {call.code for call in client.done} == {StatusCode.UNAVAILABLE}
        assert len(client.done) == 3


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ([make_frame(frames.DATA, 0, 1, ANSWER)], ErrorCode.PROTOCOL_ERROR),
        ([make_frame(frames.HEADERS, 0x4, 1, HEAD)] * 2, ErrorCode.PROTOCOL_ERROR),
        ([make_frame(frames.HEADERS, 0x5, 1, b"\0\x07:status\x03103")], ErrorCode.PROTOCOL_ERROR),
        ([make_frame(frames.WINDOW_UPDATE, 0, 1, bytes(4))], ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_server_that_breaks_http2_for_one_call_keeps_the_others(sent: list[bytes], code: ErrorCode) -> None:
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.start_calls()
        client.feed(sent)
        found = [(call.stream_id, call.code) for call in client.done]
        assert found == [(1, StatusCode.INTERNAL)]
        assert not client.transport.is_closing()
        assert (frames.RST_STREAM, 0, 1, code.to_bytes(4, "big")) in parsed(bytes(client.transport.written))
        client.end()


def test_a_stream_that_brings_more_than_its_window_ends() -> None:
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.start_calls()
        stream = client.connection.calls[3]
        assert isinstance(stream, StreamCall)
        stream.pause_reading()
        messages = make_frame(frames.DATA, 0, 3, (b"\0\0\0\3\xe3" + bytes(995)) * 16)
        client.feed([make_frame(frames.HEADERS, 0x4, 3, HEAD), *[messages] * 4])
        assert client.done == []
        client.feed([messages])
        assert client.done == [stream]
        assert "window" in stream.message
        reset = (frames.RST_STREAM, 0, 3, ErrorCode.FLOW_CONTROL_ERROR.to_bytes(4, "big"))
        assert reset in parsed(bytes(client.transport.written))


@pytest.mark.parametrize(
    "amid",
    [
        make_frame(frames.CONTINUATION, 0x4, 3, TRAILERS),
        make_frame(frames.PING, 0, 0, bytes(8)),
        make_frame(frames.HEADERS, 0x4, 1, HEAD),
        make_frame(0xA, 0, 0, b""),
    ],
)
def test_nothing_else_comes_amid_a_header_block(amid: bytes) -> None:
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.start_calls()
        client.feed([make_frame(frames.HEADERS, 0, 1, HEAD), amid])
        assert client.transport.is_closing()
        client.end()


def test_a_server_whose_frames_bring_nothing_is_left() -> None:
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.start_calls()
        client.feed([make_frame(frames.DATA, 0x8, 1, b"\x01\0")] * 999)
        assert not client.transport.is_closing()
        client.feed([make_frame(frames.DATA, 0, 1, b"")] * 2)
        assert client.transport.is_closing()
        client.end()


def test_a_server_that_asks_for_replies_and_reads_none_is_left() -> None:
    with ManualLoop.new() as loop:
        client = Client(loop)
        client.start_calls()
        client.transport.pause()
        client.feed([make_frame(frames.PING, 0, 0, bytes(8)) + SETTINGS] * 600)
        assert client.transport.is_closing()
        client.end()
