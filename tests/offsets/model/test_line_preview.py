"""Gathered offset syncs give the line that its table's writer will write, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.kafka.records.leader_epochs import EpochStart
from app.kernel.fencing import LogId
from app.offsets.model import line_preview as module
from app.offsets.model.line_preview import gathered, with_barriers
from app.offsets.model.offset_map import Barrier, BarrierItem, OffsetMapLine, after

SOURCE, TARGET = LogId("a", "s"), LogId("d", "t")


def an_item(*ends: tuple[int, int], epoch: int = 1, **fields: object) -> BarrierItem:
    item = BarrierItem("r", "orders", 0, epoch, 0, SOURCE, TARGET, "orders", 0, [Barrier(*at) for at in ends])
    return replace(item, **fields)


def folded(items: list[BarrierItem], line: OffsetMapLine | None = None) -> OffsetMapLine | None:
    """As the table's writer does it."""
    for item in items:
        line = after(line, item) or line
    return line


def all_gathered(items: list[BarrierItem]) -> list[BarrierItem]:
    found: list[BarrierItem] = []
    for item in items:
        found = gathered(found, item)
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[BarrierItem]:
    """One line's, of owners that come one after the other; some of them are late, some find another log."""
    items: list[BarrierItem] = []
    source = target = epoch = lineage = losses = 0
    for _ in range(draw(st.integers(1, 12))):
        what = draw(st.sampled_from(("on", "on", "on", "owner", "anew", "lost", "late")))
        if what == "late" and items:
            items.append(draw(st.sampled_from(items)))
            continue
        epoch += what in {"owner", "anew", "lost"}
        lineage += what == "anew"
        losses += what == "lost"
        if what == "anew":
            source = 0
        source += draw(st.integers(0, 9))
        target += draw(st.integers(0, 9))
        items.append(
            an_item(
                (source, target),
                epoch=epoch,
                lineage=lineage,
                losses=losses,
                source=LogId("a", f"s{lineage}"),
            )
        )
    return items


@given(histories(), st.data())
def test_table_and_tail_give_the_line_that_the_writer_will_write(
    items: list[BarrierItem], data: st.DataObject
) -> None:
    written = data.draw(st.integers(0, len(items)))
    tail_start = data.draw(st.integers(0, written))
    line = folded(items[:written])
    assert with_barriers(line, all_gathered(items[tail_start:])) == folded(items)


@given(histories(), st.data())
def test_a_gap_between_table_and_tail_loses_offset_syncs_and_invents_none(
    items: list[BarrierItem], data: st.DataObject
) -> None:
    written = data.draw(st.integers(0, len(items)))
    tail_start = data.draw(st.integers(written, len(items)))
    line, all_of_it = with_barriers(folded(items[:written]), all_gathered(items[tail_start:])), folded(items)
    if line is None:
        return
    sent = {(one.source, barrier) for one in items for barrier in one.barriers}
    assert {(line.source, barrier) for barrier in line.barriers} <= sent
    assert all_of_it is not None
    assert (line.epoch, line.lineage, line.losses) <= (all_of_it.epoch, all_of_it.lineage, all_of_it.losses)


def test_a_late_offset_sync_hides_no_earlier_one() -> None:
    items = [an_item((0, 0)), an_item((0, 1)), an_item((0, 2)), an_item((0, 0))]
    assert with_barriers(folded(items[:2]), all_gathered(items)) == folded(items)


def test_a_table_that_is_further_counts() -> None:
    items = all_gathered([an_item((5, 5)), an_item((7, 9))])
    line = folded([an_item((5, 5), (7, 9), (20, 30))])
    assert with_barriers(line, items) == line
    assert with_barriers(None, []) is None
    assert with_barriers(line, [an_item((50, 60), source=LogId("a", "another"))]) == line


def test_offset_syncs_of_different_leader_epochs_are_not_merged() -> None:
    first, later = (EpochStart(1, 0),), (EpochStart(1, 0), EpochStart(2, 3))
    items = [an_item((0, 0), epochs=first), an_item((5, 5), epochs=first), an_item((6, 9), epochs=later)]
    found = all_gathered(items)
    assert [len(one.barriers) for one in found] == [2, 1]
    assert with_barriers(None, found) == folded(items)


def test_gathered_items_are_bounded_and_the_newest_stay() -> None:
    many = [an_item((at, at)) for at in range(3 * module.MAX_BARRIERS)]
    (one,) = all_gathered(many)
    assert one.barriers == [many[at].barriers[0] for at in range(2 * module.MAX_BARRIERS, len(many))]
    owners = all_gathered([an_item((at, at), epoch=at) for at in range(3 * module.MAX_ITEMS)])
    assert [one.epoch for one in owners] == list(range(2 * module.MAX_ITEMS, 3 * module.MAX_ITEMS))
