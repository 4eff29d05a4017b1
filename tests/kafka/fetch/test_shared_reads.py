"""A follower counts what it would have fetched, each batch once, whatever is lost or truncated."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kafka.fetch.shared_reads import AppendedBatch, AppendedBatches, SharedReadOffer, offered
from tests.examples import as_profile

LENGTHS = (1, 2, 5)


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=as_profile(300), deadline=None)
def test_offers_of_another_reader_are_taken_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    ends = [0]
    for _ in range(60):
        ends.append(ends[-1] + chance.choice(LENGTHS))
    position, leader = ends[chance.randrange(20)], 0
    taken: list[tuple[int, int]] = []
    while leader < len(ends) - 1:
        upto = min(len(ends) - 1, leader + chance.randrange(4))
        is_whole = chance.random() < 0.3
        if chance.random() < 0.2:  # its offer is lost
            leader = upto
            continue
        found = offered(position, ends[leader], ends[upto], is_whole=is_whole)
        inside = ends[leader] < position < ends[upto]
        if found is SharedReadOffer.TAKES:
            assert position == ends[leader] or (inside and not is_whole)
            taken.append((position, ends[upto]))
            position = ends[upto]
        elif found is SharedReadOffer.WAITS:
            assert position == ends[upto]
        else:
            assert position < ends[leader] or position > ends[upto] or (inside and is_whole)
            if chance.random() < 0.5:  # it reads for itself
                upto_own = min(len(ends) - 1, ends.index(position) + chance.randrange(1, 6))
                taken.append((position, ends[upto_own]))
                position = ends[upto_own]
        leader = upto if chance.random() < 0.9 else chance.randrange(len(ends))  # sent back
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(taken))


class Batch(NamedTuple):
    base: int
    end: int
    name: str
    epoch: int


class World:
    """A partition with successive leaders (some elected uncleanly), our lane and other writers.

    Its follower compares its position with the log in every new epoch, as the fetch service does.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.epoch, self.log = 0, list[Batch]()
        self.line = AppendedBatches(most_rows=chance.choice([2, 6, 100]))
        self.sent = 0  # of our source
        self.queue: deque[tuple[int, int]] = deque()  # sent, not appended: source start, length
        self.acknowledgements: deque[tuple[int, int, int]] = deque()  # source start, base, end
        self.known_epoch, self.counted = 0, list[Batch]()
        self.given = self.fetched = 0
        self.trouble = chance.choice([0.02, 0.05, 0.2])

    @property
    def end(self) -> int:
        return self.log[-1].end if self.log else 0

    @property
    def position(self) -> int:
        return self.counted[-1].end if self.counted else 0

    def send(self) -> None:
        length = self.chance.choice(LENGTHS)
        self.queue.append((self.sent, length))
        self.sent += length

    def append(self) -> None:
        """The leader appends our next batch; now and then twice, as if it had forgotten the producer."""
        if self.queue:
            start, length = self.queue.popleft()
            for _ in range(1 + (self.chance.random() < 0.03)):
                base = self.end
                self.log.append(Batch(base, base + length, f"{start}", self.epoch))
            answered_base = -1 if self.chance.random() < 0.03 else base
            self.acknowledgements.append((start, answered_base, answered_base + length))

    def others(self) -> None:
        length = self.chance.choice(LENGTHS)
        self.log.append(Batch(self.end, self.end + length, "other", self.epoch))

    def acknowledge(self) -> None:
        if self.acknowledgements:
            start, base, end = self.acknowledgements.popleft()
            self.line.acknowledged(start, AppendedBatch(base, end, b"%d" % start, 0))

    def elect(self) -> None:
        """Elects another leader, which may lack the log's end; acknowledgements of lost batches may be in
        flight."""
        self.epoch += 1
        if self.chance.random() < 0.6:
            del self.log[self.chance.randrange(len(self.log) + 1) :]
            for _ in range(self.chance.randrange(3)):
                self.others()

    def fetch(self) -> None:
        """The follower's own fetch: in a new epoch it first drops what the log has lost."""
        if self.known_epoch != self.epoch:
            self.known_epoch = self.epoch
            common = 0
            while common < min(len(self.log), len(self.counted)) and (
                self.log[common] == self.counted[common]
            ):
                common += 1
            del self.counted[common:]
            return
        more = self.log[len(self.counted) :][: self.chance.randrange(1, 4)]
        self.counted += more
        self.fetched += len(more)

    def round(self) -> None:
        """A round of `app.kafka.append.local_appends`, with any event before and after the answer."""
        self.line.begin_round(self.known_epoch)
        for _ in range(self.chance.randrange(4)):
            self.anything(in_round=True)
        epoch, log = self.epoch, list(self.log)
        for _ in range(self.chance.randrange(4)):
            self.anything(in_round=True)
        if self.chance.random() < 0.1 or self.line.epoch != epoch or self.known_epoch != self.line.epoch:
            self.line.stop()
            return
        self.line.confirm(self.sent)
        rows = self.line.take(self.position)
        if not rows:
            return
        assert rows[0].base_offset == self.position
        here = log[len(self.counted) :][: len(rows)]
        assert [(row.base_offset, row.next_offset, row.head) for row in rows] == [
            (batch.base, batch.end, batch.name.encode()) for batch in here
        ]
        assert {batch.epoch for batch in here} == {epoch}, "otherwise the next leader seems to have lost them"
        self.counted += here
        self.given += len(here)

    def anything(self, *, in_round: bool = False) -> None:
        acts = [self.send, self.append, self.append, self.acknowledge, self.acknowledge, self.acknowledge]
        rare = [self.others, self.fetch, self.fetch, self.fetch, self.elect]
        if self.chance.random() < self.trouble:
            self.chance.choice(rare)()
        elif in_round or self.chance.random() < 0.8:
            self.chance.choice(acts)()
        else:
            self.round()
            if not self.line.continues_at(self.position):
                self.fetch()


def story(seed: int) -> World:
    world = World(random.Random(seed))
    for _ in range(150):
        world.anything()
    world.fetch()  # in a new epoch this compares the logs
    assert world.counted == world.log[: len(world.counted)], "each batch of the log was counted once"
    return world


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=as_profile(400), deadline=None)
def test_appended_batches_equal_the_log_under_any_leader(seed: int) -> None:
    story(seed)


def test_most_appended_batches_are_shared() -> None:
    worlds = [story(seed) for seed in range(200)]
    assert sum(world.given for world in worlds) > sum(world.fetched for world in worlds) / 10


def test_memory_is_bounded_and_dropped_batches_are_fetched() -> None:
    line = AppendedBatches(most_rows=3)
    line.begin_round(0)
    line.confirm(0)
    for number in range(10):
        line.acknowledged(number, AppendedBatch(number, number + 1, b"", 0))
    line.begin_round(0)
    line.confirm(10)
    assert (line.take(0), line.continues_at(0), line.continues_at(7)) == ([], False, True)
    assert [row.base_offset for row in line.take(7)] == [7, 8, 9]
    assert (line.continues_at(10), line.continues_at(11)) == (True, False)


@pytest.mark.parametrize("position", [1, 2])
def test_position_within_a_batch_is_fetched(position: int) -> None:
    line = AppendedBatches()
    line.begin_round(4)
    line.confirm(0)
    line.acknowledged(0, AppendedBatch(0, 3, b"", 0))
    line.begin_round(4)
    line.confirm(3)
    assert line.take(position) == []
    assert not line.continues_at(position)
