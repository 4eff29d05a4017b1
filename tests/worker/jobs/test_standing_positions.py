"""The lag in time of jobs that do not know how old their first unfinished message is."""

from __future__ import annotations

from app.controllog.codec import JobStatus
from app.worker.jobs.standing_positions import StandingPositions

JOB = "dispatch:g/t:t:0"


def test_while_nothing_can_be_read_the_lag_in_time_grows_from_when_the_position_stood_still() -> None:
    def age(at_ms: int, **fields: int) -> int:
        (found,) = positions.with_ages([JobStatus(job=JOB, state="flowing", **{"epoch": 1, **fields})], at_ms)
        return found.oldest_ms

    positions = StandingPositions()
    assert age(1_000, committed=5, high_watermark=5) == -1, "nothing waits"
    assert age(2_000, committed=5, high_watermark=9) == 2_000
    assert age(9_000, committed=5, high_watermark=12) == 2_000
    assert age(9_000, committed=5, high_watermark=12, oldest_ms=1_500) == 1_500, "what is known counts"
    assert age(10_000, committed=6, high_watermark=12) == 10_000
    assert age(11_000, committed=6, high_watermark=12, epoch=2) == 11_000
    assert positions.with_ages([], 12_000) == []
    assert age(13_000, committed=6, high_watermark=12, epoch=2) == 13_000
