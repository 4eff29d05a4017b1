"""A translated position passes over no unread record, and goes back no further than it must."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.records.producer_sequences import ProducerStamp
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import (
    MAX_BARRIERS,
    THINNED_TO,
    Barrier,
    BarrierItem,
    LineSource,
    NeedItem,
    OffsetMapLine,
    PinnedOffsets,
    after,
    needs_of,
    thinned,
    with_pins,
)
from tests.offsets.model.aggregates import ACTS, Act, World, random_history
from tests.offsets.model.translation_rule import translate

Compare = Callable[[int, int], bool]
LOG = LogId("c", "t")

histories = st.lists(st.tuples(st.integers(0, ACTS - 1), st.integers(0, 59), st.integers(1, 6)), max_size=150)
shapes = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))


def line(
    *barriers: tuple[int, int], partition: int = 0, log: LogId = LOG, source_epoch: int = 0
) -> OffsetMapLine:
    return OffsetMapLine(
        target_topic="t", target_partition=partition, epoch=1, lineage=0, source=log, target=LOG,
        barriers=[Barrier(*at) for at in barriers], source_epoch=source_epoch,
    )  # fmt: skip


def item(
    *barriers: tuple[Any, ...], epoch: int = 1, lineage: int = 0, log: LogId = LOG, losses: int = 0
) -> BarrierItem:
    return BarrierItem(
        "r", "t", 0, epoch, lineage, log, LOG, "t", 0, [Barrier(*barrier) for barrier in barriers],
        losses=losses,
    )  # fmt: skip


def ours(world: World) -> dict[int, int]:
    return translate(
        dict(enumerate(world.reader)), world.into(world.a), world.into(world.d),
        dict.fromkeys(range(len(world.d)), 0),
    )  # fmt: skip


def by_the_book(
    world: World, passed: Compare = operator.lt, least: Callable[..., int] = min
) -> dict[int, int]:
    """The design's rule as it stands there, with inclusive offsets and every barrier: k_r, x_r, x."""
    read: dict[str, set[int]] = {}
    for copier in world.copiers[: len(world.sources)]:
        read[copier.source.name] = {
            max(
                (b.source_end - 1 for b in barriers if passed(b.target_end - 1, world.reader[at])), default=-9
            )
            for at, barriers in copier.whole.items()
        }
    found: dict[int, list[int]] = {partition: [] for partition in range(len(world.d))}
    for copier in world.copiers[len(world.sources) :]:
        k = min(read[copier.source.name])
        for at, barriers in copier.whole.items():
            found[at].append(max((b.target_end for b in barriers if b.source_end - 1 <= k), default=0))
    return {at: least(many, default=0) for at, many in found.items()}


def losses(passed: Compare = operator.lt, least: Callable[..., int] = min) -> int:
    """The records lost by the design's rule, or another, in a hundred histories, checked after every act."""
    lost = 0
    for seed in range(100):
        world = World((1, 1, 1), regions=1 + seed % 2)
        for _ in world.play(random_history(seed)):
            lost += len(world.lost(by_the_book(world, passed, least)))
    return lost


# -- nothing is lost -------------------------------------------------------------------------------


@given(histories, shapes, st.booleans())
def test_a_translated_position_never_passes_over_an_unread_record(
    acts: list[Act], shape: tuple[int, int, int], spread: bool
) -> None:
    world = World(shape, spread=spread)
    for _ in world.play(acts):
        resumed = ours(world)
        assert not world.lost(resumed)
        assert all(resumed[at] <= len(log.records) for at, log in enumerate(world.d))


@given(histories.map(lambda acts: [act for act in acts if act[0] != ACTS - 1]), shapes, st.booleans())
def test_translation_equals_the_reference_rule(
    acts: list[Act], shape: tuple[int, int, int], spread: bool
) -> None:
    world = World(shape, spread=spread)
    for _ in world.play(acts):
        assert ours(world) == by_the_book(world)


def test_the_reference_rule_loses_nothing_and_neighbouring_rules_do() -> None:
    assert losses() == 0
    assert losses(operator.le) > 0
    assert losses(least=max) > 0


def test_a_record_next_to_be_read_does_not_count_as_read() -> None:
    """The smallest case that tells `<` from `<=`: one record, copied on both sides, not read."""
    world = World((1, 1, 1), regions=1)
    for _ in world.play([(0, 0, 1), (2, 0, 1), (4, 0, 1), (2, 1, 1), (4, 1, 1)]):
        pass
    assert ours(world) == by_the_book(world) == {0: 0}
    assert by_the_book(world, operator.le) == {0: 1}
    assert world.lost({0: 1}) == {("east-0", 0, 0)}


def test_the_worked_example_has_its_result() -> None:
    """Figure 6, in which a position is that of the last message: at 6 in region B's aggregate, then at 1."""
    in_b = [LineSource("A", line((2, 4))), LineSource("B", line((4, 6)))]
    in_a = [LineSource("A", line((2, 2))), LineSource("B", line((4, 8)))]
    for next_offset in (6, 7):  # whether A3, the message at 6, is read or is the next
        assert translate({0: next_offset}, in_b, in_a, {0: 0})[0] - 1 == 1


# -- and little is read again ----------------------------------------------------------------------


@given(histories, shapes, st.booleans())
def test_a_reader_of_everything_reads_nothing_again(
    acts: list[Act], shape: tuple[int, int, int], spread: bool
) -> None:
    world = World(shape, spread=spread)
    for _ in world.play(acts):
        pass
    world.settle()
    world.reader = [len(log.records) for log in world.a]
    fed = {at for copier in world.copiers if copier.logs is world.d for at in copier.fed}
    for partition, next_offset in ours(world).items():
        assert next_offset == len(world.d[partition].records) or partition not in fed


@given(histories, shapes)
def test_rereads_of_the_deciding_source_stay_within_the_distance_of_offset_syncs(
    acts: list[Act], shape: tuple[int, int, int]
) -> None:
    world = World(shape)
    for _ in world.play([act for act in acts if act[0] != ACTS - 1]):
        pass
    into_a, resumed = dict(world.into(world.a)), ours(world)
    for name, into_d in world.into(world.d):
        start, into = resumed[into_d.target_partition], into_a[name]
        read_to = world.reader[into.target_partition]
        known = into.read_up_to(read_to)
        if known is None or into_d.resume_at(known) != start:
            continue  # another source holds the reader back
        before = max(b.source_end for b in into_d.barriers if b.source_end <= known)
        behind = min((b.source_end for b in into.barriers if b.target_end > read_to), default=10**9)
        read = set(world.a[into.target_partition].records[:read_to])
        log = world.d[into_d.target_partition].records
        again = [record for record in set(log[start:]) - set(log[:start]) if record and record in read]
        assert all(before <= offset < behind for source, _, offset in again if source == name)


# -- thinning --------------------------------------------------------------------------------------

steps = st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 3000)), min_size=5, max_size=40)


def chain(*steps: tuple[int, int]) -> list[Barrier]:
    """Barriers by how much they are above the one before, in source and copy."""
    found = [Barrier(0, 7)]
    for source, target in steps:
        found.append(Barrier(found[-1].source_end + source, found[-1].target_end + source + target))
    return found


@given(histories, st.randoms(use_true_random=False), shapes)
def test_missing_offset_syncs_only_move_a_position_back(
    acts: list[Act], chance: object, shape: tuple[int, int, int]
) -> None:
    world = World(shape)
    for _ in world.play(acts):
        pass
    whole = ours(world)
    for copier in world.copiers:
        for partition, full in copier.lines.items():
            kept = [barrier for barrier in full.barriers if chance.random() < 0.5]  # type: ignore[attr-defined]
            copier.lines[partition] = msgspec.structs.replace(full, barriers=kept)
    thin = ours(world)
    assert all(thin[at] <= whole[at] for at in whole)


still = st.lists(st.tuples(st.floats(0, 1), st.integers(-1, 1)), max_size=120)


@given(steps, st.integers(20, 100), still, still)
def test_thinning_bounds_a_line_and_keeps_the_answers_for_readers_at_rest(
    steps: list[tuple[int, int]], times: int, read: list[tuple[float, int]], resumed: list[tuple[float, int]]
) -> None:
    full = chain(*(steps * times))
    needs = needs_of(
        (full[int(at * (len(full) - 1))].target_end + beside for at, beside in read),
        (full[int(at * (len(full) - 1))].source_end + beside for at, beside in resumed),
    )
    kept = thinned(full, needs)
    assert kept == full if len(full) <= MAX_BARRIERS else len(kept) <= THINNED_TO
    assert [barrier for barrier in full if barrier in set(kept)] == kept
    assert (kept[0], kept[-1]) == (full[0], full[-1])
    full_line, thinned_line = line(), line()
    full_line.barriers.extend(full)
    thinned_line.barriers.extend(kept)
    assert [thinned_line.read_up_to(at) for at in needs.read] == [
        full_line.read_up_to(at) for at in needs.read
    ]
    assert [thinned_line.resume_at(at) for at in needs.resumed] == [
        full_line.resume_at(at) for at in needs.resumed
    ]


def test_a_reader_at_rest_keeps_its_offset_sync_however_long_the_line_grows() -> None:
    apart, read, resumed = 1_000, 200_000, 300_500
    grown = after(None, item((0, 0)))
    for number in range(1, 20_000):
        grown = after(grown, item((number * apart, 2 * number * apart))) or grown
        if number == 500:
            need = NeedItem("r", "t", 0, LOG, needs_of([read], [resumed]))
            grown = with_pins(grown, need)
            assert grown is not None
            assert with_pins(grown, need) is None, "which is not written again"
            assert with_pins(grown, msgspec.structs.replace(need, target=LogId("c", "another"))) is None
        assert grown is not None
    assert len(grown.barriers) <= MAX_BARRIERS
    assert (grown.read_up_to(read), grown.resume_at(resumed)) == (100_000, 600_000)
    new_line = after(grown, item((5, 5), lineage=1))
    assert new_line is not None
    assert new_line.needs == PinnedOffsets(), "no reader of the new line has pinned offsets yet"


def test_a_growing_line_stays_short_and_exact_at_its_readers() -> None:
    """Near the newest all barriers are there, further back some are not."""
    grown: list[Barrier] = []
    apart = 1_000
    for number in range(100_000):
        grown = thinned([*grown, Barrier(number * apart, number * apart)])
        assert len(grown) <= MAX_BARRIERS
    newest = grown[-1].target_end
    for older, newer in pairwise(grown):
        assert newer.target_end - older.target_end <= max(apart, 0.06 * (newest - older.target_end))
    assert grown[0] == Barrier(0, 0)
    assert [b.target_end for b in grown[-15:]] == [newest - n * apart for n in range(14, -1, -1)]


def test_an_idle_source_does_not_lengthen_its_line() -> None:
    grown = after(None, item((0, 0), (10, 10)))
    for end in range(20, 3_000):
        grown = after(grown, item((10, end)))
        assert grown is not None
    assert grown.barriers == [Barrier(0, 0), Barrier(10, 10), Barrier(10, 2_999)]
    assert grown.read_up_to(10) == 10
    assert grown.resume_at(10) == 2_999


def test_the_first_stamp_of_each_successive_lane_stays() -> None:
    first, last, opened = ProducerStamp(3, 0, 0), ProducerStamp(3, 0, 10), ProducerStamp(7, 0, 0)
    offset_syncs = item((0, 0), (0, 0, 0, first), (10, 10, 0, last), (10, 10, 0, opened), (10, 10))
    line = after(None, offset_syncs)
    assert line is not None
    assert [barrier.stamp for barrier in line.barriers] == [first, last, opened]
    assert after(line, offset_syncs) is None


# -- lines: one writer, events that come again ------------------------------------------------------

marks = st.tuples(
    st.integers(0, 50), st.integers(0, 50), st.just(0),
    st.none() | st.builds(ProducerStamp, st.integers(1, 3), st.just(0), st.integers(0, 2)),
)  # fmt: skip
items = st.builds(
    item, marks, marks,
    epoch=st.integers(1, 3), lineage=st.integers(0, 2), log=st.sampled_from([LOG, LogId(), LogId("c", "u")]),
    losses=st.integers(0, 1),
)  # fmt: skip


def fold(start: OffsetMapLine | None, events: list[BarrierItem]) -> OffsetMapLine | None:
    for event in events:
        start = after(start, event) or start
    return start


@given(st.lists(items, max_size=12), st.data())
def test_repeated_events_after_a_kill_change_nothing(events: list[BarrierItem], data: st.DataObject) -> None:
    once = fold(None, events)
    again = data.draw(st.integers(0, len(events)))
    assert fold(once, events[again:]) == once


@given(st.lists(items, max_size=12))
def test_the_offset_syncs_of_a_line_never_decrease(events: list[BarrierItem]) -> None:
    folded = fold(None, events)
    for older, newer in pairwise(folded.barriers if folded else []):
        assert older != newer
        assert older.source_end <= newer.source_end
        assert older.target_end <= newer.target_end


def test_an_older_epoch_and_an_older_lineage_are_refused() -> None:
    known = fold(None, [item((0, 0), (5, 5), epoch=4, lineage=1)])
    assert after(known, item((9, 9), epoch=3, lineage=1)) is None
    assert after(known, item((9, 9), epoch=4, lineage=0)) is None
    assert after(known, item((9, 9), epoch=4, lineage=1)) is not None
    lost = fold(known, [item((6, 4), epoch=4, lineage=1, losses=1)])
    assert after(lost, item((9, 9), epoch=4, lineage=1)) is None


@pytest.mark.parametrize(
    "other", [item((3, 90), lineage=1), item((3, 90), log=LogId("c", "anew")), item((3, 90), losses=1)]
)
def test_another_log_begins_a_new_line(other: BarrierItem) -> None:
    new_line = fold(None, [item((0, 0), (50, 80)), other])
    assert new_line is not None
    assert new_line.barriers == [Barrier(3, 90)]


def test_an_unknown_topic_id_is_filled_in_and_the_line_continues() -> None:
    folded = fold(None, [item((0, 0), log=LogId()), item((5, 5)), item((6, 6), log=LogId())])
    assert folded is not None
    assert (folded.source, len(folded.barriers)) == (LOG, 3)


# -- what is not known ------------------------------------------------------------------------------

FULL = line((0, 0), (10, 10))


@pytest.mark.parametrize(
    ("read", "resumed"),
    [
        (FULL, line((0, 0), (10, 10), log=LogId("c", "anew"))),
        (FULL, line((0, 0), (10, 10), source_epoch=7)),
        (line((5, 11), (10, 15)), FULL),
        (line(), FULL),
        (FULL, line((11, 9))),
        (FULL, line()),
    ],
    ids=["made anew", "truncated", "before the genesis", "no line read", "begun later", "no line to go on"],
)
def test_an_unknown_source_is_read_from_the_start(read: OffsetMapLine, resumed: OffsetMapLine) -> None:
    assert translate({0: 10}, [LineSource("s", read)], [LineSource("s", resumed)], {0: 3}) == {0: 3}
    assert translate({0: 10}, [LineSource("s", FULL)], [LineSource("s", FULL)], {0: 3}) == {0: 10}


@pytest.mark.parametrize(
    ("next_offsets", "expected"),
    [({0: 10, 1: 30}, 10), ({0: 4, 1: 30}, 4), ({0: 10, 1: 22}, 2), ({0: 10, 1: 3}, 1), ({0: 10}, 1)],
)
def test_a_spread_source_was_read_as_far_as_in_its_least_partition(
    next_offsets: dict[int, int], expected: int
) -> None:
    every = [(n, n) for n in range(11)]
    read = [
        LineSource("s", line(*every)),
        LineSource("s", line(*((s, t + 20) for s, t in every), partition=1)),
    ]
    for lines in (read, read[::-1]):
        assert translate(next_offsets, lines, [LineSource("s", line(*every))], {0: 1}) == {0: expected}


def test_lines_that_disagree_on_their_source_log_count_as_unknown() -> None:
    read = [LineSource("s", FULL), LineSource("s", line((0, 0), (10, 10), partition=1, source_epoch=7))]
    for lines in (read, read[::-1]):
        assert translate({0: 10, 1: 10}, lines, [LineSource("s", FULL)], {0: 3}) == {0: 3}


def test_a_source_of_only_one_copy_and_an_unread_partition_are_read_from_the_start() -> None:
    one, two = LineSource("s", FULL), LineSource("other", FULL)
    assert translate({0: 10}, [one], [one], {0: 3}) == {0: 10}
    assert translate({0: 10}, [one], [one, two], {0: 3}) == {0: 3}
    assert translate({0: 10}, [one, two], [one], {0: 3}) == {0: 10}
    assert translate({}, [one], [one], {0: 3}) == {0: 3}
    assert translate({0: 10}, [one], [], {0: 3}) == {0: 3}


def test_a_position_below_the_log_start_becomes_the_log_start() -> None:
    assert translate({0: 10}, [LineSource("s", FULL)], [LineSource("s", FULL)], {0: 12}) == {0: 12}
