"""Workers use the brokers' clock where the host's clock is wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.kernel.clock import TOLERANCE_MS, Clock

NOW_MS = 1_790_000_000_000


class Host:
    """A host whose wall clock is wrong by `skew_ms`, and whose steady clock starts anywhere."""

    def __init__(self, skew_ms: int = 0) -> None:
        self.true_ms = NOW_MS
        self.skew_ms = skew_ms
        self.clock = Clock(lambda: self.true_ms + self.skew_ms, lambda: self.true_ms - NOW_MS + 77)

    def query_broker(self, request_ms: int, response_ms: int) -> None:
        """A broker reads its clock after the request's time; its answer takes the response's time."""
        sent_ms = self.clock.steady_ms()
        self.true_ms += request_ms
        broker_ms = self.true_ms
        self.true_ms += response_ms
        self.clock.observe(broker_ms, sent_ms)


def test_before_the_first_answer_of_the_brokers_the_time_is_the_hosts() -> None:
    host = Host(7_200_000)
    assert host.clock.now_ms() == NOW_MS + 7_200_000
    assert host.clock.host_offset_ms is None


def test_a_host_that_is_right_keeps_its_own_time_to_the_millisecond() -> None:
    host = Host(40)
    host.query_broker(3, 5)
    assert host.clock.now_ms() == host.true_ms + 40


@given(
    skew_ms=st.integers(-(10**9), 10**9),
    answers=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1),
)
def test_the_time_is_the_brokers_within_the_time_of_an_answer(
    skew_ms: int, answers: list[tuple[int, int]]
) -> None:
    host = Host(skew_ms)
    best_ms = 10**9
    for request_ms, response_ms in answers:
        host.query_broker(request_ms, response_ms)
        best_ms = min(best_ms, request_ms + response_ms)
        known = host.clock.host_offset_ms
        assert known is not None
        assert abs(known - skew_ms) <= best_ms + 1
        assert abs(host.clock.now_ms() - host.true_ms) <= TOLERANCE_MS + best_ms + 1


def test_a_clock_that_jumps_moves_nothing_also_before_the_next_answer() -> None:
    host = Host()
    host.query_broker(1, 1)
    for jump_ms in (72_000_000, -72_000_000, 5_000):
        host.skew_ms = jump_ms
        host.true_ms += 250
        assert abs(host.clock.now_ms() - host.true_ms) <= 2
    host.skew_ms = 0
    assert host.clock.now_ms() == host.true_ms


def test_brokers_whose_own_clock_was_set_are_followed_at_once() -> None:
    host = Host()
    host.query_broker(1, 1)
    host.clock.observe(host.true_ms + 60_000, host.clock.steady_ms())
    assert abs(host.clock.now_ms() - host.true_ms - 60_000) <= 1
