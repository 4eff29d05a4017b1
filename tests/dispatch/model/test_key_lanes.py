"""Lanes: one message of a key at a time, in order."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.dispatch.model.key_lanes import KeyLanes, LaneError

keys = st.none() | st.sampled_from([b"", b"a", b"b", b"c" * 1_000_000])


def test_the_second_message_of_a_key_waits_for_the_first_and_other_keys_do_not() -> None:
    lanes: KeyLanes[int] = KeyLanes()
    assert lanes.offer(b"a", 1) == 1
    assert lanes.offer(b"a", 2) is None
    assert lanes.offer(b"b", 3) == 3
    assert (lanes.in_use, lanes.waiting) == (2, 1)
    assert lanes.finished(b"a") == 2
    assert lanes.finished(b"a") is None
    assert lanes.finished(b"b") is None
    assert (lanes.in_use, lanes.waiting) == (0, 0)


def test_messages_without_a_key_never_wait() -> None:
    lanes: KeyLanes[int] = KeyLanes()
    assert lanes.offer_many([(None, number) for number in range(1, 100)]) == list(range(1, 100))
    assert lanes.finished(None) is None
    assert lanes.in_use == 0


def test_a_partition_in_order_is_one_lane_keyed_or_not() -> None:
    lanes: KeyLanes[int] = KeyLanes(single=True)
    assert lanes.offer_many([(None, 1), (b"a", 2), (None, 3)]) == [1]
    assert [lanes.finished(key) for key in (None, b"a", None)] == [2, 3, None]


def test_finishing_a_message_that_is_not_out_is_an_error_and_not_a_broken_order() -> None:
    lanes: KeyLanes[int] = KeyLanes()
    with pytest.raises(LaneError, match="none is out"):
        lanes.finished(b"a")


class Turns(RuleBasedStateMachine):
    """Lanes against a plain list a lane, whose first is out."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    @initialize(single=st.booleans())
    def begin(self, single: bool) -> None:
        self.single = single
        self.lanes: KeyLanes[tuple[bytes | None, int]] = KeyLanes(single=single)
        self.model: dict[bytes, list[tuple[bytes | None, int]]] = {}

    def lane_of(self, key: bytes | None) -> bytes | None:
        return b"" if self.single else key

    @rule(key=keys)
    def offer(self, key: bytes | None) -> None:
        self.number += 1
        item, lane = (key, self.number), self.lane_of(key)
        queue = [] if lane is None else self.model.setdefault(lane, [])
        assert self.lanes.offer(key, item) == (None if queue else item)
        queue.append(item)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def finish_what_is_out(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(self.model)))
        (key, _), *rest = self.model[lane]
        assert self.lanes.finished(key) == (rest[0] if rest else None)
        if rest:
            self.model[lane] = rest
        else:
            del self.model[lane]

    @precondition(lambda self: self.number)
    @rule(data=st.data())
    def take_out_of_turn(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.number))
        waiting = [(queue, item) for queue in self.model.values() for item in queue[1:] if item[1] == number]
        found = self.lanes.withdraw(lambda item: item[1] == number)
        assert found == (waiting[0][1] if waiting else None), "only what waits, never what is out"
        for queue, item in waiting:
            queue.remove(item)

    @invariant()
    def nothing_else_is_kept(self) -> None:
        assert self.lanes.in_use == len(self.model)
        assert self.lanes.waiting == sum(len(queue) - 1 for queue in self.model.values())


TestTurns = Turns.TestCase
