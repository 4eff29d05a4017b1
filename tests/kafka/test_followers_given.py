"""What followers are given: in order, bits together, within the memory; when they are fetched instead."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kafka.clusters import ClusterClient, ClusterSpec
from app.kafka.fetch import FetchService
from app.kafka.fetched import ByteBudget, Fetched, PartitionFetch
from tests.core.batches import make_batch

LEADER, FOLLOWER = "leader", "follower"


class Stand:
    """Two readers of a log, of which one follows; nothing is fetched but by hand."""

    def __init__(self, lingers_s: float = 0.0, capacity_bytes: int = 1 << 24) -> None:
        self.got: dict[str, list[Fetched]] = {LEADER: [], FOLLOWER: []}
        self.refuses = self.holds = False
        self.budget = ByteBudget(capacity_bytes)
        self.service = FetchService(ClusterClient(ClusterSpec("none", ("h:1",))), self._deliver, self.budget)
        self.service.add(LEADER, "orders", 0, 0, "id")
        self.service.add(FOLLOWER, "orders", 0, 0, "id", lingers_s=lingers_s, counts=lambda _: 0)
        self.leader, self.follower = self.part(LEADER), self.part(FOLLOWER)

    def part(self, key: str) -> PartitionFetch:
        return self.service._partitions[key]

    async def _deliver(self, item: Any) -> None:
        if self.refuses and item.key == FOLLOWER:
            raise ValueError("not taken")
        self.got[item.key].append(item)
        if not self.holds:
            data = item.data
            item.release()
            item.data = data

    async def answer(self, part: PartitionFetch, *batches: bytes, aborted: Any = ()) -> None:
        """Its own fetch brings these."""
        await self.service._answered(part, [0, 1_000, [*aborted], b"".join(batches)])

    async def settle(self) -> None:
        """Until nothing is being given."""
        while self.follower.is_given:  # noqa: ASYNC110 - a task of its own
            await asyncio.sleep(0.001)

    def spans(self, key: str) -> list[tuple[int, int]]:
        return [(one.start_offset, one.next_offset) for one in self.got[key]]

    @property
    def waits(self) -> bool:
        return self.follower.retry_at_s > time.monotonic()


def batch(base_offset: int, records: int = 10, size: int = 1) -> bytes:
    return make_batch(base_offset, [(b"k", b"v" * size)] * records)


async def test_it_waits_for_the_reader_that_is_where_it_is_and_takes_what_that_one_gets() -> None:
    stand = Stand()
    await stand.answer(stand.leader)
    assert stand.waits
    await stand.answer(stand.leader, batch(0), batch(10))
    await stand.settle()
    assert stand.spans(FOLLOWER) == stand.spans(LEADER) == [(0, 20)]
    assert stand.got[FOLLOWER][0].data == stand.got[LEADER][0].data
    assert (stand.follower.next_offset, stand.follower.high_watermark, stand.waits) == (20, 1_000, True)


async def test_what_it_missed_it_fetches_and_then_follows_again() -> None:
    stand = Stand()
    stand.leader.next_offset = 20
    await stand.answer(stand.leader, batch(20))
    assert (stand.spans(FOLLOWER), stand.waits) == ([], False)
    await stand.answer(stand.follower, batch(0), batch(10), batch(20, 3))
    await stand.answer(stand.leader, batch(30))
    await stand.settle()
    assert stand.spans(FOLLOWER) == [(0, 23)], "it is behind what came"
    await stand.answer(stand.follower, batch(23, 7), batch(30))
    stand.leader.next_offset = 30
    await stand.answer(stand.leader, batch(30), batch(40))
    await stand.settle()
    assert stand.spans(FOLLOWER)[-1] == (40, 50), "what it has of it is not taken again"


@pytest.mark.parametrize(
    "other", [{"topic_id": "another"}, {"topic_id": ""}, {"epoch": 3}, {"doubted": True}, {"unsure": True}]
)
async def test_nothing_is_taken_of_what_may_be_another_log(other: dict[str, Any]) -> None:
    stand = Stand()
    for name, value in other.items():
        setattr(stand.follower, name, value)
    await stand.answer(stand.leader, batch(0))
    assert (stand.spans(LEADER), stand.spans(FOLLOWER), stand.waits) == ([(0, 10)], [], False)


async def test_while_it_is_fetched_its_own_answer_brings_it() -> None:
    stand = Stand()
    stand.follower.polling = True
    await stand.answer(stand.leader, batch(0))
    assert (stand.spans(FOLLOWER), stand.waits) == ([], True)
    await stand.answer(stand.follower, batch(0))
    stand.follower.polling = False
    await stand.answer(stand.leader, batch(10))
    await stand.settle()
    assert stand.spans(FOLLOWER) == [(0, 10), (10, 20)]


async def test_hidden_transactions_are_taken_from_where_they_were_fetched_only() -> None:
    stand = Stand()
    stand.follower.next_offset = 10
    await stand.answer(stand.leader, batch(0), batch(10), aborted=[(7, 5)])
    assert stand.spans(FOLLOWER) == []
    stand.follower.next_offset = 20
    await stand.answer(stand.leader, batch(20), aborted=[(7, 21)])
    await stand.settle()
    assert [one.aborted for one in stand.got[FOLLOWER]] == [[(7, 21)]]


async def test_what_comes_bit_by_bit_is_given_together() -> None:
    stand = Stand(lingers_s=0.2)
    for number in range(5):
        await stand.answer(stand.leader, batch(10 * number))
    await stand.settle()
    assert stand.spans(LEADER) == [(10 * number, 10 * number + 10) for number in range(5)]
    assert sum(end - start for start, end in stand.spans(FOLLOWER)) == 50
    assert len(stand.got[FOLLOWER]) < 5
    assert b"".join(one.data for one in stand.got[FOLLOWER]) == b"".join(batch(10 * n) for n in range(5))
    assert stand.budget.used_bytes == stand.follower.unreleased_bytes == 0


async def test_a_reader_is_not_held_up_by_a_follower_that_takes_nothing() -> None:
    stand = Stand(capacity_bytes=1 << 30)
    stand.holds = True
    big = [batch(10 * number, 10, 40_000) for number in range(40)]
    for one in big:
        await stand.answer(stand.leader, one)
        await stand.settle()
    assert stand.leader.next_offset == 400
    held = sum(one.nbytes for one in stand.got[FOLLOWER])
    assert 2 * 1024 * 1024 <= held < 3 * 1024 * 1024
    assert not stand.waits, "it fetches, once it has room"


async def test_what_is_refused_is_fetched_again() -> None:
    stand = Stand()
    await stand.answer(stand.leader, batch(0))
    await stand.settle()
    stand.refuses = True
    await stand.answer(stand.leader, batch(10))
    await stand.settle()
    assert (stand.follower.next_offset, stand.waits, stand.budget.used_bytes) == (10, False, 0)


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=100, deadline=None)
def test_whoever_brings_it_everything_comes_once_and_in_order(seed: int) -> None:
    asyncio.run(_story(random.Random(seed)))


async def _story(chance: random.Random) -> None:
    stand = Stand(chance.choice([0.0, 0.001]))
    log = [batch(10 * number) for number in range(40)]
    for _ in range(60):
        part = chance.choice([stand.leader, stand.leader, stand.follower])
        if part is stand.follower and (part.polling or (stand.waits and chance.random() < 0.8)):
            await stand.settle() if chance.random() < 0.5 else await asyncio.sleep(0)
            continue
        stand.refuses = chance.random() < 0.1
        at = part.next_offset // 10
        some = log[at : at + chance.randrange(4)]
        if chance.random() < 0.3:
            stand.follower.polling = stand.follower.polling or part is stand.follower
        try:
            await stand.answer(part, *some)
        except ValueError:
            assert stand.refuses
        if part is stand.follower:
            part.polling = part.is_given
        if chance.random() < 0.1:
            stand.leader.next_offset = 10 * chance.randrange(40)  # sent elsewhere
    await stand.settle()
    spans = stand.spans(FOLLOWER)
    assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]
    assert not spans or spans[0][0] == 0
    taken = b"".join(one.data for one in stand.got[FOLLOWER])
    assert stand.follower.next_offset == (spans[-1][1] if spans else 0)
    assert len(taken) >= sum(len(one) for one in log[: stand.follower.next_offset // 10])
    assert stand.budget.used_bytes == 0
