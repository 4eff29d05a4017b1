"""A translated position passes over no unread record, for all three relations of topics, and re-reads no
more than it says."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog import codec
from app.kafka.records.leader_epochs import ENDLESS
from app.kernel.fencing import LogId
from app.offsets.model import translation as why
from app.offsets.model.offset_map import (
    Barrier,
    BarrierItem,
    EndedItem,
    LineEnd,
    OffsetMapLine,
    after,
    at_end,
)
from app.offsets.model.translation import (
    CopiedLine,
    CopiedPartition,
    Log,
    ResumePlan,
    TopicIdentity,
    TopicRelation,
    related_topics,
    resume,
)
from tests.offsets.model.aggregates import ACTS, Act, Copier, Record, World
from tests.offsets.model.aggregates import Log as Records
from tests.offsets.model.translation_rule import translate

histories = st.lists(st.tuples(st.integers(0, ACTS - 1), st.integers(0, 59), st.integers(1, 6)), max_size=120)
shapes = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
AGGREGATE = TopicIdentity("d", "t", "t")  # what the copiers of the simulation write to


def copying(copier: Copier, line: OffsetMapLine) -> CopiedLine:
    return CopiedLine("east", "route", CopiedPartition("c", copier.source.name, 0), line)


def into(world: World, logs: list[Records]) -> list[CopiedLine]:
    return [copying(c, line) for c in world.copiers if c.logs is logs for line in c.lines.values()]


def bounds(logs: list[Records], starts: int = 0) -> dict[int, Log]:
    return {at: Log(min(starts, len(log.records)), len(log.records)) for at, log in enumerate(logs)}


def common(world: World, starts: int = 0) -> ResumePlan:
    return resume(
        TopicRelation.COMMON, AGGREGATE, AGGREGATE, dict(enumerate(world.reader)), into(world, world.a),
        into(world, world.d), bounds(world.d, starts),
    )  # fmt: skip


def played(acts: list[Act], shape: tuple[int, int, int], *, spread: bool = False) -> World:
    world = World(shape, spread=spread)
    for _ in world.play(acts):
        pass
    return world


def again_of(resumed: ResumePlan, logs: list[Records], read: set[Record | None]) -> None:
    """Asserts that no source has more re-reads in a partition than the answer's `reread_messages`."""
    for partition, answer in resumed.answers.items():
        seen = {record for record in logs[partition].records[answer.next_offset :] if record in read}
        for reading in answer.sources:
            mine = {record for record in seen if record is not None and record[0] == reading.source.topic}
            assert reading.reread_messages is None or len(mine) <= reading.reread_messages


@given(histories, shapes, st.booleans(), st.integers(0, 9))
def test_between_copies_of_common_sources_rereads_are_bounded(
    acts: list[Act], shape: tuple[int, int, int], spread: bool, start: int
) -> None:
    world = played(acts, shape, spread=spread)
    resumed = common(world, start)
    read: set[Record | None] = set()
    for log, at in zip(world.a, world.reader, strict=True):
        read.update(log.records[:at])
    again_of(resumed, world.d, read)
    assert not world.lost(common(world).next_offsets)
    translated = translate(
        dict(enumerate(world.reader)), world.into(world.a), world.into(world.d),
        {at: log.start for at, log in bounds(world.d, start).items()},
    )  # fmt: skip
    assert resumed.next_offsets == translated
    for partition, answer in resumed.answers.items():
        assert answer.why or min(reading.x or 0 for reading in answer.sources) <= answer.next_offset
        assert bool(answer.why) == any(reading.x is None for reading in answer.sources) or not answer.sources
        assert answer.next_offset >= answer.log.start, partition


@given(histories, shapes, st.booleans(), st.floats(0, 1))
def test_a_reader_of_a_source_passes_over_no_unread_record_in_its_copy(
    acts: list[Act], shape: tuple[int, int, int], spread: bool, share: float
) -> None:
    world = played(acts, shape, spread=spread)
    for source in world.sources:
        at = int(share * source.end)
        topic = TopicIdentity("c", source.name, f"{source.name}-{source.generation}")
        resumed = resume(
            TopicRelation.COPY, topic, AGGREGATE, {0: at}, [], into(world, world.a), bounds(world.a)
        )
        present = (source.name, source.generation)
        again_of(resumed, world.a, {(*present, offset) for offset in range(at)})
        for partition, next_offset in resumed.next_offsets.items():
            records = world.a[partition].records
            passed = set(records[:next_offset]) - set(records[next_offset:])
            assert not {r for r in passed if r is not None and r[:2] == present and r[2] >= at}


@given(histories, shapes, st.booleans())
def test_the_way_back_to_a_source_passes_over_no_unread_record(
    acts: list[Act], shape: tuple[int, int, int], spread: bool
) -> None:
    world = played(acts, shape, spread=spread)
    read: set[Record | None] = set()
    for log, at in zip(world.a, world.reader, strict=True):
        read.update(log.records[:at])
    for source in world.sources:
        topic = TopicIdentity("c", source.name, f"{source.name}-{source.generation}")
        resumed = resume(
            TopicRelation.BACK, AGGREGATE, topic, dict(enumerate(world.reader)), into(world, world.a), [],
            {0: Log(0, source.end)},
        )  # fmt: skip
        at = resumed.next_offsets[0]
        assert {
            (source.name, source.generation, offset) for offset in range(at) if source.kept(offset)
        } <= read
        readings = resumed.answers[0].sources
        again = {record for record in read if record and record[:2] == topic_of(source) and record[2] >= at}
        assert (
            not readings or readings[0].reread_messages is None or len(again) <= readings[0].reread_messages
        )


def topic_of(source: object) -> tuple[str, int]:
    return source.name, source.generation  # type: ignore[attr-defined]


# -- single cases --------------------------------------------------------------------------------------


def line(
    *barriers: tuple[int, int], partition: int = 0, source: str = "s", target: str = "t"
) -> OffsetMapLine:
    return OffsetMapLine(
        target_topic="t", target_partition=partition, epoch=1, lineage=0, source=LogId("east", source),
        target=LogId("west", target), barriers=[Barrier(*at) for at in barriers],
    )  # fmt: skip


def of(*barriers: tuple[int, int], topic: str = "orders", partition: int = 0, **fields: str) -> CopiedLine:
    return CopiedLine("west", "r", CopiedPartition("east", topic, partition), line(*barriers, **fields))  # type: ignore[arg-type]


READ, TO = TopicIdentity("east", "orders", "s"), TopicIdentity("west", "t", "t")


def test_the_worked_example_names_the_source_that_decided() -> None:
    """Figure 6: at 6 in region B's aggregate, then at 1 in A's; a position is that of the last message."""
    in_b = [of((0, 0), (2, 4), topic="A"), of((0, 0), (4, 6), topic="B")]
    in_a = [of((0, 0), (2, 2), topic="A"), of((0, 0), (4, 8), topic="B")]
    found = resume(TopicRelation.COMMON, TO, TO, {0: 7}, in_b, in_a, {0: Log(0, 12)}).answers[0]
    assert found.next_offset - 1 == 1
    assert found.least == CopiedPartition("east", "A", 0)
    by_source = {one.source.topic: one for one in found.sources}
    assert (by_source["A"].k, by_source["A"].barrier, by_source["A"].x) == (2, Barrier(2, 2), 2)
    assert (by_source["B"].k, by_source["B"].barrier, by_source["B"].x) == (4, Barrier(4, 8), 8)
    assert by_source["A"].readings[0].barrier == Barrier(2, 4)
    assert (by_source["A"].reread_messages, by_source["B"].reread_messages) == (
        3,
        5,
    )  # three more were read behind A2, one behind B4


def test_records_read_beyond_an_offset_sync_count_as_reread_also_with_skipped_offsets() -> None:
    """5 is not kept; 6 is the record at 4 in both copies, was read, and comes again."""
    read, to = [of((5, 4), (10, 7))], [of((5, 4), (6, 4), (8, 6))]
    found = resume(TopicRelation.COMMON, TO, TO, {0: 5}, read, to, {0: Log(0, 9)}).answers[0]
    assert (found.next_offset, found.reread_messages) == (4, 1)


LINES = [of((0, 0), (10, 15), (20, 30))]


@pytest.mark.parametrize(
    ("road", "knowledge", "expected"),
    [
        (TopicRelation.COPY, {}, why.NOT_COMMITTED),
        (TopicRelation.COPY, {"into_to": [of((5, 0))]}, why.COPYING_STARTED_LATER),
        (TopicRelation.COPY, {"into_to": [of((0, 0), source="other")]}, why.RECREATED_READ),
        (TopicRelation.COPY, {"into_to": [of((0, 0), target="other")]}, why.RECREATED_HERE),
        (TopicRelation.COPY, {"into_to": []}, why.NOTHING_HERE),
        (
            TopicRelation.COPY,
            {"unknown": {(CopiedPartition("east", "orders", 0), 0): why.NO_LINE}},
            why.NO_LINE,
        ),
        (TopicRelation.COMMON, {"into_read": []}, why.NO_LINE_READ),
        (TopicRelation.COMMON, {"into_read": [of((0, 4))]}, why.BEFORE_GENESIS),
        (TopicRelation.COMMON, {"into_read": [of((0, 0), source="other")]}, why.RECREATED_SOURCE),
        (TopicRelation.COMMON, {"into_read": [of((0, 0), target="other")]}, why.RECREATED_READ),
        (TopicRelation.COMMON, {"incomplete": "north is away"}, "north is away"),
        (TopicRelation.BACK, {"into_read": [of((0, 0), source="other")]}, why.RECREATED_HERE),
    ],
)
def test_missing_knowledge_leads_to_the_logs_start_with_a_reason(
    road: TopicRelation, knowledge: dict[str, object], expected: str
) -> None:
    read, to = (
        (READ, TO) if road is TopicRelation.COPY else (TO, TO) if road is TopicRelation.COMMON else (TO, READ)
    )
    at = {} if expected is why.NOT_COMMITTED else {0: 3}
    known: dict[str, object] = {"into_read": LINES, "into_to": LINES, **knowledge}
    found = resume(road, read, to, at, logs={0: Log(2, 99)}, **known).answers[0]  # type: ignore[arg-type]
    assert (found.next_offset, found.why, found.reread_messages) == (2, expected, None)
    good = {"into_read": LINES, "into_to": LINES}
    assert resume(road, read, to, {0: 16}, logs={0: Log(2, 99)}, **good).answers[0].why == ""  # type: ignore[arg-type]


def test_an_answer_lies_within_the_present_log() -> None:
    for log, expected in ((Log(0, 99), 30), (Log(40, 99), 40), (Log(0, 25), 25), (Log(5, 5), 5)):
        assert resume(TopicRelation.COPY, READ, TO, {0: 25}, [], LINES, {0: log}).next_offsets == {
            0: expected
        }


def test_a_copy_relation_precedes_common_sources() -> None:
    shared = [
        of((0, 0)),
        replace_target(of((0, 0), topic="other"), "t"),
        replace_target(of((0, 0), topic="x"), "u"),
    ]
    assert related_topics(READ, [], shared, "west") == {"t": TopicRelation.COPY, "u": TopicRelation.COMMON}
    assert related_topics(READ, [], shared, "north") == {}
    assert related_topics(TO, LINES, [], "east") == {"orders": TopicRelation.BACK}
    assert related_topics(TO, LINES, shared, "west") == {"u": TopicRelation.COMMON}, (
        "nothing is joined with itself"
    )


def replace_target(copying: CopiedLine, topic: str) -> CopiedLine:
    return copying._replace(line=msgspec.structs.replace(copying.line, target_topic=topic))


def test_sources_missing_in_the_other_topic_are_named() -> None:
    read = [of((0, 0)), of((0, 0), topic="only-there")]
    assert resume(TopicRelation.COMMON, TO, TO, {0: 0}, read, LINES, {0: Log(0, 9)}).not_copied == (
        CopiedPartition("east", "only-there", 0),
    )
    back = resume(TopicRelation.BACK, TO, READ, {0: 0}, read, [], {0: Log(0, 9)})
    assert back.not_copied == (CopiedPartition("east", "only-there", 0),)
    assert replace(back.answers[0], sources=()).next_offset == 0


# -- routes that were deleted --------------------------------------------------------------------------


def ended(copying: CopiedLine, source_end: int, since: int, until: int, target: str = "t") -> CopiedLine:
    known = LineEnd(2, LogId("west", target), source_end, since, until)
    return copying._replace(line=msgspec.structs.replace(copying.line, ended=known))


def test_a_deleted_route_holds_back_no_reader_that_read_all_its_copies() -> None:
    """One of another name has copied all of it again."""
    old, new = of((0, 0), (100, 100)), of((0, 100), (1_000, 1_100))._replace(route="new")
    log = {0: Log(0, 1_100)}
    assert resume(TopicRelation.COPY, READ, TO, {0: 1_000}, [], [old, new], log).next_offsets == {0: 100}
    old = ended(old, 100, 100, 1_100)
    answer = resume(TopicRelation.COPY, READ, TO, {0: 1_000}, [], [old, new], log).answers[0]
    assert (answer.next_offset, answer.reread_messages) == (1_100, 0)
    for at in (0, 60, 99):
        answer = resume(TopicRelation.COPY, READ, TO, {0: at}, [], [old, new], log).answers[0]
        assert answer.next_offset == 0, "the unread copies lie there"


def test_copies_behind_a_deleted_routes_last_offset_sync_are_not_passed_over() -> None:
    old = ended(of((0, 0), (100, 100)), 150, 180, 1_100)
    log = {0: Log(0, 1_100)}
    assert resume(TopicRelation.COPY, READ, TO, {0: 149}, [], [old], log).next_offsets == {0: 100}
    assert resume(TopicRelation.COPY, READ, TO, {0: 150}, [], [old], log).next_offsets == {0: 1_100}


def test_deleted_copies_hold_back_no_reader() -> None:
    old = ended(of((0, 0), (100, 100)), ENDLESS, 180, 1_100)
    for positions in ({0: 7}, {}):
        for start, expected in ((179, 179), (180, 1_100)):
            answer = resume(
                TopicRelation.COPY, READ, TO, positions, [], [old], {0: Log(start, 1_100)}
            ).answers[0]
            assert answer.next_offset == expected
    other = ended(of((0, 0), (100, 100)), 100, 180, 1_100, target="made anew")
    assert resume(TopicRelation.COPY, READ, TO, {0: 100}, [], [other], {0: Log(500, 1_100)}).next_offsets == {
        0: 500
    }


def test_a_source_whose_routes_were_deleted_in_both_regions_holds_back_no_other() -> None:
    r0, r1 = of((0, 0), (100, 100), topic="r0"), of((0, 0), (100_000, 100_050), topic="r1")
    here, log = [r0, r1], {0: Log(0, 100_100)}
    assert resume(TopicRelation.COMMON, TO, TO, {0: 100_050}, [r0, r1], here, log).next_offsets == {0: 100}
    here = [ended(r0, 100, 100, 100_100), r1]
    assert resume(TopicRelation.COMMON, TO, TO, {0: 100_050}, [r0, r1], here, log).next_offsets == {
        0: 100_050
    }


def test_another_line_replaces_a_deleted_routes_line() -> None:
    old, new = of((0, 0), (100, 100)), of((0, 120), (1_000, 1_120), (2_000, 2_120))._replace(route="new")
    here, log = [of((0, 0), (1_000, 1_000), (2_000, 2_000))], {0: Log(0, 2_000)}
    assert resume(TopicRelation.COMMON, TO, TO, {0: 2_120}, [old, new], here, log).next_offsets == {0: 0}
    old = ended(old, ENDLESS, 120, 2_120)
    for at, expected in ((2_120, 2_000), (1_500, 1_000), (119, 0)):
        assert resume(TopicRelation.COMMON, TO, TO, {0: at}, [old, new], here, log).next_offsets == {
            0: expected
        }
    late = ended(old, ENDLESS, 120, 1_500)
    found = resume(TopicRelation.COMMON, TO, TO, {0: 2_120}, [late, new], here, log).next_offsets
    assert found == {0: 1_000}, "what lies behind there is not known: its route may be back"


def test_a_line_end_is_folded_and_dropped_with_the_next_owners_offset_sync() -> None:
    before = line((0, 0), (100, 100))
    log, source = before.target, before.source

    def ended_item(epoch: int, *known: int, lineage: int = 0) -> EndedItem:
        return EndedItem("r", "orders", 0, lineage, source, LineEnd(epoch, log, *known))

    first = at_end(before, ended_item(2, ENDLESS, 120, 120))
    assert first is not None
    assert first.ended == LineEnd(2, log, ENDLESS, 120, 120)
    assert at_end(first, ended_item(2, ENDLESS, 120, 120)) is None
    second = at_end(first, ended_item(2, 150, 400, 400))
    assert second is not None
    assert second.ended == LineEnd(2, log, 150, 120, 400)
    assert second.barriers == before.barriers
    third = at_end(second, ended_item(3, 170, 500, 500))
    assert third is not None
    assert third.ended == LineEnd(3, log, 170, 500, 500), "there was an owner in between"
    assert at_end(third, ended_item(2, 100, 100, 600)) is None
    assert at_end(before, ended_item(0, 100, 100, 100)) is None
    assert at_end(before, ended_item(2, 100, 100, 100, lineage=1)) is None
    assert at_end(None, ended_item(2, 100, 100, 100)) is None

    def barrier(epoch: int) -> BarrierItem:
        return BarrierItem("r", "orders", 0, epoch, 0, source, log, "t", 0, [Barrier(110, 600)])

    late, back = after(third, barrier(3)), after(third, barrier(4))
    assert late is not None
    assert back is not None
    assert late.ended == third.ended
    assert back.ended is None
    encoded = codec.encode(third)
    assert codec.checkpoint_line(encoded) == third
    assert codec.checkpoint_line(encoded.replace(b',"ended":' + codec.encode(third.ended), b"")) == before
