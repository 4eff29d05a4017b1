"""Several channels to one address: calls are shared by load, and connections in use do not grow old."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
from grpc import aio
from hypothesis import given
from hypothesis import strategies as st

from app.grpc_client.address import Address
from app.grpc_client.calls import UnaryCall
from app.grpc_client.channel import Channel
from app.grpc_client.pool import MAX_TOGETHER, Pool
from app.grpc_client.status import StatusCode
from tests.grpc_client.servers import TIMEOUT_S, until

PATH = "/test.Service/Call"
COUNT = 3


class PeerCounter(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Answers each call after `pause_s`, and counts the calls of each connection."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.calls: Counter[str] = Counter()
        self._pause_s = pause_s

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, _: bytes, context: Any) -> bytes:
        self.calls[context.peer()] += 1
        await asyncio.sleep(self._pause_s)
        return b""


@contextlib.asynccontextmanager
async def calling(peers: PeerCounter, max_age_s: float = 0.0) -> AsyncIterator[Pool]:
    server = aio.server()
    server.add_generic_rpc_handlers((peers,))
    address = Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    pool = Pool(lambda: Channel(address), COUNT, max_age_s)
    try:
        yield pool
    finally:
        await pool.close()
        await server.stop(0)


async def call(pool: Pool) -> StatusCode | None:
    ended: asyncio.Future[UnaryCall] = asyncio.get_running_loop().create_future()
    channel = pool.pick()
    channel.unary(channel.method(PATH), b"", (), TIMEOUT_S, ended.set_result)
    return (await ended).code


async def calls(pool: Pool, count: int, at_once: int) -> list[StatusCode | None]:
    """The statuses of `count` calls, `at_once` of which are under way."""
    numbers, codes = iter(range(count)), list[StatusCode | None]()

    async def caller() -> None:
        for _ in numbers:
            codes.append(await call(pool))

    await asyncio.gather(*(caller() for _ in range(at_once)))
    return codes


async def test_calls_are_shared_evenly() -> None:
    peers = PeerCounter()
    async with calling(peers) as pool:
        assert await calls(pool, 600, at_once=20) == [StatusCode.OK] * 600
        assert len(peers.calls) == COUNT
        assert min(peers.calls.values()) > 100


async def test_connections_in_use_are_renewed_and_no_call_notices() -> None:
    peers = PeerCounter(pause_s=0.01)
    async with calling(peers, max_age_s=0.1) as pool:
        codes: Counter[StatusCode | None] = Counter()
        while len(peers.calls) < 4 * COUNT:
            codes.update(await calls(pool, 100, at_once=10))
        assert set(codes) == {StatusCode.OK}
        assert peers.calls.total() == codes.total(), "no call was made twice"


async def test_a_connection_without_calls_is_kept() -> None:
    peers = PeerCounter()
    async with calling(peers, max_age_s=0.02) as pool:
        await calls(pool, 100, at_once=10)
        await until(lambda: not pool._used)  # each has been renewed since its last call
        before = dict(peers.calls)
        renewed: list[Channel] = []
        for channel in pool._channels:
            channel.renew = lambda one=channel: renewed.append(one)  # type: ignore[misc, method-assign]
        await asyncio.sleep(0.1)
        assert renewed == []
        assert await call(pool) is StatusCode.OK
        assert peers.calls.total() == sum(before.values()) + 1


async def test_calls_that_begin_together_are_made_over_one_connection() -> None:
    peers = PeerCounter()
    async with calling(peers) as pool:
        await until_all_connected(pool)
        peers.calls.clear()
        codes = await asyncio.gather(*(call(pool) for _ in range(MAX_TOGETHER)))
        assert codes == [StatusCode.OK] * MAX_TOGETHER
        assert [*peers.calls.values()] == [MAX_TOGETHER]


async def until_all_connected(pool: Pool) -> None:
    for channel in pool._channels:
        channel.connect()
    await until(lambda: all(channel.is_connected for channel in pool._channels))


# Which channel, turn by turn


class Line:
    """A channel as a pool sees it. Its calls do not end."""

    def __init__(self) -> None:
        self.is_connected, self.load, self.attempts = True, 0, 0

    def connect(self) -> None:
        self.attempts += 1


class Bench:
    """A pool of channels that only the test connects and loses."""

    def __init__(self, count: int) -> None:
        self.lines: list[Line] = []
        self.pool = Pool(self._open, count)

    def _open(self) -> Channel:
        self.lines.append(Line())
        return cast("Channel", self.lines[-1])

    def pick(self) -> Line:
        line = cast("Line", self.pool.pick())
        line.load += 1
        return line

    def pick_many(self, count: int) -> list[Line]:
        return [self.pick() for _ in range(count)]

    def other(self, line: Line) -> Line:
        """The other channel of a pool of two."""
        (other,) = (one for one in self.lines if one is not line)
        return other


async def next_turn() -> None:
    await asyncio.sleep(0)


async def test_so_many_calls_of_a_turn_take_the_same_channel_and_the_next_ones_the_less_busy() -> None:
    bench = Bench(2)
    picked = bench.pick_many(2 * MAX_TOGETHER)
    first = picked[0]
    assert picked == [first] * MAX_TOGETHER + [bench.other(first)] * MAX_TOGETHER


async def test_next_turn_takes_the_less_busy_channel_though_there_was_room_in_the_last() -> None:
    bench = Bench(2)
    (first,) = bench.pick_many(1)
    await next_turn()
    assert bench.pick_many(3) == [bench.other(first)] * 3
    await next_turn()
    assert bench.pick_many(MAX_TOGETHER) == [first] * MAX_TOGETHER


async def test_each_turn_has_its_own_count() -> None:
    bench = Bench(2)
    (first,) = bench.pick_many(1)
    await next_turn()
    assert bench.pick_many(MAX_TOGETHER) == [bench.other(first)] * MAX_TOGETHER


async def test_callbacks_that_the_loop_runs_in_one_turn_share_a_channel() -> None:
    bench, picked = Bench(2), list[Line]()
    loop = asyncio.get_running_loop()
    for _ in range(MAX_TOGETHER):
        loop.call_soon(lambda: picked.append(bench.pick()))
    await next_turn()
    assert picked == [picked[0]] * MAX_TOGETHER
    await next_turn()
    assert bench.pick() is not picked[0]


async def test_channel_that_is_lost_within_a_turn_gets_no_more_calls_of_it() -> None:
    bench = Bench(2)
    first = bench.pick()
    first.is_connected = False
    second = bench.other(first)
    assert bench.pick_many(2) == [second] * 2
    first.is_connected = True
    assert bench.pick() is second, "the turn's channel is the second now"
    await next_turn()
    assert bench.pick() is first


async def test_turn_that_lost_its_channel_ends_as_others_do() -> None:
    bench = Bench(2)
    first = bench.pick()
    first.is_connected = False
    second = bench.pick()
    await next_turn()
    first.is_connected, second.load = True, 5
    assert bench.pick() is first
    await next_turn()
    first.load = 9
    assert bench.pick() is second


async def test_without_a_connection_each_call_looks_for_one_anew() -> None:
    bench = Bench(2)
    for line in bench.lines:
        line.is_connected = False
    bench.pick()
    assert [line.attempts for line in bench.lines] == [1, 1]
    bench.pick()
    assert [line.attempts for line in bench.lines] == [2, 2]
    bench.lines[1].is_connected = True
    assert bench.pick_many(3) == [bench.lines[1]] * 3


async def test_only_channel_of_a_pool_gets_all_calls() -> None:
    bench = Bench(1)
    assert bench.pick_many(2 * MAX_TOGETHER) == bench.lines * (2 * MAX_TOGETHER)
    bench.lines[0].is_connected = False
    assert bench.pick() is bench.lines[0]


@given(
    count=st.integers(1, 4),
    acts=st.lists(st.sampled_from(["pick"] * 6 + ["turn", "lose", "connect"]), max_size=120),
    data=st.data(),
)
def test_calls_go_to_connected_channels_and_each_used_one_is_known(
    count: int, acts: list[str], data: st.DataObject
) -> None:
    """A pool that does not know a used channel would not renew it."""

    async def run() -> None:
        bench, used = Bench(count), set[Line]()
        last: Line | None = None  # of this turn
        together = 0
        for act in acts:
            if act == "pick":
                line = bench.pick()
                used.add(line)
                assert line.is_connected or not any(one.is_connected for one in bench.lines)
                may_stay = last is not None and last.is_connected and together < MAX_TOGETHER
                assert not may_stay or line is last
                together = together + 1 if may_stay else 1
                last = line
            elif act == "turn":
                await next_turn()
                last = None
            else:
                bench.lines[data.draw(st.integers(0, count - 1))].is_connected = act == "connect"
        assert {cast("Line", channel) for channel in bench.pool._used} == used

    asyncio.run(run())
