"""Lanes: one message of a key at a time, in order, also through retry topics and after a kill."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.core.lanes import LaneError, Lanes

keys = st.none() | st.sampled_from([b"", b"a", b"b", b"c" * 1_000_000])


def test_the_second_message_of_a_key_waits_for_the_first_and_other_keys_do_not() -> None:
    lanes: Lanes[int] = Lanes()
    assert lanes.offer(b"a", 1) == 1
    assert lanes.offer(b"a", 2) is None
    assert lanes.offer(b"b", 3) == 3
    assert (lanes.in_use, lanes.waiting) == (2, 1)
    assert lanes.finished(b"a") == 2
    assert lanes.finished(b"a") is None
    assert lanes.finished(b"b") is None
    assert (lanes.in_use, lanes.waiting) == (0, 0)


def test_messages_without_a_key_never_wait() -> None:
    lanes: Lanes[int] = Lanes()
    assert lanes.offer_many([(None, number) for number in range(1, 100)]) == list(range(1, 100))
    assert lanes.finished(None) is None
    lanes.park(None)
    assert not lanes.is_parked(None)
    assert lanes.in_use == lanes.parked == 0


def test_a_partition_in_order_is_one_lane_keyed_or_not() -> None:
    lanes: Lanes[int] = Lanes(single=True)
    assert lanes.offer_many([(None, 1), (b"a", 2), (None, 3)]) == [1]
    assert [lanes.finished(key) for key in (None, b"a", None)] == [2, 3, None]
    lanes.park(b"a")
    assert lanes.is_parked(None)
    assert lanes.unpark(None)


def test_a_key_stays_parked_until_all_that_moved_on_is_finished() -> None:
    lanes: Lanes[int] = Lanes()
    lanes.park(b"a", 2)
    lanes.park(b"a")
    assert [lanes.unpark(b"a") for _ in range(3)] == [False, False, True]
    assert not lanes.is_parked(b"a")
    assert lanes.parked == lanes.parked_keys == 0


def test_finishing_what_is_not_out_is_an_error_and_not_a_broken_order() -> None:
    lanes: Lanes[int] = Lanes()
    with pytest.raises(LaneError, match="none is out"):
        lanes.finished(b"a")
    with pytest.raises(LaneError, match="has moved on"):
        lanes.unpark(b"a")
    lanes.offer(b"a", 1)
    lanes.park(b"a")
    lanes.clear()
    with pytest.raises(LaneError):
        lanes.finished(b"a")
    assert not lanes.is_parked(b"a")


@given(st.lists(st.tuples(keys, st.integers(0, 3)), max_size=60), st.booleans())
def test_each_key_comes_out_in_order_one_at_a_time_and_nothing_is_kept(
    offers: list[tuple[bytes | None, int]], single: bool
) -> None:
    lanes: Lanes[int] = Lanes(single=single)
    out: list[tuple[bytes | None, int]] = []
    came: dict[object, list[int]] = defaultdict(list)
    lane_of = (lambda _key: 0) if single else (lambda key: key)

    def take(key: bytes | None, item: int) -> None:
        if single or key is not None:
            assert lane_of(key) not in [lane_of(other) for other, _ in out]
        out.append((key, item))
        came[lane_of(key)].append(item)

    key_of = {}
    for number, (key, finishes) in enumerate(offers, start=1):
        key_of[number] = key
        if lanes.offer(key, number) is not None:
            take(key, number)
        for _ in range(finishes):
            if out:
                following = lanes.finished(out.pop(number % len(out))[0])
                if following is not None:
                    take(key_of[following], following)
    while out:
        following = lanes.finished(out.pop()[0])
        if following is not None:
            take(key_of[following], following)
    assert all(items == sorted(items) for items in came.values())
    assert sum(map(len, came.values())) == len(offers)
    assert lanes.in_use == lanes.waiting == 0


class Retries(RuleBasedStateMachine):
    """A main topic and two retry tiers, run by the module's rules, with failures and kills anywhere."""

    @initialize()
    def start(self) -> None:
        self.logs: list[list[tuple[bytes, int]]] = [[], [], []]
        self.finished: list[set[int]] = [set(), set(), set()]
        self.done: dict[bytes, set[int]] = defaultdict(set)
        self.produced: dict[bytes, int] = defaultdict(int)
        self.take_over()

    def take_over(self) -> None:
        """A new owner: knows the logs and what was saved as finished, nothing else (rule 7)."""
        self.lanes: list[Lanes[int]] = [Lanes(), Lanes(), Lanes()]
        self.next = [0, 0, 0]
        self.out: list[tuple[int, int]] = []
        for later in (1, 2):
            for offset, (key, _) in enumerate(self.logs[later]):
                if offset not in self.finished[later]:
                    for stage in range(later):
                        self.lanes[stage].park(key)

    @rule(key=st.sampled_from([b"a", b"b"]))
    def produce(self, key: bytes) -> None:
        self.logs[0].append((key, self.produced[key]))
        self.produced[key] += 1

    @rule(stage=st.integers(0, 2), count=st.integers(1, 4))
    def read(self, stage: int, count: int) -> None:
        for _ in range(count):
            offset = self.next[stage]
            if offset == len(self.logs[stage]):
                return
            self.next[stage] += 1
            if offset in self.finished[stage]:
                continue
            if self.lanes[stage].offer(self.logs[stage][offset][0], offset) is not None:
                self.turn(stage, offset)

    def turn(self, stage: int, offset: int) -> None:
        """It is this message's turn (rule 1)."""
        key, number = self.logs[stage][offset]
        if self.lanes[stage].is_parked(key):
            self.move(stage, offset)
            return
        assert all(earlier in self.done[key] for earlier in range(number)), "overtaken"
        assert all(self.logs[at][of][0] != key for at, of in self.out), "two of a key at once"
        self.out.append((stage, offset))

    def move(self, stage: int, offset: int) -> None:
        """Rule 2."""
        key, number = self.logs[stage][offset]
        self.logs[stage + 1].append((key, number))
        self.lanes[stage].park(key)
        self.end(stage, offset)

    def end(self, stage: int, offset: int) -> None:
        self.finished[stage].add(offset)
        following = self.lanes[stage].finished(self.logs[stage][offset][0])
        if following is not None:
            self.turn(stage, following)

    @rule(pick=st.integers(0, 9), succeeds=st.booleans())
    def answer(self, pick: int, succeeds: bool) -> None:
        if not self.out:
            return
        stage, offset = self.out.pop(pick % len(self.out))
        key, number = self.logs[stage][offset]
        if not succeeds and stage < 2:
            self.move(stage, offset)
            return
        self.done[key].add(number)  # acknowledged, or in the DLQ
        for earlier in range(stage):
            self.lanes[earlier].unpark(key)
        self.end(stage, offset)

    @rule()
    def kill(self) -> None:
        self.take_over()

    @rule(pick=st.integers(0, 9))
    def kill_between_copy_and_mark(self, pick: int) -> None:
        for stage, offset in self.out[pick % len(self.out) :] if self.out else []:
            if stage < 2:
                self.logs[stage + 1].append(self.logs[stage][offset])
                break
        self.take_over()

    @invariant()
    def what_is_parked_is_what_lies_unfinished_further_on(self) -> None:
        for stage, lanes in enumerate(self.lanes):
            later = sum(len(self.logs[at]) - len(self.finished[at]) for at in range(stage + 1, 3))
            assert lanes.parked == later

    def teardown(self) -> None:
        for _ in range(10_000):
            for stage in (2, 1, 0):
                self.read(stage, 100)
            if not self.out:
                break
            self.answer(0, True)
        assert all(len(self.done[key]) == count for key, count in self.produced.items()), "something is stuck"


TestRetries = Retries.TestCase
