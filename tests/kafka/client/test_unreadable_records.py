"""However many records are bad, the log has a line or two of them, which says how many."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from app.kafka.client import unreadable_records as module
from app.kafka.client.unreadable_records import UnreadableRecords


def test_all_bad_records_of_a_read_are_one_line_and_good_ones_none() -> None:
    unreadable = UnreadableRecords("records are no events", partition=3)
    with capture_logs() as logs:
        unreadable.report()
        for offset in range(10, 500):
            unreadable.add(offset, ValueError("no JSON"))
        unreadable.report()
        unreadable.report()
    (told,) = logs
    assert (told["event"], told["partition"], told["error"]) == ("records are no events", 3, "no JSON")
    assert (told["records"], told["offset"], told["last_offset"]) == (490, 10, 499)


async def test_what_comes_within_a_moment_is_one_line_and_none_is_left_untold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REPORT_DELAY_S", 0.01)
    unreadable = UnreadableRecords("records are no events")
    with capture_logs() as logs:
        for count in (1_000, 1):
            for offset in range(count):
                unreadable.add_for_later(offset, ValueError())
            async with asyncio.timeout(60):
                while not logs or logs[-1]["records"] != count:  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.01)
    assert len(logs) == 2
