"""One connection in memory, step by step: what the state machine found, and what it does not reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from app.grpc_client import frames
from app.grpc_client.calls import Call, Loss, StreamCall, UnaryCall
from app.grpc_client.connection import (
    CANCELLED_PAUSE_S,
    CONNECTION_WINDOW,
    PING_ACK_WAIT_S,
    REFUSAL_PAUSE_S,
    ConnectionOptions,
    Keepalive,
    grpc_timeout,
)
from app.grpc_client.frames import ErrorCode
from app.grpc_client.header_encoder import Field
from app.grpc_client.outbox import MAX_REPLIES
from app.grpc_client.status import StatusCode
from tests.grpc_client.memory import HEAD, METHOD, OK, ManualLoop, Pair, Pool, body

CANCELLED: list[Field] = [*HEAD, (b"grpc-status", b"1")]

OPTIONS = ConnectionOptions(keepalive=Keepalive(100.0, 10.0))
PING_ACK = frames.PING, 0, 8  # as `written` names it


class Bench:
    """A connection that is ready, and the calls that ended on it."""

    def __init__(self, loop: ManualLoop, options: ConnectionOptions = OPTIONS) -> None:
        self.loop = loop
        self.pool = Pool(loop)
        self.pair = self.pool.current = Pair(loop, self.pool, options)
        self.connection, self.server = self.pair.connection, self.pair.server
        self.done: list[Call] = []
        self.pair.settle()

    def unary(self, message: bytes = b"request") -> UnaryCall:
        call = UnaryCall(METHOD, [], self.pool, message, self.done.append)
        self.pool.begin(call)
        return call

    def stream(self, received: list[bytes]) -> StreamCall:
        call = StreamCall(
            METHOD, [], self.pool, lambda _, message: received.append(message), self.done.append
        )
        self.pool.begin(call)
        return call


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ManualLoop.new() as loop:
        yield Bench(loop)


def written(pair: Pair) -> list[tuple[int, int, int]]:
    """Types, streams and sizes of the frames that wait to be delivered to the server."""
    pair.loop.turn()
    data, found = bytes(pair.transport.written), []
    while data:
        high, low, kind, _, stream_id = frames.HEADER.unpack_from(data)
        size = high << 8 | low
        found.append((kind, stream_id, size))
        data = data[frames.HEADER_BYTES + size :]
    return found


def ping(bench: Bench, *numbers: int) -> None:
    """The server sends PINGs, each with its number; they come in one part."""
    for number in numbers:
        bench.server.h2.ping(number.to_bytes(8))
    bench.server.flush()
    bench.pair.to_client()


def acknowledged(bench: Bench) -> list[int]:
    """The numbers of the PINGs that the server has the answers of, in the order of these."""
    bench.pair.to_server()
    return [int.from_bytes(payload) for payload in bench.server.acknowledged_pings]


def test_settings_are_acknowledged_before_what_they_allow_is_sent(bench: Bench) -> None:
    """The server counts by its old limits until it reads the acknowledgement."""
    call = bench.unary(bytes(65_535))  # with its prefix, five bytes more than the window
    bench.pair.settle()
    bench.server.widen(0, 100_000)
    bench.server.change({SettingCodes.INITIAL_WINDOW_SIZE: 100_000})
    bench.pair.to_client()
    assert written(bench.pair) == [(frames.SETTINGS, 0, 0), (frames.DATA, call.stream_id, 5)]


def test_a_frame_size_counts_before_what_a_wider_window_of_the_same_settings_lets_out(bench: Bench) -> None:
    bench.server.change({SettingCodes.MAX_FRAME_SIZE: 100_000, SettingCodes.INITIAL_WINDOW_SIZE: 0})
    bench.pair.settle()
    call = bench.unary(bytes(20_000))
    bench.pair.settle()
    settings = {SettingCodes.INITIAL_WINDOW_SIZE: 65_535, SettingCodes.MAX_FRAME_SIZE: frames.MIN_FRAME_SIZE}
    bench.server.change(settings)
    bench.pair.settle()
    assert bench.server.streams[call.stream_id].has_request


def test_a_call_that_a_callback_ended_is_not_moved_with_those_that_no_server_has_begun(
    bench: Bench,
) -> None:
    second: list[UnaryCall] = []
    first = StreamCall(METHOD, [], bench.pool, lambda *_: None, lambda _: second[0].cancel())
    bench.pool.begin(first)
    second.append(bench.unary())
    bench.server.go_away(0)
    bench.pair.to_client()
    assert first.loss is Loss.UNPROCESSED
    assert second[0].code is StatusCode.CANCELLED
    assert bench.pool.moved == []


def test_a_callback_that_raises_ends_its_stream_and_not_the_connection(bench: Bench) -> None:
    def on_drained(_: StreamCall) -> None:
        raise ValueError("a caller's defect")

    broken = StreamCall(METHOD, [], bench.pool, lambda *_: None, bench.done.append, on_drained)
    bench.pool.begin(broken)
    broken.send(bytes(65_535))
    bench.pair.settle()
    other = bench.unary(b"")
    bench.server.widen(0, 100_000)
    bench.server.widen(broken.stream_id, 100_000)
    bench.pair.settle()
    assert broken.code is StatusCode.INTERNAL
    assert [text for text in bench.loop.errors if "a caller's defect" in text]
    assert other.code is None
    assert not bench.pair.transport.is_closing()


@pytest.mark.parametrize("ends", [True, False])
def test_an_answer_that_is_none_of_grpc_s_frees_its_stream_at_the_server(bench: Bench, ends: bool) -> None:
    call = bench.unary(bytes(100_000))  # more than the window: the server has not all of it
    bench.pair.settle()
    bench.server.h2.send_headers(call.stream_id, [(b":status", b"503")], end_stream=ends)
    bench.server.flush()
    bench.pair.settle()
    assert (call.code, bench.connection.calls) == (StatusCode.UNAVAILABLE, {})
    assert call.trailers == ()
    assert bench.server.streams[call.stream_id].reset_code == ErrorCode.CANCEL
    assert bench.server.h2.open_inbound_streams == 0


@pytest.mark.parametrize("ends", [True, False])
def test_the_fields_of_an_answer_that_is_none_of_grpc_s_are_no_trailers(bench: Bench, ends: bool) -> None:
    call = bench.unary()
    bench.pair.settle()
    fields = [(b":status", b"502"), (b"content-type", b"text/html"), (b"x-retry", b"never")]
    bench.server.h2.send_headers(call.stream_id, fields, end_stream=ends)
    bench.server.flush()
    bench.pair.settle()
    assert (call.code, call.trailers) == (StatusCode.UNAVAILABLE, ())
    assert call.head is not None
    assert call.head.fields == tuple(fields)


def test_the_fields_of_an_answer_of_trailers_only_are_its_trailers(bench: Bench) -> None:
    call = bench.unary()
    bench.pair.settle()
    fields = [(b":status", b"503"), (b"grpc-status", b"14"), (b"x-retry", b"later")]
    bench.server.end(call.stream_id, fields)
    bench.pair.settle()
    assert (call.code, call.trailers) == (StatusCode.UNAVAILABLE, tuple(fields))


@pytest.mark.parametrize("own", [[], [(b"x-large", b"l" * 70_000)]])
def test_an_answer_before_the_request_is_whole_frees_its_stream_at_the_server(
    bench: Bench, own: list[Field]
) -> None:
    call = bench.unary(bytes(100_000))
    bench.pair.settle()
    bench.server.end(call.stream_id, [*HEAD, (b"grpc-status", b"8"), *own])
    bench.pair.settle()
    assert call.code is StatusCode.RESOURCE_EXHAUSTED
    assert call.is_too_large == bool(own)
    assert bench.server.h2.open_inbound_streams == 0


def test_a_stream_brings_more_than_the_connection_s_window(bench: Bench) -> None:
    received: list[bytes] = []
    call = bench.stream(received)
    bench.pair.settle()
    bench.server.head(call.stream_id)
    message, count = bytes(10_000), 2 * CONNECTION_WINDOW // 10_000
    for _ in range(count):
        if not bench.server.data(call.stream_id, body([message])):
            bench.pair.settle()
            assert bench.server.data(call.stream_id, body([message]))
    bench.server.end(call.stream_id, OK)
    bench.pair.settle()
    assert len(received) == count
    assert call.code is StatusCode.OK


def test_padding_s_part_of_a_window_comes_back() -> None:
    with ManualLoop.new() as loop:
        bench = Bench(loop, ConnectionOptions(max_message_bytes=1_000))
        received: list[bytes] = []
        call = bench.stream(received)
        bench.pair.settle()
        bench.server.head(call.stream_id)
        for _ in range(3 * frames.DEFAULT_WINDOW // 256):
            assert bench.server.data(call.stream_id, body([b""]), padding=255)
            bench.pair.settle()
        assert call.code is None


def test_a_stream_that_is_not_read_stops_its_server_and_no_other(bench: Bench) -> None:
    slow, quick = list[bytes](), list[bytes]()
    calls = bench.stream(slow), bench.stream(quick)
    calls[0].pause_reading()
    bench.pair.settle()
    sent = dict.fromkeys(calls, 0)
    for call in calls:
        bench.server.head(call.stream_id)
    for _ in range(2_000):
        for call in calls:
            sent[call] += bench.server.data(call.stream_id, body([bytes(4_000)]))
        bench.pair.settle()
    assert sent[calls[1]] == len(quick) == 2_000
    window = max(frames.DEFAULT_WINDOW, OPTIONS.max_message_bytes + 2**14)
    assert sent[calls[0]] == window // 4_005
    calls[0].resume_reading()
    bench.pair.settle()
    assert bench.server.data(calls[0].stream_id, body([bytes(4_000)]))


def test_a_silent_server_is_asked_for_a_sign_and_left_when_there_is_none(bench: Bench) -> None:
    call = bench.unary()
    bench.pair.settle()
    bench.loop.advance(OPTIONS.keepalive.time_s)
    assert (frames.PING, 0, 8) in written(bench.pair)
    bench.loop.advance(OPTIONS.keepalive.timeout_s - 1.0)
    assert call.code is None
    bench.loop.advance(1.0)
    assert bench.done == [call]
    assert call.loss is Loss.BROKEN
    assert "did not answer a ping for 10 s" in call.message
    assert bench.connection in bench.pool.lost


def test_a_server_that_answers_pings_is_kept(bench: Bench) -> None:
    bench.unary()
    for _ in range(20):
        bench.loop.advance(OPTIONS.keepalive.time_s / 2)
        bench.pair.settle()
    assert not bench.pair.transport.is_closing()


def test_pings_come_in_time_however_long_an_answer_may_take(bench: Bench) -> None:
    keepalive = OPTIONS.keepalive
    bench.unary()
    bench.pair.settle()
    for _ in range(5):
        bench.loop.advance(keepalive.time_s)
        assert (frames.PING, 0, 8) in written(bench.pair)
        bench.loop.advance(0.9 * keepalive.timeout_s)
        bench.pair.settle()  # the server answers late


def test_a_server_that_finds_pings_too_many_is_asked_half_as_often(bench: Bench) -> None:
    keepalive = bench.connection._options.keepalive
    before_s = keepalive.time_s
    call = bench.unary()
    bench.pair.settle()
    bench.server.go_away(call.stream_id, ErrorCodes.ENHANCE_YOUR_CALM, b"too_many_pings")
    bench.pair.settle()
    assert keepalive.time_s == 2 * before_s
    assert bench.connection.is_planned
    keepalive.time_s = before_s


def test_a_connection_without_calls_closes_and_asks_for_no_sign(bench: Bench) -> None:
    bench.loop.advance(OPTIONS.keepalive.time_s)
    assert not [kind for kind, *_ in written(bench.pair) if kind == frames.PING]
    assert bench.connection in bench.pool.lost


def test_a_server_that_speaks_is_not_asked(bench: Bench) -> None:
    bench.unary()
    bench.pair.settle()
    for _ in range(20):
        bench.loop.advance(OPTIONS.keepalive.time_s / 2)
        ping(bench, 0)
        bench.loop.advance(PING_ACK_WAIT_S)
        assert written(bench.pair) == [PING_ACK]  # and no PING of its own
        assert bench.connection._awaits_ping is False
        bench.pair.settle()


def test_a_connection_that_closes_does_not_wait_for_a_server_that_reads_nothing(bench: Bench) -> None:
    call = bench.unary()
    bench.pair.transport.pause()
    bench.connection.close("enough")
    bench.loop.turn()
    assert call.code is None
    bench.loop.advance(1.0)
    assert call.code is StatusCode.UNAVAILABLE
    assert "enough" in call.message


def test_a_connection_that_is_drained_ends_its_calls_first(bench: Bench) -> None:
    call = bench.unary()
    bench.pair.settle()
    bench.connection.drain()
    bench.pair.settle()
    assert not bench.connection.has_room
    bench.server.head(call.stream_id)
    bench.server.data(call.stream_id, body([b"answer"]))
    bench.server.end(call.stream_id, OK)
    bench.pair.settle()
    assert (call.code, call.answer) == (StatusCode.OK, b"answer")
    assert bench.connection in bench.pool.lost
    assert bench.server.goaway is not None
    assert bench.server.goaway.error_code == ErrorCodes.NO_ERROR


def test_a_connection_drains_before_its_stream_numbers_run_out(bench: Bench) -> None:
    bench.connection._next_stream_id = frames.MAX_STREAM_ID
    call = bench.unary()
    assert call.stream_id == frames.MAX_STREAM_ID
    assert bench.pool.drained == [bench.connection]
    assert not bench.connection.has_room


def test_headers_of_more_than_one_frame_are_read_whole(bench: Bench) -> None:
    large = (b"x-large", b"l" * 40_000)
    call = bench.unary()
    bench.pair.settle()
    bench.server.head(call.stream_id, [*HEAD, large])
    bench.server.data(call.stream_id, body([b"answer"]))
    bench.server.end(call.stream_id, [*OK, large])
    bench.pair.settle()
    assert call.head is not None
    assert call.head.fields == (*HEAD, large)
    assert (call.code, call.trailers) == (StatusCode.OK, (*OK, large))


# Pings of the server


def test_ping_is_answered_a_moment_later_if_nothing_is_sent_before(bench: Bench) -> None:
    ping(bench, 7)
    assert written(bench.pair) == []
    bench.loop.advance(PING_ACK_WAIT_S / 2)
    assert written(bench.pair) == []
    bench.loop.advance(PING_ACK_WAIT_S / 2)
    assert written(bench.pair) == [PING_ACK]
    assert acknowledged(bench) == [7]
    bench.loop.advance(10 * PING_ACK_WAIT_S)
    assert written(bench.pair) == [], "it was answered again"


def test_ping_is_answered_with_the_next_call(bench: Bench) -> None:
    ping(bench, 7)
    call = bench.unary()
    sent = [PING_ACK, (frames.HEADERS, call.stream_id), (frames.DATA, call.stream_id)]
    assert [one[: len(other)] for one, other in zip(written(bench.pair), sent, strict=True)] == sent
    assert acknowledged(bench) == [7]
    bench.loop.advance(10 * PING_ACK_WAIT_S)
    assert written(bench.pair) == []


def test_ping_after_a_call_in_the_same_turn_is_answered_with_it(bench: Bench) -> None:
    bench.unary()
    ping(bench, 7)
    assert [kind for kind, *_ in written(bench.pair)] == [frames.HEADERS, frames.DATA, frames.PING]
    bench.loop.advance(10 * PING_ACK_WAIT_S)
    assert acknowledged(bench) == [7]


def test_ping_before_new_settings_is_answered_with_their_acknowledgement(bench: Bench) -> None:
    bench.server.h2.ping(bytes(8))
    bench.server.change({SettingCodes.MAX_CONCURRENT_STREAMS: 5})
    bench.pair.to_client()
    assert written(bench.pair) == [PING_ACK, (frames.SETTINGS, 0, 0)]


def test_pings_are_answered_in_their_order_in_one_write(bench: Bench) -> None:
    ping(bench, 1, 2)
    bench.loop.advance(PING_ACK_WAIT_S / 2)
    ping(bench, 3)
    bench.loop.advance(PING_ACK_WAIT_S / 2)
    assert acknowledged(bench) == [1, 2, 3]


def test_ping_after_an_answered_one_waits_no_longer_than_others(bench: Bench) -> None:
    """A timer may be left of an earlier ping that a call's write answered."""
    ping(bench, 1)
    bench.unary()
    bench.loop.advance(PING_ACK_WAIT_S / 2)
    ping(bench, 2)
    bench.loop.advance(PING_ACK_WAIT_S)
    assert acknowledged(bench) == [1, 2]
    ping(bench, 3)
    bench.loop.advance(PING_ACK_WAIT_S)
    assert acknowledged(bench) == [1, 2, 3]


def test_many_pings_are_answered_and_so_are_later_ones(bench: Bench) -> None:
    for begin in range(0, 5 * MAX_REPLIES, MAX_REPLIES):
        ping(bench, *range(begin, begin + MAX_REPLIES))
        bench.loop.advance(PING_ACK_WAIT_S)
        assert acknowledged(bench) == [*range(begin + MAX_REPLIES)]
    assert not bench.pair.transport.is_closing()


def test_many_pings_take_one_timer(bench: Bench) -> None:
    before = len(bench.loop._timers)
    ping(bench, *range(100))
    assert len(bench.loop._timers) == before + 1


def test_server_that_pings_without_a_pause_is_left(bench: Bench) -> None:
    ping(bench, *range(MAX_REPLIES + 1))
    bench.loop.turn()
    assert bench.pair.transport.is_closing()
    bench.pair.to_server()
    assert bench.server.goaway is not None
    assert bench.server.goaway.error_code == ErrorCodes.ENHANCE_YOUR_CALM
    bench.loop.advance(PING_ACK_WAIT_S)
    assert bench.loop.errors == []


def test_ping_while_the_network_takes_nothing_is_answered_once(bench: Bench) -> None:
    bench.pair.transport.pause()
    ping(bench, 7)
    bench.loop.advance(PING_ACK_WAIT_S)
    bench.pair.transport.resume()
    bench.loop.advance(PING_ACK_WAIT_S)
    assert acknowledged(bench) == [7]


@pytest.mark.parametrize("end", ["close", "lose", "abort", "drain", "go away", "fault", "end of file"])
@pytest.mark.parametrize("is_paused", [False, True])
def test_connection_that_ends_leaves_no_timer_that_writes(bench: Bench, end: str, is_paused: bool) -> None:
    """The transport of the tests raises for a write after its end, and the loop keeps the error."""
    if is_paused:
        bench.pair.transport.pause()
    ping(bench, 7)
    bench.loop.turn()
    if end == "close":
        bench.connection.close("enough")
    elif end == "lose":
        bench.pair.transport.lose()
    elif end == "abort":
        bench.pair.transport.abort()
    elif end == "drain":
        bench.connection.drain()
    elif end == "go away":
        bench.server.go_away(0)
        bench.pair.to_client()
    elif end == "fault":
        bench.connection.data_received(frames.ping(b"short"))
    else:
        bench.connection.eof_received()
        bench.pair.transport.close()  # asyncio does so
    ping(bench, 8)
    bench.loop.advance(PING_ACK_WAIT_S)
    bench.loop.advance(2.0)
    assert bench.pair.transport.is_lost
    assert bench.loop.errors == []
    assert bench.connection._outbox._timer is None
    assert bench.connection._outbox._out == []


def test_ping_is_answered_before_the_connection_says_that_it_ends(bench: Bench) -> None:
    ping(bench, 7)
    bench.connection.drain()
    bench.loop.turn()
    assert acknowledged(bench) == [7]
    assert bench.server.goaway is not None
    assert bench.connection in bench.pool.lost


def test_ping_behind_an_answer_whose_caller_closes_the_connection_writes_nothing(bench: Bench) -> None:
    def close(_: Call) -> None:
        bench.connection.close("enough")

    call = UnaryCall(METHOD, [], bench.pool, b"", close)
    bench.pool.begin(call)
    bench.pair.settle()
    bench.server.end(call.stream_id, [*HEAD, *OK])
    ping(bench, 7)
    bench.loop.advance(PING_ACK_WAIT_S)
    assert acknowledged(bench) == []
    assert bench.server.goaway is not None
    assert bench.loop.errors == []


@given(st.lists(st.sampled_from(["ping", "ping", "call", "turn", "wait", "pause", "resume", "to server"])))
def test_each_ping_is_answered_once_in_order_and_in_time(acts: list[str]) -> None:
    with ManualLoop.new() as loop:
        bench = Bench(loop)
        pinged_s: list[float] = []
        for act in acts:
            if act == "ping":
                ping(bench, len(pinged_s))
                pinged_s.append(loop.time())
            elif act == "call":
                bench.unary()
            elif act == "turn":
                loop.turn()
            elif act == "wait":
                loop.advance(PING_ACK_WAIT_S / 3)
            elif act == "to server":
                bench.pair.to_server()
            else:
                getattr(bench.pair.transport, act)()
            if act in ("turn", "wait"):
                due = sum(since_s + PING_ACK_WAIT_S <= loop.time() for since_s in pinged_s)
                assert len(acknowledged(bench)) >= due
        bench.pair.transport.resume()
        loop.advance(PING_ACK_WAIT_S)
        assert acknowledged(bench) == [*range(len(pinged_s))]
        assert loop.errors == []


# Room, and what has to wait


def test_a_paused_network_gets_no_messages_and_no_new_calls(bench: Bench) -> None:
    call = bench.stream([])
    bench.pair.settle()
    bench.pair.transport.pause()
    call.send(b"message")
    waiting = bench.unary()
    assert written(bench.pair) == []
    assert call.unsent_bytes == len(body([b"message"]))
    assert list(bench.pool.waiting) == [waiting]
    bench.pair.transport.resume()
    assert [kind for kind, *_ in written(bench.pair)] == [frames.DATA, frames.HEADERS, frames.DATA]
    assert call.unsent_bytes == 0


def test_nothing_of_a_call_that_was_cancelled_follows_its_reset(bench: Bench) -> None:
    call = StreamCall(METHOD, [], bench.pool, lambda *_: None, bench.done.append)
    call.send(b"before it began")
    bench.pool.begin(call)
    call.cancel()
    call.send(b"too late")
    assert [kind for kind, *_ in written(bench.pair)][-1] == frames.RST_STREAM
    bench.pair.settle()
    assert bench.server.streams[call.stream_id].reset_code == ErrorCode.CANCEL


@pytest.mark.parametrize("message", [b"", b"message"])
def test_a_stream_that_its_caller_cancels_amid_messages_brings_no_more(bench: Bench, message: bytes) -> None:
    received: list[bytes] = []

    def receive(call: StreamCall, one: bytes) -> None:
        received.append(one)
        call.cancel()

    call = StreamCall(METHOD, [], bench.pool, receive, bench.done.append)
    bench.pool.begin(call)
    bench.pair.settle()
    bench.server.head(call.stream_id)
    if message:
        bench.server.data(call.stream_id, body([message, message]))
    else:
        bench.server.data(call.stream_id, body([message]), ends=True)
    bench.pair.to_client()
    assert received == [message]
    assert written(bench.pair) == [(frames.RST_STREAM, call.stream_id, 4)]


def test_a_caller_hears_when_all_that_waited_has_left(bench: Bench) -> None:
    drained: list[StreamCall] = []
    call = StreamCall(METHOD, [], bench.pool, lambda *_: None, bench.done.append, drained.append)
    bench.pool.begin(call)
    call.send(bytes(1_000))
    bench.pair.settle()
    assert drained == []  # nothing had to wait
    call.send(bytes(70_000))
    bench.pair.settle()
    bench.server.widen(call.stream_id, 100_000)  # the connection's window holds it up still
    bench.pair.settle()
    assert drained == []
    bench.server.widen(0, 100_000)
    bench.pair.settle()
    assert drained == [call]
    bench.pair.transport.pause()
    call.send(b"again")
    bench.pair.transport.resume()
    assert drained == [call, call]


def test_calls_wait_while_the_connection_s_window_is_used_up(bench: Bench) -> None:
    large = bench.unary(bytes(70_000))
    waiting = bench.unary()
    assert list(bench.pool.waiting) == [waiting]
    bench.pair.settle()
    bench.server.widen(large.stream_id, 100_000)
    bench.pair.settle()
    assert list(bench.pool.waiting) == [waiting]
    bench.server.widen(0, 100_000)
    bench.pair.settle()
    assert not bench.pool.waiting
    assert bench.server.streams[waiting.stream_id].has_request


def test_calls_wait_while_the_server_takes_no_more_at_once(bench: Bench) -> None:
    bench.server.change({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
    bench.pair.settle()
    first, second, third = bench.unary(), bench.unary(), bench.unary()
    assert list(bench.pool.waiting) == [second, third]
    first.cancel()
    assert list(bench.pool.waiting) == [third]
    bench.server.change({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    bench.pair.settle()
    assert not bench.pool.waiting
    assert second.code is third.code is None


def test_a_call_with_more_metadata_than_the_server_takes_is_not_sent(bench: Bench) -> None:
    bench.server.change({SettingCodes.MAX_HEADER_LIST_SIZE: 1_000})
    bench.pair.settle()
    call = UnaryCall(METHOD, [(b"x-large", b"l" * 1_000)], bench.pool, b"", bench.done.append)
    bench.pool.begin(call)
    assert bench.done == []  # later, not within the call of the caller
    bench.pair.settle()
    assert bench.done == [call]
    assert (call.code, call.is_local) == (StatusCode.RESOURCE_EXHAUSTED, True)
    assert call.is_metadata_too_large
    assert "takes 1000" in call.message
    assert bench.server.streams == {}


def test_a_call_that_was_cancelled_before_its_metadata_was_refused_is_cancelled(bench: Bench) -> None:
    bench.server.change({SettingCodes.MAX_HEADER_LIST_SIZE: 1_000})
    bench.pair.settle()
    call = UnaryCall(METHOD, [(b"x-large", b"l" * 1_000)], bench.pool, b"", bench.done.append)
    bench.pool.begin(call)
    call.cancel()
    bench.pair.settle()
    assert bench.done == [call]
    assert (call.code, call.is_metadata_too_large) == (StatusCode.CANCELLED, False)


def test_a_server_s_own_refusal_is_not_that_of_too_much_metadata(bench: Bench) -> None:
    call = bench.unary()
    bench.pair.settle()
    bench.server.reset(call.stream_id, ErrorCodes.ENHANCE_YOUR_CALM)
    bench.pair.settle()
    assert (call.code, call.is_local) == (StatusCode.RESOURCE_EXHAUSTED, True)
    assert not call.is_metadata_too_large


def test_a_call_whose_metadata_is_no_bytes_fails_alone(bench: Bench) -> None:
    wrong: Any = [(b"x-own", "text")]
    with pytest.raises(TypeError):
        bench.pool.begin(UnaryCall(METHOD, wrong, bench.pool, b"", bench.done.append))
    assert bench.connection.calls == {}
    call = bench.unary()
    bench.pair.settle()
    assert bench.server.streams[call.stream_id].fields == list(METHOD.fields)


# What is known of a call without an answer


def test_a_goaway_s_last_stream_goes_on_and_those_above_move(bench: Bench) -> None:
    kept, moved = bench.unary(), bench.unary()
    bench.pair.settle()
    bench.server.go_away(kept.stream_id)
    bench.pair.to_client()
    assert list(bench.connection.calls.values()) == [kept]
    assert bench.pool.moved == [moved]
    assert bench.pool.pauses_s == [0.0]


def test_a_later_goaway_with_a_higher_number_brings_no_call_back(bench: Bench) -> None:
    moved, kept = bench.unary(), bench.stream([])
    bench.pair.settle()
    for last in (0, frames.MAX_STREAM_ID, 0):
        bench.server.go_away(last)
    bench.pair.to_client()
    assert bench.pool.moved == [moved]
    assert kept.loss is Loss.UNPROCESSED


def test_nothing_of_an_answer_stays_when_a_server_takes_its_call_back(bench: Bench) -> None:
    """No server may answer a call and then say that it has not begun it."""
    call = bench.unary()
    bench.pair.settle()
    bench.server.head(call.stream_id)
    bench.server.data(call.stream_id, body([b"wrong"]) + b"\0\0")
    bench.server.go_away(0)
    bench.pool.current = Pair(bench.loop, bench.pool)
    bench.pair.to_client()
    second = bench.pool.current
    second.settle()
    second.server.head(call.stream_id)
    second.server.data(call.stream_id, body([b"right"]))
    second.server.end(call.stream_id, OK)
    second.settle()
    assert (call.code, call.answer) == (StatusCode.OK, b"right")


@pytest.mark.parametrize(
    ("code", "loss"), [(ErrorCodes.NO_ERROR, Loss.PLANNED), (ErrorCodes.ENHANCE_YOUR_CALM, Loss.BROKEN)]
)
def test_calls_that_end_with_their_connection_know_whether_the_server_planned_it(
    bench: Bench, code: ErrorCodes, loss: Loss
) -> None:
    call = bench.unary()
    bench.pair.settle()
    bench.server.go_away(call.stream_id, code, b"too many pings")
    bench.pair.to_client()
    bench.pair.transport.lose()
    assert (call.code, call.loss) == (StatusCode.UNAVAILABLE, loss)
    assert call.is_planned == (loss is Loss.PLANNED)
    assert f"GOAWAY {code.name} (too many pings)" in call.message


@pytest.mark.parametrize("by_reset", [False, True])
@pytest.mark.parametrize("says_before", [False, True])
def test_a_call_that_a_server_cancels_when_it_goes_is_lost_by_plan(
    bench: Bench, by_reset: bool, says_before: bool
) -> None:
    call = bench.unary()
    bench.pair.settle()
    if says_before:
        bench.server.go_away(call.stream_id)
    if by_reset:
        bench.server.reset(call.stream_id, ErrorCodes.CANCEL)
    else:
        bench.server.end(call.stream_id, CANCELLED)
    if not says_before:
        bench.pair.to_client()
        assert call.code is None, "its GOAWAY may come in a moment"
        bench.server.go_away(call.stream_id)
    bench.pair.to_client()
    bench.loop.advance(CANCELLED_PAUSE_S)
    assert (call.code, call.loss, call.is_planned) == (StatusCode.CANCELLED, Loss.PLANNED, True)
    assert bench.done == [call]


@pytest.mark.parametrize(("by_reset", "loss"), [(False, Loss.NONE), (True, Loss.BROKEN)])
def test_a_call_that_a_server_cancels_and_stays_is_cancelled_a_moment_later(
    bench: Bench, by_reset: bool, loss: Loss
) -> None:
    calls = [bench.unary(), bench.unary()]
    bench.pair.settle()
    for call in calls:
        if by_reset:
            bench.server.reset(call.stream_id, ErrorCodes.CANCEL)
        else:
            bench.server.end(call.stream_id, CANCELLED)
    bench.pair.to_client()
    bench.loop.advance(CANCELLED_PAUSE_S)
    assert [(call.code, call.loss, call.is_planned) for call in calls] == [
        (StatusCode.CANCELLED, loss, False)
    ] * 2
    assert bench.done == calls


@pytest.mark.parametrize("code", [ErrorCodes.ENHANCE_YOUR_CALM, None])
def test_a_call_that_a_server_cancels_for_its_fault_is_not_planned(
    bench: Bench, code: ErrorCodes | None
) -> None:
    call = bench.unary()
    bench.pair.settle()
    if code is None:
        bench.connection.drain()
    else:
        bench.server.go_away(call.stream_id, code)
    bench.server.end(call.stream_id, CANCELLED)
    bench.pair.to_client()
    bench.loop.advance(CANCELLED_PAUSE_S)
    assert (call.code, call.loss, call.is_planned) == (StatusCode.CANCELLED, Loss.NONE, False)


def test_a_connection_that_breaks_while_this_client_drains_it_breaks_its_calls(bench: Bench) -> None:
    call = bench.unary()
    bench.pair.settle()
    bench.connection.drain()
    bench.pair.transport.lose()
    assert (call.code, call.loss, call.is_planned) == (StatusCode.UNAVAILABLE, Loss.BROKEN, False)


def test_a_call_that_was_cancelled_ends_with_its_connection_at_the_latest(bench: Bench) -> None:
    call = bench.unary()
    bench.pair.settle()
    bench.server.end(call.stream_id, CANCELLED)
    bench.pair.to_client()
    bench.pair.transport.lose()
    assert call.code is StatusCode.CANCELLED
    bench.loop.advance(CANCELLED_PAUSE_S)
    assert bench.done == [call]


@pytest.mark.parametrize("code", [ErrorCodes.NO_ERROR, ErrorCodes.ENHANCE_YOUR_CALM])
def test_a_stream_that_was_not_begun_knows_whether_the_server_planned_its_end(
    bench: Bench, code: ErrorCodes
) -> None:
    left_out, refused = bench.stream([]), bench.stream([])
    bench.pair.settle()
    bench.server.go_away(frames.MAX_STREAM_ID, code)
    bench.server.reset(refused.stream_id, ErrorCodes.REFUSED_STREAM)
    bench.server.go_away(0, code)
    bench.pair.to_client()
    for call in (left_out, refused):
        assert (call.code, call.loss) == (StatusCode.UNAVAILABLE, Loss.UNPROCESSED)
        assert call.is_planned == (code == ErrorCodes.NO_ERROR)


def test_a_call_that_moved_from_a_planned_end_is_not_planned_where_it_went(bench: Bench) -> None:
    call = bench.unary()
    bench.pair.settle()
    bench.server.go_away(0)
    second = bench.pool.current = Pair(bench.loop, bench.pool)
    bench.pair.to_client()
    second.settle()
    second.transport.lose()
    assert (call.loss, call.is_planned) == (Loss.BROKEN, False)


def test_a_call_that_was_refused_before_its_answer_goes_on_after_ever_longer_pauses(bench: Bench) -> None:
    call = bench.unary()
    for _ in range(4):
        bench.pair.settle()
        bench.server.reset(call.stream_id, ErrorCodes.REFUSED_STREAM)
    bench.pair.settle()
    assert bench.pool.moved == [call] * 4
    assert bench.pool.pauses_s == [REFUSAL_PAUSE_S * factor for factor in (1, 2, 4, 8)]


def test_a_stream_that_was_refused_ends_as_not_begun(bench: Bench) -> None:
    call = bench.stream([])
    bench.pair.settle()
    bench.server.reset(call.stream_id, ErrorCodes.REFUSED_STREAM)
    bench.pair.settle()
    assert (call.code, call.loss) == (StatusCode.UNAVAILABLE, Loss.UNPROCESSED)
    assert not call.is_planned


def test_a_call_that_was_refused_amid_its_answer_is_broken(bench: Bench) -> None:
    """A server that has begun to answer may have done what was asked."""
    call = bench.unary()
    bench.pair.settle()
    bench.server.head(call.stream_id)
    bench.server.reset(call.stream_id, ErrorCodes.REFUSED_STREAM)
    bench.pair.settle()
    assert bench.pool.moved == []
    assert (call.code, call.loss) == (StatusCode.UNAVAILABLE, Loss.BROKEN)


@pytest.mark.parametrize(
    ("left_s", "sent"),
    [(-1.0, b"1m"), (0.0, b"1m"), (0.0019, b"1m"), (1.5, b"1500m"), (99_999.9, b"99999900m"),
     (100_000.0, b"100000S"), (1e12, b"99999999S")],
)  # fmt: skip
def test_a_timeout_has_at_most_eight_digits_and_is_never_0(left_s: float, sent: bytes) -> None:
    assert grpc_timeout(left_s) == sent
