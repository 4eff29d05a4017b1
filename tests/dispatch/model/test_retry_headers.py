"""The headers of a message in retry topics are read back as written, and its own headers stay unchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model import retry_headers
from app.dispatch.model.retry_headers import (
    MAX_REASON_CHARS,
    PREFIX,
    Header,
    MessageOrigin,
    moved_headers,
    read_origin,
)

OWN = sorted(
    {text for text in vars(retry_headers).values() if isinstance(text, str) and text.startswith(PREFIX)}
    - {PREFIX}
)

numbers = st.integers(0, 2**62)
small = st.integers(0, 10_000)
topics = st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True)
tiers = st.none() | st.integers(0, 9)
origins = st.builds(MessageOrigin, topics, small, numbers, numbers, small, small, tiers, small)
foreign: st.SearchStrategy[Header] = st.tuples(
    st.text(max_size=20).filter(lambda name: not name.startswith(PREFIX)), st.none() | st.binary(max_size=20)
)
garbage: st.SearchStrategy[Header] = st.tuples(
    st.sampled_from(OWN) | st.text(max_size=10).map(lambda rest: PREFIX + rest),
    st.none() | st.binary(max_size=300) | st.integers(-9, 10**25).map(lambda n: str(n).encode()),
)


def move(headers: list[Header], origin: MessageOrigin, tier: int | None, reason: str = "why") -> list[Header]:
    return moved_headers(headers, origin, tier=tier, reason=reason, code="UNAVAILABLE", moved_at_ms=5)


def read(headers: list[Header], tier: int | None) -> MessageOrigin:
    return read_origin(headers, topic="retry", partition=77, offset=88, timestamp_ms=99, tier=tier)


@given(origins, st.integers(0, 9), st.lists(foreign, max_size=5))
def test_an_origin_written_into_a_retry_topic_is_read_back(
    origin: MessageOrigin, tier: int, headers: list[Header]
) -> None:
    back = read(move(headers, origin, tier), tier)

    assert back == replace(
        origin,
        tier=tier,
        retry_count=origin.retry_count + 1,
        tier_attempt=origin.tier_attempt if tier == origin.tier else 0,
    )


@given(origins, st.lists(foreign, max_size=8), st.lists(garbage, max_size=4), tiers)
def test_the_producers_headers_are_untouched_and_in_order_and_come_first(
    origin: MessageOrigin, own: list[Header], old: list[Header], tier: int | None
) -> None:
    mixed = list(own)
    for index, header in enumerate(old):
        mixed.insert(2 * index, header)

    moved = move(mixed, origin, tier)

    assert moved[: len(own)] == own
    assert all(name.startswith(PREFIX) for name, _ in moved[len(own) :])


@given(origins, tiers, st.lists(garbage, max_size=6))
def test_headers_are_replaced_and_never_pile_up(
    origin: MessageOrigin, tier: int | None, old: list[Header]
) -> None:
    once = move(old, origin, tier)

    assert len({name for name, _ in once}) == len(once)
    assert move(once, origin, tier) == once


@given(st.lists(garbage | foreign, max_size=12), tiers)
def test_garbage_in_the_headers_never_raises_and_counts_as_absent(
    headers: list[Header], tier: int | None
) -> None:
    origin = read(headers, tier)

    assert 0 < len(origin.topic) <= 249
    assert origin.tier == tier
    counts = (origin.partition, origin.offset, origin.timestamp_ms, origin.attempt, origin.retry_count)
    assert all(0 <= number < 10**19 for number in counts)
    moved = move(headers, origin, 1)  # and what was read can be written again
    assert read(moved, 1).topic == origin.topic


@pytest.mark.parametrize("value", [None, b"", b"-1", b"1.5", b"1e3", " ٣".encode(), b"9" * 20, b"0x10"])
def test_a_number_that_cannot_be_read_counts_as_absent(value: bytes | None) -> None:
    headers: list[Header] = [(retry_headers.ORIGIN_TOPIC, b"orders"), (retry_headers.ORIGIN_OFFSET, value)]

    assert read(headers, 0).offset == 88


def test_a_record_without_an_origin_is_its_own_origin() -> None:
    assert read([("x", b"y")], 2) == MessageOrigin("retry", 77, 88, 99, tier=2)


def test_an_attempt_in_another_tier_does_not_count_here() -> None:
    origin = MessageOrigin("orders", 0, 1, 2, attempt=4, tier=0, tier_attempt=3)

    assert read(move([], origin, 0), 0).tier_attempt == 3
    assert read(move([], origin, 1), 1).tier_attempt == 0
    assert read(move([], origin, 0), 1).tier_attempt == 0  # copied by another program


def test_the_way_into_the_dead_letter_queue_is_no_retry() -> None:
    found = dict(move([], MessageOrigin("orders", 0, 1, 2, retry_count=3), None))

    assert found[retry_headers.RETRY_COUNT] == b"3"
    assert retry_headers.TIER not in found


@given(st.text(max_size=3 * MAX_REASON_CHARS))
def test_reasons_are_bounded_and_any_text_is_taken(reason: str) -> None:
    value = dict(move([], MessageOrigin("orders", 0, 1, 2), None, reason))[retry_headers.REASON]

    assert value is not None
    assert len(value.decode()) <= MAX_REASON_CHARS


@pytest.mark.parametrize("topic", [b"", b".\n", "töpic".encode(), b"\xff", b"x" * 250, b"a b"])
def test_an_origin_that_is_no_topic_counts_as_absent(topic: bytes) -> None:
    headers: list[Header] = [(retry_headers.ORIGIN_TOPIC, topic), (retry_headers.ORIGIN_OFFSET, b"5")]

    assert read(headers, 0) == MessageOrigin("retry", 77, 88, 99, tier=0)


@pytest.mark.parametrize(
    ("header", "most"),
    [(retry_headers.ORIGIN_PARTITION, 2**31 - 1), (retry_headers.ORIGIN_OFFSET, 2**63 - 1),
     (retry_headers.ORIGIN_TIMESTAMP, 2**63 - 1), (retry_headers.ATTEMPT, 2**31 - 1),
     (retry_headers.RETRY_COUNT, 2**31 - 1), (retry_headers.MERGES, 2**31 - 1)],
)  # fmt: skip
def test_a_number_too_large_for_kafka_and_the_contracts_counts_as_absent(header: str, most: int) -> None:
    def with_number(number: int) -> MessageOrigin:
        return read([(retry_headers.ORIGIN_TOPIC, b"orders"), (header, str(number).encode())], 0)

    assert with_number(most) != with_number(most + 1)
    assert with_number(most + 1) == read([(retry_headers.ORIGIN_TOPIC, b"orders")], 0)
