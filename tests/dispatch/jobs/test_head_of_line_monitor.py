"""The timer that looks at the heads of all lines."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.dispatch.jobs import head_of_line_monitor
from app.dispatch.jobs.head_of_line_monitor import HeadOfLineMonitor
from app.kernel.repeated_trouble import RepeatedTrouble


async def test_a_fault_in_one_job_leaves_the_others_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def look(name: str) -> None:
        looked.append(name)
        if name == "faulty":
            raise ZeroDivisionError

    monkeypatch.setattr(head_of_line_monitor, "HEAD_POLL_INTERVAL_S", 0.01)
    pumps: dict[str, Any] = {
        name: SimpleNamespace(free_head=lambda _, name=name: look(name)) for name in ("faulty", "sound")
    }
    incidents: list[str] = []
    sound = SimpleNamespace(
        withheld=SimpleNamespace(incident_message=lambda _: "3 messages failed"),
        receivers=SimpleNamespace(by_address={}),
        undecodable=RepeatedTrouble(),
    )
    runtimes: Any = {"faulty": None, "sound": sound}
    service = HeadOfLineMonitor(pumps, runtimes, lambda kind, key, *_: incidents.append(f"{kind} {key}"))
    await service.start()
    try:
        async with asyncio.timeout(120):
            while looked.count("sound") < 3:  # noqa: ASYNC110 - a timer of another task
                await asyncio.sleep(0.01)
    finally:
        await service.stop()
    assert set(incidents) == {"withheld sound"}
