"""Refused batches are divided as far as that helps; the rest waits and is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from app.kafka.append.encoder import copies
from app.kafka.append.errors import BatchRefused
from app.kafka.fetch.deliveries import FetchedBatches
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import Bytes, VerbatimCopy
from app.replicate.destination.ledger import CopyLedger, SentBatch
from app.replicate.pump.blocked_batch import CUTS_AT_ONCE, BlockedBatch
from app.replicate.pump.offset_sync_emitter import OffsetSyncEmitter
from tests.kafka.fetch.test_decoder import fetched
from tests.kafka.records.batches import CODECS
from tests.kafka.records.test_verbatim_copy import NO_LIMIT, as_logged, read, rows_of, the_batch

TOO_LARGE, LIST_TOO_LARGE = 10, 18
ENOUGH_S = 150.0
ROW: Any = (1_000, b"k", b"v", [])


class Destination:
    """A lane to a partition that takes batches of at most `most` records, whatever its settings say."""

    def __init__(self, most: int, code: int) -> None:
        self.most, self.code = most, code
        self.refuses: set[int] = set()  # compressions
        self.unwanted: set[bytes] = set()  # values of records
        self.names = True  # which it does not want
        self.attempts = 0
        self.log: list[list[Any]] = []
        self.incidents: list[str] = []
        self.obstacle = BlockedBatch(
            lambda kind, message, *_: self.incidents.append(f"{kind} {message}"), "a/t/0 to b/t"
        )
        self.ledger = CopyLedger(0, lambda *_: None, self._failed, lambda _: None)
        self.mending: set[asyncio.Task[None]] = set()

    def append(self, copy: VerbatimCopy) -> None:
        self.ledger.append(copy, self._future(copy.data, copy.record_count))

    def _future(self, data: Bytes, count: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.attempts += 1
        bad = tuple(n for n, row in enumerate(read(data)) if row[3] in self.unwanted) if self.unwanted else ()
        if count > self.most:
            future.set_exception(BatchRefused("too large", self.code))
        elif bad:
            future.set_exception(BatchRefused("unwanted", self.code, bad if self.names else ()))
            future.exception()  # not every exception is read
        elif the_batch(data).header.compression in self.refuses:
            future.set_exception(BatchRefused("not this compression", 76))
        else:
            self.log.append(read(data))
            future.set_result(sum(map(len, self.log)) - count)
        return future

    def replace_refused(self, batches: Sequence[tuple[Bytes, int]]) -> list[asyncio.Future[int]]:
        return [self._future(*batch) for batch in batches]

    def _failed(self, sent: SentBatch, error: BaseException) -> None:
        assert isinstance(error, BatchRefused)

        async def limit() -> int:
            return NO_LIMIT

        lane: Any = self
        task = asyncio.ensure_future(self.obstacle.mend(sent, error, lane, self.ledger, limit))
        self.mending.add(task)

    async def settled(self, base: int) -> None:
        async with asyncio.timeout(ENOUGH_S):
            while self.ledger.base < base:  # noqa: ASYNC110 - callbacks move it
                await asyncio.sleep(0)


def a_batch(count: int, start: int = 0, gaps: Sequence[int] = ()) -> FetchedBatches:
    data = as_logged(start, rows_of([(1_000 + n, b"k", b"%d" % n, []) for n in range(count)], gaps))
    return fetched(data, start, start + count + sum(gaps))


@pytest.mark.parametrize("code", [TOO_LARGE, LIST_TOO_LARGE])
@pytest.mark.parametrize("gaps", [(), (0, 2, 0, 1)])
async def test_a_batch_above_an_unknown_limit_is_halved_until_it_fits(code: int, gaps: Sequence[int]) -> None:
    there = Destination(3, code)
    (copy,) = copies(a_batch(20, gaps=gaps), NO_LIMIT)
    there.append(copy)
    await there.settled(20 + sum(gaps))
    assert [row[3] for batch in there.log for row in batch] == [b"%d" % n for n in range(20)]
    assert max(map(len, there.log)) <= 3
    assert not there.incidents


@pytest.mark.parametrize("most", [10, 3])
async def test_if_the_compression_is_refused_the_records_are_sent_uncompressed(most: int) -> None:
    there = Destination(most, TOO_LARGE)
    there.refuses = {CODECS["zstd"]}
    rows = rows_of([(1_000 + n, b"k", b"%d" % n * 500, []) for n in range(5)])
    (copy,) = copies(fetched(as_logged(0, rows, codec=CODECS["zstd"]), 0, 5), NO_LIMIT)
    there.append(copy)
    await there.settled(5)
    assert [row[1:] for batch in there.log for row in batch] == [row[1:] for row in rows]
    assert not there.incidents


async def test_a_single_record_that_is_too_large_waits_and_is_reported_with_its_offset() -> None:
    there = Destination(0, TOO_LARGE)
    (copy,) = copies(a_batch(4, 700), NO_LIMIT)
    there.ledger.base = 700
    there.append(copy)
    async with asyncio.timeout(ENOUGH_S):
        while not there.incidents:  # noqa: ASYNC110 - a task tells it
            await asyncio.sleep(0)
    assert "a/t/0" in there.incidents[0]
    assert "offsets [700, 701)" in there.incidents[0]
    assert "max.message.bytes" in there.obstacle.why
    for offset in range(700, 704):
        async with asyncio.timeout(ENOUGH_S):
            while there.obstacle.waiting_ranges != ((offset, offset + 1),):  # noqa: ASYNC110 - a task moves it
                await asyncio.sleep(0)
        assert there.obstacle.skip(offset, offset + 1)
    await there.settled(704)
    assert not there.log
    assert there.obstacle.why == ""


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("code", [2, 32, 87])
@pytest.mark.parametrize("gaps", [(), (0, 0, 0, 2)])
async def test_only_the_refused_records_of_a_batch_wait_and_are_skipped(
    code: int, names: bool, gaps: Sequence[int]
) -> None:
    there = Destination(1_000, code)
    there.names = names
    unwanted = [5, 6, 30]
    there.unwanted = {b"%d" % n for n in unwanted}
    later = sum(gaps)
    (copy,) = copies(a_batch(40, gaps=gaps), NO_LIMIT)
    there.append(copy)
    together = [(5, 7), (30, 31)] if names else [(5, 6), (6, 7), (30, 31)]
    for start, end in together:
        place = start + later, end + later
        async with asyncio.timeout(ENOUGH_S):
            while there.obstacle.waiting_ranges != (place,):  # noqa: ASYNC110 - a task moves it
                await asyncio.sleep(0)
        assert there.obstacle.skip(*place)
    await there.settled(40 + later)
    arrived = sorted(int(row[3]) for batch in there.log for row in batch)
    assert arrived == [n for n in range(40) if n not in unwanted]


async def test_a_large_batch_with_every_other_record_refused_is_divided_in_bounded_steps() -> None:
    """Each refusal divides at a bounded number of places, and other tasks run between the pieces."""
    count = 20_000
    there = Destination(count, 87)
    there.unwanted = {b"%d" % n for n in range(1, count, 2)}
    (copy,) = copies(a_batch(count), NO_LIMIT)
    there.append(copy)
    turns = 0
    async with asyncio.timeout(ENOUGH_S):
        while there.obstacle.waiting_ranges != ((1, 2),):
            turns += 1
            await asyncio.sleep(0)
    assert CUTS_AT_ONCE < there.attempts < 3 * CUTS_AT_ONCE
    assert turns > CUTS_AT_ONCE
    assert there.log[0][0][3] == b"0"
    for task in there.mending:
        task.cancel()


async def test_two_waiting_batches_are_skipped_separately() -> None:
    """The fault: a refused batch and an undecodable one behind it shared an event, so either was skipped with
    the other."""
    ends: list[Any] = []
    obstacle = BlockedBatch(lambda *incident: ends.append(incident[3:]), "here")
    first = asyncio.ensure_future(obstacle.wait(5, 8, "refused", "raise it", 60.0))
    second = asyncio.ensure_future(obstacle.wait(20, 30, "not to be decoded", "see"))
    await asyncio.sleep(0)
    assert obstacle.waiting_ranges == ((5, 8), (20, 30))
    assert obstacle.why.startswith("offsets [5, 8)")
    assert not obstacle.skip(20, 29)
    assert obstacle.skip(20, 30)
    assert not obstacle.skip(20, 30), "it is being skipped"
    assert await second
    assert not first.done()
    (first_ended,), (second_ended,), of_the_skip = ends
    assert (first_ended(), second_ended(), of_the_skip) == (False, True, ())
    assert list(obstacle.waiting_ranges) == [(5, 8)]
    obstacle.drop_below(8)
    assert not list(obstacle.waiting_ranges)
    assert first_ended()
    first.cancel()


def test_a_lanes_first_batch_begins_with_an_offset_sync_unless_a_former_owner_had_copied_of_it() -> None:
    emitted: list[tuple[int, int, ProducerStamp | None]] = []
    first, second = VerbatimCopy(b"", 20, 100, 120), VerbatimCopy(b"", 5, 120, 125)
    opening, behind = ProducerStamp(7, 16, 0), ProducerStamp(7, 16, 20)
    for is_whole in (True, False):
        marks = OffsetSyncEmitter(1e9, 1_000, lambda *at: emitted.append(at))
        marks.opened(opening)
        marks.first = first if is_whole else None
        marks.stamp = behind
        marks.acknowledged(first, 500, 1.0)
        marks.stamp = ProducerStamp(7, 16, 25)
        marks.acknowledged(second, 520, 2.0)
    assert emitted == [(100, 500, opening), (120, 520, behind), (120, 520, behind)]
    marks = OffsetSyncEmitter(1e9, 1_000, lambda *at: emitted.append(at))
    marks.opened(opening)
    marks.first, marks.stamp = first, ProducerStamp(7, 17, 20)  # it went under a further epoch
    marks.acknowledged(first, 500, 1.0)
    assert emitted[3:] == [(120, 520, ProducerStamp(7, 17, 20))]


def test_an_offset_sync_is_emitted_where_doubled_records_end() -> None:
    """No record from there on was sent before; below, that is not known."""
    emitted: list[tuple[int, int]] = []
    marks = OffsetSyncEmitter(
        1e9, 1, lambda source_end, target_end, _: emitted.append((source_end, target_end))
    )
    marks.quiet_below = 100
    marks.acknowledged(VerbatimCopy(b"", 1, 98, 99), 149, 0.0)
    marks.idle(100, 151, 0.0)
    assert emitted == [(100, 151)]
