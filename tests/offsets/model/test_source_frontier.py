"""Only records finished in one copy are passed over in another, and most of those are."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.records.leader_epochs import EpochStart
from app.kafka.records.producer_sequences import SEQUENCES, ProducerStamp
from app.kernel.fencing import LogId
from app.kernel.ranges import Range, Snapshot
from app.offsets.model import producer_progress as trail_module
from app.offsets.model.offset_map import Barrier, LineSource, OffsetMapLine
from app.offsets.model.producer_progress import CorruptProgress, FinishedOffsets, ProducerProgress
from app.offsets.model.source_frontier import PassOver, finished, together
from tests.offsets.model.stamped_sources import ACTS, Act, Record, World

histories = st.lists(st.tuples(st.integers(0, ACTS - 1), st.integers(0, 59), st.integers(1, 6)), max_size=200)
sources = st.lists(st.sampled_from([0, 0, 2, 3, 7]), min_size=1, max_size=4)
coins = st.booleans()
sequences = st.sampled_from([0, 0, SEQUENCES - 1, SEQUENCES - 7])


def passed(
    world: World,
    into_a: list[LineSource],
    into_d: list[LineSource],
    believed: Callable[[FinishedOffsets], FinishedOffsets] = lambda progress: progress,
) -> list[Record]:
    """The records that a reader of `d` passes over."""
    progress = believed(FinishedOffsets.from_bytes(world.note()))
    over = PassOver(finished({0: progress}, into_a), into_d, 0)
    found: list[Record] = []
    for batch in world.d.batches:
        spans = over.ranges(batch.start, batch.end, *batch.stamp)
        assert all(batch.start <= start < end <= batch.end for start, end in spans)
        assert not spans or batch.start < over.until
        found += [batch.records[at - batch.start] for start, end in spans for at in range(start, end)]
    return found


def some(sources: list[LineSource], chance: st.DataObject) -> list[LineSource]:
    """The lines, each without some of its barriers."""
    return [
        LineSource(
            name, msgspec.structs.replace(line, barriers=[b for b in line.barriers if chance.draw(coins)])
        )
        for name, line in sources
    ]


def by_chance(seed: int, acts: int = 150) -> list[Act]:
    """A history in which much is copied and read."""
    chance = random.Random(seed)
    often = [3, 2, 6, 5, 4, 2, 8, 4, 1, 0.7, 0.7, 1, 6, 6, 9, 0.5]
    return [
        (chance.choices(range(ACTS), often)[0], chance.randrange(60), chance.randint(1, 6))
        for _ in range(acts)
    ]


def world_of(seed: int) -> World:
    """A world of one to four sources, some with skipped offsets; sequence numbers may wrap around."""
    chance = random.Random(seed)
    hidden = [chance.choice([0, 0, 2, 3, 7]) for _ in range(chance.randint(1, 4))]
    return World(hidden, chance.choice([0, SEQUENCES - 1, SEQUENCES - 9]))


@given(histories, sources, sequences, st.sampled_from([2, 8_192]), st.data())
def test_an_unfinished_record_is_never_passed_over_whatever_is_missing(
    acts: list[Act], hidden: list[int], sequence: int, remembered: int, chance: st.DataObject
) -> None:
    with patch.object(trail_module, "MOST_SEGMENTS", remembered):
        world = World(hidden, sequence)
        for at in range(0, len(acts), 20):
            world.play(acts[at : at + 20])
            into_a, into_d = world.lines(world.into_a), world.lines(world.into_d)
            whole = set(passed(world, into_a, into_d))
            assert whole <= world.delivered
    assert set(passed(world, some(into_a, chance), some(into_d, chance))) <= whole if acts else True


def test_random_histories_lose_nothing_and_pass_over_most() -> None:
    """Lanes killed, late batches of former owners, epochs begun in doubt, barriers that never come."""
    could = found = 0
    for seed in range(200):
        world, acts = world_of(seed), by_chance(seed)
        over: set[Record] = set()
        for at in range(0, len(acts), 15):
            world.play(acts[at : at + 15])
            over = set(passed(world, world.lines(world.into_a), world.lines(world.into_d)))
            assert over <= world.delivered
        in_d = {record for batch in world.d.batches for record in batch.records}
        could, found = could + len(in_d & world.delivered), found + len(over)
    assert found > could / 2


def one_more(progress: FinishedOffsets) -> FinishedOffsets:
    """The progress with one record too many of each producer."""
    return msgspec.structs.replace(
        progress,
        producers=[
            msgspec.structs.replace(one, sequence=(one.sequence + 1) % SEQUENCES)
            for one in progress.producers
        ],
    )


def one_off(sources: list[LineSource]) -> list[LineSource]:
    """Stamps that count one record too much."""
    return [
        LineSource(
            name, msgspec.structs.replace(line, barriers=[moved(barrier) for barrier in line.barriers])
        )
        for name, line in sources
    ]


def moved(barrier: Barrier) -> Barrier:
    assert barrier.stamp is not None
    stamp = barrier.stamp._replace(sequence=(barrier.stamp.sequence + 1) % SEQUENCES)
    return msgspec.structs.replace(barrier, stamp=stamp)


@pytest.mark.parametrize("wrong", ["progress", "stamps"])
def test_an_off_by_one_rule_loses_records(wrong: str) -> None:
    """The histories find a rule that is wrong by one."""
    for seed in range(100):
        world = world_of(seed)
        world.play(by_chance(seed))
        into_a, into_d = world.lines(world.into_a), world.lines(world.into_d)
        if wrong == "progress":
            over = passed(world, into_a, into_d, one_more)
        else:
            over = passed(world, into_a, one_off(into_d))
        if set(over) - world.delivered:
            return
    pytest.fail("nothing was lost")


clean = st.tuples(
    st.sampled_from([0, 2, 3, 4, 6, 6, 7, 12, 13, 14, 15]), st.integers(0, 59), st.integers(1, 6)
)


@given(st.lists(clean, max_size=150), st.integers(1, 4), sequences)
def test_with_every_offset_sync_and_no_gap_nothing_finished_is_redelivered(
    acts: list[Act], count: int, sequence: int
) -> None:
    world = World([0] * count, sequence)
    for at in range(0, len(acts), 30):
        world.play(acts[at : at + 30])
        for copier in world.copiers:
            copier.land(len(copier.flying))
            copier.acknowledge(len(copier.flying))
            if at % 4 == 2:
                copier.bump(0)
            elif at % 4:
                copier.take_over(sure=True)
    found = passed(world, world.lines(world.into_a), world.lines(world.into_d))
    in_d = [record for batch in world.d.batches for record in batch.records]
    assert sorted(found) == sorted(world.delivered.intersection(in_d))


# -- by hand ---------------------------------------------------------------------------------------

LOG = LogId("c", "t")
PID = 7


def line(
    *barriers: tuple[int, int, int], partition: int = 0, pid: int = PID, log: LogId = LOG
) -> OffsetMapLine:
    """A line with barriers of (source end, target end, sequence)."""
    return OffsetMapLine(
        target_topic="t", target_partition=partition, epoch=1, lineage=0, source=log, target=LOG,
        barriers=[Barrier(s, t, 0, ProducerStamp(pid, 0, q)) for s, t, q in barriers],
    )  # fmt: skip


def trailed(base: int, *finished: Range, batches: Sequence[tuple[int, int, int]]) -> FinishedOffsets:
    """The finished offsets of a reader of one producer's batches (offset, records, sequence)."""
    trail = ProducerProgress(0)
    for start, count, sequence in batches:
        trail.seen(start, start + count, PID, 0, sequence, base)
    return FinishedOffsets.from_bytes(trail.note(Snapshot(base, finished), 1_000))


def offsets(progress: FinishedOffsets, *read: OffsetMapLine) -> Snapshot | None:
    done = finished({0: progress}, [LineSource("s", one) for one in read])
    return done["s"].offsets if done else None


def test_a_frontier_is_exact_between_barriers_however_the_copy_is_interleaved() -> None:
    progress = trailed(130, (150, 160), batches=[(100, 20, 0), (125, 40, 20)])
    into_a = line((1_000, 100, 0), (1_060, 165, 60))
    assert offsets(progress, into_a) == Snapshot(1_025, ((1_045, 1_055),))
    coarse = line((1_000, 100, 0))
    assert offsets(progress, coarse) == Snapshot(1_025), "what is above the base needs a barrier behind it"
    assert offsets(progress, line((1_060, 165, 60))) == Snapshot(0), "and what is below, one before it"


def test_a_former_owners_last_records_count_up_to_the_next_leader_epoch() -> None:
    former, successor = line((0, 0, 0), (50, 50, 50)), line((60, 90, 0), pid=PID + 1)
    read, within = trailed(80, batches=[(0, 90, 0)]), trailed(30, (40, 60), batches=[(0, 60, 0)])
    both = msgspec.structs.replace(former, barriers=[*former.barriers, *successor.barriers])

    def after(*epochs: tuple[int, int]) -> list[Snapshot | None]:
        with_epochs = msgspec.structs.replace(both, epochs=tuple(EpochStart(*one) for one in epochs))
        return [offsets(read, with_epochs), offsets(within, with_epochs)]

    assert offsets(read, former) == Snapshot(80)
    assert after() == after((1, 0), (2, 45)) == [Snapshot(80), Snapshot(30, ((40, 60),))]
    assert after((1, 0), (2, 54)) == [Snapshot(54), Snapshot(30, ((40, 54),))], "it may have others at 54 now"
    assert after((7, 51), (8, 70)) == [Snapshot(50), Snapshot(30, ((40, 50),))], "older epochs are not known"


def test_records_with_ambiguous_offsets_are_not_passed_over() -> None:
    progress = trailed(130, (150, 160), batches=[(100, 20, 0), (125, 40, 20)])
    into_a = line((1_000, 100, 0), (1_064, 165, 60))
    assert offsets(progress, into_a) == Snapshot(1_025, ((1_049, 1_055),))
    over = PassOver(
        finished({0: progress}, [LineSource("s", into_a)]),
        [LineSource("s", line((990, 0, 5), (1_074, 80, 85)))],
        0,
    )
    assert over.ranges(0, 80, PID, 0, 5) == [(0, 31), (59, 61)]
    assert over.until == 80
    assert over.ranges(0, 81, PID, 0, 5) == []
    assert over.ranges(0, 80, PID, 1, 5) == []
    assert over.ranges(0, 80, PID, 0, 4) == [], "it contradicts the barriers"


def test_another_logs_progress_does_not_count() -> None:
    progress = trailed(130, batches=[(100, 40, 0)])
    into_a = line((1_000, 100, 0), (1_040, 140, 40))
    done = finished({0: progress}, [LineSource("s", into_a)])
    into_new_log = line((1_000, 100, 0), (1_040, 140, 40), log=LogId("c", "anew"))
    assert PassOver(done, [LineSource("s", into_a)], 0).ranges(100, 140, PID, 0, 0) == [(100, 130)]
    assert PassOver(done, [LineSource("s", into_new_log)], 0).ranges(100, 140, PID, 0, 0) == []
    assert PassOver(done, [LineSource("s", into_a)], 1).ranges(100, 140, PID, 0, 0) == []
    assert PassOver(done, [LineSource("s", into_a)], 0, LogId("c", "u")).ranges(100, 140, PID, 0, 0) == []
    assert finished({0: progress}, [LineSource("s", into_a), LineSource("s", into_new_log)]) == {}
    assert finished({0: progress}, [LineSource("s", into_a)], LogId("other", "t")) == {}
    assert finished({1: progress}, [LineSource("s", into_a)]) == {}


def test_two_sources_with_one_producer_do_not_count() -> None:
    progress = trailed(130, batches=[(100, 40, 0)])
    into_a = line((1_000, 100, 0), (1_040, 140, 40))
    done = finished({0: progress}, [LineSource("s", into_a), LineSource("z", into_a)])
    over = PassOver(done, [LineSource("s", into_a), LineSource("z", into_a)], 0)
    assert over.ranges(100, 140, PID, 0, 0) == []


def test_a_source_in_several_partitions_is_finished_where_all_of_them_are() -> None:
    one = trailed(130, (150, 160), batches=[(100, 60, 0)])
    other = trailed(120, (125, 155), batches=[(100, 60, 0)])
    into_a = [line((1_000, 100, 0), (1_060, 160, 60), partition=at) for at in (0, 1)]
    done = finished({0: one, 1: other}, [LineSource("s", each) for each in into_a])
    assert done["s"].offsets == Snapshot(1_020, ((1_025, 1_030), (1_050, 1_055)))


def test_any_readers_finished_records_of_the_present_log_count() -> None:
    lines = [LineSource("s", line((1_000, 100, 0), (1_060, 160, 60)))]
    former = [LineSource("s", line((1_000, 100, 0), (1_060, 160, 60), log=LogId("c", "former")))]
    batches = [(100, 60, 0)]
    one, other = trailed(110, (150, 155), batches=batches), trailed(120, (140, 145), batches=batches)
    of_another = trailed(160, batches=batches)
    readers = [finished({0: one}, lines), finished({0: other}, lines), finished({0: of_another}, former)]
    done = together(readers, lines)
    assert done["s"].offsets == Snapshot(1_020, ((1_040, 1_045), (1_050, 1_055)))
    assert together([], lines) == together(readers, [LineSource("z", lines[0].line)]) == {}


def test_a_reader_waits_where_newer_offset_syncs_may_show_more() -> None:
    """Two looks, one after the other, at the lines into the copy; what was finished is the same."""
    waited = found = 0
    for seed in range(60):
        world, acts = world_of(seed), by_chance(seed)
        for at in range(0, len(acts) - 15, 15):
            world.play(acts[at : at + 15])
            done = finished({0: FinishedOffsets.from_bytes(world.note())}, world.lines(world.into_a))
            before = PassOver(done, world.lines(world.into_d), 0)
            world.play([act for act in acts[at + 15 : at + 60] if act[0] < 12])
            after = PassOver(done, world.lines(world.into_d), 0)
            for batch in world.d.batches:
                span = batch.start, batch.end
                more = after.ranges(*span, *batch.stamp) != before.ranges(*span, *batch.stamp)
                may_grow = before.may_grow(*span, *batch.stamp.producer)
                assert may_grow or not more
                assert before.lags or not may_grow
                waited, found = waited + may_grow, found + more
    assert found > waited / 10 > 10, "and not for much else"


def test_a_line_without_its_sources_present_leader_lags_although_nothing_is_finished() -> None:
    """The source's leader changed while this copy was away: it knows nothing yet of what was read since."""
    first, later = (EpochStart(0, 0),), (EpochStart(0, 0), EpochStart(1, 1_020))
    read = msgspec.structs.replace(line((1_000, 100, 0), (1_060, 160, 60)), epochs=later)
    done = finished({0: trailed(150, batches=[(100, 160, 0)])}, [LineSource("s", read)], LOG)
    assert done["s"].end == 1_050
    young = msgspec.structs.replace(line((1_000, 5, 0)), barriers=[Barrier(0, 0)])
    for here, is_behind in (
        (msgspec.structs.replace(line((1_000, 500, 0), (1_020, 520, 20)), epochs=first), True),
        (young, True),
        (msgspec.structs.replace(line((1_000, 500, 0), (1_050, 550, 50)), epochs=later), False),
    ):
        over = PassOver(together([done], [LineSource("s", here)]), [LineSource("s", here)], 0)
        assert over.lags is is_behind
        assert over.may_grow(520, 530, PID, 0) is is_behind
    assert PassOver(done, [LineSource("s", young)], 0).lags, "nor does one that was read in no known epoch"


def test_a_line_with_all_finished_records_waits_for_nothing() -> None:
    progress = trailed(130, batches=[(100, 40, 0)])
    done = finished({0: progress}, [LineSource("s", line((1_000, 100, 0), (1_040, 140, 40)))])
    lags = PassOver(done, [LineSource("s", line((1_000, 100, 0), (1_020, 120, 20)))], 0)
    assert lags.lags
    assert [lags.may_grow(*span, PID, 0) for span in ((110, 120), (115, 125))] == [False, True]
    assert [lags.may_grow(start, start + 9, PID, 1) for start in (110, 120)] == [False, True]
    assert not lags.may_grow(120, 129, -1, -1), "a batch of no lane"
    has_all = PassOver(done, [LineSource("s", line((1_000, 100, 0), (1_030, 130, 30)))], 0)
    assert not has_all.lags
    assert not has_all.may_grow(130, 140, PID, 0)


# -- the trail -------------------------------------------------------------------------------------


def test_a_note_stays_small_and_true() -> None:
    trail, chance = ProducerProgress(0), random.Random(1)
    for at in range(4_000):
        trail.seen(10 * at, 10 * at + 10, at % 200, 0, at // 200 * 10, 0)
    scattered = tuple((at, at + 1) for at in range(1, 40_000, 2) if chance.random() < 0.7)
    note = trail.note(Snapshot(0, scattered), 40_000)
    assert len(note) <= trail_module.MOST_BYTES
    progress = FinishedOffsets.from_bytes(note)
    assert len(progress.producers) > 40
    known = {
        (produced.producer_id, at)
        for produced in progress.producers
        for start, end in produced.finished
        for at in range(produced.sequence + start, produced.sequence + end)
    }
    truly = {(at // 10 % 200, at // 2_000 * 10 + at % 10) for at, _ in scattered}
    assert known
    assert known <= truly
    assert len(trail.note(Snapshot(40_000), 40_000)) <= trail_module.MOST_BYTES


def test_a_successors_progress_continues_the_former_owners() -> None:
    trail = ProducerProgress(0)
    trail.seen(0, 10, 1, 0, 0, 0)
    trail.seen(10, 20, 2, 0, 5, 0)
    heir = ProducerProgress(15, trail.note(Snapshot(15), 20))
    (two, one) = FinishedOffsets.from_bytes(heir.note(Snapshot(15), 15)).producers
    assert (one.producer_id, one.sequence, one.all_below) == (1, 10, True)
    assert (two.producer_id, two.sequence, two.all_below) == (2, 10, True)
    went_back = ProducerProgress(3, trail.note(Snapshot(15), 20))
    assert FinishedOffsets.from_bytes(went_back.note(Snapshot(3), 3)).producers == []


def test_behind_a_hole_no_number_counts_as_the_first_above_the_base() -> None:
    trail = ProducerProgress(0)
    trail.seen(50, 60, 1, 0, 30, 0)
    (found,) = FinishedOffsets.from_bytes(trail.note(Snapshot(0, ((50, 55),)), 20)).producers
    assert (found.all_below, found.sequence, found.finished) == (False, 30, ((0, 5),))
    (found,) = FinishedOffsets.from_bytes(trail.note(Snapshot(0, ((50, 55),)), 60)).producers
    assert found.all_below
    trail.lose(20, 30)
    (found,) = FinishedOffsets.from_bytes(trail.note(Snapshot(0, ((50, 55),)), 60)).producers
    assert not found.all_below
    (found,) = FinishedOffsets.from_bytes(trail.note(Snapshot(30, ((50, 55),)), 60)).producers
    assert found.all_below, "the hole is behind"


@given(st.binary(max_size=60))
def test_foreign_bytes_are_refused_as_notes(data: bytes) -> None:
    try:
        progress = FinishedOffsets.from_bytes(data)
    except CorruptProgress:
        return
    finished({0: progress}, [LineSource("s", line((1_000, 100, 0), (1_040, 140, 40)))])


def test_damaged_notes_are_refused() -> None:
    note = trailed(130, (150, 160), batches=[(100, 60, 0)]).to_bytes()
    for broken in (note[:-1], note + b"x", b"", b"\x93\xff\x00\x90", FinishedOffsets(5, 1 << 40).to_bytes()):
        with pytest.raises(CorruptProgress):
            FinishedOffsets.from_bytes(broken)


def test_a_note_names_the_role_epoch_of_imported_progress() -> None:
    trail = ProducerProgress(0)
    trail.seen(0, 10, 1, 0, 0, 0)
    assert FinishedOffsets.from_bytes(trail.note(Snapshot(5), 10, carried=66)).carried == 66
    before = msgspec.msgpack.encode([5, 5, []])
    assert FinishedOffsets.from_bytes(before).carried == -1, "of a worker that did not say it"
