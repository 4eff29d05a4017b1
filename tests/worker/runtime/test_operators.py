"""Operators' acts on jobs of every kind; the acts of one kind are tested in its room."""

from __future__ import annotations

from typing import Any

import pytest

from app.controllog.events import ALL, Paused
from app.worker.jobs.operator_acts import OperationRefused
from app.worker.runtime.operators import OperatorActions
from tests.web.runtime_fake import FakeControlLog

KEY = "billing/orders"


async def test_pauses_are_written_when_they_change_something_and_a_resume_of_all_always() -> None:
    log: Any = FakeControlLog()
    unused: Any = None
    pause = OperatorActions(unused, log, unused).pause
    assert await pause(KEY, [3, 1], True, "ann")
    assert not await pause(KEY, [1], True, "ann")
    assert log.view.paused[KEY] == {1, 3}
    assert await pause(KEY, [ALL], True, "ann")
    with pytest.raises(OperationRefused, match="whole workload"):
        await pause(KEY, [1], False, "ann")
    assert await pause(KEY, [ALL], False, "ann")
    assert not await pause(KEY, [ALL], False, "ann")
    assert KEY not in log.view.paused
    events = [event for event in log.appended if isinstance(event, Paused)]
    assert [(event.partition, event.paused) for event in events] == [
        (1, True), (3, True), (ALL, True), (ALL, False), (ALL, False),
    ]  # fmt: skip
