"""The clock that workers go by is the brokers' wherever the host's is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.kernel.clock import TOLERANCE_MS, Clock

NOW_MS = 1_790_000_000_000


class Host:
    """A host whose wall clock is ahead of the true one, and whose steady clock counts from anywhere."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.true_ms = NOW_MS
        self.ahead_ms = ahead_ms
        self.clock = Clock(lambda: self.true_ms + self.ahead_ms, lambda: self.true_ms - NOW_MS + 77)

    def ask(self, there_ms: int, back_ms: int) -> None:
        """A broker tells its time between the two."""
        sent_ms = self.clock.steady_ms()
        self.true_ms += there_ms
        broker_ms = self.true_ms
        self.true_ms += back_ms
        self.clock.observe(broker_ms, sent_ms)


def test_before_the_first_answer_of_the_brokers_the_time_is_the_hosts() -> None:
    host = Host(7_200_000)
    assert host.clock.now_ms() == NOW_MS + 7_200_000
    assert host.clock.host_offset_ms is None


def test_a_host_that_is_right_keeps_its_own_time_to_the_millisecond() -> None:
    host = Host(40)
    host.ask(3, 5)
    assert host.clock.now_ms() == host.true_ms + 40


@given(
    ahead_ms=st.integers(-(10**9), 10**9),
    answers=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1),
)
def test_the_time_is_the_brokers_within_the_time_of_an_answer(
    ahead_ms: int, answers: list[tuple[int, int]]
) -> None:
    host = Host(ahead_ms)
    best_ms = 10**9
    for there_ms, back_ms in answers:
        host.ask(there_ms, back_ms)
        best_ms = min(best_ms, there_ms + back_ms)
        known = host.clock.host_offset_ms
        assert known is not None
        assert abs(known - ahead_ms) <= best_ms + 1
        assert abs(host.clock.now_ms() - host.true_ms) <= TOLERANCE_MS + best_ms + 1


def test_a_clock_that_jumps_moves_nothing_also_before_the_next_answer() -> None:
    host = Host()
    host.ask(1, 1)
    for jump_ms in (72_000_000, -72_000_000, 5_000):
        host.ahead_ms = jump_ms
        host.true_ms += 250
        assert abs(host.clock.now_ms() - host.true_ms) <= 2
    host.ahead_ms = 0
    assert host.clock.now_ms() == host.true_ms


def test_brokers_whose_own_clock_was_set_are_followed_at_once() -> None:
    host = Host()
    host.ask(1, 1)
    host.clock.observe(host.true_ms + 60_000, host.clock.steady_ms())
    assert abs(host.clock.now_ms() - host.true_ms - 60_000) <= 1
