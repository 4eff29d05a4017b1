"""A server that breaks HTTP/2's rules, or wears a client down, loses one connection, and that is told."""

from __future__ import annotations

import struct

import pytest
from hpack import Encoder

from app.grpc_client import frames
from app.grpc_client.calls import Loss, UnaryCall
from app.grpc_client.channel import MAX_MOVES, ChannelOptions
from app.grpc_client.connection import MAX_RESETS, ConnectionOptions, Keepalive
from app.grpc_client.frames import ErrorCode
from app.grpc_client.header_encoder import Field
from app.grpc_client.status import StatusCode
from tests.grpc_client.servers import (
    ANSWER,
    END,
    HEAD,
    Caller,
    Script,
    Wire,
    block,
    channel_to,
    end,
    head,
    outcome,
    serving,
    until,
)


def sending(*parts: bytes, after_head: bool = False) -> Script:
    """A server that answers the first request with bytes, and reads on."""

    async def script(wire: Wire) -> None:
        await wire.start()
        stream_id = await wire.request()
        if after_head:
            wire.send(head(stream_id))
        wire.send(*parts)
        await wire.closed()

    return script


def continuations(count: int, part: bytes) -> bytes:
    first = frames.frame(frames.HEADERS, 0, 1, block(*HEAD))
    return first + frames.frame(frames.CONTINUATION, 0, 1, part) * count


REFERENCES = Encoder().encode([(b"x" * 20, b"y" * 4_000)], huffman=False) + b"\xbe" * 10_000

FATAL: dict[str, tuple[Script, str, ErrorCode]] = {
    "a CONTINUATION flood": (
        sending(continuations(20_000, b"")),
        "header block is too large",
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "a header block without an end": (
        sending(continuations(70, b"\x00\x01a\x7f\x80\x7f" + b"b" * 16_000)),
        "header block is too large",
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "one entry of the table, ten thousand times": (
        sending(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, REFERENCES)),
        "headers are larger than",
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "a table larger than allowed": (
        sending(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x3f\xe1\xff\x7f" + block(*HEAD))),
        "header compression",
        ErrorCode.COMPRESSION_ERROR,
    ),
    "an index that the table has not": (
        sending(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\x80\x7f")),
        "header compression",
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a frame larger than the limit": (
        sending(frames.frame(frames.DATA, 0, 1, bytes(20_000)), after_head=True),
        "a frame of 20000 bytes",
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "a frame within a header block": (
        sending(frames.frame(frames.HEADERS, 0, 1, block(*HEAD)), frames.ping(bytes(8))),
        "within a header block",
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a push": (
        sending(frames.frame(frames.PUSH_PROMISE, frames.END_HEADERS, 1, b"\0\0\0\2" + block(*HEAD))),
        "PUSH_PROMISE",
        ErrorCode.PROTOCOL_ERROR,
    ),
    "an answer that nobody asked for": (sending(head(99)), "stream 99", ErrorCode.PROTOCOL_ERROR),
    "a stream of the server's own": (sending(head(2)), "stream 2", ErrorCode.PROTOCOL_ERROR),
    "data for the connection": (
        sending(frames.frame(frames.DATA, 0, 0, b"x")),
        "on the connection",
        ErrorCode.PROTOCOL_ERROR,
    ),
    "padding longer than its frame": (
        sending(frames.frame(frames.DATA, frames.PADDED, 1, b"\x09abc"), after_head=True),
        "padding is longer",
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a window beyond 2^31": (
        sending(frames.window_update(0, frames.MAX_WINDOW)),
        "window is too large",
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a window that widens by nothing": (
        sending(frames.window_update(0, 0)),
        "WINDOW_UPDATE of 0",
        ErrorCode.PROTOCOL_ERROR,
    ),
    "settings of half a setting": (
        sending(frames.frame(frames.SETTINGS, 0, 0, b"abc")),
        "SETTINGS frame of 3",
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "frames of no size": (
        sending(frames.settings({frames.MAX_FRAME_SIZE_ID: 1})),
        "MAX_FRAME_SIZE is 1",
        ErrorCode.PROTOCOL_ERROR,
    ),
    "an initial window beyond 2^31": (
        sending(frames.settings({frames.INITIAL_WINDOW_SIZE: 2**32 - 1})),
        "INITIAL_WINDOW_SIZE",
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a ping of three bytes": (sending(frames.ping(b"abc")), "PING of 3", ErrorCode.FRAME_SIZE_ERROR),
    "a goaway of three bytes": (
        sending(frames.frame(frames.GOAWAY, 0, 0, b"abc")),
        "GOAWAY frame of 3",
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "empty data without an end": (
        sending(frames.frame(frames.DATA, 0, 1, b"") * 5_000, after_head=True),
        "without data",
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
}  # fmt: skip - one server and what is told of it


@pytest.mark.parametrize("name", FATAL)
async def test_a_broken_rule_ends_one_connection_and_is_told(name: str) -> None:
    script, words, code = FATAL[name]
    told: list[tuple[int, int, int, bytes]] = []

    async def watched(wire: Wire) -> None:
        closed = wire.closed

        async def closing() -> list[tuple[int, int, int, bytes]]:
            told.extend(await closed())
            return told

        wire.closed = closing  # type: ignore[method-assign]
        await script(wire)

    async with serving(watched) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        failed = await caller.call()
        assert outcome(failed)[0] == "UNAVAILABLE"
        assert words in failed.message
        assert failed.loss is Loss.BROKEN
        await caller.recover()
        assert server.accepted == 2
    goaways = [payload for kind, _, _, payload in told if kind == frames.GOAWAY]
    assert struct.unpack_from(">LL", goaways[0])[1] == code


@pytest.mark.parametrize("code", [*ErrorCode, 4_000_000_000])
async def test_a_server_that_resets_each_call_at_once_loses_its_connection(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        while True:
            stream_id = await wire.request()
            wire.send(frames.frame(frames.RST_STREAM, 0, stream_id, struct.pack(">L", code)) * 3)

    monkeypatch.setattr("app.grpc_client.connection.REFUSAL_PAUSE_S", 0.001)
    async with serving(script) as server, channel_to(server.port) as channel:
        caller, failed = Caller(channel), list[UnaryCall]()
        while (call := await caller.call()).code is not StatusCode.OK:
            failed.append(call)
        assert server.accepted == 2
        assert MAX_RESETS // (MAX_MOVES + 1) <= len(failed) <= MAX_RESETS
        assert all(call.code is not None for call in failed)
        expected = Loss.UNPROCESSED if code == ErrorCode.REFUSED_STREAM else Loss.BROKEN
        assert {call.loss for call in failed} == {expected}


async def test_a_window_of_one_byte_at_a_time_brings_the_whole_message() -> None:
    seen = bytearray()

    async def script(wire: Wire) -> None:
        await wire.start({frames.INITIAL_WINDOW_SIZE: 0})
        flags = 0
        while not flags & frames.END_STREAM:
            kind, flags, stream_id, payload = await wire.frame()
            if kind == frames.HEADERS:
                flags = 0
                wire.send(frames.window_update(stream_id, 1))
            elif kind == frames.DATA:
                assert len(payload) == 1
                seen.extend(payload)
                wire.send(frames.window_update(stream_id, 1))
            else:
                flags = 0
        wire.send(head(1), ANSWER, end(1))
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        assert outcome(await Caller(channel).call(b"x" * 500)) == ("OK", "")
    assert bytes(seen) == b"\0" + struct.pack(">L", 500) + b"x" * 500


async def test_a_window_that_never_opens_ends_at_the_deadline_and_leaves_nothing() -> None:
    async def script(wire: Wire) -> None:
        await wire.start({frames.INITIAL_WINDOW_SIZE: 0})
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        calls = await Caller(channel).calls(50, b"x" * 100, timeout_s=0.3)
        assert {call.code for call in calls} == {StatusCode.DEADLINE_EXCEEDED}


async def test_a_connection_whose_window_never_opens_takes_no_more_calls() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        late = await caller.call(b"x" * 100_000, timeout_s=0.5)  # more than the first window
        assert late.code is StatusCode.DEADLINE_EXCEEDED
        assert not channel.is_connected
        await caller.recover()
        assert server.accepted == 2


@pytest.mark.parametrize("size", [1_000, 60_000])
async def test_large_trailers_within_the_limit_are_read(size: int) -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        stream_id = await wire.request()
        whole = block(*END, (b"x-big", b"b" * size))
        wire.send(head(stream_id), frames.frame(frames.DATA, 0, stream_id, bytes(5)))
        parts = [whole[at : at + 16_000] for at in range(0, len(whole), 16_000)]
        for at, part in enumerate(parts):
            flags = frames.END_HEADERS if at == len(parts) - 1 else 0
            if at == 0:
                wire.send(frames.frame(frames.HEADERS, flags | frames.END_STREAM, stream_id, part))
            else:
                wire.send(frames.frame(frames.CONTINUATION, flags, stream_id, part))
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        call = await Caller(channel).call()
        assert outcome(call) == ("OK", "")
        assert dict(call.trailers)[b"x-big"] == b"b" * size


def headers(encoder: Encoder, stream_id: int, fields: list[Field], *, ends: bool = False) -> bytes:
    """A header block in as many frames as it needs."""
    sent = bytearray(frames.headers(stream_id, encoder.encode(fields, huffman=False), frames.MIN_FRAME_SIZE))
    sent[4] |= frames.END_STREAM if ends else 0
    return bytes(sent)


SMALL_HEADERS = ChannelOptions(connection=ConnectionOptions(max_header_bytes=8_192))


@pytest.mark.parametrize("kind", ["head", "trailers", "all in one", "informational"])
async def test_headers_beyond_the_limit_end_their_call_alone(kind: str) -> None:
    encoder = Encoder()
    large = [(b"x-%d" % at, b"b" * 100) for at in range(150)]  # they change the table for those after them
    resets: list[tuple[int, bytes]] = []

    async def script(wire: Wire) -> None:
        await wire.start()
        streams = [await wire.request() for _ in range(100)]
        first = streams[0]
        if kind == "informational":
            wire.send(headers(encoder, first, [(b":status", b"103"), *large]))
        elif kind == "head":
            wire.send(headers(encoder, first, [*HEAD, *large]))
        elif kind == "all in one":
            wire.send(headers(encoder, first, [*HEAD, *END, *large], ends=True))
        else:
            wire.send(headers(encoder, first, HEAD), frames.frame(frames.DATA, 0, first, bytes(5)))
            wire.send(headers(encoder, first, [*END, *large], ends=True))
        for stream_id in streams[1:]:
            wire.send(headers(encoder, stream_id, HEAD), frames.frame(frames.DATA, 0, stream_id, bytes(5)))
            wire.send(headers(encoder, stream_id, [*END, large[-1]], ends=True))
        seen = await wire.closed()
        resets.extend((number, payload) for type_, _, number, payload in seen if type_ == frames.RST_STREAM)

    async with serving(script) as server:
        async with channel_to(server.port, SMALL_HEADERS) as channel:
            refused, *others = await Caller(channel).calls(100)
            assert (refused.code, refused.loss) == (StatusCode.RESOURCE_EXHAUSTED, Loss.NONE)
            assert (refused.is_too_large, refused.is_local) == (True, True)
            assert "the limit for an answer's headers is 8192 bytes" in refused.message
            assert {outcome(call) for call in others} == {("OK", "")}
            assert {call.trailers for call in others} == {(*END, large[-1])}
            assert server.accepted == 1
        await until(lambda: not server.tasks)
    cancelled = [(1, struct.pack(">L", ErrorCode.CANCEL))]
    assert resets == (cancelled if kind in {"head", "informational"} else [])


async def test_headers_far_beyond_the_limit_end_the_connection() -> None:
    far_too_large = [*END, *((b"x-%d" % at, b"") for at in range(4_000))]
    script = sending(ANSWER, headers(Encoder(), 1, far_too_large, ends=True), after_head=True)
    async with serving(script) as server, channel_to(server.port, SMALL_HEADERS) as channel:
        caller = Caller(channel)
        failed = await caller.call()
        assert "headers are larger than 131072 bytes" in failed.message
        assert failed.loss is Loss.BROKEN
        await caller.recover()


async def test_an_answer_beyond_the_limit_ends_its_call_alone() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        first, second = await wire.request(), await wire.request()
        wire.send(head(first), head(second))
        wire.send(frames.frame(frames.DATA, 0, first, b"\0" + struct.pack(">L", 2_000_000) + bytes(1_000)))
        wire.send(frames.frame(frames.DATA, 0, second, bytes(5)), end(second))
        await wire.closed()

    options = ChannelOptions(connection=ConnectionOptions(max_message_bytes=1_000_000))
    async with serving(script) as server, channel_to(server.port, options) as channel:
        large, small = await Caller(channel).calls(2)
        assert outcome(large)[0] == "RESOURCE_EXHAUSTED"
        assert "1000000 bytes" in large.message
        assert large.is_too_large
        assert outcome(small) == ("OK", "")
        assert server.accepted == 1


async def test_bytes_after_a_goaway_end_the_connection_and_no_later_call() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        stream_id = await wire.request()
        wire.send(frames.goaway(stream_id, ErrorCode.NO_ERROR), b"\xff" * 500)
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        failed = await caller.call()
        assert (failed.code, failed.loss) == (StatusCode.UNAVAILABLE, Loss.BROKEN)
        assert not failed.is_planned
        await caller.recover()


async def test_a_server_that_asks_for_replies_and_reads_none_loses_its_connection() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        await wire.request()
        while not wire.writer.is_closing():
            wire.send(frames.ping(b"flooding") * 1_000)
            await wire.writer.drain()

    async with serving(script) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        assert "replies" in (await caller.call()).message
        await caller.recover()


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "speaks HTTP/1, not HTTP/2"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "speaks TLS"),
        (b"220 mail.example.com ESMTP\r\n", "does not speak HTTP/2"),
        (b"SSH-2.0-\n", "does not speak HTTP/2"),
        (b"", "the server closed it"),
    ],
)
async def test_a_server_of_another_protocol_is_named_so(first: bytes, words: str) -> None:
    async def script(wire: Wire) -> None:
        await wire.preface()
        wire.send(first)

    async with serving(script) as server, channel_to(server.port) as channel:
        call = await Caller(channel).call()
        assert outcome(call)[0] == "UNAVAILABLE"
        assert words in call.message
        assert call.loss is Loss.UNPROCESSED


async def test_a_server_that_says_nothing_is_given_up_after_the_connect_timeout() -> None:
    async def script(wire: Wire) -> None:
        await wire.closed()

    options = ChannelOptions(connect_timeout_s=0.3)
    async with serving(script) as server, channel_to(server.port, options) as channel:
        call = await Caller(channel).call()
        assert outcome(call)[0] == "UNAVAILABLE"
        assert "0.3 s" in call.message


async def test_a_server_that_dies_between_calls_is_no_failure() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        stream_id = await wire.request()
        wire.send(head(stream_id), ANSWER, end(stream_id))

    async with serving(script) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        assert outcome(await caller.call()) == ("OK", "")
        await until(lambda: not channel.is_connected)
        assert outcome(await caller.call()) == ("OK", "")
        assert server.accepted == 2


async def test_a_silent_connection_is_found_by_a_ping() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        while True:
            kind, flags, stream_id, _ = await wire.frame()
            if kind == frames.DATA and flags & frames.END_STREAM and stream_id == 1:
                wire.send(head(1), ANSWER, end(1))

    options = ChannelOptions(connection=ConnectionOptions(keepalive=Keepalive(0.2, 0.2)))
    async with serving(script) as server, channel_to(server.port, options) as channel:
        caller = Caller(channel)
        assert outcome(await caller.call()) == ("OK", "")
        lost = await caller.call()
        assert outcome(lost)[0] == "UNAVAILABLE"
        assert "did not answer a ping" in lost.message
        assert lost.loss is Loss.BROKEN
