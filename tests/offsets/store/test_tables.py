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


async def known(stand: Regions) -> dict[str, int]:
    """The last source end of all lines into `TOPIC`, by region/route."""
    await stand.tables.read(30.0)
    found = await stand.tables.lines_into("d", TOPIC)
    return {f"{c.region}/{c.route}": c.line.barriers[-1].source_end for c in found}


def line(end: int) -> bytes:
    return a_line(LogId("a", "s"), LogId("d", "t"), TOPIC, 0, (0, 0), (end, end))


async def test_a_copy_is_read_before_the_region_itself_and_only_new_records_are_read(
    yard: Yard, tmp_path: Path
) -> None:
    async with regions(yard, tmp_path) as stand:
        own, other = stand.topic(stand.own), stand.topic(stand.other)
        await stand.send(HERE, own, {b"r/orders/0": line(1)})
        assert await known(stand) == {f"{stand.own}/r": 1}
        assert stand.tables.regions[stand.other].state == "none"
        await stand.make(THERE, other, **COMPACTED)
        await stand.send(THERE, other, {b"x/orders/0": line(2)}, partition=1)
        assert await known(stand) == {f"{stand.own}/r": 1, f"{stand.other}/x": 2}
        assert {one.state for one in stand.tables.regions.values()} == {"own", "remote"}
        before = await stand.tables.ask(lambda store: store.origin(CHECKPOINTS, stand.other))
        await stand.send(THERE, other, {b"x/orders/0": line(3)}, partition=1)
        assert (await known(stand))[f"{stand.other}/x"] == 3
        after = await stand.tables.ask(lambda store: store.origin(CHECKPOINTS, stand.other))
        assert before is not None
        assert after is not None
        assert (before.next_offsets, after.next_offsets) == ({0: 0, 1: 1}, {0: 0, 1: 2})
        # A route copies it here, from now on: its copy is read, though it is behind for a moment.
        await stand.make(HERE, other, **COMPACTED)
        await stand.send(HERE, other, {b"x/orders/0": line(2)})
        assert (await known(stand))[f"{stand.other}/x"] == 2
        assert stand.tables.regions[stand.other].state == "copied"
        # Any table is read the same way, on demand.
        trackers = ControlTopics(stand.other).changelog(TRACKERS, 0).name
        await stand.make(THERE, trackers, **COMPACTED)
        await stand.make(HERE, ControlTopics(stand.own).changelog(TRACKERS, 0).name, **COMPACTED)
        await stand.send(THERE, trackers, {b"dispatch:g/t:t:0": b"1"})
        await stand.send(THERE, trackers, {b"dispatch:g/t:t:0": b"2"})
        found = await stand.tables.read(30.0, (TRACKERS,))
        assert found[stand.other].state == "remote"
        assert await stand.tables.record(TRACKERS, stand.other, "dispatch:g/t:t:0") == b"2"
        assert stand.tables.regions[stand.other].state == "copied", "of the offset map"
        # Another process continues with these records.
        await stand.tables.close()
        stand.tables = stand.opened()
        assert await stand.tables.lines_into("d", TOPIC) != []


async def test_a_recreated_changelog_and_a_damaged_store_are_read_again(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with regions(yard, tmp_path) as stand:
        own = stand.topic(stand.own)
        await stand.send(HERE, own, {b"r/orders/0": line(1), b"gone/orders/0": line(1)})
        assert len(await known(stand)) == 2
        begin, known_then = stand.tables._store.reset, list[bool]()

        def noted(*words: Any) -> None:
            if words[1] == stand.own:
                known_then.append(stand.tables.regions[stand.own].is_known)
            begin(*words)

        monkeypatch.setattr(stand.tables._store, "reset", noted)
        await stand.make(HERE, own, **COMPACTED)
        await stand.send(HERE, own, {b"r/orders/0": line(5), b"s/orders/0": line(6), b"t/orders/0": line(7)})
        assert await known(stand) == {
            f"{stand.own}/{name}": end for name, end in (("r", 5), ("s", 6), ("t", 7))
        }
        assert known_then == [False], "a table that is read in part does not count as known"
        await stand.send(HERE, own, {b"s/orders/0": None})
        assert f"{stand.own}/s" not in await known(stand)
        stand.tables._store._db.put(f"i\0{stand.own}\0r/orders/0".encode(), b"rubbish")
        with pytest.raises(NotRead, match="rebuilt"):
            await stand.tables.lines_into("d", TOPIC)
        assert not stand.tables.regions[stand.own].is_known
        assert await known(stand) == {f"{stand.own}/r": 5, f"{stand.own}/t": 7}


async def test_records_of_a_lost_region_stay_and_a_region_never_read_is_unknown(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REACH_TIMEOUT_S", 1.0)
    async with regions(yard, tmp_path) as stand:
        other = stand.topic(stand.other)
        await stand.make(THERE, other, **COMPACTED)
        await stand.send(THERE, other, {b"x/orders/0": line(2)})
        answering = {stand.own: HERE, stand.other: THERE, "without": THERE}
        stand.tables = stand.opened(RegionAtlas(stand.own, answering, {HERE: stand.own}))
        await known(stand)
        assert stand.tables.regions["without"].state == "none"
        await stand.tables.close()
        control = {stand.own: HERE, stand.other: NOWHERE, "without": NOWHERE, "unheard": NOWHERE}
        stand.tables = stand.opened(RegionAtlas(stand.own, control, {HERE: stand.own}))
        assert (await known(stand))[f"{stand.other}/x"] == 2
        without = stand.tables.regions["without"]
        assert (without.state, without.is_known) == ("away", True), "it is known to have no table"
        lost, unheard = stand.tables.regions[stand.other], stand.tables.regions["unheard"]
        assert (lost.state, lost.is_known) == ("away", True)
        assert (unheard.state, unheard.is_known) == ("away", False)
        assert "nowhere" in unheard.why
        mapper = OffsetMapper(stand.tables, stand.clusters, dict, list)
        assert "region unheard copies here are not known" in mapper._incomplete()


async def test_the_id_of_an_unreachable_cluster_is_its_last_one_or_comes_from_routes(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REACH_TIMEOUT_S", 1.0)
    async with regions(yard, tmp_path) as stand:
        mapper = OffsetMapper(stand.tables, stand.clusters, dict, list)
        await stand.tables.read(30.0)
        with pytest.raises(NotJoined, match="its id is not known here"):
            await mapper.cluster_id(NOWHERE)
        # Lines and definitions of another region name the id.
        log = ControlTopics(stand.own).control.name
        await stand.make(HERE, log, 1, **COMPACTED)
        route = a_route("to-nowhere", HERE, NOWHERE, TOPIC)
        await stand.send(
            HERE, log, {b"route/to-nowhere": put_of(route), b"claim/1/w": b"{}", b"route/x": b"?"}
        )
        await stand.send(HERE, stand.topic(stand.own), {b"to-nowhere/orders/0": line(1)})
        await stand.tables.read(30.0)
        assert await mapper.cluster_id(NOWHERE) == "d"
        kept = await stand.tables.ask(lambda store: list(store.records(ROUTES, stand.own)))
        assert [key for key, _ in kept] == ["route/to-nowhere", "route/x"]
        await stand.tables.ask(lambda store: store.put_cluster_id(NOWHERE, "heard"))
        assert await mapper.cluster_id(NOWHERE) == "heard"
        assert await mapper.cluster_id(HERE) == (await stand.log_id(HERE, log)).cluster_id
