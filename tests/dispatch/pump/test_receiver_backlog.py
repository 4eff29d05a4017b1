"""Messages that wait for a receiver's credit wait in their worker, and come back unchanged."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.dispatch.model.outcome import Action, DeliveryDecision
from app.dispatch.pump.partition import DispatchPump
from app.kernel.lease import Lease
from app.payload.interceptors import InterceptorChain, Send
from app.payload.interceptors import Message as Outbound
from switchyard.receiver import Message
from tests.dispatch.pump.rig import ENOUGH_S, DispatchRig, Row, dispatch_rig

LARGE = 100_000
LIMITS = {"window_bytes": 350_000}  # the window takes three of them


class Adder:
    """Adds metadata to every message, so that messages travel one by one."""

    def before(self, _: Outbound) -> Any:
        return Send(metadata=(("a", "b"),))


CHAINS = [None, InterceptorChain([("adder", Adder())])]


def large(count: int, start: int = 0, keys: int = 0) -> list[Row]:
    """Rows whose values begin with numbers; three fit in flight. With `keys`, that many keys in turn."""
    return [
        (str(number % keys).encode() if keys else None, b"%d:" % number + b"." * LARGE)
        for number in range(start, start + count)
    ]


def numbers_of(messages: list[Message]) -> list[int]:
    """The numbers in the messages' values, in the order of arrival."""
    return [int((message.value or b"").split(b":")[0]) for message in messages]


def waiting(stand: DispatchRig) -> int:
    """Messages in the stream's book that were not sent."""
    stream = stand.runtime.link.stream
    assert stream is not None
    return sum(link.load[0] for link in stream._links)


def untouched(stand: DispatchRig, pump: DispatchPump) -> bool:
    """Whether no attempt was counted and no message was moved."""
    firsts = {message.attempt for message in stand.seen} == {1}
    return firsts and not stand.copied.records and not pump._queue.waiting


@asynccontextmanager
async def short_of_credit(
    count: int, chain: Any = None
) -> AsyncIterator[tuple[DispatchRig, DispatchPump, asyncio.Event]]:
    """A pump of `count` messages: the receiver holds three until the event is set, the others wait for
    credit.
    """
    gate = asyncio.Event()

    async def wait(_: Message) -> None:
        await gate.wait()

    async with dispatch_rig(wait, chain, LIMITS, target={"contract": "stream"}) as stand:
        pump = stand.pump()
        stand.feed(pump, large(count))
        await stand.until(lambda: len(stand.seen) == 3 and waiting(stand) > 0)
        yield stand, pump, gate


@pytest.mark.parametrize("chain", CHAINS)
async def test_a_lapsed_lease_stops_messages_that_wait_for_credit_until_it_is_renewed(chain: Any) -> None:
    async with short_of_credit(20, chain) as (stand, pump, gate):
        stand.lease.expires_at_s = time.monotonic()
        gate.set()  # and credit comes
        await stand.until(lambda: pump.delivered == 3 and not waiting(stand))
        assert (len(stand.seen), pump.in_flight, pump.tracker.base) == (3, 0, 3)
        stand.lease.renewed(time.monotonic())
        await stand.idle()

        assert numbers_of(stand.seen) == list(range(20))
        assert untouched(stand, pump)


async def test_no_waiting_message_is_sent_while_snapshots_are_late() -> None:
    async with short_of_credit(10) as (stand, pump, gate):
        late: Lease = stand.lease
        late.save_by_s = time.monotonic()
        gate.set()
        await stand.until(lambda: pump.delivered == 3 and not waiting(stand))
        assert len(stand.seen) == 3
        late.saved(time.monotonic(), 1e9)
        await stand.idle()

        assert numbers_of(stand.seen) == list(range(10))
        assert untouched(stand, pump)


@pytest.mark.parametrize("chain", CHAINS)
async def test_pauses_take_back_messages_that_wait_for_credit_and_another_partition_flows(
    chain: Any,
) -> None:
    gate = asyncio.Event()

    async def wait(message: Message) -> None:
        if message.partition == 0:
            await gate.wait()

    async with dispatch_rig(wait, chain, LIMITS, target={"contract": "stream", "timeout": "1h"}) as stand:
        pump, sibling = stand.pump(0), stand.pump(1)
        for again in (4, 3, 2, 1, 0):  # more often than a message is tried in memory
            if not stand.seen:
                stand.feed(pump, large(20))
            await stand.until(lambda: len(stand.seen) == 3 and waiting(stand) > 0)
            pump.pause(True)
            await stand.until(lambda: pump.in_flight == 3 and not waiting(stand))
            fed = sibling.tracker.end
            stand.feed(sibling, [(None, b"%d:" % number) for number in range(1_000, 1_020)])
            await stand.until(lambda fed=fed: sibling.delivered == fed + 20)  # type: ignore[misc]
            del stand.seen[3:]
            if again:
                pump.pause(False)
        gate.set()
        await stand.until(lambda: pump.delivered == 3)
        stand.feed(sibling, large(5, 2_000))
        await stand.until(lambda: sibling.delivered == 105)
        assert (len(stand.seen), pump.tracker.base) == (8, 3)
        pump.pause(False)
        await stand.idle()

        assert [number for number in numbers_of(stand.seen) if number < 1_000] == list(range(20))
        assert untouched(stand, pump)


@pytest.mark.parametrize("ordering", ["key", "partition"])
async def test_pauses_while_credit_is_short_change_no_order(ordering: str) -> None:
    async def take(_: Message) -> None:
        await asyncio.sleep(0.001)

    async with dispatch_rig(take, limits=LIMITS, target={"contract": "stream"}, ordering=ordering) as stand:
        pump, rows = stand.pump(), large(120, keys=12)
        stand.feed(pump, rows)
        for step in range(1, 12):
            await stand.until(lambda step=step: pump.delivered >= 10 * step)  # type: ignore[misc]
            pump.pause(True)
            await stand.until(lambda: not waiting(stand))
            pump.pause(False)
        await stand.idle()

        by_key: dict[bytes | None, list[int]] = defaultdict(list)
        for message, number in zip(stand.seen, numbers_of(stand.seen), strict=True):
            by_key[message.key if ordering == "key" else b""].append(number)
        assert all(came == sorted(came) for came in by_key.values())
        assert sorted(numbers_of(stand.seen)) == list(range(120))
        assert untouched(stand, pump)


async def test_a_message_that_an_operator_ends_while_it_is_taken_back_ends_as_decided() -> None:
    async with short_of_credit(10) as (stand, pump, gate):
        pump.pause(True)
        # its result has not arrived yet
        assert pump.finish_by_operator(7, DeliveryDecision(Action.DLQ, None, 0.0, "an operator says so"))
        await stand.until(lambda: pump.tracker.is_finished(7))
        gate.set()
        pump.pause(False)
        await stand.idle()

        assert numbers_of(stand.seen) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
        assert len(stand.copied.values("dlq")) == 1


@pytest.mark.parametrize("chain", CHAINS)
async def test_a_pump_that_stops_leaves_messages_that_wait_for_credit_to_the_next_owner(chain: Any) -> None:
    async with short_of_credit(20, chain) as (stand, pump, gate):
        sibling = stand.pump(1)
        pump.stop_intake()
        await stand.until(lambda: pump.in_flight == 3)
        gate.set()
        assert await pump.drain(ENOUGH_S)
        assert pump.tracker.base == pump.delivered == 3
        assert untouched(stand, pump)

        stand.feed(sibling, large(5))
        await stand.until(lambda: sibling.delivered == 5)
        pump.close()
        stand.pumps.remove(pump)
