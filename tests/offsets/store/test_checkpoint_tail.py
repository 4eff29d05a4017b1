"""The tail of a region's checkpoint topic provides offset syncs that its table lacks."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from app.controllog import codec
from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import Barrier, BarrierItem, NeedItem, PinnedOffsets
from app.offsets.store import tracker_tail as ends_module
from app.offsets.store.records import BARRIERS, CHECKPOINTS
from tests.offsets.clusters import COMPACTED, HERE, THERE, Regions, a_line, regions

TOPIC = "orders"
SOURCE, TARGET = LogId("a", "s"), LogId("d", "t")
OLD_S = 2 * ends_module.MARGIN_MS / 1000


def line(end: int) -> bytes:
    return a_line(SOURCE, TARGET, TOPIC, 0, (0, 0), (end, end))


def event(*ends: int, route: str = "r") -> bytes:
    item = BarrierItem(route, TOPIC, 0, 1, 0, SOURCE, TARGET, TOPIC, 0, [Barrier(at, at) for at in ends])
    (value,) = codec.barriers_events("w", 1, [item])
    return value


async def send_barriers(
    rig: Regions, region: str, *values: bytes, ago_s: float = 0.0, cluster: str = HERE
) -> None:
    at_ms = int((time.time() - ago_s) * 1000)
    await rig.values(cluster, ControlTopics(region).checkpoints.name, 0, *values, timestamp_ms=at_ms)


async def known(rig: Regions) -> dict[str, int]:
    """The last source end of all lines into `TOPIC`, by region/route."""
    await rig.tables.read(30.0)
    found = await rig.tables.lines_into("d", TOPIC)
    return {f"{c.region}/{c.route}": c.line.barriers[-1].source_end for c in found}


async def test_offset_syncs_missing_in_a_table_come_from_the_tail_of_its_topic_or_of_its_copy(
    yard: Yard, tmp_path: Path
) -> None:
    async with regions(yard, tmp_path) as rig:
        own, other = rig.own, rig.other
        await rig.send(HERE, rig.topic(own), {b"r/orders/0": line(10)})
        await rig.make(HERE, rig.topic(other), **COMPACTED)
        await rig.send(HERE, rig.topic(other), {b"x/orders/0": line(20)})
        assert await known(rig) == {f"{own}/r": 10, f"{other}/x": 20}, "regions without such a topic"
        (needed,) = codec.needed_events("w", 1, [NeedItem("r", TOPIC, 0, TARGET, PinnedOffsets([1]))])
        for region, route, end in ((own, "r", 12), (other, "x", 25)):
            await rig.make(HERE, ControlTopics(region).checkpoints.name)
            await send_barriers(rig, region, event(5, route=route), ago_s=OLD_S)
            await send_barriers(rig, region, event(end, route=route), b"no event", needed)
        assert await known(rig) == {f"{own}/r": 12, f"{other}/x": 25}
        await send_barriers(rig, own, event(13), event(3, route="young"))
        assert await known(rig) == {f"{own}/r": 13, f"{own}/young": 3, f"{other}/x": 25}
        # Another process continues there; the table's copy arrives and is further.
        await rig.tables.close()
        rig.tables = rig.opened()
        await send_barriers(rig, own, event(14))
        await rig.send(HERE, rig.topic(other), {b"x/orders/0": line(30)})
        assert await known(rig) == {f"{own}/r": 14, f"{own}/young": 3, f"{other}/x": 30}
        origin = await rig.tables.ask(lambda store: store.origin(BARRIERS, own))
        assert origin is not None
        assert origin.next_offsets == {0: 7, 1: 0}


@pytest.mark.parametrize("first", [CHECKPOINTS, BARRIERS])
async def test_a_tail_deleted_with_its_table_is_read_again_whichever_is_read_first(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    async with regions(yard, tmp_path) as rig:
        own, tables = rig.own, rig.tables
        await rig.send(HERE, rig.topic(own), {b"r/orders/0": line(10)})
        await rig.make(HERE, ControlTopics(own).checkpoints.name)
        await send_barriers(rig, own, event(12))
        assert await known(rig) == {f"{own}/r": 12}
        await rig.make(HERE, rig.topic(own), **COMPACTED)
        await rig.send(HERE, rig.topic(own), {b"r/orders/0": line(11)})
        follow, write, first_was_read = tables._follow, tables._write, asyncio.Event()

        async def followed(region: str, table: str, *words: Any, **more: Any) -> Any:
            if (region, table, first) == (own, CHECKPOINTS, BARRIERS):
                await first_was_read.wait()
            found = await follow(region, table, *words, **more)
            if (region, table) == (own, first):
                first_was_read.set()
            return found

        async def written(table: str, region: str, *words: Any) -> Any:
            if (region, table, first) == (own, BARRIERS, CHECKPOINTS):
                await first_was_read.wait()
            return await write(table, region, *words)

        monkeypatch.setattr(tables, "_follow", followed)
        monkeypatch.setattr(tables, "_write", written)
        assert await known(rig) == {f"{own}/r": 12}
        assert first_was_read.is_set()


async def test_a_long_tail_is_read_near_its_end_and_an_uncopied_one_is_not_read(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with regions(yard, tmp_path) as rig:
        own, other = rig.own, rig.other
        monkeypatch.setattr(ends_module, "MAX_EVENTS", 2)
        await rig.make(HERE, ControlTopics(own).checkpoints.name)
        await send_barriers(rig, own, *(event(at, route=f"r{at}") for at in range(5)))
        assert await known(rig) == {f"{own}/r3": 3, f"{own}/r4": 4}
        await send_barriers(rig, own, *(event(at, route=f"r{at}") for at in range(5, 9)))
        assert set(await known(rig)) == {f"{own}/r{at}" for at in (3, 4, 7, 8)}, (
            "it is read again, from near its end"
        )
        await rig.make(THERE, rig.topic(other), **COMPACTED)
        await rig.send(THERE, rig.topic(other), {b"x/orders/0": line(20)})
        await rig.make(THERE, ControlTopics(other).checkpoints.name)
        await send_barriers(rig, other, event(25, route="x"), cluster=THERE)
        assert (await known(rig))[f"{other}/x"] == 20
