"""Durations in classes, and the stages of a partition's messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model import latency_trace
from app.dispatch.model.latency_trace import (
    ANSWERED,
    COMMITTED,
    FETCHED,
    GROWTH,
    LEAST_S,
    READY,
    SAVED,
    SENT,
    STAGES,
    WHOLE,
    Durations,
    PartitionTrace,
)

SECONDS = st.lists(st.floats(0, 3_600), min_size=1, max_size=200)


@dataclass(frozen=True)
class Sent:
    """As much of a record as a trace needs."""

    offset: int
    timestamp: int


def counted(seconds: list[float]) -> Durations:
    found = Durations({})
    for one in seconds:
        found.note(one)
    return found


def traced(from_offset: int = 0, wall_s: float = 0.0) -> tuple[dict[str, Durations], PartitionTrace]:
    stages = {name: Durations({}) for name in STAGES}
    return stages, PartitionTrace(stages, wall_s, from_offset)


@given(SECONDS, st.floats(0.01, 1.0))
def test_a_quantile_is_at_most_one_class_above_the_exact_one(seconds: list[float], share: float) -> None:
    found = counted(seconds)
    exact = next(
        one for index, one in enumerate(sorted(seconds), 1) if index >= share * len(seconds)
    )  # fmt: skip
    quantile_s = found.quantile_s(share)
    assert exact <= quantile_s * (1 + 1e-9)
    assert quantile_s <= max(exact * GROWTH * (1 + 1e-9), LEAST_S)
    assert (found.total, found.longest_s) == (len(seconds), max(seconds))


@given(SECONDS, SECONDS)
def test_a_sum_is_what_one_count_of_all_would_be(some: list[float], others: list[float]) -> None:
    found = counted(some)
    found.add(counted(others))
    assert found == counted([*some, *others])


def test_nothing_counted_has_no_quantile_and_a_negative_duration_is_none() -> None:
    found = Durations({})
    assert (found.total, found.quantile_s(0.99)) == (0, 0.0)
    found.note(-5.0)
    assert (found.total, found.quantile_s(1.0)) == (1, 0.0)


def test_each_message_has_the_times_of_its_own_chunk_in_every_stage() -> None:
    stages, trace = traced(from_offset=10, wall_s=1_000.0)
    trace.ready(12, fetched_s=1.0, now_s=1.1)
    trace.ready(15, fetched_s=2.0, now_s=2.4)
    trace.answered([Sent(11, 1_000_500), Sent(12, 1_001_000), Sent(14, 1_001_900)], sent_s=2.5, now_s=3.0)
    longest = {name: round(stages[name].longest_s, 6) for name in STAGES if stages[name].total}
    assert longest == {FETCHED: 1.0, READY: 0.4, SENT: 1.4, ANSWERED: 0.5, WHOLE: 2.5}
    assert {stages[name].total for name in longest} == {3}


def test_messages_from_before_the_trace_or_after_its_chunks_do_not_count() -> None:
    stages, trace = traced(from_offset=10)
    trace.ready(12, 1.0, 1.1)
    trace.answered([Sent(9, 0), Sent(12, 0)], 1.2, 1.3)
    assert not stages[WHOLE].total
    trace.forget(11)  # 11 has no answer yet
    trace.answered([Sent(11, 0)], 1.2, 1.3)
    assert stages[WHOLE].total == 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.data())
def test_what_is_forgotten_below_a_base_changes_nothing_above_it(
    sizes: list[int], data: st.DataObject
) -> None:
    stages, trace = traced()
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    for index, end in enumerate(ends):
        trace.ready(end, fetched_s=float(index), now_s=float(index))
    base = data.draw(st.integers(0, ends[-1]))
    trace.forget(base)
    left = [Sent(offset, 0) for offset in range(base, ends[-1])]
    trace.answered(left, sent_s=100.0, now_s=100.0)
    chunk_of = [index for index, size in enumerate(sizes) for _ in range(size)]
    expected = Counter(chunk_of[one.offset] for one in left)
    found = counted([])
    for index, count in expected.items():
        found.note(100.0 - index, count)
    assert stages[SENT] == found


def test_progress_counts_once_it_is_saved_and_behind_an_unfinished_message_only_then_committed() -> None:
    stages, trace = traced()
    trace.acknowledged(1, [Sent(5, 0), Sent(6, 0)], now_s=1.0)
    trace.acknowledged(2, [Sent(0, 0)], now_s=2.0)
    trace.saved(1, 3.0)
    trace.committed(1, 3.0)  # 0 is committed; but the answers before it in time wait for 7
    assert (stages[SAVED].total, stages[COMMITTED].total) == (2, 0)
    trace.saved(2, 4.0)
    trace.committed(7, 5.0)
    assert (stages[SAVED].total, stages[COMMITTED].total) == (3, 3)
    assert stages[COMMITTED].longest_s == pytest.approx(4.0)


def test_memory_is_bounded_and_what_is_beyond_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_trace, "MAX_CHUNKS", 5)
    monkeypatch.setattr(latency_trace, "MAX_WAITING", 5)
    stages, trace = traced()
    for offset in range(100):
        trace.ready(offset + 1, 0.0, 0.0)
        trace.acknowledged(offset, [Sent(offset, 0)], 0.0)
    trace.answered([Sent(offset, 0) for offset in range(100)], 0.0, 0.0)
    trace.saved(1_000, 1.0)
    assert (stages[WHOLE].total, stages[SAVED].total) == (4, 5)
    trace.forget(90)
    trace.ready(101, 50.0, 50.0)  # nothing says where this chunk begins
    trace.answered([Sent(95, 0), Sent(100, 0)], 60.0, 60.0)
    assert stages[WHOLE].total == 4


def test_a_record_without_a_time_counts_only_in_the_stages_that_need_none() -> None:
    stages, trace = traced()
    trace.ready(1, 1.0, 1.0)
    trace.answered([Sent(0, -1)], 2.0, 3.0)
    assert [stages[name].total for name in STAGES[:5]] == [0, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("counts", "longest_s"),
    [({-1: 1}, 0.0), ({1_000_000: 1}, 0.0), ({1: 0}, 0.0), ({1: -5}, 0.0), ({1: 1}, float("nan"))],
)
def test_impossible_figures_of_another_worker_are_found(counts: dict[int, int], longest_s: float) -> None:
    assert not Durations(counts, longest_s).is_valid
    assert counted([0.0, 1.0, 1e9]).is_valid
