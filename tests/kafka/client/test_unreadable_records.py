"""Any number of bad records makes one or two log lines with their count."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from app.kafka.client import unreadable_records as module
from app.kafka.client.unreadable_records import UnreadableRecords


def test_bad_records_of_a_read_share_one_log_line() -> None:
    unreadable = UnreadableRecords("records are no events", partition=3)
    with capture_logs() as logs:
        unreadable.report()
        for offset in range(10, 500):
            unreadable.add(offset, ValueError("no JSON"))
        unreadable.report()
        unreadable.report()
    (line,) = logs
    assert (line["event"], line["partition"], line["error"]) == ("records are no events", 3, "no JSON")
    assert (line["records"], line["offset"], line["last_offset"]) == (490, 10, 499)


async def test_bad_records_within_the_delay_share_a_log_line_and_all_are_counted(
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
