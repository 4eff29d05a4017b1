"""One reading at a time reads a table, whatever happens. The clusters are simulated."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from app.offsets.store.records import CHECKPOINTS, RegionStore
from app.offsets.store.tables import RegionAtlas, RegionMap, RegionTables


class SimulatedTables(RegionTables):
    """Tables of two regions: one fails with an unexpected error, the other reads until `may_continue`."""

    def __init__(self, path: Path) -> None:
        nowhere: Any = type("Nowhere", (), {"specs": {}})()
        super().__init__(RegionAtlas("a", {"a": "here"}, {"there": "b"}), nowhere, path)
        self.may_continue, self.reads, self.together = asyncio.Event(), 0, 0

    async def _read(self, region: str, tables: Any) -> RegionMap:
        if region == "a":
            raise ZeroDivisionError
        self.reads += 1
        self.together = max(self.together, self.reads)
        try:
            await self.may_continue.wait()
        finally:
            await asyncio.sleep(0)  # closes its consumers
            self.reads -= 1
        return RegionMap(region, "none")


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0.01)


async def test_a_failed_reading_waits_for_the_other_readings(tmp_path: Path) -> None:
    tables = SimulatedTables(tmp_path)
    first = asyncio.create_task(tables.read(60.0, (CHECKPOINTS,)))
    second = asyncio.create_task(tables.read(60.0, (CHECKPOINTS,)))
    await turns()
    assert (tables.reads, first.done()) == (1, False), (
        "a reading keeps the table until all its parts have ended"
    )
    tables.may_continue.set()
    for one in (first, second):
        with pytest.raises(ZeroDivisionError):
            await one
    assert (tables.reads, tables.together) == (0, 1)
    await tables.close()


async def test_a_question_cancelled_before_its_turn_does_not_run(tmp_path: Path) -> None:
    tables, waits, may_continue = SimulatedTables(tmp_path), threading.Event(), threading.Event()
    question: list[str] = []

    def slow(_: RegionStore) -> None:
        waits.set()
        may_continue.wait()
        question.append("slow")

    first = asyncio.create_task(tables.ask(slow))
    await asyncio.to_thread(waits.wait)
    late = asyncio.create_task(tables.ask(lambda _: question.append("late")))
    await turns()
    for given_up in (late, first):
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
    may_continue.set()
    await tables.ask(lambda _: question.append("next"))
    await tables.ask(lambda _: None)
    assert question == ["slow", "next"], "a started question ends before the next one begins"
    await tables.close()
