"""Regions' tables are read from their copies or themselves, to their ends, and outlive their regions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from app.kernel.fencing import LogId
from app.offsets.store import tables as module
from app.offsets.store.records import CHECKPOINTS, ROUTES, TRACKERS
from app.offsets.store.tables import NotRead, RegionAtlas
from app.offsets.sync.mapper import NotJoined, OffsetMapper
from tests.offsets.clusters import COMPACTED, HERE, NOWHERE, THERE, Regions, a_line, a_route, put_of, regions

TOPIC = "orders"


async def known(rig: Regions) -> dict[str, int]:
    """The last source end of all lines into `TOPIC`, by region/route."""
    await rig.tables.read(30.0)
    found = await rig.tables.lines_into("d", TOPIC)
    return {f"{c.region}/{c.route}": c.line.barriers[-1].source_end for c in found}


def line(end: int) -> bytes:
    return a_line(LogId("a", "s"), LogId("d", "t"), TOPIC, 0, (0, 0), (end, end))


async def test_a_copy_is_read_before_the_region_itself_and_only_new_records_are_read(
    yard: Yard, tmp_path: Path
) -> None:
    async with regions(yard, tmp_path) as rig:
        own, other = rig.topic(rig.own), rig.topic(rig.other)
        await rig.send(HERE, own, {b"r/orders/0": line(1)})
        assert await known(rig) == {f"{rig.own}/r": 1}
        assert rig.tables.regions[rig.other].state == "none"
        await rig.make(THERE, other, **COMPACTED)
        await rig.send(THERE, other, {b"x/orders/0": line(2)}, partition=1)
        assert await known(rig) == {f"{rig.own}/r": 1, f"{rig.other}/x": 2}
        assert {one.state for one in rig.tables.regions.values()} == {"own", "remote"}
        before = await rig.tables.ask(lambda store: store.origin(CHECKPOINTS, rig.other))
        await rig.send(THERE, other, {b"x/orders/0": line(3)}, partition=1)
        assert (await known(rig))[f"{rig.other}/x"] == 3
        after = await rig.tables.ask(lambda store: store.origin(CHECKPOINTS, rig.other))
        assert before is not None
        assert after is not None
        assert (before.next_offsets, after.next_offsets) == ({0: 0, 1: 1}, {0: 0, 1: 2})
        # A route copies it here, from now on: its copy is read, though it is behind for a moment.
        await rig.make(HERE, other, **COMPACTED)
        await rig.send(HERE, other, {b"x/orders/0": line(2)})
        assert (await known(rig))[f"{rig.other}/x"] == 2
        assert rig.tables.regions[rig.other].state == "copied"
        # Any table is read the same way, on demand.
        trackers = ControlTopics(rig.other).changelog(TRACKERS, 0).name
        await rig.make(THERE, trackers, **COMPACTED)
        await rig.make(HERE, ControlTopics(rig.own).changelog(TRACKERS, 0).name, **COMPACTED)
        await rig.send(THERE, trackers, {b"dispatch:g/t:t:0": b"1"})
        await rig.send(THERE, trackers, {b"dispatch:g/t:t:0": b"2"})
        found = await rig.tables.read(30.0, (TRACKERS,))
        assert found[rig.other].state == "remote"
        assert await rig.tables.record(TRACKERS, rig.other, "dispatch:g/t:t:0") == b"2"
        assert rig.tables.regions[rig.other].state == "copied", "of the offset map"
        # Another process continues with these records.
        await rig.tables.close()
        rig.tables = rig.opened()
        assert await rig.tables.lines_into("d", TOPIC) != []


async def test_a_recreated_changelog_and_a_damaged_store_are_read_again(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with regions(yard, tmp_path) as rig:
        own = rig.topic(rig.own)
        await rig.send(HERE, own, {b"r/orders/0": line(1), b"gone/orders/0": line(1)})
        assert len(await known(rig)) == 2
        begin, known_then = rig.tables._store.reset, list[bool]()

        def noted(*words: Any) -> None:
            if words[1] == rig.own:
                known_then.append(rig.tables.regions[rig.own].is_known)
            begin(*words)

        monkeypatch.setattr(rig.tables._store, "reset", noted)
        await rig.make(HERE, own, **COMPACTED)
        await rig.send(HERE, own, {b"r/orders/0": line(5), b"s/orders/0": line(6), b"t/orders/0": line(7)})
        assert await known(rig) == {f"{rig.own}/{name}": end for name, end in (("r", 5), ("s", 6), ("t", 7))}
        assert known_then == [False], "a table that is read in part does not count as known"
        await rig.send(HERE, own, {b"s/orders/0": None})
        assert f"{rig.own}/s" not in await known(rig)
        rig.tables._store._db.put(f"i\0{rig.own}\0r/orders/0".encode(), b"rubbish")
        with pytest.raises(NotRead, match="rebuilt"):
            await rig.tables.lines_into("d", TOPIC)
        assert not rig.tables.regions[rig.own].is_known
        assert await known(rig) == {f"{rig.own}/r": 5, f"{rig.own}/t": 7}


async def test_records_of_a_lost_region_stay_and_a_region_never_read_is_unknown(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REACH_TIMEOUT_S", 1.0)
    async with regions(yard, tmp_path) as rig:
        other = rig.topic(rig.other)
        await rig.make(THERE, other, **COMPACTED)
        await rig.send(THERE, other, {b"x/orders/0": line(2)})
        answering = {rig.own: HERE, rig.other: THERE, "without": THERE}
        rig.tables = rig.opened(RegionAtlas(rig.own, answering, {HERE: rig.own}))
        await known(rig)
        assert rig.tables.regions["without"].state == "none"
        await rig.tables.close()
        control = {rig.own: HERE, rig.other: NOWHERE, "without": NOWHERE, "unheard": NOWHERE}
        rig.tables = rig.opened(RegionAtlas(rig.own, control, {HERE: rig.own}))
        assert (await known(rig))[f"{rig.other}/x"] == 2
        without = rig.tables.regions["without"]
        assert (without.state, without.is_known) == ("away", True), "it is known to have no table"
        lost, unheard = rig.tables.regions[rig.other], rig.tables.regions["unheard"]
        assert (lost.state, lost.is_known) == ("away", True)
        assert (unheard.state, unheard.is_known) == ("away", False)
        assert "nowhere" in unheard.why
        mapper = OffsetMapper(rig.tables, rig.clusters, dict, list)
        assert "region unheard copies here are not known" in mapper._incomplete()


async def test_the_id_of_an_unreachable_cluster_is_its_last_one_or_comes_from_routes(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REACH_TIMEOUT_S", 1.0)
    async with regions(yard, tmp_path) as rig:
        mapper = OffsetMapper(rig.tables, rig.clusters, dict, list)
        await rig.tables.read(30.0)
        with pytest.raises(NotJoined, match="its id is not known here"):
            await mapper.cluster_id(NOWHERE)
        # Lines and definitions of another region name the id.
        log = ControlTopics(rig.own).control.name
        await rig.make(HERE, log, 1, **COMPACTED)
        route = a_route("to-nowhere", HERE, NOWHERE, TOPIC)
        await rig.send(HERE, log, {b"route/to-nowhere": put_of(route), b"claim/1/w": b"{}", b"route/x": b"?"})
        await rig.send(HERE, rig.topic(rig.own), {b"to-nowhere/orders/0": line(1)})
        await rig.tables.read(30.0)
        assert await mapper.cluster_id(NOWHERE) == "d"
        kept = await rig.tables.ask(lambda store: list(store.records(ROUTES, rig.own)))
        assert [key for key, _ in kept] == ["route/to-nowhere", "route/x"]
        await rig.tables.ask(lambda store: store.put_cluster_id(NOWHERE, "heard"))
        assert await mapper.cluster_id(NOWHERE) == "heard"
        assert await mapper.cluster_id(HERE) == (await rig.log_id(HERE, log)).cluster_id
