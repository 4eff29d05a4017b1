"""A channel spreads calls over connections, waits for room, and moves what a server has not begun."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from app.grpc_client import frames
from app.grpc_client.address import Address, Proxy
from app.grpc_client.calls import Loss, StreamCall, UnaryCall
from app.grpc_client.channel import MAX_MOVES, Channel, ChannelOptions
from app.grpc_client.connection import ConnectionOptions, Keepalive
from app.grpc_client.frames import ErrorCode
from app.grpc_client.status import StatusCode
from tests.grpc_client.servers import (
    HEAD,
    Caller,
    Script,
    Wire,
    block,
    channel_to,
    end,
    head,
    honest,
    outcome,
    serving,
    until,
)


def answer(stream_id: int) -> bytes:
    return head(stream_id) + frames.frame(frames.DATA, 0, stream_id, bytes(5)) + end(stream_id)


def holding(limit: int, release: asyncio.Event) -> Script:
    """A server that takes `limit` calls at once and answers none before `release`."""

    async def script(wire: Wire) -> None:
        await wire.start({frames.MAX_CONCURRENT_STREAMS: limit})
        taken: list[int] = []

        async def answer_taken() -> None:
            await release.wait()
            while taken:
                wire.send(answer(taken.pop()))

        task = asyncio.ensure_future(answer_taken())
        try:
            while True:
                taken.append(await wire.request())
                assert len(taken) <= limit
                if task.done():
                    wire.send(answer(taken.pop()))
        finally:
            task.cancel()

    return script


async def test_calls_share_one_connection() -> None:
    async with serving() as server, channel_to(server.port) as channel:
        calls = await Caller(channel).calls(500)
        assert {outcome(call) for call in calls} == {("OK", "")}
        assert server.accepted == 1


async def test_nothing_connects_before_the_first_call() -> None:
    async with serving() as server, channel_to(server.port):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: server.accepted > 0)
        assert server.accepted == 1  # this one, which came after the channel was made
        writer.close()


async def test_full_connections_bring_more_up_to_the_bound_and_the_rest_waits() -> None:
    release = asyncio.Event()
    async with (
        serving(*[holding(10, release)] * 4) as server,
        channel_to(server.port, ChannelOptions(max_connections=3)) as channel,
    ):
        caller = Caller(channel)
        begun = [caller.begin()[1] for _ in range(100)]
        await until(lambda: server.accepted == 3)
        release.set()
        calls = await asyncio.wait_for(asyncio.gather(*begun), 20)
        assert {outcome(call) for call in calls} == {("OK", "")}
        assert server.accepted == 3


async def test_a_server_that_takes_no_streams_at_first_gets_the_calls_later() -> None:
    async def script(wire: Wire) -> None:
        await wire.start({frames.MAX_CONCURRENT_STREAMS: 0})
        kind, flags, _, _ = await wire.frame()
        while (kind, flags) != (frames.SETTINGS, frames.ACK):
            kind, flags, _, _ = await wire.frame()
        wire.send(frames.settings({frames.MAX_CONCURRENT_STREAMS: 1}))
        while True:
            wire.send(answer(await wire.request()))

    async with (
        serving(script) as server,
        channel_to(server.port, ChannelOptions(max_connections=1)) as channel,
    ):
        calls = await Caller(channel).calls(20)
        assert {outcome(call) for call in calls} == {("OK", "")}


@pytest.mark.parametrize("code", [ErrorCode.NO_ERROR, ErrorCode.ENHANCE_YOUR_CALM])
async def test_calls_that_a_goaway_leaves_out_go_elsewhere(code: ErrorCode) -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        streams = [await wire.request() for _ in range(10)]
        wire.send(frames.goaway(streams[3], code, "draining"))
        wire.send(*map(answer, streams[:4]))
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        calls = await Caller(channel).calls(10)
        assert {outcome(call) for call in calls} == {("OK", "")}
        assert [call.moves for call in calls] == [0] * 4 + [1] * 6
        assert server.accepted == 2


async def test_calls_lost_by_a_planned_end_and_by_another_are_told_apart() -> None:
    def script(code: ErrorCode) -> Script:
        async def run(wire: Wire) -> None:
            await wire.start()
            wire.send(frames.goaway(await wire.request(), code))

        return run

    async with (
        serving(script(ErrorCode.NO_ERROR), script(ErrorCode.INTERNAL_ERROR)) as server,
        channel_to(server.port) as channel,
    ):
        planned, broken = await Caller(channel).call(), await Caller(channel).call()
        assert (planned.code, planned.loss) == (StatusCode.UNAVAILABLE, Loss.PLANNED)
        assert (broken.code, broken.loss) == (StatusCode.UNAVAILABLE, Loss.BROKEN)
        assert "INTERNAL_ERROR" in broken.message


async def test_the_two_goaways_of_a_graceful_end_cost_no_call() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        first = await wire.request()
        wire.send(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, "max_age"))
        wire.send(frames.ping(b"graceful"))
        kind = -1
        while kind != frames.PING:
            kind, *_ = await wire.frame()
        wire.send(frames.goaway(first, ErrorCode.NO_ERROR, "max_age"), answer(first))
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        assert outcome(await caller.call()) == ("OK", "")
        assert outcome(await caller.call()) == ("OK", "")
        assert server.accepted == 2


async def test_a_call_that_every_server_refuses_ends_after_some_moves() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        while True:
            wire.send(frames.rst_stream(await wire.request(), ErrorCode.REFUSED_STREAM))

    async with serving(script) as server, channel_to(server.port) as channel:
        call = await Caller(channel).call()
        assert (call.code, call.loss, call.moves) == (StatusCode.UNAVAILABLE, Loss.UNPROCESSED, MAX_MOVES)
        assert "REFUSED_STREAM" in call.message


async def test_calls_that_pause_after_a_refusal_are_load_and_end_when_the_channel_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        while True:
            wire.send(frames.rst_stream(await wire.request(), ErrorCode.REFUSED_STREAM))

    monkeypatch.setattr("app.grpc_client.connection.REFUSAL_PAUSE_S", 20.0)
    async with serving(script) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        begun = [caller.begin() for _ in range(5)]
        await until(lambda: all(call.moves == 1 for call, _ in begun))
        assert channel.load == 5
        cancelled, ended = begun[0]
        cancelled.cancel()
        assert outcome(await ended)[0] == "CANCELLED"
        assert channel.load == 4
        late = await caller.call(timeout_s=0.1)
        assert (late.code, late.loss, late.moves) == (StatusCode.DEADLINE_EXCEEDED, Loss.NONE, 1)
        assert channel.load == 4
        await channel.close()
        assert {call.code for call, _ in begun} == {StatusCode.CANCELLED}
        assert channel.load == 0


async def test_a_stream_is_not_begun_again() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        kind = -1
        while kind != frames.HEADERS:
            kind, _, stream_id, _ = await wire.frame()
        wire.send(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        ended: asyncio.Future[StreamCall] = asyncio.get_running_loop().create_future()
        channel.stream(channel.method("/a/B"), (), None, lambda *_: None, ended.set_result)
        call = await asyncio.wait_for(ended, 20)
        assert (call.code, call.loss) == (StatusCode.UNAVAILABLE, Loss.UNPROCESSED)


async def test_where_nobody_listens_calls_fail_at_once_until_the_next_attempt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with channel_to(port, ChannelOptions(min_backoff_s=0.3, max_backoff_s=0.3)) as channel:
        caller = Caller(channel)
        first = await caller.call()
        assert (first.code, first.loss, first.is_local) == (StatusCode.UNAVAILABLE, Loss.UNPROCESSED, True)
        assert f"127.0.0.1:{port}" in first.message
        assert {call.message for call in await caller.calls(100)} == {first.message}
        async with serving() as server:  # elsewhere: this one only shows that the loop went on
            assert server.accepted == 0
        listener = await asyncio.start_server(lambda r, w: honest(Wire(r, w)), "127.0.0.1", port)
        async with listener:
            await caller.recover()
            listener.close()


async def test_a_server_that_accepts_and_closes_is_not_met_in_a_circle() -> None:
    async def script(wire: Wire) -> None:
        await wire.preface()
        wire.send(frames.settings({frames.MAX_CONCURRENT_STREAMS: 0}))

    async with serving(*[script] * 1_000) as server:
        options = ChannelOptions(min_backoff_s=0.1, max_backoff_s=0.1)
        async with channel_to(server.port, options) as channel:
            caller = Caller(channel)
            end_s = time.monotonic() + 0.5
            while time.monotonic() < end_s:
                assert (await caller.call(timeout_s=1.0)).code is not StatusCode.OK
                await asyncio.sleep(0.001)
            assert server.accepted < 30


async def test_a_renewed_connection_takes_calls_until_its_successor_is_there() -> None:
    opens = asyncio.Event()

    async def late(wire: Wire) -> None:
        await opens.wait()
        await honest(wire)

    async with serving(honest, late) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        await caller.call()
        (first,) = channel._connections
        channel.renew()
        await until(lambda: server.accepted == 2)
        for _ in range(20):
            assert (await caller.call()).code is StatusCode.OK
            assert channel._connections == [first]
        opens.set()
        await until(lambda: first not in channel._connections)
        (second,) = channel._connections
        assert (await caller.call()).code is StatusCode.OK
        await until(lambda: not channel._draining)
        assert channel._connections == [second]
        assert server.accepted == 2


async def test_a_connection_without_a_successor_stays() -> None:
    async def refuse(wire: Wire) -> None:
        wire.send(b"HTTP/1.1 503 no\r\n\r\n")

    async with serving(honest, refuse) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        await caller.call()
        (first,) = channel._connections
        channel.renew()
        await until(lambda: server.accepted == 2)
        await until(lambda: channel._opening is None)
        assert channel._connections == [first]
        assert (await caller.call()).code is StatusCode.OK
        channel.renew()
        await until(lambda: server.accepted == 3)
        await until(lambda: channel._connections != [first])
        assert (await caller.call()).code is StatusCode.OK


async def test_a_server_that_ends_each_new_connection_is_not_met_in_a_circle() -> None:
    async def go_away(wire: Wire) -> None:
        await wire.preface()
        wire.send(frames.settings({}), frames.goaway(0, ErrorCode.NO_ERROR, ""))
        await wire.closed()

    async with serving(honest, *[go_away] * 1_000) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        await caller.call()
        (first,) = channel._connections
        channel.renew()
        await until(lambda: server.accepted == 2 and channel._opening is None)
        for _ in range(50):
            assert (await caller.call()).code is StatusCode.OK
            await asyncio.sleep(0.01)
        assert channel._connections == [first]
        assert server.accepted == 2


async def test_a_renewal_leaves_no_more_connections_than_calls_need() -> None:
    release = asyncio.Event()
    async with serving(*[holding(1, release)] * 4) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        begun = [caller.begin()[1] for _ in range(4)]
        await until(lambda: len(channel._connections) == 4 and not channel._waiting)
        former = set(channel._connections)
        release.set()
        await asyncio.gather(*begun)
        channel.renew()
        await until(lambda: not former & set(channel._connections))
        assert len(channel._connections) == 1
        assert server.accepted == 5


async def test_all_connections_of_a_channel_are_renewed_in_turn() -> None:
    """A server that allows one call at once; each call under way ends on its own connection."""
    release = asyncio.Event()
    async with serving(*[holding(1, release)] * 3) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        begun = [caller.begin()[1] for _ in range(3)]
        await until(lambda: len(channel._connections) == 3)
        await until(lambda: channel.load == 3 and not channel._waiting)
        former = set(channel._connections)
        channel.renew()
        await until(lambda: not former & set(channel._connections))
        assert server.accepted == 6
        release.set()
        assert {(await call).code for call in begun} == {StatusCode.OK}
        await until(lambda: not channel._draining)


async def test_deadlines_pass_while_a_call_waits_and_while_it_runs() -> None:
    release = asyncio.Event()
    async with (
        serving(holding(1, release)) as server,
        channel_to(server.port, ChannelOptions(max_connections=1)) as channel,
    ):
        channel.connect()
        await until(lambda: channel.is_connected)  # however long it takes
        caller = Caller(channel)
        _, first = caller.begin(timeout_s=0.4)
        waiting = await caller.call(timeout_s=0.2)
        running = await asyncio.wait_for(first, 20)
        assert (running.code, running.loss) == (StatusCode.DEADLINE_EXCEEDED, Loss.NONE)
        # Its server is slow, as the other's: to the caller both are alike.
        assert (waiting.code, waiting.loss) == (StatusCode.DEADLINE_EXCEEDED, Loss.NONE)
        assert "had room" in waiting.message


async def test_a_deadline_that_passes_before_there_is_a_connection_reached_no_server() -> None:
    async def silent(wire: Wire) -> None:
        await wire.closed()

    async with serving(silent) as server, channel_to(server.port) as channel:
        call = await Caller(channel).call(timeout_s=0.1)
        assert (call.code, call.loss) == (StatusCode.DEADLINE_EXCEEDED, Loss.UNPROCESSED)


async def test_a_cancelled_call_ends_once_and_gives_its_room_to_the_next() -> None:
    resets: list[int] = []

    async def script(wire: Wire) -> None:
        await wire.start({frames.MAX_CONCURRENT_STREAMS: 1})
        await wire.request()
        kind, _, stream_id, payload = await wire.frame()
        while kind != frames.RST_STREAM:
            kind, _, stream_id, payload = await wire.frame()
        resets.append(int.from_bytes(payload, "big"))
        wire.send(answer(stream_id))  # on its way while the client cancelled
        wire.send(answer(await wire.request()))
        await wire.closed()

    async with (
        serving(script) as server,
        channel_to(server.port, ChannelOptions(max_connections=1)) as channel,
    ):
        caller = Caller(channel)
        first, first_end = caller.begin()
        second, second_end = caller.begin()
        await until(lambda: first.connection is not None)
        first.cancel()
        first.cancel()
        assert outcome(await first_end)[0] == "CANCELLED"
        assert outcome(await asyncio.wait_for(second_end, 20)) == ("OK", "")
        assert second.moves == 0
    assert resets == [ErrorCode.CANCEL]


async def test_an_answer_before_the_whole_message_stops_the_rest_of_it() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        kind = -1
        while kind != frames.HEADERS:
            kind, _, stream_id, _ = await wire.frame()
        status = block(*HEAD, (b"grpc-status", b"8"), (b"grpc-message", b"too%20large"))
        wire.send(frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, status))
        sent = 0
        while kind != frames.RST_STREAM:
            kind, _, _, payload = await wire.frame()
            sent += len(payload) if kind == frames.DATA else 0
        assert sent <= frames.DEFAULT_WINDOW
        wire.send(frames.window_update(0, sent))
        wire.send(answer(await wire.request()))
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        assert outcome(await caller.call(b"x" * 1_000_000)) == ("RESOURCE_EXHAUSTED", "too large")
        assert outcome(await caller.call()) == ("OK", "")
        assert server.accepted == 1


async def test_metadata_that_the_server_does_not_take_is_not_sent() -> None:
    async def script(wire: Wire) -> None:
        await wire.start({frames.MAX_HEADER_LIST_SIZE: 8_192})
        while True:
            wire.send(answer(await wire.request()))

    async with serving(script) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        large = await caller.call(metadata=[(b"x", b"y" * 9_000)])
        assert (large.code, large.is_local) == (StatusCode.RESOURCE_EXHAUSTED, True)
        assert large.is_metadata_too_large
        assert "the server takes 8192" in large.message
        assert outcome(await caller.call(metadata=[(b"x", b"y" * 7_000)])) == ("OK", "")


async def test_closing_waits_for_calls_as_long_as_it_was_told() -> None:
    release = asyncio.Event()
    async with serving(holding(100, release), holding(100, release)) as server:
        channel = Channel(Address.parse(f"127.0.0.1:{server.port}"))
        caller = Caller(channel)
        _, patient = caller.begin()
        await until(lambda: channel.is_connected)
        closing = asyncio.ensure_future(channel.close(20))
        await asyncio.sleep(0.05)
        assert not closing.done()
        release.set()
        assert outcome(await patient) == ("OK", "")
        await asyncio.wait_for(closing, 20)

        release.clear()
        channel = Channel(Address.parse(f"127.0.0.1:{server.port}"))
        call, hasty = Caller(channel).begin()
        await until(lambda: call.connection is not None)
        await asyncio.wait_for(channel.close(), 20)
        assert outcome(await hasty)[0] == "CANCELLED"
        assert outcome(await Caller(channel).call())[0] == "CANCELLED"


async def test_a_callback_that_raises_ends_no_other_call() -> None:
    raised: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    async with serving() as server, channel_to(server.port) as channel:
        caller = Caller(channel)

        def fail(_: UnaryCall) -> None:
            raise RuntimeError("of the caller")

        channel.unary(caller.fields, b"", (), None, fail)
        calls = await caller.calls(10)
        assert {outcome(call) for call in calls} == {("OK", "")}
        assert server.accepted == 1
    assert [str(context["exception"]) for context in raised] == ["of the caller"]


async def test_a_stream_stalls_by_the_servers_window_and_tells_when_it_is_drained() -> None:
    opened = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.start({frames.INITIAL_WINDOW_SIZE: 1_000})
        received = bytearray()
        while len(received) < 1_000:
            kind, _, stream_id, payload = await wire.frame()
            received.extend(payload if kind == frames.DATA else b"")
        await opened.wait()
        wire.send(head(stream_id), frames.window_update(stream_id, 1_000_000))
        flags = 0
        while not flags & frames.END_STREAM:
            kind, flags, _, payload = await wire.frame()
            flags = flags if kind == frames.DATA else 0
            received.extend(payload if kind == frames.DATA else b"")
        assert len(received) == 10 * (1_000 + 5)
        wire.send(end(stream_id))
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        ended: asyncio.Future[StreamCall] = asyncio.get_running_loop().create_future()
        drained: list[int] = []
        call = channel.stream(
            channel.method("/a/B"),
            (),
            None,
            lambda *_: None,
            ended.set_result,
            lambda call: drained.append(call.unsent_bytes),
        )
        for _ in range(10):
            call.send(b"x" * 1_000)
        await until(lambda: call.unsent_bytes == 10 * 1_005 - 1_000)
        opened.set()
        await until(lambda: drained == [0])
        call.close_sending()
        assert outcome(await asyncio.wait_for(ended, 20)) == ("OK", "")


async def test_a_paused_stream_receives_a_window_and_no_more() -> None:
    sent = 0

    async def script(wire: Wire) -> None:
        nonlocal sent
        await wire.preface()
        window = 0
        stream_id = 0
        wire.send(frames.settings({}))
        message = b"\0\0\0\x40\0"[:1] + (10_000).to_bytes(4, "big") + b"x" * 10_000

        async def read() -> None:
            nonlocal window, stream_id
            while True:
                kind, flags, number, payload = await wire.frame()
                if kind == frames.SETTINGS and not flags:
                    window += dict(frames.parse_settings(payload))[frames.INITIAL_WINDOW_SIZE]
                elif kind == frames.HEADERS:
                    stream_id = number
                elif kind == frames.WINDOW_UPDATE and number:
                    window += int.from_bytes(payload, "big")

        reading = asyncio.ensure_future(read())
        try:
            await until(lambda: stream_id > 0)
            wire.send(head(stream_id))
            while sent < 2_000:
                if window >= len(message):
                    window -= len(message)
                    sent += 1
                    wire.send(frames.frame(frames.DATA, 0, stream_id, message))
                    await wire.writer.drain()
                else:
                    await asyncio.sleep(0.005)
            wire.send(end(stream_id))
            await asyncio.sleep(20)
        finally:
            reading.cancel()

    async with serving(script) as server, channel_to(server.port) as channel:
        ended: asyncio.Future[StreamCall] = asyncio.get_running_loop().create_future()
        received: list[int] = []

        def receive(call: StreamCall, message: bytes) -> None:
            received.append(len(message))
            if len(received) == 10:
                call.pause_reading()

        call = channel.stream(channel.method("/a/B"), (), None, receive, ended.set_result)
        await until(lambda: len(received) == sent >= 400)
        await asyncio.sleep(0.1)
        assert sent < 450  # a window of 4 MiB and what is beside it
        call.resume_reading()
        assert outcome(await asyncio.wait_for(ended, 20)) == ("OK", "")
        assert received == [10_000] * 2_000


async def test_a_failed_attempt_beside_a_full_connection_is_made_again() -> None:
    release = asyncio.Event()

    async def closing(wire: Wire) -> None:
        await wire.preface()

    options = ChannelOptions(max_connections=2)
    async with (
        serving(holding(1, release), closing) as server,
        channel_to(server.port, options) as channel,
    ):
        caller = Caller(channel)
        _, first = caller.begin()
        second = await caller.call(timeout_s=None)  # nothing else happens that could wake it
        assert outcome(second) == ("OK", "")
        assert server.accepted == 3
        release.set()
        assert outcome(await first) == ("OK", "")


@pytest.mark.parametrize("is_connected", [True, False])
async def test_a_call_that_begins_while_the_channel_closes_ends_at_once(is_connected: bool) -> None:
    async def silent(wire: Wire) -> None:
        await wire.closed()

    release = asyncio.Event()
    async with serving(holding(9, release) if is_connected else silent) as server:
        channel = Channel(Address.parse(f"127.0.0.1:{server.port}"))
        caller = Caller(channel)
        later: list[asyncio.Future[UnaryCall]] = []
        fields = channel.method("/a/B")
        call = channel.unary(fields, b"", (), 20, lambda _: later.append(caller.begin(timeout_s=None)[1]))
        await until(lambda: server.accepted == 1 and (call.connection is not None) == is_connected)
        await asyncio.wait_for(channel.close(), 20)
        assert call.code is StatusCode.CANCELLED
        assert outcome(await asyncio.wait_for(later[0], 20))[0] == "CANCELLED"


async def test_two_may_close_a_channel_at_once() -> None:
    release = asyncio.Event()
    async with serving(holding(9, release)) as server:
        channel = Channel(Address.parse(f"127.0.0.1:{server.port}"))
        call, ended = Caller(channel).begin()
        await until(lambda: call.connection is not None)
        patient = asyncio.ensure_future(channel.close(20))
        await asyncio.wait_for(asyncio.gather(channel.close(), patient), 10)
        assert outcome(await ended)[0] == "CANCELLED"


def test_options_that_cannot_be_are_refused_when_the_channel_is_made() -> None:
    async def make(address: str, options: ChannelOptions) -> None:
        Channel(Address.parse(address), options)

    with pytest.raises(ValueError, match="no Unix socket"):
        asyncio.run(make("unix:/run/x.sock", ChannelOptions(proxy=Proxy("proxy", 3_128))))
    with pytest.raises(ValueError, match="server_name"):
        asyncio.run(make("orders:1", ChannelOptions(server_name="not a name")))


async def test_a_deadline_is_a_number() -> None:
    async with serving() as server, channel_to(server.port) as channel:
        for timeout_s in (float("inf"), float("nan")):
            with pytest.raises(ValueError, match="None for no deadline"):
                Caller(channel).begin(timeout_s=timeout_s)


async def test_a_server_that_closes_its_side_and_reads_nothing_keeps_no_call() -> None:
    closed = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.start({frames.INITIAL_WINDOW_SIZE: 2**31 - 1})
        wire.send(frames.window_update(0, 2**31 - 1 - frames.DEFAULT_WINDOW))
        await wire.frame()
        wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
        wire.writer.write_eof()
        await closed.wait()

    async with serving(script) as server, channel_to(server.port) as channel:
        caller = Caller(channel)
        large = await caller.call(b"x" * 50_000_000)
        assert (large.code, large.loss) == (StatusCode.UNAVAILABLE, Loss.BROKEN)
        await caller.recover()
        closed.set()


async def test_a_server_that_closes_at_each_request_is_not_met_in_a_circle() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        await wire.request()

    options = ChannelOptions(min_backoff_s=0.2, max_backoff_s=0.2)
    async with serving(*[script] * 2_000) as server, channel_to(server.port, options) as channel:
        caller = Caller(channel)
        begin_s = time.monotonic()
        while server.accepted < 5:
            assert (await caller.call()).code is StatusCode.UNAVAILABLE
        assert time.monotonic() - begin_s > 4 * 0.2 * 0.8 - 0.05  # a pause before each of the last four


async def test_a_slow_window_is_no_reason_for_more_connections() -> None:
    async with serving() as server, channel_to(server.port) as channel:
        calls = await Caller(channel).calls(300, b"x" * 4_000)
        assert {outcome(call) for call in calls} == {("OK", "")}
        assert server.accepted == 1


async def test_what_was_sent_before_there_was_a_connection_is_told_when_it_left() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        drained: list[int] = []
        call = channel.stream(
            channel.method("/a/B"),
            (),
            None,
            lambda *_: None,
            lambda _: None,
            lambda call: drained.append(call.unsent_bytes),
        )  # fmt: skip - two lines
        call.send(b"x" * 1_000)
        assert call.unsent_bytes == 1_005
        await until(lambda: drained == [0])


async def test_a_fault_after_a_goaway_is_no_planned_end() -> None:
    async def script(wire: Wire) -> None:
        await wire.start()
        stream_id = await wire.request()
        wire.send(frames.goaway(stream_id, ErrorCode.NO_ERROR), b"\xff" * 500)
        await wire.closed()

    async with serving(script) as server, channel_to(server.port) as channel:
        assert (await Caller(channel).call()).loss is Loss.BROKEN


async def test_an_attempt_after_a_failed_one_and_a_planned_end_has_no_pause() -> None:
    async def failing(wire: Wire) -> None:
        await wire.preface()

    async def aging(wire: Wire) -> None:
        await wire.start()
        stream_id = await wire.request()
        wire.send(answer(stream_id), frames.goaway(stream_id, ErrorCode.NO_ERROR))
        await wire.closed()

    options = ChannelOptions(min_backoff_s=0.05, max_backoff_s=30.0)
    async with serving(failing, failing, aging) as server, channel_to(server.port, options) as channel:
        caller = Caller(channel)
        await caller.recover()
        await until(lambda: not channel.is_connected)
        assert outcome(await caller.call()) == ("OK", "")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
async def test_what_is_sent_is_acknowledged_within_the_keepalive_timeout() -> None:
    options = ChannelOptions(connection=ConnectionOptions(keepalive=Keepalive(timeout_s=7.0)))
    async with serving() as server, channel_to(server.port, options) as channel:
        assert outcome(await Caller(channel).call()) == ("OK", "")
        transport = channel._connections[0]._transport
        assert transport is not None
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7_000


async def test_a_connection_without_calls_is_closed_after_a_time() -> None:
    options = ChannelOptions(connection=ConnectionOptions(keepalive=Keepalive(0.1)))
    async with serving() as server, channel_to(server.port, options) as channel:
        caller = Caller(channel)
        assert outcome(await caller.call()) == ("OK", "")
        await until(lambda: not channel.is_connected)
        assert outcome(await caller.call()) == ("OK", "")
        assert server.accepted == 2
