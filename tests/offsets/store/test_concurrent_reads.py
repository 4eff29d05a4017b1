"""Readings of regions' tables beside each other: a table is read by one at a time, whatever happens.
The clusters are played."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from app.offsets.store.records import CHECKPOINTS, RegionStore
from app.offsets.store.tables import RegionAtlas, RegionMap, RegionTables


class Played(RegionTables):
    """Of two regions: one fails at once, in a way that nobody has foreseen; of the other it takes as long as
    `goes_on` is not set."""

    def __init__(self, path: Path) -> None:
        nowhere: Any = type("Nowhere", (), {"specs": {}})()
        super().__init__(RegionAtlas("a", {"a": "here"}, {"there": "b"}), nowhere, path)
        self.goes_on, self.reads, self.together = asyncio.Event(), 0, 0

    async def _read(self, region: str, tables: Any) -> RegionMap:
        if region == "a":
            raise ZeroDivisionError
        self.reads += 1
        self.together = max(self.together, self.reads)
        try:
            await self.goes_on.wait()
        finally:
            await asyncio.sleep(0)  # closes what it has read by
            self.reads -= 1
        return RegionMap(region, "none")


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0.01)


async def test_a_reading_that_fails_leaves_no_other_behind_that_still_reads(tmp_path: Path) -> None:
    tables = Played(tmp_path)
    first = asyncio.create_task(tables.read(60.0, (CHECKPOINTS,)))
    second = asyncio.create_task(tables.read(60.0, (CHECKPOINTS,)))
    await turns()
    assert (tables.reads, first.done()) == (1, False), "it has the table until all of it have ended"
    tables.goes_on.set()
    for one in (first, second):
        with pytest.raises(ZeroDivisionError):
            await one
    assert (tables.reads, tables.together) == (0, 1)
    await tables.close()


async def test_who_gave_up_before_its_turn_changes_nothing_any_more(tmp_path: Path) -> None:
    tables, waits, goes_on = Played(tmp_path), threading.Event(), threading.Event()
    asked: list[str] = []

    def slow(_: RegionStore) -> None:
        waits.set()
        goes_on.wait()
        asked.append("slow")

    first = asyncio.create_task(tables.ask(slow))
    await asyncio.to_thread(waits.wait)
    late = asyncio.create_task(tables.ask(lambda _: asked.append("late")))
    await turns()
    for given_up in (late, first):
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
    goes_on.set()
    await tables.ask(lambda _: asked.append("next"))
    await tables.ask(lambda _: None)
    assert asked == ["slow", "next"], "what was begun is ended before anybody else is asked"
    await tables.close()
