"""A trace of pumps that deliver to a real receiver: every message once in each stage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.dispatch.jobs.tracing import trace
from app.dispatch.model.latency_trace import ANSWERED, COMMITTED, LOOP, SAVED, STAGES, WHOLE
from switchyard.receiver import Message, Retry
from tests.dispatch.pump.rig import dispatch_rig, numbers

COUNT, SLOW_S = 300, 0.05
ENOUGH_S = 60.0  # ends a trace that would not end; nothing is measured with it


class Asker:
    """Wants the trace until it has `enough`, and one more look."""

    def __init__(self) -> None:
        self.enough = False
        self._looks = 0

    def wants(self) -> bool:
        self._looks += self.enough
        return self._looks < 2


@pytest.mark.parametrize("contract", ["unary", "stream"])
async def test_a_trace_counts_each_message_of_its_time_once_in_every_stage(contract: str) -> None:
    async def slow(_: Message) -> None:
        await asyncio.sleep(SLOW_S)

    asker = Asker()
    async with dispatch_rig(slow, target={"contract": contract}) as rig:
        pumps = [rig.pump(0), rig.pump(1)]

        def base(job: str) -> int:
            return next(pump.base for pump in pumps if str(pump.job) == job)

        rig.feed(pumps[0], numbers(7))  # before the trace; its answers come within it
        running = asyncio.create_task(trace("w1", pumps, base, ENOUGH_S, asker.wants))
        await asyncio.sleep(0.05)
        for pump in pumps:
            rig.feed(pump, numbers(COUNT // 2, start=7))
        await rig.idle()
        for pump in pumps:
            pump.snapshot_version = pump.version
        asker.enough = True
        found = await running
    stages = found.stages
    assert (found.worker, found.partitions) == ("w1", 2)
    assert {name: stages[name].total for name in STAGES[:5]} == dict.fromkeys(STAGES[:5], COUNT)
    assert stages[ANSWERED].quantile_s(0.01) >= SLOW_S
    assert stages[WHOLE].longest_s < ENOUGH_S
    assert (stages[SAVED].total, stages[COMMITTED].total) == (COUNT, COUNT)
    assert (found.gone, found.unanswered) == (0, 0)
    assert stages[LOOP].total > 1
    assert [pump.trace for pump in pumps] == [None, None]


@pytest.mark.parametrize("ordering", ["none", "partition"])
@pytest.mark.parametrize("contract", ["unary", "stream"])
async def test_a_message_that_is_sent_again_counts_with_its_first_answer(
    contract: str, ordering: str
) -> None:
    answers: dict[int, int] = {}
    asker = Asker()

    def once_refused(message: Message) -> Any:
        answers[message.offset] = answers.get(message.offset, 0) + 1
        return Retry(0.01) if answers[message.offset] == 1 else None

    async with dispatch_rig(once_refused, target={"contract": contract}, ordering=ordering) as rig:
        pump = rig.pump()
        running = asyncio.create_task(trace("w1", [pump], lambda _: 0, ENOUGH_S, asker.wants))
        await asyncio.sleep(0.05)
        rig.feed(pump, numbers(10))
        await rig.until(lambda: sum(answers.values()) == 20 or pump.retried > 0)
        await rig.idle()
        asker.enough = True
        found = await running
    assert found.stages[WHOLE].total == 10


async def test_a_message_without_an_answer_is_told() -> None:
    asker = Asker()
    async with dispatch_rig(lambda _: asyncio.sleep(60)) as rig:
        pump = rig.pump()
        running = asyncio.create_task(trace("w1", [pump], lambda _: 0, ENOUGH_S, asker.wants))
        await asyncio.sleep(0.05)
        rig.feed(pump, numbers(3))
        asker.enough = True
        found = await running
    assert (found.unanswered, found.stages[WHOLE].total) == (3, 0)


@pytest.mark.parametrize("end", ["close", "stop_intake"])
async def test_a_trace_ends_with_the_last_pump_and_says_that_it_is_gone(end: str) -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        running = asyncio.create_task(trace("w1", [pump], lambda _: 0, 60.0))
        await asyncio.sleep(0.05)
        getattr(pump, end)()
        async with asyncio.timeout(5):
            found = await running
    assert (found.partitions, found.gone) == (1, 1)


async def test_a_trace_that_nobody_waits_for_ends() -> None:
    async with dispatch_rig(lambda _: None) as rig, asyncio.timeout(5):
        found = await trace("w1", [rig.pump()], lambda _: 0, 60.0, is_wanted=lambda: False)
    assert found.partitions == 1


async def test_a_trace_that_is_given_up_leaves_no_pump_traced() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        running = asyncio.create_task(trace("w1", [pump], lambda _: 0, 60.0))
        await asyncio.sleep(0.05)
        assert pump.trace is not None
        second = await trace("w1", [pump], lambda _: 0, 0.01)  # another trace does not take its pumps
        assert second.partitions == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert pump.trace is None
