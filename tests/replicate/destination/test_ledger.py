"""The stamp in a replica's note: the producer's numbers below the floor, or none."""

from __future__ import annotations

import asyncio

import pytest

from app.kafka.append.pending_batch import AppendedOffset
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import RecordsMissed, VerbatimCopy
from app.kernel.fencing import LogId
from app.replicate.destination.handover import ReplicaHandover
from app.replicate.destination.ledger import CopyLedger, SentBatch

FORMER = ProducerStamp(7, 0, 90)


def a_ledger(**note: int) -> CopyLedger:
    ledger = CopyLedger(100, lambda *_: None, lambda *_: None, lambda _: None)
    ledger.inherit(ReplicaHandover(LogId("c", "t"), 100, 7, 0, 40, lineage=1, stamp=FORMER, **note))
    return ledger


def noted(ledger: CopyLedger) -> tuple[int, int, int, ProducerStamp | None]:
    """The note as the table has it."""
    assert ledger.note is not None
    note = ReplicaHandover.from_bytes(ledger.note.to_bytes())
    return note.base, note.floor, note.passed, note.stamp


async def acknowledge(ledger: CopyLedger, end: int, base_offset: int) -> None:
    future = asyncio.get_running_loop().create_future()
    ledger.append(VerbatimCopy(b"", 3, end - 3, end), future)
    future.set_result(base_offset)
    await asyncio.sleep(0)


async def test_the_stamp_belongs_to_the_copy_below_the_floor() -> None:
    ledger = a_ledger()
    ledger.pass_over(SentBatch(110, accounted=5))
    assert noted(ledger) == (110, 40, 5, FORMER), "the found records lie above the floor"
    appended = AppendedOffset(60)
    appended.stamp = ProducerStamp(7, 16, 3)
    await acknowledge(ledger, 113, appended)
    assert noted(ledger) == (113, 63, 0, appended.stamp)
    ledger.change_epoch(17)
    await acknowledge(ledger, 116, -1)
    assert noted(ledger) == (116, 63, 3, appended.stamp), "the broker did not say where it lies"
    await acknowledge(ledger, 119, 90)
    assert noted(ledger) == (119, 93, 0, None), "its numbers do not show its offset"


def test_a_floor_that_rises_over_uncounted_records_has_no_stamp() -> None:
    ledger = a_ledger()
    ledger.raise_floor(50, 1)
    assert noted(ledger) == (100, 50, 0, FORMER)
    ledger.pass_over(SentBatch(110, accounted=5))
    ledger.raise_floor(60, 1)
    assert noted(ledger) == (110, 60, 0, None)


def test_a_floor_of_another_lineage_or_after_a_loss_has_no_stamp() -> None:
    for change in (lambda ledger: ledger.raise_floor(50, 2), lambda ledger: ledger.lower_floor(30)):
        ledger = a_ledger()
        change(ledger)
        assert noted(ledger)[3] is None


def test_a_note_that_was_written_before_there_were_stamps_can_be_read() -> None:
    note = a_ledger().note
    assert note is not None
    known = note.to_bytes()
    assert ReplicaHandover.from_bytes(known) == note
    before = known[: known.rindex(b",[7,0,90]")] + b"]"
    assert ReplicaHandover.from_bytes(before).stamp is None


@pytest.mark.parametrize("start", [105, 115])
def test_a_copy_that_does_not_begin_where_the_last_one_ended_is_refused(start: int) -> None:
    ledger = a_ledger()
    ledger.take_next(VerbatimCopy(b"", 3, 100, 103))
    ledger.pass_over(SentBatch(110))
    with pytest.raises(RecordsMissed, match=rf"\[{start}, 118\) is next .* ended at 110"):
        ledger.take_next(VerbatimCopy(b"", 3, start, 118))
    ledger.take_next(VerbatimCopy(b"", 3, 110, 118))
