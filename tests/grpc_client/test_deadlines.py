"""Deadlines on asyncio's event loop and on uvloop's. Each item expires once, at its time or later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from random import Random

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from app.grpc_client.deadlines import CLOCK_ERROR, TICK_S, Deadlines
from tests.grpc_client.memory import ManualLoop

BOUND_S = 30.0
CLOCK_ERROR_S = CLOCK_ERROR * TICK_S
Run = Callable[[Coroutine[None, None, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test on one of the event loops."""
    make_loop = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def within_bound(test: Coroutine[None, None, None]) -> None:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(asyncio.wait_for(test, BOUND_S))

    return within_bound


class Expiries:
    """Collects items with the time at which they came, and waits for them."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.items: list[int] = []
        self.times_s: list[float] = []
        self.deadlines: Deadlines[int] = Deadlines(self.loop, self._expire)
        self._changed = asyncio.Event()

    def _expire(self, item: int) -> None:
        self.items.append(item)
        self.times_s.append(self.loop.time())
        self._changed.set()

    async def until(self, count: int) -> None:
        while len(self.items) < count:
            self._changed.clear()
            await self._changed.wait()


def is_empty(deadlines: Deadlines[int]) -> bool:
    return not deadlines._slots and not deadlines._order and deadlines._timer is None


def test_items_expire_in_the_order_of_their_times_and_never_before(run: Run) -> None:
    async def test() -> None:
        found, random = Expiries(), Random(1)
        now_s = found.loop.time()
        at_s = [now_s + random.uniform(-0.05, 0.3) for _ in range(5_000)]
        for item, time_s in enumerate(at_s):
            found.deadlines.add(item, time_s)
        await found.until(len(at_s))
        assert sorted(found.items) == list(range(len(at_s)))
        assert all(
            time_s >= at_s[item] - CLOCK_ERROR_S
            for item, time_s in zip(found.items, found.times_s, strict=True)
        )
        ticks = [max(at_s[item], now_s) // TICK_S for item in found.items]
        assert all(later >= earlier - 1 for earlier, later in pairwise(ticks))
        assert is_empty(found.deadlines)

    run(test())


def test_an_earlier_item_does_not_wait_for_a_later_one(run: Run) -> None:
    async def test() -> None:
        found = Expiries()
        now_s = found.loop.time()
        found.deadlines.add(2, now_s + 3_600)
        found.deadlines.add(1, now_s + 0.01)
        await found.until(1)
        assert found.items == [1]
        found.deadlines.close()
        assert is_empty(found.deadlines)

    run(test())


def test_removed_items_do_not_expire(run: Run) -> None:
    async def test() -> None:
        found = Expiries()
        at_s = found.loop.time() + 0.02
        slots = [found.deadlines.add(item, at_s) for item in range(4_000)]
        for item, slot in enumerate(slots):
            if item % 4:
                found.deadlines.remove(item, slot)
        await found.until(1_000)
        found.deadlines.add(4_000, at_s)
        await found.until(1_001)
        assert sorted(found.items) == list(range(0, 4_001, 4))
        assert is_empty(found.deadlines)
        found.deadlines.remove(0, slots[0])  # its slot is gone: nothing to do

    run(test())


def test_no_item_expires_after_close(run: Run) -> None:
    async def test() -> None:
        found = Expiries()
        found.deadlines.add(1, found.loop.time())
        found.deadlines.close()
        found.deadlines.close()
        other = Expiries()
        other.deadlines.add(2, other.loop.time() + 3 * TICK_S)
        await other.until(1)
        assert found.items == []

    run(test())


class CountedTicks(Deadlines[int]):
    """Deadlines that know which turn of the loop's timers it is."""

    ticks = 0

    def _tick(self) -> None:
        self.ticks += 1
        super()._tick()


def test_an_item_that_adds_one_in_the_past_leaves_others_their_turn(run: Run) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        found, done = list[tuple[int, int]](), loop.create_future()

        def expire(item: int) -> None:
            found.append((item, deadlines.ticks))
            if item < 5:
                deadlines.add(item + 1, 0.0)
            else:
                done.set_result(None)

        deadlines = CountedTicks(loop, expire)
        deadlines.add(0, 0.0)
        await done
        assert found == [(item, item + 1) for item in range(6)]
        assert is_empty(deadlines)

    run(test())


def test_an_item_that_is_removed_while_others_of_its_tick_expire_does_not() -> None:
    with ManualLoop.new() as loop:
        found = list[int]()

        def expire(item: int) -> None:
            found.append(item)
            deadlines.remove(3 - item, slot)

        deadlines = Deadlines(loop, expire)
        slot = deadlines.add(1, 1_001.0)
        assert deadlines.add(2, 1_001.0) == slot
        loop.advance(2.0)
        assert len(found) == 1


@given(
    st.lists(
        st.tuples(st.floats(-1, 3), st.sampled_from(["add", "remove", "advance"]), st.integers(0, 20)),
        max_size=60,
    )
)
def test_any_use_expires_each_item_that_is_left_within_a_tick(steps: list[tuple[float, str, int]]) -> None:
    with ManualLoop.new() as loop:
        left, due, slots = dict[int, float](), dict[int, float](), dict[int, int]()

        def expire(item: int) -> None:
            assert loop.time() >= left.pop(item) - CLOCK_ERROR_S

        deadlines = Deadlines(loop, expire)
        for item, (time_s, action, aim) in enumerate(steps):
            if action == "add":
                left[item] = loop.time() + time_s
                due[item] = max(left[item], loop.time())
                slots[item] = deadlines.add(item, left[item])
            elif action == "advance":
                loop.advance(abs(time_s))
                assert all(due[one] > loop.time() - 2 * TICK_S for one in left)
            elif left:
                chosen = sorted(left)[aim % len(left)]
                del left[chosen]
                deadlines.remove(chosen, slots[chosen])
        loop.advance(4.0)
        assert not left
        assert not loop.errors
        assert is_empty(deadlines)
