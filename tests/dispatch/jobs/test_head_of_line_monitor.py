"""The timer that looks at the heads of all lines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.dispatch.jobs import head_of_line_monitor
from app.dispatch.jobs.head_of_line_monitor import HeadOfLineMonitor


async def test_a_fault_in_one_job_leaves_the_others_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def look(pump: Any, _: float) -> None:
        looked.append(pump)
        if pump == "faulty":
            raise ZeroDivisionError

    monkeypatch.setattr(head_of_line_monitor, "free_head", look)
    monkeypatch.setattr(head_of_line_monitor, "HEAD_POLL_INTERVAL_S", 0.01)
    pumps: dict[str, Any] = {"a": "faulty", "b": "sound"}
    service = HeadOfLineMonitor(pumps, lambda *_: None)
    await service.start()
    try:
        async with asyncio.timeout(120):
            while looked.count("sound") < 3:  # noqa: ASYNC110 - a timer of another task
                await asyncio.sleep(0.01)
    finally:
        await service.stop()
