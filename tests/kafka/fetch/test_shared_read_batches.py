"""Followers get the data of other readers in order, joined and within memory; otherwise they fetch."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.audit.counts.counter import CountingSpec
from app.audit.counts.partition_counter import PartitionReader
from app.kafka.client.cluster import NO_LEADER, ClusterClient, ClusterSpec
from app.kafka.fetch import shared_read_service as followers_module
from app.kafka.fetch.decoder import records_of
from app.kafka.fetch.deliveries import (
    HEADED_BYTES,
    ByteBudget,
    FetchedBatches,
    FetchedHeaders,
    FetchIncident,
    PartitionFetch,
)
from app.kafka.fetch.protocol import PartitionAnswer
from app.kafka.fetch.service import FetchService
from app.kafka.fetch.shared_read_service import Counts
from app.kafka.records.header_arrays import BatchHeaderArrays
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.reports import Report, Scope
from tests.examples import as_profile
from tests.kafka.records.batches import make_batch

LEADER, FOLLOWER = "leader", "follower"
SCOPE, SOURCE = Scope("orders", "aggregate", "east", 1_000), FingerprintSource("cluster", "id", 0)


def counter(next_offset: int = 0) -> PartitionReader:
    """An audit's reader from this offset on."""
    return PartitionReader(
        SCOPE, SOURCE, CountingSpec(records_of, SOURCE, disorder_ms=0), next_offset, part_offsets=64
    )


def every(headers: BatchHeaderArrays) -> int:
    """Counts every batch by its headers."""
    return len(headers.base_offset)


class Nowhere(ClusterClient):
    """A client that sends no request for leaders."""

    def known_leader(self, topic: str, partition: int) -> int | None:
        return 1 if topic == "orders" else None

    def why_no_leader(self, topic: str, partition: int) -> tuple[int, str]:
        return NO_LEADER, "nobody leads"


class Rig:
    """Two readers of a log, one of which follows the other; the test makes the answers to fetches."""

    def __init__(
        self, lingers_s: float = 0.0, capacity_bytes: int = 1 << 24, counts: Counts = lambda _: 0
    ) -> None:
        self.got: dict[str, list[FetchedBatches]] = defaultdict(list)
        self.reader = counter()
        self.passed_over = 0
        self.refuses: set[str] = set()
        self.holds = False
        self.slow: dict[str, asyncio.Event] = {}  # reader -> the event that it waits for before it takes data
        self.budget = ByteBudget(capacity_bytes)
        self.service = FetchService(Nowhere(ClusterSpec("none", ("h:1",))), self._deliver, self.budget)
        self.service.add(LEADER, "orders", 0, 0, "id")
        self.service.add(FOLLOWER, "orders", 0, 0, "id", lingers_s=lingers_s, counts=counts)
        self.leader, self.follower = self.part(LEADER), self.part(FOLLOWER)

    def another(self, key: str) -> PartitionFetch:
        """Adds another reader that can be followed."""
        self.service.add(key, "orders", 0, 0, "id")
        return self.part(key)

    def part(self, key: str) -> PartitionFetch:
        return self.service._partitions[key]

    async def _deliver(self, item: Any) -> None:
        if item.key in self.slow:
            await self.slow[item.key].wait()
        if isinstance(item, FetchIncident):
            return
        if item.key in self.refuses:
            raise ValueError("not taken")
        self.got[item.key].append(item)
        if item.key == FOLLOWER:
            self.passed_over += item.start_offset > self.reader.next_offset
            if isinstance(item, FetchedHeaders):
                assert item.start_offset == self.reader.next_offset, "every header is taken once"
                seen_at_ms = item.seen_at_ms
                self.reader.add_headers(item.headers, item.next_offset, at_ms=9, seen_at_ms=seen_at_ms)
            else:
                self.reader.fetched(item.data, item.next_offset, at_ms=9, aborted=item.aborted)
        if not self.holds:
            data = item.data
            item.release()
            item.data = data

    async def answer(self, part: PartitionFetch, *batches: bytes, aborted: Any = ()) -> None:
        """Answers a fetch of this reader with these batches."""
        data = b"".join(batches)
        await self.service._answered(part, PartitionAnswer("orders", 0, 0, 1_000, 1_000, [*aborted], data))

    async def settle(self) -> None:
        """Waits until the follower has taken all that it is given."""
        while self.follower.is_given:  # noqa: ASYNC110 - a task of its own
            await asyncio.sleep(0.001)

    def spans(self, key: str) -> list[tuple[int, int]]:
        return [(one.start_offset, one.next_offset) for one in self.got[key]]

    @property
    def waits(self) -> bool:
        return self.follower.retry_at_s > time.monotonic()


def batch(base_offset: int, records: int = 10, size: int = 1) -> bytes:
    return make_batch(base_offset, [(b"k", b"v" * size)] * records)


async def test_follower_at_the_readers_position_waits_and_takes_its_data() -> None:
    rig = Rig()
    await rig.answer(rig.leader)
    assert rig.waits
    await rig.answer(rig.leader, batch(0), batch(10))
    await rig.settle()
    assert rig.spans(FOLLOWER) == rig.spans(LEADER) == [(0, 20)]
    assert rig.got[FOLLOWER][0].data == rig.got[LEADER][0].data
    assert (rig.follower.next_offset, rig.follower.high_watermark, rig.waits) == (20, 1_000, True)


async def test_follower_fetches_missed_data_and_then_follows_again() -> None:
    rig = Rig()
    rig.leader.next_offset = 20
    await rig.answer(rig.leader, batch(20))
    assert (rig.spans(FOLLOWER), rig.waits) == ([], False)
    await rig.answer(rig.follower, batch(0), batch(10), batch(20, 3))
    await rig.answer(rig.leader, batch(30))
    await rig.settle()
    assert rig.spans(FOLLOWER) == [(0, 23)], "the follower is behind this data"
    await rig.answer(rig.follower, batch(23, 7), batch(30))
    rig.leader.next_offset = 30
    await rig.answer(rig.leader, batch(30), batch(40))
    await rig.settle()
    assert rig.spans(FOLLOWER)[-1] == (40, 50), "it takes only the batches that it lacks"


@pytest.mark.parametrize(
    "other", [{"topic_id": "another"}, {"topic_id": ""}, {"epoch": 3}, {"doubted": True}, {"unsure": True}]
)
async def test_follower_takes_nothing_that_may_be_from_another_log(other: dict[str, Any]) -> None:
    rig = Rig()
    for name, value in other.items():
        setattr(rig.follower, name, value)
    await rig.answer(rig.leader, batch(0))
    assert (rig.spans(LEADER), rig.spans(FOLLOWER), rig.waits) == ([(0, 10)], [], False)


async def test_follower_under_fetch_gets_the_data_from_its_own_answer() -> None:
    rig = Rig()
    rig.follower.polling = True
    await rig.answer(rig.leader, batch(0))
    assert (rig.spans(FOLLOWER), rig.waits) == ([], True)
    await rig.answer(rig.follower, batch(0))
    rig.follower.polling = False
    await rig.answer(rig.leader, batch(10))
    await rig.settle()
    assert rig.spans(FOLLOWER) == [(0, 10), (10, 20)]


@pytest.mark.parametrize("counts", [lambda _: 0, every])
async def test_data_with_aborted_transactions_is_taken_only_from_its_beginning(counts: Counts) -> None:
    rig = Rig(counts=counts)
    rig.follower.next_offset = 10
    await rig.answer(rig.leader, batch(0), batch(10), aborted=[(7, 5)])
    assert rig.spans(FOLLOWER) == []
    rig.follower.next_offset = 20
    await rig.answer(rig.leader, batch(20), aborted=[(7, 21)])
    await rig.settle()
    assert [one.aborted for one in rig.got[FOLLOWER]] == [[(7, 21)]]


async def test_small_pieces_are_given_together() -> None:
    rig = Rig(lingers_s=0.2)
    for number in range(5):
        await rig.answer(rig.leader, batch(10 * number))
    await rig.settle()
    assert rig.spans(LEADER) == [(10 * number, 10 * number + 10) for number in range(5)]
    assert rig.reader.records == 50
    assert len(rig.got[FOLLOWER]) < 5
    assert b"".join(one.data for one in rig.got[FOLLOWER]) == b"".join(batch(10 * n) for n in range(5))
    assert rig.budget.used_bytes == rig.follower.unreleased_bytes == 0


async def test_slow_follower_does_not_delay_the_reader() -> None:
    rig = Rig(capacity_bytes=1 << 30)
    rig.holds = True
    big = [batch(10 * number, 10, 40_000) for number in range(40)]
    for one in big:
        await rig.answer(rig.leader, one)
        await rig.settle()
    assert rig.leader.next_offset == 400
    held = sum(one.nbytes for one in rig.got[FOLLOWER])
    assert 2 * 1024 * 1024 <= held < 3 * 1024 * 1024
    assert not rig.waits, "it fetches once it has room"


async def test_refused_data_is_fetched_again() -> None:
    rig = Rig()
    await rig.answer(rig.leader, batch(0))
    await rig.settle()
    rig.refuses = {FOLLOWER}
    await rig.answer(rig.leader, batch(10))
    await rig.settle()
    assert (rig.follower.next_offset, rig.waits, rig.budget.used_bytes) == (10, False, 0)


async def test_end_of_given_data_starts_a_look() -> None:
    rig = Rig()
    await rig.answer(rig.leader, batch(0))
    assert rig.follower.is_given
    rig.service._wake.clear()  # a look that found the follower busy
    await rig.settle()
    assert rig.service._wake.is_set()


async def test_follower_that_gets_data_during_scheduling_is_not_fetched() -> None:
    rig = Rig()
    rig.service.add("gone", "no such topic", 0, 0, "id")  # scheduled last, and reports an incident
    gone = rig.part("gone")
    gone.failures, rig.leader.polling = 1, True
    rig.slow = {"gone": asyncio.Event(), FOLLOWER: asyncio.Event()}
    looking = asyncio.ensure_future(rig.service._schedule())
    while not (gone.incident or looking.done()):  # noqa: ASYNC110 - the incident is being reported
        await asyncio.sleep(0)
    await rig.answer(rig.leader, batch(0))
    assert rig.follower.is_given
    rig.slow["gone"].set()
    await looking
    assert not rig.service._polls
    rig.slow[FOLLOWER].set()
    await rig.settle()
    assert rig.spans(FOLLOWER) == [(0, 10)]


async def test_repeated_data_of_another_reader_is_counted_once() -> None:
    rig = Rig()
    log = [batch(base) for base in range(0, 150, 10)]
    other = rig.another("other")
    other.next_offset = 50
    await rig.answer(rig.leader, *log[:10])
    await rig.answer(other, *log[5:])
    await rig.settle()
    assert (rig.reader.records, rig.reader.next_offset) == (150, 150)


async def test_no_bytes_are_held_while_headers_suffice() -> None:
    rig = Rig(counts=every)
    await rig.answer(rig.leader, batch(0), batch(10))
    assert rig.follower.unreleased_bytes == 2 * HEADED_BYTES
    await rig.settle()
    assert [type(one) for one in rig.got[FOLLOWER]] == [FetchedHeaders]
    assert (rig.reader.records, rig.budget.used_bytes) == (20, 0)


async def test_follower_is_fetched_and_gets_whole_batches_when_headers_do_not_suffice() -> None:
    counts = [2, 1, 1]  # countable batches of each look: all, then one of two joined batches
    rig = Rig(counts=lambda _: counts.pop(0))
    await rig.answer(rig.leader, batch(0), batch(10))
    await rig.answer(rig.leader, batch(20))
    await rig.settle()
    assert (rig.spans(FOLLOWER), rig.follower.next_offset, rig.waits) == ([], 0, False)
    await rig.answer(rig.follower, batch(0), batch(10), batch(20))
    await rig.answer(rig.leader, batch(30))
    await rig.settle()
    assert [type(one) for one in rig.got[FOLLOWER]] == [FetchedBatches, FetchedBatches]
    assert (rig.reader.records, rig.reader.next_offset) == (40, 40)


async def test_follower_catches_up_by_remembered_headers() -> None:
    rig = Rig(counts=every)
    rig.leader.next_offset = 20
    await rig.answer(rig.leader, batch(20), batch(30))
    assert not rig.waits, "no reader has the batches before it"
    rig.follower.polling = True
    await rig.answer(rig.follower, batch(0), batch(10), batch(20))
    await rig.answer(rig.leader, batch(40))
    assert not rig.follower.is_given, "its own fetch is not answered yet"
    assert (rig.spans(FOLLOWER), rig.waits) == ([(0, 30)], True)
    rig.follower.polling = False
    await rig.answer(rig.leader, batch(50))
    await rig.settle()
    assert rig.spans(FOLLOWER) == [(0, 30), (30, 60)]
    assert (rig.reader.records, rig.reader.next_offset) == (60, 60)


async def test_follower_within_a_batch_does_not_catch_up_by_headers() -> None:
    rig = Rig(counts=every)
    rig.leader.next_offset = 20
    await rig.answer(rig.leader, batch(20), batch(30))
    rig.follower.next_offset = 25
    await rig.answer(rig.leader, batch(40))
    await rig.settle()
    assert (rig.spans(FOLLOWER), rig.follower.next_offset, rig.waits) == ([], 25, False)


@pytest.mark.parametrize("change", [{"topic_id": "other"}, {"epoch": 5}])
async def test_headers_of_another_log_are_forgotten(change: dict[str, Any]) -> None:
    rig = Rig(counts=every)
    rig.leader.next_offset = 20
    await rig.answer(rig.leader, batch(20), batch(30))
    for part in (rig.leader, rig.follower):
        for name, value in change.items():
            setattr(part, name, value)
    rig.follower.next_offset = 30
    await rig.answer(rig.leader, batch(40))
    await rig.settle()
    assert rig.spans(FOLLOWER) == []


@pytest.mark.parametrize(("next_offset", "waits"), [(30, True), (100, True), (101, False)])
async def test_follower_waits_for_a_reader_close_behind(next_offset: int, waits: bool) -> None:
    rig = Rig()
    rig.follower.next_offset = next_offset
    await rig.answer(rig.leader, batch(0), batch(10))
    assert rig.waits is waits


class Whole:
    """A log of batches, as a broker answers from it."""

    def __init__(self, chance: random.Random) -> None:
        self.batches: list[tuple[int, bytes]] = []  # where each ends
        self.end = 0
        while self.end < 300:
            data = batch(self.end, count := chance.choice([1, 2, 5, 20]))
            self.end += count
            self.batches.append((self.end, data))

    def fetch(self, position: int, most: int) -> list[bytes]:
        """At most `most` batches, from the batch that holds the position."""
        return [data for end, data in self.batches if end > position][:most]


def reports(reader: PartitionReader) -> list[Report]:
    return reader.reports(10_000)


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=as_profile(100), deadline=None)
def test_every_record_is_counted_once_from_either_delivery(seed: int) -> None:
    short = patch.multiple(followers_module, HEADERS_WAIT_S=0.001, WHOLE_S=0.002, MOST_TRAIL=8, MOST_HEADS=6)
    with short, capture_logs():
        asyncio.run(_story(random.Random(seed)))


async def _story(chance: random.Random) -> None:
    rig, log = Rig(chance.choice([0.0, 0.001])), Whole(chance)
    share = chance.choice([0.0, 0.9, 1.0])  # how often headers are enough

    def count_some(headers: BatchHeaderArrays) -> int:
        countable = rig.reader.countable_from_headers(headers)
        return countable if chance.random() < share else chance.randrange(countable + 1)

    rig.follower.counts = count_some if share else lambda _: 0
    leaders = [rig.leader, rig.another("second"), rig.another("third")][: chance.randrange(1, 4)]
    follower, polled_at, start = rig.follower, -1, chance.choice([0, 0, 7, 64, 70])  # maybe within a batch
    follower.next_offset, rig.reader = start, counter(start)
    for _ in range(80):
        rig.refuses = {key for key in (LEADER, FOLLOWER) if chance.random() < 0.05}
        if chance.random() < 0.3:
            await asyncio.sleep(0.002 * (chance.random() < 0.3))
        elif chance.random() < 0.2 and polled_at < 0 and not follower.polling:
            follower.polling, polled_at = True, follower.next_offset
        elif polled_at >= 0 and chance.random() < 0.4:
            assert (follower.next_offset, follower.is_given) == (polled_at, False), (
                "nothing is given during its own fetch"
            )
            with contextlib.suppress(ValueError):
                await rig.answer(follower, *log.fetch(polled_at, chance.randrange(5)))
            follower.polling, polled_at = False, -1
        else:
            leader = chance.choice(leaders)
            if chance.random() < 0.2:  # the leader moves to another offset
                leader.next_offset = chance.randrange(log.end)
            hidden = [(7, leader.next_offset)] if chance.random() < 0.05 else []
            with contextlib.suppress(ValueError):
                some = log.fetch(leader.next_offset, chance.randrange(8))
                await rig.answer(leader, *some, aborted=hidden)
    await rig.settle()
    plain = counter(start)
    upto = rig.reader.next_offset
    plain.fetched(b"".join(data for end, data in log.batches if end <= upto), upto, at_ms=9)
    assert (rig.reader.records, upto) == (plain.records, follower.next_offset)
    assert start or plain.records == upto
    assert reports(rig.reader) == reports(plain)
    assert not rig.passed_over
    assert rig.budget.used_bytes == 0
