"""Trouble that repeats by the thousand is reported at once, and then seldom."""

from __future__ import annotations

from app.kernel.repeated_trouble import REPORT_INTERVAL_S, RepeatedTrouble


def test_repeated_trouble_is_reported_at_once_and_then_seldom_with_its_count() -> None:
    trouble = RepeatedTrouble()
    assert trouble.due(0.0) is None
    trouble.record("first")
    assert trouble.due(0.0) == (1, "first")
    for number in range(100):
        trouble.record(f"again {number}")
    assert trouble.due(1.0) is None
    assert trouble.due(REPORT_INTERVAL_S) == (100, "again 99")
    assert trouble.due(3 * REPORT_INTERVAL_S) is None
    assert trouble.count == 101
