"""The regions store finds lines by source and destination, also after kills and damage."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.controllog import codec
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import Barrier, BarrierItem, OffsetMapLine
from app.offsets.model.translation import CopiedPartition
from app.offsets.store.records import (
    BARRIERS,
    CHECKPOINTS,
    ROUTES,
    ChangelogOrigin,
    RegionStore,
    StoreDamaged,
)
from tests.full_disk import on_small_disk

ORIGIN = ChangelogOrigin(cluster="east", topic_id="x")


def line(
    source: str = "a", target: str = "d", topic: str = "orders", partition: int = 0, end: int = 9
) -> bytes:
    return codec.encode(
        OffsetMapLine(
            target_topic=topic, target_partition=partition, epoch=1, lineage=0, source=LogId(source, "s"),
            target=LogId(target, "t"), barriers=[Barrier(0, 0), Barrier(end, end)],
        )
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: object) -> RegionStore:
    made = RegionStore(tmp_path / "regions")  # type: ignore[operator]
    made.open()
    return made


def keys(
    store: RegionStore, cluster: str = "d", topic: str = "orders"
) -> set[tuple[str, str, CopiedPartition, int]]:
    return {
        (c.region, c.route, c.source, c.line.barriers[-1].source_end if c.line.barriers else -1)
        for c in store.lines_into(cluster, topic)
    }


def test_lines_of_all_regions_are_found_by_source_and_destination(store: RegionStore) -> None:
    records = {b"r/orders/%d" % p: line(partition=p) for p in (0, 1, 10)}
    store.write(CHECKPOINTS, "east", records, ORIGIN)
    store.write(CHECKPOINTS, "west", {b"r/orders/0": line("b"), b"x/other/0": line(topic="orders2")}, ORIGIN)
    place = [CopiedPartition("a", "orders", p) for p in (0, 1, 10)]
    assert keys(store) == {("east", "r", p, 9) for p in place} | {
        ("west", "r", CopiedPartition("b", "orders", 0), 9)
    }
    assert [c.source for c in store.lines_from("a", "orders")] == [place[0], place[1], place[2]]
    assert [c.route for c in store.lines_from("a", "other")] == ["x"]
    assert store.lines_from("a", "order") == [], "a prefix of a topic's name is another topic"
    assert store.cluster_of("east", "r", target=True) == "d"
    assert store.cluster_of("east", "r", target=False) == "a"
    assert store.cluster_of("east", "nobody", target=False) == ""


def test_a_line_with_a_new_destination_is_not_found_by_the_old_one(store: RegionStore) -> None:
    store.write(CHECKPOINTS, "east", {b"r/orders/0": line()}, ORIGIN)
    store.write(CHECKPOINTS, "east", {b"r/orders/0": line(topic="copies", end=12)}, ORIGIN)
    assert keys(store) == set()
    assert keys(store, topic="copies") == {("east", "r", CopiedPartition("a", "orders", 0), 12)}
    store.write(CHECKPOINTS, "east", {b"r/orders/0": None}, ORIGIN)
    assert keys(store, topic="copies") == set()
    assert store.lines_from("a", "orders") == []


def test_an_unreadable_line_counts_as_a_line_without_offset_syncs(
    store: RegionStore,
) -> None:
    store.write(CHECKPOINTS, "east", {b"r/orders/0": line()}, ORIGIN)
    store.write(CHECKPOINTS, "east", {b"r/orders/0": b"{}"}, ORIGIN)
    assert keys(store) == {("east", "r", CopiedPartition("a", "orders", 0), -1)}


@pytest.mark.parametrize("key", [b"r/orders", b"r/orders/x", b"\xff/a/0", b"r/or\0ders/0", b""])
def test_records_with_foreign_keys_are_ignored(store: RegionStore, key: bytes) -> None:
    store.write(
        CHECKPOINTS, "east", {key: line(), b"r/orders/0": line(), b"r/o/1": line(topic="a\0b")}, ORIGIN
    )
    assert len(keys(store)) == 1


def test_next_offsets_are_written_with_their_records_and_reset_with_them(store: RegionStore) -> None:
    assert store.origin(CHECKPOINTS, "east") is None
    store.write(CHECKPOINTS, "west", {b"r/orders/0": line("b")}, ORIGIN)
    records = {b"r/orders/%d" % p: line(partition=p) for p in range(2_500)}
    store.write(CHECKPOINTS, "east", records, msgspec.structs.replace(ORIGIN, next_offsets={0: 7}))
    store.write(ROUTES, "east", {b"route/r": b"1"}, ORIGIN)
    store.close()
    store.open()
    found = store.origin(CHECKPOINTS, "east")
    assert found is not None
    assert found.next_offsets == {0: 7}
    assert len(keys(store)) == 2_501
    store.reset(CHECKPOINTS, "east", ORIGIN)
    assert store.origin(CHECKPOINTS, "east") == ORIGIN
    assert keys(store) == {("west", "r", CopiedPartition("b", "orders", 0), 9)}
    assert list(store.records(ROUTES, "east")) == [("route/r", b"1")]


class Killed:
    """A database whose process is killed before the write of that number."""

    def __init__(self, db: Any, at: int) -> None:
        self._db, self._left = db, at

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "put", "delete"):
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
        return getattr(self._db, name)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_kill_during_a_reset_leaves_records_and_offsets_consistent(store: RegionStore, at: int) -> None:
    whole = msgspec.structs.replace(ORIGIN, complete=True, next_offsets={0: 7})
    store.write(CHECKPOINTS, "east", {b"r/orders/0": line()}, whole)
    store._db = Killed(store._db, at)
    with contextlib.suppress(KeyboardInterrupt):
        store.reset(CHECKPOINTS, "east", ORIGIN)
    store.close()
    store.open()
    assert (store.origin(CHECKPOINTS, "east"), len(keys(store))) in [(whole, 1), (ORIGIN, 0)]


def test_a_damaged_store_raises_and_is_rebuilt(store: RegionStore) -> None:
    store.write(CHECKPOINTS, "east", {b"r/orders/0": line()}, ORIGIN)
    store.put_cluster_id("east", "id-1")
    assert store.cluster_id("east") == "id-1"
    store.close()
    with pytest.raises(StoreDamaged):
        store.cluster_id("east")
    for file in store.path.glob("*"):
        if file.name.startswith(("MANIFEST", "CURRENT")):
            file.write_bytes(b"rubbish")
    store.open()
    assert keys(store) == set()
    assert store.cluster_id("east") == ""
    store.write(CHECKPOINTS, "east", {b"r/orders/0": line()}, ORIGIN)
    assert len(keys(store)) == 1
    store._db.put(b"i\0east\0r/orders/0", b"rubbish")
    with pytest.raises(StoreDamaged):
        keys(store)


def barriers(*ends: int, route: str = "r", target: str = "d", epoch: int = 1) -> BarrierItem:
    found = [Barrier(end, end) for end in ends]
    return BarrierItem(
        route, "orders", 0, epoch, 0, LogId("a", "s"), LogId(target, "t"), "orders", 0, found
    )  # fmt: skip


def test_offset_syncs_of_the_tail_are_part_of_their_line_until_the_table_differs(
    store: RegionStore,
) -> None:
    place = CopiedPartition("a", "orders", 0)
    store.write(CHECKPOINTS, "east", {b"r/orders/0": line()}, ORIGIN)
    store.add("east", [barriers(12), barriers(15), barriers(4, 5, route="new")], ORIGIN)
    store.add("east", [barriers(17)], ORIGIN)
    assert keys(store) == {("east", "r", place, 17), ("east", "new", place, 5)}
    assert store.cluster_of("east", "new", target=True) == "d"
    assert store.origin(BARRIERS, "east") == ORIGIN
    store.write(CHECKPOINTS, "east", {b"r/orders/0": line(end=20), b"new/orders/0": None}, ORIGIN)
    assert keys(store) == {("east", "r", place, 20)}
    store.write(CHECKPOINTS, "east", {b"new/orders/0": line(end=3)}, ORIGIN)
    assert keys(store) == {("east", "r", place, 20), ("east", "new", place, 3)}, "it is a new line"
    store.write(CHECKPOINTS, "east", {b"new/orders/0": None}, ORIGIN)
    store.add("east", [barriers(30, target="e", epoch=2)], ORIGIN)
    assert keys(store) == {("east", "r", place, 20)}, "the table decides the new destination"
    assert keys(store, "e") == set()
    store.reset(CHECKPOINTS, "east", ORIGIN)
    assert store.origin(BARRIERS, "east") is None, "both are read again"
    store.write(CHECKPOINTS, "east", {b"r/orders/0": line(end=3)}, ORIGIN)
    assert keys(store) == {("east", "r", place, 3)}


def test_an_unreadable_line_has_no_offset_syncs_even_from_the_tail(store: RegionStore) -> None:
    store.write(CHECKPOINTS, "east", {b"r/orders/0": line()}, ORIGIN)
    store.write(CHECKPOINTS, "east", {b"r/orders/0": b"?"}, ORIGIN)
    store.add("east", [barriers(12)], ORIGIN)
    assert keys(store) == {("east", "r", CopiedPartition("a", "orders", 0), -1)}


FULL_DISK = """
    import sys
    from pathlib import Path
    from app.offsets.store.records import CHECKPOINTS, ChangelogOrigin, RegionStore, StoreFull
    from tests.full_disk import fill

    folder = Path(sys.argv[1])
    store = RegionStore(folder / "regions.db")
    store.open()
    store.put_cluster_id("east", "before")
    ballast = folder / "ballast"
    fill(ballast)
    origin = ChangelogOrigin(cluster="c", topic_id="t")
    for _ in range(2):
        try:
            store.write("definitions", "east", {b"route/r": bytes(100_000)}, origin)
        except StoreFull as error:
            print("full", "No space left" in str(error), store.cluster_id("east"))
    store.close()
    try:
        store.open()
        store.write("definitions", "east", {b"route/r": bytes(100_000)}, origin)
    except StoreFull:
        print("still full")
    ballast.unlink()
    store.close()
    store.open()
    store.write("definitions", "east", {b"route/r": b"{}"}, origin)
    print(store.cluster_id("east"), store.record("definitions", "east", "route/r"))
"""


def test_a_full_disk_takes_nothing_away_and_a_store_writes_again_once_it_has_space(tmp_path: Path) -> None:
    """Regression: a store that could not write was called damaged, and deleted."""
    out = on_small_disk(tmp_path, 8, [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path)])
    assert out.splitlines() == ["full True before", "full True before", "still full", "before b'{}'"]
