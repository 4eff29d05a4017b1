"""Lines of a source that lost its end, which not every route's replica has noticed."""

from __future__ import annotations

import msgspec
import pytest

from app.controllog import codec
from app.kafka.records.leader_epochs import ENDLESS, NOWHERE, EpochStart
from app.kafka.records.producer_sequences import ProducerStamp
from app.offsets.model.offset_map import Barrier, BarrierItem, LineSource, OffsetMapLine, after
from app.offsets.model.producer_progress import FinishedOffsets
from app.offsets.model.source_frontier import PassOver, finished, together
from app.offsets.model.translation import (
    RECREATED_SOURCE,
    CopiedLine,
    CopiedPartition,
    Log,
    TopicIdentity,
    TopicRelation,
    resume,
)
from tests.offsets.model.test_offset_map import LOG, item, line

PLACE = CopiedPartition("home", "t", 0)
TENTHS = [(at, at) for at in range(0, 101, 10)]


def read_in(given: OffsetMapLine, *starts: tuple[int, int], source_epoch: int = 0) -> OffsetMapLine:
    epochs = tuple(EpochStart(*start) for start in starts)
    return msgspec.structs.replace(given, epochs=epochs, source_epoch=source_epoch)


def offset_syncs(
    *barriers: tuple[int, int], epochs: list[tuple[int, int]], job: int = 1, pid: int = 7
) -> BarrierItem:
    """The offset syncs of a job, whose sequence numbers are offsets of the copy."""
    given = item(*((s, t, 0, ProducerStamp(pid, 0, t)) for s, t in barriers), epoch=job)
    return msgspec.structs.replace(given, epochs=tuple(EpochStart(*start) for start in epochs))


FORMER = read_in(line(*TENTHS), (1, 0), (3, 50))  # it has read records that the source has lost
SLOW = read_in(line(*TENTHS), (1, 0), (5, 60))  # it read on after the truncation without noticing it
RESTARTED = read_in(line((60, 140), (100, 180)), (1, 0), (3, 50), (5, 60), source_epoch=5)


def goes_on_at(read: OffsetMapLine, to: OffsetMapLine, reader_at: int) -> tuple[int, str]:
    topic = TopicIdentity(LOG.cluster_id, "t", LOG.topic_id)
    resumed = resume(
        TopicRelation.COMMON, topic, topic, {0: reader_at}, [CopiedLine("a", "r", PLACE, read)],
        [CopiedLine("b", "r", PLACE, to)], {0: Log(0, 200)},
    )  # fmt: skip
    return resumed.answers[0].next_offset, resumed.answers[0].why


def test_a_position_is_mapped_up_to_where_two_lines_agree_on_the_source() -> None:
    assert FORMER.agrees_below(SLOW) == SLOW.agrees_below(FORMER) == 50
    assert goes_on_at(FORMER, SLOW, 100) == goes_on_at(SLOW, FORMER, 100) == (50, "")
    assert goes_on_at(FORMER, SLOW, 30) == (30, "")
    assert goes_on_at(FORMER, FORMER, 100) == (100, "")


def test_a_restarted_line_agrees_with_lines_that_have_read_the_source_since() -> None:
    assert RESTARTED.agrees_below(SLOW) == SLOW.agrees_below(RESTARTED) == ENDLESS
    assert goes_on_at(SLOW, RESTARTED, 100) == (180, "")
    assert goes_on_at(RESTARTED, SLOW, 180) == (100, "")
    assert RESTARTED.agrees_below(FORMER) == FORMER.agrees_below(RESTARTED) == NOWHERE
    assert goes_on_at(FORMER, RESTARTED, 100) == (0, RECREATED_SOURCE), (
        "what the source has lost lies before 140"
    )


def test_without_epochs_only_noticed_truncations_count() -> None:
    unknown, restarted = line(*TENTHS), line(*TENTHS, source_epoch=5)
    assert unknown.agrees_below(unknown) == restarted.agrees_below(restarted) == ENDLESS
    assert unknown.agrees_below(restarted) == unknown.agrees_below(RESTARTED) == NOWHERE
    assert goes_on_at(unknown, FORMER, 100) == goes_on_at(FORMER, unknown, 100) == (100, "")


@pytest.mark.parametrize(("to", "passed"), [(FORMER, [(0, 100)]), (SLOW, [(0, 50)]), (RESTARTED, [])])
def test_finished_records_are_passed_over_up_to_where_the_lines_agree(
    to: OffsetMapLine, passed: list[tuple[int, int]]
) -> None:
    stamped = [
        Barrier(one.source_end, one.target_end, 0, ProducerStamp(9, 0, one.target_end)) for one in to.barriers
    ]
    into = [LineSource("s", msgspec.structs.replace(to, barriers=stamped))]
    done = finished({0: FinishedOffsets(100)}, [LineSource("s", FORMER)])
    for known in (done, together([done], into)):
        assert PassOver(known, into, 0).ranges(0, 100, 9, 0, 0) == passed


def test_a_successor_that_read_other_records_drops_the_offset_syncs_of_lost_ones() -> None:
    former = after(None, offset_syncs((0, 0), (50, 50), (70, 70), (80, 80), epochs=[(1, 0), (3, 50)]))
    assert former is not None
    behind = after(former, offset_syncs((75, 120), epochs=[(1, 0), (3, 50), (5, 72)], job=2, pid=8))
    assert behind is not None
    assert behind.barriers == former.barriers, "it has not come as far"
    line = after(behind, offset_syncs((75, 120), (90, 140), epochs=[(1, 0), (3, 50), (5, 72)], job=2, pid=8))
    assert line is not None
    assert [one.source_end for one in line.barriers] == [0, 50, 70, 75, 90]
    stamps = [one.stamp and one.stamp.producer_id for one in line.barriers]
    assert stamps == [7, 7, 7, 8, 8]
    assert [tuple(start) for start in line.epochs] == [(1, 0), (3, 50), (5, 72)]


def test_another_leader_alone_drops_nothing() -> None:
    former = after(None, offset_syncs((0, 0), (50, 50), epochs=[(1, 0), (3, 50)]))
    line = after(former, offset_syncs((80, 80), epochs=[(1, 0), (3, 50), (5, 70)]))
    assert line is not None
    assert [one.stamp and one.stamp.producer_id for one in line.barriers] == [7, 7, 7]
    assert after(line, offset_syncs((50, 50), epochs=[(1, 0), (3, 50)])) is None, "late, and once more"


def test_epochs_round_trip_and_records_without_them_are_read() -> None:
    (event,) = codec.barriers_events("w", 7, [offset_syncs((0, 0), epochs=[(1, 0), (3, 50)])])
    assert codec.checkpoint_event(event).items == [offset_syncs((0, 0), epochs=[(1, 0), (3, 50)])]
    assert codec.checkpoint_line(codec.encode(FORMER)) == FORMER
    plain = line((0, 0), (10, 10))
    without = codec.encode(plain).replace(b',"epochs":[]', b"")
    assert b"epochs" not in without
    assert codec.checkpoint_line(without) == plain
    (event,) = codec.barriers_events("w", 7, [item((1, 1))])
    assert codec.checkpoint_event(event.replace(b",0,0,[]]", b",0,0]")).items == [item((1, 1))]
    assert event.count(b",0,0,[]]") == 1
