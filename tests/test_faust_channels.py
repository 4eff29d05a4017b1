"""Items on their way to a channel agent: none is lost, doubled or overtaken, however puts and takes meet."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import faust
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.faust_channels import DataChannel
from app.kafka.fetch.deliveries import FetchIncident, FetchKey
from app.worker.jobs import deliveries
from app.worker.jobs.deliveries import MOST_ITEMS, FetchedItems
from tests.examples import as_profile

ENOUGH_S = 60.0
PRODUCERS = 3


def make_app() -> faust.App:
    return faust.App("channels", broker="aiokafka://127.0.0.1:1", store="memory://")


def make_item(number: int, producer: int = 0) -> FetchIncident:
    return FetchIncident(FetchKey("job", 0), "topic", producer, str(number), "")


def numbers(items: Sequence[Any]) -> list[int]:
    return [int(item.message) for item in items]


class Bench:
    """A channel of `most_events`, and an agent's queue that nobody reads but the test."""

    def __init__(self, most_events: int = 4) -> None:
        self.channel = DataChannel(make_app(), maxsize=most_events)
        self.reader: Any = aiter(self.channel)

    async def put(self, *items: int) -> None:
        for number in items:
            await self.channel.put_item(make_item(number))

    def next_event(self) -> FetchedItems:
        event = self.reader.queue.get_nowait()
        assert isinstance(event, FetchedItems)
        return event

    def take(self) -> Sequence[Any]:
        return self.next_event().take()

    def take_all(self) -> list[list[int]]:
        return [numbers(self.take()) for _ in range(self.reader.queue.qsize())]

    async def fill(self) -> int:
        """Puts items until no more go in; the number of the first that would wait."""
        count = MOST_ITEMS * int(self.reader.queue.maxsize)
        async with asyncio.timeout(ENOUGH_S):
            await self.put(*range(count))
        assert self.reader.queue.full()
        return count

    async def waiting_put(self, number: int) -> asyncio.Task[None]:
        task = asyncio.create_task(self.put(number))
        await settle()
        assert not task.done()
        return task


async def settle() -> None:
    """Lets each task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_items_before_the_agent_takes_them_are_one_event() -> None:
    bench = Bench()
    await bench.put(0, 1, 2)
    assert bench.take_all() == [[0, 1, 2]]


@pytest.mark.parametrize("count", [MOST_ITEMS - 1, MOST_ITEMS, MOST_ITEMS + 1, 3 * MOST_ITEMS])
async def test_event_has_at_most_so_many_items(count: int) -> None:
    bench = Bench()
    await bench.put(*range(count))
    taken = bench.take_all()
    assert [number for event in taken for number in event] == [*range(count)]
    assert [len(event) for event in taken[:-1]] == [MOST_ITEMS] * (len(taken) - 1)
    assert len(taken[-1]) <= MOST_ITEMS


async def test_item_after_a_take_is_another_event() -> None:
    bench = Bench()
    await bench.put(0)
    taken = bench.take()
    await bench.put(1, 2)
    assert numbers(taken) == [0], "an item was added to what the agent has"
    assert bench.take_all() == [[1, 2]]


async def test_items_join_an_event_that_the_stream_has_and_the_agent_not_yet() -> None:
    """Faust's stream gets an event some turns of the loop before the agent runs."""
    bench = Bench()
    await bench.put(0)
    event = bench.next_event()
    await bench.put(1)
    assert bench.reader.queue.empty()
    assert numbers(event.take()) == [0, 1]


async def test_full_channel_takes_items_into_its_last_event_and_no_more() -> None:
    bench = Bench(most_events=1)
    async with asyncio.timeout(ENOUGH_S):
        await bench.put(*range(MOST_ITEMS))
    waiting = await bench.waiting_put(MOST_ITEMS)
    assert bench.take_all() == [[*range(MOST_ITEMS)]]
    await waiting
    await bench.put(MOST_ITEMS + 1)
    assert bench.take_all() == [[MOST_ITEMS, MOST_ITEMS + 1]]


async def test_puts_that_wait_go_in_by_turns_as_the_agent_takes() -> None:
    bench = Bench(most_events=2)
    first = await bench.fill()
    waiting = [await bench.waiting_put(first + n) for n in range(4)]
    taken: list[int] = []
    for _ in range(2 + len(waiting)):
        taken += numbers(bench.take())
        await settle()
        assert bench.reader.queue.qsize() <= 2
    assert taken == [*range(first + 4)]
    await asyncio.gather(*waiting)
    assert bench.reader.queue.empty()


@pytest.mark.parametrize("takes_before", [False, True])
async def test_put_that_is_cancelled_leaves_no_item_and_holds_up_none(takes_before: bool) -> None:
    """With `takes_before`, its place has become free in the same turn of the loop."""
    bench = Bench(most_events=1)
    first = await bench.fill()
    cancelled = await bench.waiting_put(first)
    later = await bench.waiting_put(first + 1)
    taken = numbers(bench.take()) if takes_before else []
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    if not takes_before:
        taken = numbers(bench.take())
    async with asyncio.timeout(ENOUGH_S):
        await later
        await bench.put(first + 2)
    assert taken == [*range(first)]
    assert bench.take_all() == [[first + 1, first + 2]]


async def test_put_that_is_cancelled_leaves_the_channel_as_it_was_for_the_agent_and_the_next() -> None:
    bench = Bench(most_events=1)
    first = await bench.fill()
    cancelled = await bench.waiting_put(first)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert bench.take_all() == [[*range(first)]]
    await bench.put(first + 1)
    assert bench.take_all() == [[first + 1]]


@asynccontextmanager
async def running_agent(channel: DataChannel, events: list[list[int]]) -> AsyncIterator[asyncio.Event]:
    """An agent's stream that takes while the event is set."""
    may_take = asyncio.Event()

    async def agent() -> None:
        stream: Any = channel.stream()
        async for items in stream:
            await may_take.wait()
            events.append(numbers(items.take()))

    task = asyncio.create_task(agent())
    async with asyncio.timeout(ENOUGH_S):
        while not channel.subscriber_count:  # noqa: ASYNC110 - Faust's stream subscribes by itself
            await asyncio.sleep(0)
    try:
        yield may_take
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_stream_of_faust_gives_an_agent_events_whole_and_in_order() -> None:
    channel, events = DataChannel(make_app(), maxsize=2), list[list[int]]()
    async with running_agent(channel, events) as may_take:
        for number in range(3):
            await channel.put_item(make_item(number))
        await settle()  # the stream has the event, and the agent waits
        await channel.put_item(make_item(3))
        may_take.set()
        async with asyncio.timeout(ENOUGH_S):
            for number in range(4, 10 * MOST_ITEMS):
                await channel.put_item(make_item(number))
            while sum(map(len, events)) < 10 * MOST_ITEMS:  # noqa: ASYNC110 - the agent adds to it
                await asyncio.sleep(0)
    assert events[0][:4] == [0, 1, 2, 3]
    assert [number for event in events for number in event] == [*range(10 * MOST_ITEMS)]
    assert max(map(len, events)) <= MOST_ITEMS


async def test_rebalance_of_faust_s_group_drops_no_item() -> None:
    """Faust clears the queues of `app.channel()` then."""
    bench = Bench()
    await bench.put(0)
    bench.channel.app.flow_control.suspend()
    await bench.put(1)
    bench.channel.app.flow_control.resume()
    await bench.put(2)
    assert bench.take_all() == [[0, 1, 2]]


class Interleaving:
    """Producers that put one item after the other, an agent that gets events and later takes their items."""

    def __init__(self, most_events: int, most_items: int) -> None:
        self.bench, self.most_events, self.most_items = Bench(most_events), most_events, most_items
        self.puts: dict[int, asyncio.Task[None]] = {}
        self.begun: dict[int, int] = defaultdict(int)
        self.cancelled: dict[int, set[int]] = defaultdict(set)
        self.events: deque[FetchedItems] = deque()
        self.taken: dict[int, list[int]] = defaultdict(list)

    def put(self, producer: int) -> None:
        """Begins the producer's next put, unless its last one still waits (as a partition's fetch does)."""
        if producer in self.puts:
            return
        item = make_item(self.begun[producer], producer)
        self.begun[producer] += 1
        self.puts[producer] = asyncio.create_task(self.bench.channel.put_item(item))

    def cancel(self, producer: int) -> None:
        if (task := self.puts.get(producer)) is not None:
            task.cancel()

    def get(self) -> None:
        if not self.bench.reader.queue.empty():
            self.events.append(self.bench.next_event())

    def take(self) -> None:
        if self.events:
            items: Sequence[Any] = self.events.popleft().take()
            assert 1 <= len(items) <= self.most_items
            for item in items:
                self.taken[item.partition].append(int(item.message))

    async def turn(self) -> None:
        await asyncio.sleep(0)
        for producer, task in list(self.puts.items()):
            if task.done():
                del self.puts[producer]
                if task.cancelled():
                    self.cancelled[producer].add(self.begun[producer] - 1)
                else:
                    task.result()
        assert self.bench.reader.queue.qsize() <= self.most_events

    async def run(self, acts: Sequence[tuple[str, int]]) -> None:
        for act, number in acts:
            if act == "turn":
                await self.turn()
            elif act in ("get", "take"):
                getattr(self, act)()
            else:
                getattr(self, act)(number)
        async with asyncio.timeout(ENOUGH_S):
            while self.puts or self.events or not self.bench.reader.queue.empty():
                self.get()
                self.take()
                await self.turn()
        for producer, begun in self.begun.items():
            left_out = self.cancelled[producer]
            assert self.taken[producer] == [number for number in range(begun) if number not in left_out]


ACTS = st.tuples(
    st.sampled_from(["put", "put", "put", "turn", "turn", "get", "take", "cancel"]),
    st.integers(0, PRODUCERS - 1),
)


@settings(max_examples=as_profile(1_000))
@given(st.integers(1, 3), st.integers(2, 4), st.lists(ACTS, max_size=200))
def test_no_item_is_lost_doubled_or_overtaken_however_puts_and_takes_meet(
    most_events: int, most_items: int, acts: list[tuple[str, int]]
) -> None:
    """Events are small, so that the channel is often full."""

    async def run() -> None:
        await Interleaving(most_events, most_items).run(acts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deliveries, "MOST_ITEMS", most_items)
        asyncio.run(run())


@given(st.lists(st.tuples(st.integers(0, 2 * MOST_ITEMS), st.integers(0, 3)), max_size=20))
def test_a_producer_s_items_keep_their_order_as_a_full_channel_empties(rounds: list[tuple[int, int]]) -> None:
    """Each round begins many puts in a row, then some takes."""
    acts: list[tuple[str, int]] = []
    for puts, takes in rounds:
        acts += [("put", 0), ("turn", 0), ("turn", 0)] * puts + [("get", 0), ("take", 0)] * takes

    async def run() -> None:
        await Interleaving(2, MOST_ITEMS).run(acts)

    asyncio.run(run())
