"""Messages that were finished in another copy of a topic are not delivered again; all others are."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.record.util import calc_crc32c

from app.dispatch.pump import remote_progress_filter
from app.kafka.fetch.deliveries import FetchedBatches
from app.kafka.records.batch import HEADER_BYTES
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import stamped
from app.kernel.fencing import LogId
from app.kernel.limit_shares import ALL
from app.kernel.ranges import Snapshot
from app.offsets.model.offset_map import Barrier, LineSource, OffsetMapLine
from app.offsets.model.producer_progress import FinishedOffsets
from app.offsets.model.source_frontier import PassOver, finished
from switchyard.receiver import Message
from tests.dispatch.pump.rig import DispatchRig, dispatch_rig
from tests.kafka.records.batches import make_batch

Chunk = tuple[int, int, int]  # source, its offset, records


class Copy:
    """An aggregate topic's partition, as its pump gets it: chunks of sources, one batch each, in any order.

    A source's chunks follow each other, under the producer id of its own lane.
    """

    def __init__(self, rig: DispatchRig, ids: int) -> None:
        self.rig, self.pump = rig, rig.pump()
        self._ids = ids
        self._end = 0
        self._batches: list[tuple[bytes, int]] = []
        self._barriers: dict[int, list[Barrier]] = {}

    def copy(self, *chunks: Chunk, garbage: bool = False, synced: bool = True) -> None:
        """Appends the chunks to the log, with offset syncs at both ends unless `synced` is False.

        `garbage`: the chunks cannot be decoded.
        """
        for source, offset, count in chunks:
            rows = [(None, value) for value in values(source, *range(offset, offset + count))]
            batch = stamped(make_batch(0, rows), self._ids + source, 0, offset, calc_crc32c)
            batch[:8] = struct.pack(">q", self._end)
            if garbage:
                batch[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
            self._batches.append((bytes(batch), count))
            for at in (0, count) if synced else ():
                stamp = ProducerStamp(self._ids + source, 0, offset + at)
                barrier = Barrier(offset + at, self._end + at, 0, stamp)
                self._barriers.setdefault(source, []).append(barrier)
            self._end += count

    def sync_late(self, source: int, offset: int, end: int) -> None:
        """Adds a late offset sync."""
        stamp = ProducerStamp(self._ids + source, 0, offset)
        self._barriers.setdefault(source, []).append(Barrier(offset, end, 0, stamp))

    def feed(self) -> None:
        """Feeds the log to the pump."""
        for batch, count in self._batches:
            self.rig.feed_bytes(self.pump, batch, count)
        self._batches.clear()

    def lines(self) -> list[LineSource]:
        return [
            LineSource(
                source,
                OffsetMapLine(
                    target_topic="t", target_partition=0, epoch=1, lineage=0, source=LogId("c", str(source)),
                    target=LogId("c", "t"), barriers=list(barriers),
                ),
            )
            for source, barriers in self._barriers.items()
        ]  # fmt: skip

    def over(self, read: Copy) -> PassOver:
        """Everything that the reader of the other copy has finished, by this copy's offsets."""
        progress = {0: FinishedOffsets.from_bytes(read.pump.note)}
        return PassOver(finished(progress, read.lines()), self.lines(), 0)


def values(source: int, *offsets: int) -> list[bytes]:
    return [f"{source}/{offset}".encode() for offset in offsets]


@asynccontextmanager
async def copies(unanswered: Sequence[bytes] = (), **spec: Any) -> AsyncIterator[tuple[Copy, Copy]]:
    """Copies `a` and `d`; the receiver of `a` does not answer some messages."""

    async def handle(message: Message) -> None:
        if message.value in unanswered:
            await asyncio.Event().wait()

    async with dispatch_rig(handle, **spec) as at_a, dispatch_rig(lambda _: None, **spec) as at_d:
        for rig in (at_a, at_d):
            rig.runtime.apply_share(ALL)
        a, d = Copy(at_a, 10), Copy(at_d, 70)
        a.pump.remember(b"")
        yield a, d


@pytest.mark.parametrize("contract", ["unary", "stream"])
async def test_only_messages_that_were_not_finished_in_the_other_copy_are_delivered(contract: str) -> None:
    unanswered = values(0, 30, 31) + values(1, 5, 90)
    async with copies(unanswered, target={"contract": contract, "timeout": "10m"}) as (a, d):
        a.copy((0, 0, 40), (1, 0, 40), (0, 40, 60), (1, 40, 60))
        a.feed()
        await a.rig.until(lambda: a.pump.delivered == 196)
        assert a.pump.base == 30
        d.copy((1, 0, 25), (0, 0, 100), (1, 25, 75), (0, 100, 20), (1, 100, 5))
        d.pump.pass_over(d.over(a))
        d.feed()
        await d.rig.until(lambda: d.pump.base == 225)
        new = values(0, *range(100, 120)) + values(1, *range(100, 105))
        assert d.rig.values() == dict.fromkeys(unanswered + new, 1)
        assert d.pump.status().passed_over == 196
        assert d.pump.tracker.snapshot() == Snapshot(225)
        assert d.rig.budget.used_bytes == 0


async def test_a_batch_that_another_copy_finished_is_not_decoded_and_the_filter_ends_behind_the_last() -> (
    None
):
    async with copies() as (a, d):
        a.copy((0, 0, 50))
        a.feed()
        await a.rig.until(lambda: a.pump.base == 50)
        d.copy((0, 0, 40), garbage=True)
        d.copy((0, 40, 20))
        d.pump.pass_over(d.over(a))
        d.feed()
        await d.rig.until(lambda: d.pump.base == 60)
        assert d.rig.values() == dict.fromkeys(values(0, *range(50, 60)), 1)
        assert d.rig.copied.records == [], "nothing went to the DLQ"
        assert d.pump._intake.remote_progress.over is not None
        d.copy((0, 60, 10), (0, 70, 10))
        d.feed()
        await d.rig.until(lambda: d.pump.base == 80)
        assert d.pump._intake.remote_progress.over is None
        assert d.pump.status().passed_over == 50


async def test_progress_of_the_other_copy_that_is_known_later_is_passed_over_too() -> None:
    """Offset syncs of a copy come after the records."""
    async with copies() as (a, d):
        a.copy((0, 0, 50))
        a.feed()
        await a.rig.until(lambda: a.pump.base == 50)
        d.copy((0, 0, 10))
        d.pump.pass_over(d.over(a))
        d.feed()
        d.copy((0, 10, 40), (0, 50, 5))
        d.pump.pass_over(d.over(a))
        d.feed()
        await d.rig.until(lambda: d.pump.base == 55)
        assert d.pump.status().passed_over == 50


async def test_a_batch_that_another_copy_may_have_finished_waits_for_its_offset_sync() -> None:
    async with copies(values(0, 45)) as (a, d):
        a.copy((0, 0, 50), (1, 0, 30))
        a.feed()
        await a.rig.until(lambda: a.pump.delivered == 79)
        d.copy((0, 0, 20), (1, 0, 30))
        d.copy((1, 30, 5), (0, 20, 30), (1, 35, 5), synced=False)
        d.pump.pass_over(d.over(a), hold_until_s=time.monotonic() + 1e6)
        d.feed()
        await d.rig.until(lambda: d.pump.resume_held() and d.pump.base == 55)
        assert d.rig.values() == dict.fromkeys(values(1, *range(30, 35)), 1)
        d.sync_late(0, 50, 85)
        d.pump.pass_over(d.over(a))
        await d.rig.until(lambda: d.pump.base == 90)
        assert d.rig.values() == dict.fromkeys(values(1, *range(30, 40)) + values(0, 45), 1)
        assert d.pump.status().passed_over == 79
        assert not d.pump.resume_held()


async def test_a_batch_that_waited_too_long_is_delivered_and_ends_all_holding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_progress_filter, "UNDECIDED_HOLD_S", 1.0)
    async with copies() as (a, d):
        a.copy((0, 0, 50))
        a.feed()
        await a.rig.until(lambda: a.pump.base == 50)
        d.copy((0, 0, 20))
        d.copy((0, 20, 10), (0, 30, 10), synced=False)
        d.pump.remember(b"", 7)
        d.pump.pass_over(d.over(a), hold_until_s=time.monotonic() + 1e6)
        d.feed()
        assert d.pump.resume_held()
        assert FinishedOffsets.from_bytes(d.pump.note).carried == -1
        await d.rig.until(lambda: not d.pump.resume_held() and d.pump.base == 40)
        assert d.rig.values() == dict.fromkeys(values(0, *range(20, 40)), 1)
        assert FinishedOffsets.from_bytes(d.pump.note).carried == 7, "its successors need not look again"
        # Progress that becomes known later still counts.
        d.copy((0, 40, 10))
        d.pump.pass_over(d.over(a))
        assert FinishedOffsets.from_bytes(d.pump.note).carried == -1
        d.feed()
        await d.rig.until(lambda: d.pump.base == 50)
        assert d.pump.delivered == 20


async def test_holding_is_extended_while_more_becomes_known_and_undecided_offsets_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_progress_filter, "UNDECIDED_HOLD_S", 0.2)
    async with copies() as (a, d):
        a.copy((0, 0, 50))
        a.feed()
        await a.rig.until(lambda: a.pump.base == 50)
        d.copy((0, 0, 20))
        d.copy((0, 20, 10), (0, 30, 10), synced=False)
        (progress_filter,) = d.pump.remote_progress_filters
        progress_filter.hold_longer(
            time.monotonic() + 1e6, 1e6
        )  # has no effect before `hold_until_s` is given
        d.pump.pass_over(d.over(a), hold_until_s=time.monotonic() + 0.2)
        progress_filter.hold_longer(time.monotonic() + 1e6, 1e6)
        d.feed()
        until_s = time.monotonic() + 1.0
        await d.rig.until(lambda: time.monotonic() > until_s)
        assert d.pump.resume_held(), "it waits beyond both bounds"
        assert progress_filter.undecided == 0
        d.sync_late(0, 30, 30)
        d.pump.pass_over(d.over(a))
        await d.rig.until(lambda: d.pump.base == 30)
        assert d.pump.delivered == 0
        d.pump.pass_over(d.over(a), hold_until_s=0.0)
        await d.rig.until(lambda: d.pump.base == 40)
        assert (d.pump.delivered, progress_filter.undecided) == (10, 10)
        progress_filter.hold_longer(time.monotonic() + 1e6, 1e6)
        d.copy((0, 40, 10), synced=False)
        d.feed()
        await d.rig.until(lambda: d.pump.base == 50)
        assert d.pump.delivered == 20, "once is enough"


async def test_a_pump_that_holds_a_batch_back_frees_all_memory_when_it_closes() -> None:
    async with copies() as (a, d):
        a.copy((0, 0, 50))
        a.feed()
        await a.rig.until(lambda: a.pump.base == 50)
        d.copy((0, 0, 1))
        d.copy((0, 1, 20), synced=False)
        d.pump.pass_over(d.over(a), hold_until_s=time.monotonic() + 1e6)
        d.feed()
        assert d.pump.resume_held()
        assert d.rig.budget.used_bytes > 0
        assert await d.pump.drain(60)
        d.pump.close()
        assert d.rig.budget.used_bytes == 0
        assert d.pump.base == 1


async def test_a_note_is_true_during_catch_up_and_no_finished_message_is_repeated() -> None:
    spec = {"target": {"timeout": "10m"}, "catchUp": {"lag": 1_000, "rate": 10_000}}
    async with copies(values(0, 3), **spec) as (a, d):
        a.copy((1, 0, 2), (0, 0, 48))
        a.feed()
        await a.rig.until(lambda: a.pump.delivered == 49)
        a.pump = a.rig.split(a.pump, 100)
        a.copy((1, 2, 50))
        a._batches.clear()  # they are still unread when later messages are finished
        a.copy((1, 52, 30))
        a.feed()
        await a.rig.until(lambda: a.pump.delivered == 30)
        assert a.pump.base == 5
        d.copy((0, 0, 50), (1, 0, 60), (1, 60, 30))
        d.pump.pass_over(d.over(a))
        d.feed()
        await d.rig.until(lambda: d.pump.base == 140)
        expected = values(0, 3, 48, 49) + values(1, *range(2, 52), *range(82, 90))
        assert d.rig.values() == dict.fromkeys(expected, 1)


async def test_the_next_owner_continues_the_note_and_without_remember_there_is_none() -> None:
    async with copies() as (a, d):
        assert d.pump.note == b""
        a.copy((0, 0, 50), (1, 0, 20))
        a.feed()
        await a.rig.until(lambda: a.pump.base == 70)
        note = a.pump.note
        next_owner = Copy(a.rig, 10)
        next_owner.pump.tracker = a.pump.tracker
        next_owner.pump.remember(note)
        assert FinishedOffsets.from_bytes(next_owner.pump.note) == FinishedOffsets.from_bytes(note)
        next_owner.pump.remember(b"\x00 not a note")
        assert FinishedOffsets.from_bytes(next_owner.pump.note).producers == []


async def test_a_batch_that_could_not_be_read_does_not_count_as_finished() -> None:
    """A damaged batch hides its producer, so the order of the batches behind it is unknown."""
    async with copies() as (a, d):
        a.copy((0, 0, 10))
        a.feed()
        await a.rig.until(lambda: a.pump.base == 10)
        a.rig.copied.refuse = True
        a.copy((0, 10, 10))
        ((damaged, _),) = a._batches
        a._batches.clear()
        part = a.rig._parts[id(a.pump)]
        fetched = FetchedBatches(
            part, len(damaged), damaged, 20, [], 20, damage="its checksum does not match"
        )
        part.unreleased_bytes += len(damaged)
        a.rig.budget.used_bytes += len(damaged)
        part.next_offset = 20
        a.pump.accept(fetched)
        a.copy((0, 20, 10))
        a.feed()
        await a.rig.until(lambda: a.pump.delivered == 20)
        assert a.pump.base == 10, "the damaged batch cannot go to the DLQ"
        d.copy((0, 0, 30))
        d.pump.pass_over(d.over(a))
        d.feed()
        await d.rig.until(lambda: d.pump.base == 30)
        assert set(values(0, *range(10, 20))) <= set(d.rig.values())
