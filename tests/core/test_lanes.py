"""Lanes: one message of a key at a time, in order."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert lanes.in_use == 0


def test_a_partition_in_order_is_one_lane_keyed_or_not() -> None:
    lanes: Lanes[int] = Lanes(single=True)
    assert lanes.offer_many([(None, 1), (b"a", 2), (None, 3)]) == [1]
    assert [lanes.finished(key) for key in (None, b"a", None)] == [2, 3, None]


def test_finishing_what_is_not_out_is_an_error_and_not_a_broken_order() -> None:
    lanes: Lanes[int] = Lanes()
    with pytest.raises(LaneError, match="none is out"):
        lanes.finished(b"a")


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
