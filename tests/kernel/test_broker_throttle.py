"""Delays by brokers' quotas are remembered for as long as they matter."""

from __future__ import annotations

from app.kernel.broker_throttle import FETCH, HELD_S, OTHER, PRODUCE, BrokerThrottle, ThrottleMeter


def test_a_delay_is_shown_until_it_is_over_and_a_while_longer_and_answers_without_one_do_not_hide_it() -> (
    None
):
    meter = ThrottleMeter("east")
    assert meter.throttles(0.0) == []
    meter.note(1, 2_000, now_s=100.0)
    meter.note(1, 0, now_s=101.0)
    assert meter.throttles(101.0 + HELD_S) == [BrokerThrottle("east", FETCH, 2_000)]
    assert meter.throttles(102.0 + HELD_S) == []


def test_each_kind_of_request_has_its_newest_delay() -> None:
    meter = ThrottleMeter("east")
    for api_key, delay_ms in ((0, 5), (1, 10), (1, 7), (8, 3)):
        meter.note(api_key, delay_ms, now_s=0.0)
    found = {one.request: one.delay_ms for one in meter.throttles(0.0)}
    assert found == {PRODUCE: 5, FETCH: 7, OTHER: 3}
