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
from app.dispatch.pump.delivery import Delivery
from app.dispatch.pump.partition import DispatchPump
from app.kernel.lease import Lease
from app.payload.interceptors import InterceptorChain, Send
from app.payload.interceptors import Message as Outbound
from switchyard.receiver import Message
from tests.dispatch.pump.rig import ENOUGH_S, DispatchRig, Row, dispatch_rig

LARGE = 100_000
LIMITS = {"window_bytes": 350_000}  # the window of a stream takes three of them
ONE_STREAM = {"contract": "stream", "connections": 1}


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


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[None]:
    """A list that grows with each call of the method."""
    calls: list[None] = []
    method = getattr(owner, name)

    def counted(*args: Any) -> Any:
        calls.append(None)
        return method(*args)

    monkeypatch.setattr(owner, name, counted)
    return calls


def waiting(rig: DispatchRig) -> int:
    """Messages in the stream's book that were not sent."""
    stream = rig.endpoint.stream
    assert stream is not None
    return sum(link.load[0] for link in stream._links)


def untouched(rig: DispatchRig, pump: DispatchPump) -> bool:
    """Whether no attempt was counted and no message was moved."""
    firsts = {message.attempt for message in rig.seen} == {1}
    return firsts and not rig.copied.records and not pump._queue.waiting


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

    async with dispatch_rig(wait, chain, LIMITS, target=ONE_STREAM) as rig:
        pump = rig.pump()
        rig.feed(pump, large(count))
        await rig.until(lambda: len(rig.seen) == 3 and waiting(rig) > 0)
        yield rig, pump, gate


@pytest.mark.parametrize("chain", CHAINS)
async def test_a_lapsed_lease_stops_messages_that_wait_for_credit_until_it_is_renewed(chain: Any) -> None:
    async with short_of_credit(20, chain) as (rig, pump, gate):
        rig.lease.expires_at_s = time.monotonic()
        gate.set()  # and credit comes
        await rig.until(lambda: pump.delivered == 3 and not waiting(rig))
        assert (len(rig.seen), pump.in_flight, pump.tracker.base) == (3, 0, 3)
        rig.lease.renewed(time.monotonic())
        await rig.idle()

        assert numbers_of(rig.seen) == list(range(20))
        assert untouched(rig, pump)


async def test_no_waiting_message_is_sent_while_snapshots_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = count_calls(monkeypatch, Delivery, "start")
    async with short_of_credit(10) as (rig, pump, gate):
        late: Lease = rig.lease
        late.save_by_s = time.monotonic()
        gate.set()
        await rig.until(lambda: pump.delivered == 3 and not waiting(rig))
        assert len(rig.seen) == 3
        late.saved(time.monotonic(), 1e9)
        await rig.idle()

        assert numbers_of(rig.seen) == list(range(10))
        assert untouched(rig, pump)
    assert not alone, "messages that come back travel together, or a busy worker falls ever further behind"


@pytest.mark.parametrize("chain", CHAINS)
async def test_pauses_take_back_messages_that_wait_for_credit_and_another_partition_flows(
    chain: Any,
) -> None:
    gate = asyncio.Event()

    async def wait(message: Message) -> None:
        if message.partition == 0:
            await gate.wait()

    async with dispatch_rig(wait, chain, LIMITS, target={**ONE_STREAM, "timeout": "1h"}) as rig:
        pump, sibling = rig.pump(0), rig.pump(1)
        for again in (4, 3, 2, 1, 0):  # more often than a message is tried in memory
            if not rig.seen:
                rig.feed(pump, large(20))
            await rig.until(lambda: len(rig.seen) == 3 and waiting(rig) > 0)
            pump.pause(True)
            await rig.until(lambda: pump.in_flight == 3 and not waiting(rig))
            fed = sibling.tracker.end
            rig.feed(sibling, [(None, b"%d:" % number) for number in range(1_000, 1_020)])
            await rig.until(lambda fed=fed: sibling.delivered == fed + 20)  # type: ignore[misc]
            del rig.seen[3:]
            if again:
                pump.pause(False)
        gate.set()
        await rig.until(lambda: pump.delivered == 3)
        rig.feed(sibling, large(5, 2_000))
        await rig.until(lambda: sibling.delivered == 105)
        assert (len(rig.seen), pump.tracker.base) == (8, 3)
        pump.pause(False)
        await rig.idle()

        assert [number for number in numbers_of(rig.seen) if number < 1_000] == list(range(20))
        assert untouched(rig, pump)


@pytest.mark.parametrize("ordering", ["key", "partition"])
async def test_pauses_while_credit_is_short_change_no_order(ordering: str) -> None:
    async def take(_: Message) -> None:
        await asyncio.sleep(0.001)

    async with dispatch_rig(take, limits=LIMITS, target=ONE_STREAM, ordering=ordering) as rig:
        pump, rows = rig.pump(), large(120, keys=12)
        rig.feed(pump, rows)
        for step in range(1, 12):
            await rig.until(lambda step=step: pump.delivered >= 10 * step)  # type: ignore[misc]
            pump.pause(True)
            await rig.until(lambda: not waiting(rig))
            pump.pause(False)
        await rig.idle()

        by_key: dict[bytes | None, list[int]] = defaultdict(list)
        for message, number in zip(rig.seen, numbers_of(rig.seen), strict=True):
            by_key[message.key if ordering == "key" else b""].append(number)
        assert all(came == sorted(came) for came in by_key.values())
        assert sorted(numbers_of(rig.seen)) == list(range(120))
        assert untouched(rig, pump)


async def test_a_message_that_an_operator_ends_while_it_is_taken_back_ends_as_decided() -> None:
    async with short_of_credit(10) as (rig, pump, gate):
        pump.pause(True)
        # its result has not arrived yet
        assert pump.finish_by_operator(7, DeliveryDecision(Action.DLQ, None, 0.0, "an operator says so"))
        await rig.until(lambda: pump.tracker.is_finished(7))
        gate.set()
        pump.pause(False)
        await rig.idle()

        assert numbers_of(rig.seen) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
        assert len(rig.copied.values("dlq")) == 1


@pytest.mark.parametrize("chain", CHAINS)
async def test_a_pump_that_stops_leaves_messages_that_wait_for_credit_to_the_next_owner(chain: Any) -> None:
    async with short_of_credit(20, chain) as (rig, pump, gate):
        sibling = rig.pump(1)
        pump.stop_intake()
        await rig.until(lambda: pump.in_flight == 3)
        gate.set()
        assert await pump.drain(ENOUGH_S)
        assert pump.tracker.base == pump.delivered == 3
        assert untouched(rig, pump)

        rig.feed(sibling, large(5))
        await rig.until(lambda: sibling.delivered == 5)
        pump.close()
        rig.pumps.remove(pump)
