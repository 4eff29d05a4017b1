"""The limits that a definition sets: attempts and waits in memory, the breaker, and the head of the line."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from switchyard.receiver import Message
from tests.dispatch.pump.rig import DispatchRig, definition, dispatch_rig, numbers

CONTRACTS = ["unary", "stream"]
SOON = {"initialBackoff": "1ms", "maxBackoff": "2ms"}
MANY = {"share": 1.0}  # no limit


def change(rig: DispatchRig, contract: str, **spec: Any) -> None:
    rig.runtime.change(definition(rig.main.address, target={"contract": contract}, **spec), None)


def fail(_: Message) -> None:
    raise RuntimeError("no")


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_message_is_delivered_as_often_as_the_definition_in_force_says(contract: str) -> None:
    target = {"contract": contract}
    async with dispatch_rig(fail, target=target, dlq=MANY, redelivery={**SOON, "maxAttempts": 1}) as rig:
        pumps = [rig.pump(partition) for partition in range(3)]
        for number, attempts in enumerate((1, 5, 2)):
            change(rig, contract, dlq=MANY, redelivery={**SOON, "maxAttempts": attempts})
            for pump in pumps:
                rig.feed(pump, numbers(10, 10 * number))
            await rig.idle()
            values = {str(value).encode() for value in range(10 * number, 10 * number + 10)}
            assert {rig.values()[value] for value in values} == {3 * attempts}
        assert len(rig.copied.values("dlq")) == 90


async def test_an_attempt_waits_as_long_as_the_definition_says() -> None:
    waits = {"initialBackoff": "10m", "maxBackoff": "10m", "jitter": 0.0}
    async with dispatch_rig(fail, target={"contract": "unary"}, redelivery=waits) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(1))
        await rig.until(lambda: bool(pump._queue.waiting))
        assert len(rig.seen) == 1
        change(rig, "unary", dlq=MANY, redelivery=SOON)
        rig.feed(pump, numbers(1, 1))
        await rig.until(lambda: rig.copied.values("dlq") == [b"1"])
        assert rig.values()[b"0"] == 1, "a wait that has begun does not change"


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_the_breaker_opens_after_as_many_failures_as_the_definition_says(
    contract: str,
) -> None:
    """No dead letter is allowed, so every failure counts."""
    spec: dict[str, Any] = {"dlq": {"share": 0.0, "burst": 1, "perMinute": 0.001}, "redelivery": SOON}
    rare = {"failures": 40, "firstProbe": "10m", "longestProbe": "10m"}
    async with dispatch_rig(fail, target={"contract": contract}, breaker=rare, **spec) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(200))
        await rig.until(lambda: not rig.endpoint.breaker.closed)
        assert int(rig.endpoint.breaker.reason.partition(" ")[0]) >= 40
        before = len(rig.seen)
        assert (rig.endpoint.probe_in_s(time.monotonic()) or 0.0) > 300.0

        change(rig, contract, breaker={"firstProbe": "10ms", "longestProbe": "100ms"}, **spec)
        await rig.until(lambda: len(rig.seen) > before + 5)


@pytest.mark.parametrize("partitions", [1, 4])
async def test_a_head_that_leaves_no_room_goes_after_the_patience_of_the_definition(partitions: int) -> None:
    go, many = asyncio.Event(), {"perMinute": 600}

    async def handle(message: Message) -> None:
        if message.value == b"0":
            await go.wait()

    async with dispatch_rig(handle, headOfLine={**many, "patience": "1h", "after": "2h"}) as rig:
        pumps = [rig.pump(partition, capacity=50) for partition in range(partitions)]
        for pump in pumps:
            rig.feed(pump, numbers(200))
        await rig.until(lambda: all(pump.tracker.room == 0 for pump in pumps))
        await rig.until(lambda: all(pump.tracker.unfinished == 1 for pump in pumps))
        assert not any(pump.free_head(time.monotonic() + 60.0) for pump in pumps)

        change(rig, "unary", headOfLine={**many, "patience": "30s", "full": 1.0})
        assert not any(pump.free_head(time.monotonic() + 60.0) for pump in pumps), "no share is above 1"
        late_s = time.monotonic() + 3_600.0
        change(rig, "unary", headOfLine={**many, "full": 1.0, "after": "2h"})
        assert not any(pump.free_head(late_s) for pump in pumps)
        change(rig, "unary", headOfLine={**many, "full": 1.0, "after": "30m"})
        found = [pump.free_head(late_s) for pump in pumps[1:]]
        assert [verdict and (verdict.offset, verdict.rule) for verdict in found] == [(0, "age")] * len(found)
        change(rig, "unary", headOfLine={**many, "patience": "30s", "full": 0.5, "after": "2h"})
        verdict = pumps[0].free_head(late_s)
        assert verdict is not None
        assert (verdict.offset, verdict.rule) == (0, "full")
        assert "limit 50%" in verdict.reason
        go.set()
        await rig.idle()
    assert rig.copied.values("dlq") == [b"0"] * partitions


async def test_a_head_among_several_unfinished_goes_if_the_definition_calls_that_few() -> None:
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        if int(message.value or b"") % 10 == 0:
            await go.wait()

    async with dispatch_rig(handle, headOfLine={"patience": "1s"}) as rig:
        pump = rig.pump(capacity=50)
        rig.feed(pump, numbers(50))
        await rig.until(lambda: pump.tracker.unfinished == 5)
        assert pump.free_head(time.monotonic() + 60.0) is None
        assert "10.0% of it unfinished" in pump.head.detector.why_not
        change(rig, "unary", headOfLine={"patience": "1s", "unfinished": 0.2})
        assert pump.free_head(time.monotonic() + 60.0) is not None
        go.set()
        await rig.idle()
    assert rig.copied.values("dlq") == [b"0"]


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_messages_that_no_receiver_took_do_not_wait_as_those_that_failed(contract: str) -> None:
    """The attempts of a definition are for failures."""
    waits = {"maxAttempts": 1, "initialBackoff": "10m", "maxBackoff": "10m"}
    probes = {"unavailable": 1_000, "failures": 1_000}
    async with dispatch_rig(
        lambda _: None, target={"contract": contract}, redelivery=waits, breaker=probes
    ) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(1))
        await rig.idle()
        await rig.receiver.stop(0)
        rig.feed(pump, numbers(100, 1))
        await rig.until(lambda: rig.endpoint.breaker.recent(time.monotonic())[1] > 1)
        await rig.start_receiver()
        await rig.idle()
        assert set(rig.values()) == {str(number).encode() for number in range(101)}
        assert not rig.copied.records


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_one_probe_is_enough_however_rare_they_are(contract: str) -> None:
    """With streams it connects, and then takes a message."""
    rare = {"firstProbe": "2s", "longestProbe": "10m"}
    async with dispatch_rig(lambda _: None, target={"contract": contract}, breaker=rare) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(1))
        await rig.idle()
        await rig.receiver.stop(0)
        rig.feed(pump, numbers(100, 1))
        await rig.until(lambda: not rig.endpoint.breaker.closed)
        await rig.start_receiver()
        await rig.idle()
        assert set(rig.values()) == {str(number).encode() for number in range(101)}
