"""Many short stops of an event loop are noticed like one long one, and reported once."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.worker.runtime import loop_watch as module
from app.worker.runtime.loop_watch import CALM_SHARE, WINDOW_S, LoopStops, LoopWatch

ENOUGH_S = 120


def watch() -> tuple[LoopWatch, list[tuple[str, ...]]]:
    reported: list[tuple[str, ...]] = []
    return LoopWatch("w", lambda *incident: reported.append(incident[:4])), reported


def test_a_loop_busy_for_half_of_the_time_is_reported_once_until_it_was_calm() -> None:
    it, reported = watch()
    now_s = 100.0
    for _ in range(500):  # each is too short to be noticed alone
        now_s += 0.4
        it.look(now_s, 0.3)
    assert it.trouble(now_s) is not None
    (incident,) = reported
    assert incident[:2] == ("loop-busy", "w")
    assert "the event loop stood still for 30 of the last 60 s, at most 0.3 s at a time" in incident[2]
    now_s += WINDOW_S * (1 - CALM_SHARE)
    it.look(now_s, 0.0)
    assert it.trouble(now_s) is None
    it.look(now_s + 40, 40.0)
    assert len(reported) == 2, "one long stop is reported, too"


def test_a_loop_with_much_work_in_short_turns_is_not_reported() -> None:
    it, reported = watch()
    for at in range(10_000):
        it.look(100.0 + 0.115 * at, 0.015)
    assert not reported


async def test_work_that_yields_too_rarely_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_S", 1.0)
    it, reported = watch()
    await it.start()
    try:
        async with asyncio.timeout(ENOUGH_S):
            while not reported:
                began_s = time.process_time()
                while time.process_time() < began_s + 0.3:
                    pass
                await asyncio.sleep(0)
    finally:
        await it.stop()
    assert reported[0][0] == "loop-busy"


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=50))
def test_only_stops_within_the_window_count(looks: list[tuple[float, float]]) -> None:
    stops, now_s = LoopStops(), 0.0
    for passed_s, late_s in looks:
        now_s += passed_s
        stops.record(now_s, late_s)
        assert 0 <= stops.within_window(now_s).still_s <= WINDOW_S
    assert stops.within_window(now_s + WINDOW_S + 1).still_s == 0.0
