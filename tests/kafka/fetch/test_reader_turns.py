"""Readers that catch up leave time for other tasks, and the first of them is not delayed by the rest."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.kafka.fetch import reader_turns as module
from app.kafka.fetch.reader_turns import ReaderTurns

ENOUGH_S, WORK_S = 60, 0.01


@pytest.fixture(autouse=True)
def _nobody_has_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_loop", module._Loop())


def work() -> None:
    until_s = time.thread_time() + WORK_S
    while time.thread_time() < until_s:
        pass


async def read(turns: ReaderTurns, name: str, took: list[str], count: int) -> None:
    for _ in range(count):
        await turns.wait()
        took.append(name)
        turns.begin()
        work()


async def test_all_readers_together_rest_as_long_as_they_work() -> None:
    took: list[str] = []
    began_s, count = time.monotonic(), 10
    async with asyncio.timeout(ENOUGH_S):
        await asyncio.gather(*(read(ReaderTurns(), str(at), took, count) for at in range(4)))
    worked_s = 4 * count * WORK_S
    rested_s = time.monotonic() - began_s - worked_s
    assert rested_s >= 0.8 * (worked_s - 4 * WORK_S)  # the first turn of each has no work before it
    assert {took.count(str(at)) for at in range(4)} == {count}


async def test_other_readers_wait_while_the_first_is_behind_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_TURN_S", 3.0)  # however busy the machine is
    monkeypatch.setattr(module, "MOST_WAIT_S", ENOUGH_S)
    first, took = ReaderTurns(), list[str]()
    first.is_first = True
    await first.wait()
    async with asyncio.timeout(ENOUGH_S):
        await asyncio.gather(read(first, "first", took, 20), read(ReaderTurns(), "other", took, 3))
    assert took[:20] == ["first"] * 20

    monkeypatch.setattr(module, "MOST_WAIT_S", 0.05)
    ended, took = asyncio.ensure_future(read(first, "first", took, 1_000_000)), list[str]()
    try:
        async with asyncio.timeout(ENOUGH_S):
            await read(ReaderTurns(), "other", took, 3)
    finally:
        ended.cancel()
