"""Records that no table or worker wrote are refused with a reason, and the other records are decoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.audit.folds.tier import TierRecord
from app.audit.folds.window import WindowRecord
from app.controllog import codec
from spark.dashboard import decode
from switchyard.audit.model.totals import Totals
from tests.spark.conftest import NOON_MS
from tests.spark.regions import beat, status, tracker

DEEP = b'{"a":' * 100_000
WINDOW = f"orders/regional/east/60000/{NOON_MS}/0"
TOO_LARGE = 2**63


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        *((table, "k", DEEP) for table in (decode.ACTIVITY, decode.WORKLOADS)),
        (decode.ACTIVITY, "k", {"offset": TOO_LARGE, "at_ms": NOON_MS}),
        (decode.ACTIVITY, "k", {"offset": -1, "at_ms": NOON_MS}),
        (decode.ACTIVITY, "k", {"offset": 1, "at_ms": TOO_LARGE}),
        (decode.WINDOWS, WINDOW, WindowRecord(position=TOO_LARGE)),
        (decode.WINDOWS, WINDOW, WindowRecord(position=-2)),
        (decode.WINDOWS, WINDOW, WindowRecord(totals=Totals(count=TOO_LARGE))),
        (decode.WINDOWS, f"orders/regional/east/{TOO_LARGE}/{NOON_MS}/0", WindowRecord()),
        (decode.WINDOWS, f"orders/regional/east/60000/{NOON_MS}/{TOO_LARGE}", WindowRecord()),
        (decode.TIERS, "orders/regional/east/0", TierRecord({}, (), position=TOO_LARGE)),
        (decode.TRACKERS, "dispatch:g/t:t:0", tracker(NOON_MS, TOO_LARGE)),
    ],
)
def test_a_value_that_no_column_holds_is_refused_with_its_reason(table: str, key: str, value: Any) -> None:
    data = value if isinstance(value, bytes) else codec.encode(value)
    assert decode.entry(table, key.encode(), data, 5).reason


def test_the_largest_values_that_columns_hold_are_decoded() -> None:
    largest = TOO_LARGE - 1
    for value in (WindowRecord(), WindowRecord(position=largest, totals=Totals(count=largest))):
        assert decode.entry(decode.WINDOWS, WINDOW.encode(), codec.encode(value), 5).reason == ""
    encoded = msgspec.json.encode({"offset": largest, "at_ms": NOON_MS})
    assert decode.entry(decode.ACTIVITY, b"k", encoded, 5).position == largest


def test_heartbeats_that_no_column_holds_are_refused() -> None:
    assert decode.add_heartbeat({}, DEEP)
    good = beat("w", NOON_MS, status("dispatch:g/t:t:0", 0.5))
    assert decode.add_heartbeat({}, codec.encode(good)) == ""
    far = msgspec.structs.replace(good.jobs[0], high_watermark=TOO_LARGE)
    assert decode.add_heartbeat({}, codec.encode(msgspec.structs.replace(good, jobs=[far])))
