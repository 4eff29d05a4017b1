"""Offset syncs can be serialized, and each has the lane's stamp at its point."""

from __future__ import annotations

from app.controllog import codec
from app.kafka.append.pending_batch import AppendedOffset
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import VerbatimCopy
from app.replicate.pump.offset_sync_emitter import OffsetSyncEmitter


def test_a_lane_s_first_barrier_can_be_written_down() -> None:
    emitted: list[tuple[int, int, ProducerStamp | None]] = []
    marks = OffsetSyncEmitter(10.0, 1_000, lambda *barrier: emitted.append(barrier))
    opened = ProducerStamp(7, 0, 0)
    marks.opened(opened)
    marks.first = copy = VerbatimCopy(b"", 3, 100, 103)
    marks.stamp = opened._replace(sequence=3)
    marks.acknowledged(copy, AppendedOffset(40), 0.0)
    assert emitted == [(100, 40, opened), (103, 43, marks.stamp)]
    codec.encode(emitted)


def test_a_lanes_first_offset_sync_replaces_one_without_its_stamp() -> None:
    emitted: list[tuple[int, int, ProducerStamp | None]] = []
    marks = OffsetSyncEmitter(10.0, 1_000, lambda *barrier: emitted.append(barrier))
    marks.idle(100, 40, 0.0)
    opened = ProducerStamp(7, 0, 0)
    marks.opened(opened)
    marks.first = copy = VerbatimCopy(b"", 3, 100, 103)
    marks.stamp = opened._replace(sequence=3)
    marks.acknowledged(copy, AppendedOffset(40), 1.0)
    assert emitted == [(100, 40, None), (100, 40, opened)]


def test_a_waiting_consumer_gets_the_offset_sync_of_the_last_acknowledged_batch() -> None:
    emitted: list[tuple[int, int, ProducerStamp | None]] = []
    marks = OffsetSyncEmitter(10.0, 1_000, lambda *barrier: emitted.append(barrier))
    marks.now(0.0)
    marks.genesis(100, 40, 0.0)
    marks.now(1.0)
    for at in (1, 2):
        marks.stamp = ProducerStamp(7, 0, 3 * at)
        marks.acknowledged(VerbatimCopy(b"", 3, 97 + 3 * at, 100 + 3 * at), AppendedOffset(37 + 3 * at), 1.0)
    assert emitted == [(100, 40, None)]
    marks.stamp = ProducerStamp(7, 0, 9)  # of a later batch that moved nothing
    marks.now(2.0)
    marks.now(2.0)
    assert emitted[1:] == [(106, 46, ProducerStamp(7, 0, 6))]
    assert marks.stamp == ProducerStamp(7, 0, 9)
    marks.acknowledged(VerbatimCopy(b"", 3, 106, 109), AppendedOffset(46), 3.0)
    marks.lost()
    marks.now(4.0)
    assert len(emitted) == 2, "the destination has lost those offsets"
    codec.encode(emitted)


def test_the_end_of_a_former_lane_precedes_its_successors_first_offset_sync() -> None:
    emitted: list[tuple[int, int, ProducerStamp | None]] = []
    marks = OffsetSyncEmitter(10.0, 1_000, lambda *barrier: emitted.append(barrier))
    former, opened = ProducerStamp(7, 0, 90), ProducerStamp(7, 16, 0)
    marks.closed(100, 40, former, 5.0)
    assert marks.wants_idle(5.0), "the next offset sync is not postponed"
    marks.opened(opened)
    marks.closed(104, 47, former.behind(4), 5.0)
    marks.first = copy = VerbatimCopy(b"", 3, 104, 107)
    marks.stamp = opened.behind(3)
    marks.acknowledged(copy, AppendedOffset(52), 6.0)
    assert emitted == [
        (100, 40, former), (104, 47, former.behind(4)), (104, 52, opened), (107, 55, opened.behind(3))
    ]  # fmt: skip


def test_no_end_of_a_former_lane_is_emitted_where_records_may_be_twice() -> None:
    emitted: list[tuple[int, int, ProducerStamp | None]] = []
    marks = OffsetSyncEmitter(10.0, 1_000, lambda *barrier: emitted.append(barrier))
    marks.quiet_below = 101
    marks.closed(100, 40, ProducerStamp(7, 0, 90), 5.0)
    assert not emitted
