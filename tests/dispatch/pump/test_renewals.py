"""A receiver that asks for more time for a message gets it, by both contracts, and no attempt counts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from switchyard.receiver import Message, Renew, Retry
from tests.dispatch.pump.rig import definition, dispatch_rig, numbers

CONTRACTS = ["unary", "stream"]
SHORT, LONG_S = "2s", 4.0
SMALL = {"contract": "stream", "timeout": SHORT}


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_handler_that_renews_its_message_is_not_timed_out(partitions: int) -> None:
    left: list[float] = []

    async def take_long(message: Message) -> None:
        if message.value == b"0":
            left.append(message.time_left())
            assert message.renew(60.0)
            left.append(message.time_left())
            await asyncio.sleep(LONG_S)

    async with dispatch_rig(take_long, target=SMALL) as rig:
        for partition in range(partitions):
            rig.feed(rig.pump(partition), numbers(50))
        await rig.idle()
        assert set(rig.values().values()) == {partitions}
        assert rig.endpoint.breaker.streak == 0
        assert not rig.copied.records
    assert all(seconds <= 2.0 for seconds in left[::2])
    assert all(50.0 < seconds <= 60.0 for seconds in left[1::2])


async def test_a_message_that_is_renewed_has_only_that_time() -> None:
    ended: list[bytes] = []

    async def hang_once(message: Message) -> None:
        if message.attempt == 1:
            assert message.renew(1.5)
            try:
                await asyncio.sleep(3_600)
            finally:
                ended.append(message.value)
                assert not message.renew(60.0), "it has ended"

    async with dispatch_rig(hang_once, target={"contract": "stream", "timeout": "500ms"}) as rig:
        began_s = time.monotonic()
        rig.feed(rig.pump(), numbers(1))
        await rig.idle()
        assert [message.attempt for message in rig.seen] == [1, 2]
        assert time.monotonic() - began_s >= 1.5
        await rig.until(lambda: ended == [b"0"])


async def test_no_message_takes_longer_than_the_head_of_line_allows() -> None:
    async def renew_for_ever(message: Message) -> None:
        while message.attempt == 1:
            message.renew(3_600)
            await asyncio.sleep(0.05)

    spec: dict[str, Any] = {
        "target": {"contract": "stream", "timeout": "500ms"},
        "headOfLine": {"after": "2s"},
    }
    async with dispatch_rig(renew_for_ever, **spec) as rig:
        began_s = time.monotonic()
        rig.feed(rig.pump(), numbers(1))
        await rig.until(lambda: len(rig.seen) == 2)
        assert time.monotonic() - began_s >= 2.0
        await rig.idle()


async def test_a_unary_handler_says_that_it_cannot_renew() -> None:
    answers: list[bool] = []
    async with dispatch_rig(
        lambda message: answers.append(message.renew(5.0)), target={"contract": "unary"}
    ) as rig:
        rig.feed(rig.pump(), numbers(1))
        await rig.idle()
        assert answers == [False]


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("ordering", ["none", "key"])
async def test_a_message_that_needs_more_time_is_delivered_again_with_it_and_no_attempt_counts(
    contract: str, ordering: str
) -> None:
    left: list[float] = []

    async def take_long(message: Message) -> Any:
        if message.value == b"10":
            left.append(message.time_left())
            if message.time_left() < 10.0:
                return Renew(20.0)
            await asyncio.sleep(LONG_S)
        return None

    target = {"contract": contract, "timeout": SHORT}
    async with dispatch_rig(take_long, target=target, ordering=ordering) as rig:
        for partition in range(2):
            rig.feed(rig.pump(partition), numbers(40, keys=7))
        await rig.idle()
        assert {message.attempt for message in rig.seen} == {1}
        assert rig.values() == {str(number).encode(): 2 + 2 * (number == 10) for number in range(40)}
        assert sorted(round(seconds / 10) for seconds in left) == [0, 0, 2, 2]
        assert rig.endpoint.breaker.recent(time.monotonic())[1] == 0
        assert not rig.copied.records
        if ordering == "key":
            for place in {(one.partition, one.key) for one in rig.seen}:
                values = [int(one.value) for one in rig.seen if (one.partition, one.key) == place]
                assert values == sorted(values), "the message waits in its place"


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_handler_for_both_contracts_gets_its_time(contract: str) -> None:
    """The handler of docs/push.md."""
    worked: list[bytes] = []

    async def export(message: Message) -> Any:
        if message.time_left() < 60 and not message.renew(120):
            return Renew(120)
        worked.append(message.value)
        return None

    async with dispatch_rig(export, target={"contract": contract}) as rig:
        rig.feed(rig.pump(), numbers(20))
        await rig.idle()
        assert sorted(worked) == sorted(rig.values())
        assert set(rig.values().values()) == {1 if contract == "stream" else 2}
        assert not rig.copied.records


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_receiver_may_be_asked_again_until_it_is_done(contract: str) -> None:
    """As for work in another process."""
    async with dispatch_rig(
        lambda _: Renew(0.0, after=0.01) if len(rig.seen) < 20 else None,
        target={"contract": contract},
        retry=[{"delay": "1h"}],
    ) as rig:
        rig.feed(rig.pump(), numbers(1))
        await rig.idle()
        assert len(rig.seen) == 20
        assert not rig.copied.records


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_receiver_that_asks_too_long_has_its_message_retried(contract: str) -> None:
    async with dispatch_rig(
        lambda _: Renew(1.0),
        target={"contract": contract},
        headOfLine={"after": "1s"},
        retry=[{"delay": "1h"}],
    ) as rig:
        rig.feed(rig.pump(), numbers(1))
        await rig.until(lambda: bool(rig.copied.records))
        assert rig.copied.values("retry_1") == [b"0"]
        assert 2 < len(rig.seen) < 15, "at once, and then after longer and longer waits"


async def test_a_message_with_more_time_goes_to_the_receiver_that_asked_for_it() -> None:
    where: dict[str, list[bytes]] = {"first": [], "second": []}

    def receiver(name: str) -> Any:
        def handle(message: Message) -> Any:
            is_known = message.value in where[name]
            where[name].append(message.value)
            return None if is_known else Renew(5.0)

        return handle

    async with dispatch_rig(receiver("first")) as rig:
        other, _, _ = await rig.another_receiver(receiver("second"))
        address = f"ipv4:127.0.0.1:{rig.port},{other}"
        rig.runtime.change(definition(address, target={"contract": "unary"}), None)
        pump = rig.pump()
        for number in range(50):  # no more at once than either has room for
            rig.feed(pump, numbers(4, 4 * number))
            await rig.idle()
        assert {name: set(Counter(values).values()) for name, values in where.items()} == {
            "first": {2}, "second": {2},
        }  # fmt: skip
        assert not set(where["first"]) & set(where["second"])


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_head_with_more_time_leaves_by_its_age_only(contract: str) -> None:
    go = asyncio.Event()
    asked = False

    async def handle(message: Message) -> Any:
        nonlocal asked
        if message.value == b"0":
            if not asked and not message.renew(60.0):
                asked = True
                return Renew(60.0)
            await go.wait()
        return None

    async with dispatch_rig(handle, target={"contract": contract}) as rig:
        pump = rig.pump(capacity=50)
        rig.feed(pump, numbers(200))
        await rig.until(lambda: pump.tracker.room == 0 and pump.tracker.unfinished == 1)
        await rig.until(pump.head._is_renewed)
        assert pump.free_head(time.monotonic() + 60.0) is None
        assert "has been out for" in pump.head.detector.why_not
        verdict = pump.free_head(time.monotonic() + 301.0)
        assert verdict is not None
        assert verdict.rule == "age"
        go.set()
        await rig.idle()
    assert rig.copied.values("dlq") == [b"0"]


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_message_that_failed_after_more_time_is_like_any_other(contract: str) -> None:
    said = iter([Renew(5.0), Retry(), None])
    async with dispatch_rig(lambda _: next(said), target={"contract": contract}) as rig:
        rig.feed(rig.pump(), numbers(1))
        await rig.idle()
        assert [message.attempt for message in rig.seen] == [1, 1, 2]


async def test_an_outage_is_not_time_that_the_receiver_had() -> None:
    """The time for which it may ask begins with the delivery for which it first does."""
    said: list[float] = []

    async def handle(message: Message) -> Any:
        if message.value == b"0" and message.time_left() < 60:
            return Renew(120)
        said.append(message.time_left())
        return None

    spec: dict[str, Any] = {"target": {"contract": "unary"}, "headOfLine": {"after": "2m"}}
    async with dispatch_rig(handle, **spec) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(1, 1))
        await rig.idle()
        await rig.receiver.stop(0)
        rig.feed(pump, numbers(1))
        await rig.until(lambda: bool(rig.queues.held))
        delivery = pump.open[1]
        delivery.first_sent_s -= 3_600.0
        await rig.start_receiver()
        await rig.idle()
        assert not rig.copied.records
    assert 100 < said[-1] <= 120


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_receiver_that_asks_too_long_is_no_better_than_one_that_fails(contract: str) -> None:
    """No dead letter is allowed, so its breaker opens, and messages are withheld."""
    async with dispatch_rig(
        lambda _: Renew(1.0),
        target={"contract": contract},
        headOfLine={"after": "1s"},
        dlq={"share": 0.0, "burst": 1, "perMinute": 0.001},
        redelivery={"maxAttempts": 1},
    ) as rig:
        rig.feed(rig.pump(), numbers(40))
        await rig.until(lambda: not rig.endpoint.breaker.closed)
        assert rig.queues.withheld
        for copy in rig.copied.records:
            assert b"Retry" in (copy[3]["switchyard-reason"] or b"").title()


async def test_a_wish_for_a_later_delivery_ends_with_the_messages_time() -> None:
    async with dispatch_rig(
        lambda _: Renew(1.0, after=3_600), headOfLine={"after": "1s"}, retry=[{"delay": "2h"}]
    ) as rig:
        rig.feed(rig.pump(), numbers(1))
        await rig.until(lambda: bool(rig.copied.records))
        assert len(rig.seen) == 2


async def test_more_time_over_several_deliveries_is_limited_as_a_whole() -> None:
    async def handle(message: Message) -> Any:
        if len(rig.seen) == 1:
            return Renew(1.0, after=1.0)
        message.renew(3_600)
        await asyncio.sleep(3_600)
        return None

    spec: dict[str, Any] = {"headOfLine": {"after": "2s"}, "retry": [{"delay": "1h"}]}
    async with dispatch_rig(handle, target={"contract": "stream", "timeout": "500ms"}, **spec) as rig:
        rig.feed(rig.pump(), numbers(1))
        began_s = time.monotonic()
        await rig.until(lambda: bool(rig.copied.records))
        assert time.monotonic() - began_s >= 2.0
        assert len(rig.seen) == 2
        assert rig.copied.values("retry_1") == [b"0"]
