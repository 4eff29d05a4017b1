"""What is no forecast is passed over, and told by the leader: at once, then now and then, with how many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from app.kernel.repeated_trouble import TELL_AGAIN_S
from app.sizing.forecast_reader import ForecastReader
from app.sizing.forecasts import Forecasts


def record(offset: int, value: bytes | None = b"nonsense") -> Any:
    return SimpleNamespace(key=b"k", value=value, offset=offset)


def test_only_the_leader_tells_and_not_every_record() -> None:
    told: list[str] = []
    now_s, leads = [1000.0], [False]
    taker = ForecastReader(
        "t", Forecasts("east"), lambda _kind, _subject, message, _remedy: told.append(message),
        lambda: leads[0], lambda: now_s[0],
    )  # fmt: skip
    taker([record(0), record(1)])
    assert told == []
    leads[0] = True
    taker([record(2, None)])
    assert told == [], "a tombstone is nothing bad"
    taker([record(3)])
    assert len(told) == 1
    assert told[0].startswith("3 records of t are passed over; the last, at offset 3: is no forecast")
    taker([record(4), record(5)])
    now_s[0] += TELL_AGAIN_S
    taker([record(6)])
    assert [message.split()[0] for message in told] == ["3", "3"]
