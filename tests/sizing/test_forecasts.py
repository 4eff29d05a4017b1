"""Forecasts: never below what is measured; what is stale, bad or of elsewhere changes nothing and is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.sizing.forecasts import (
    HOUR_MS,
    HOURS_A_WEEK,
    KEPT_FORECASTS,
    MOST_HOURS,
    MOST_RECORD_BYTES,
    FleetForecastRecord,
    ForecastRules,
    Forecasts,
    Need,
    Record,
    WorkloadForecastRecord,
    decode,
    joined,
    key,
)
from app.sizing.recommendation import Figure

NOON_H = 1_763_812_800 // 3600  # Saturday, 2025-11-22T12:00Z
NOW_MS = NOON_H * HOUR_MS + 10 * 60_000
DAY_MS = 24 * HOUR_MS
MEASURED = Figure(3, "1 core")


def fleet(*workers: int | None, made_ms: int = NOW_MS - 2 * HOUR_MS, **fields: Any) -> FleetForecastRecord:
    """A forecast from this hour on, of four weeks."""
    known: dict[str, Any] = {
        "region": "east", "group": "", "from_hour": NOON_H, "history_hours": 4 * HOURS_A_WEEK, "error": 0.1,
        "method": "hour of the week",
    }  # fmt: skip
    return FleetForecastRecord(**known | {"made_ms": made_ms, "workers": workers} | fields)


def workload(*rates: float, **fields: Any) -> WorkloadForecastRecord:
    known: dict[str, Any] = {
        "region": "east", "workload": "billing/orders", "from_hour": NOON_H, "made_ms": NOW_MS - HOUR_MS,
        "history_hours": 4 * HOURS_A_WEEK, "error": 0.1, "method": "hour of the week", "margin": 1.5,
        "partitions": 8, "partitions_now": 4, "partitions_why": "of 600/s",
    }  # fmt: skip
    return WorkloadForecastRecord(**known | {"rates": rates} | fields)


def said(*records: Record, rules: ForecastRules = ForecastRules()) -> Forecasts:  # noqa: B008 - frozen
    found = Forecasts("east", rules)
    for record in records:
        assert found.accept(key(record), msgspec.json.encode(record), NOW_MS) == ""
    return found


def need(*records: Record, now_ms: int = NOW_MS, rules: ForecastRules = ForecastRules()) -> Need:  # noqa: B008
    found = said(*records, rules=rules).need("", now_ms)
    assert found is not None
    return found


def test_the_busier_of_this_hour_and_the_coming_one_counts_with_its_reason() -> None:
    found = need(fleet(5, 7, 9))
    assert (found.workers, found.hour, found.history_hours) == (7, "2025-11-22T13:00Z", 672)
    assert found.why == (
        "the forecast for Saturday 22 Nov 13:00 UTC says 7 (made 2 h ago of 4 weeks, 10% off in the last of "
        "them)"
    )
    figure = joined(MEASURED, found)
    assert figure.value == 7
    assert figure.why.endswith("; by what is measured now 3: 1 core")
    far = ForecastRules(look_ahead_s=3 * 3600)
    assert need(fleet(5, 7, 9), rules=far).workers == 9
    assert need(fleet(5, 7), rules=ForecastRules(look_ahead_s=0)).workers == 5


def test_of_an_hour_the_newest_record_counts_that_covers_it() -> None:
    older = fleet(2, 2, 2, made_ms=NOW_MS - DAY_MS)
    newer = fleet(6, 6, made_ms=NOW_MS - 60_000, from_hour=NOON_H + 1)
    assert need(older, newer).workers == 6
    assert need(newer, older, rules=ForecastRules(look_ahead_s=0)).workers == 2, "the newer one begins later"


# Published an hour ago, of a store that nobody brought up to date for nine days; its hours last.
STALE = fleet(*[9] * 2 * HOURS_A_WEEK, made_ms=NOW_MS - HOUR_MS, from_hour=NOON_H - 9 * 24)


@pytest.mark.parametrize(
    ("record", "now_ms", "words"),
    [
        (fleet(9, 9), NOW_MS + 3 * HOUR_MS, "its hours are over"),
        (fleet(9, 9, made_ms=NOW_MS - 8 * DAY_MS), NOW_MS, "older than 7 days"),
        (STALE, NOW_MS, "its history ended on Thursday 13 Nov 12:00 UTC, more than 7 days ago"),
        (fleet(9, 9, error=0.51), NOW_MS, "51% off, above 50%"),
        (fleet(9, 9, error=None), NOW_MS, "not known yet"),
        (fleet(None, None), NOW_MS, "no number of workers that is enough"),
        (fleet(9, 9, from_hour=NOON_H + 5), NOW_MS, "begins on Saturday 22 Nov 17:00 UTC"),
    ],
)
def test_what_does_not_count_is_told_and_changes_nothing(
    record: FleetForecastRecord, now_ms: int, words: str
) -> None:
    found = need(record, now_ms=now_ms)
    assert found.workers is None
    assert words in found.why
    figure = joined(MEASURED, found)
    assert figure.value == 3
    assert figure.why.startswith("1 core; ")


def test_an_hour_that_does_not_count_is_told_beside_one_that_does() -> None:
    older, newer = fleet(4, made_ms=NOW_MS - DAY_MS), fleet(9, 9, from_hour=NOON_H + 1, error=0.9)
    found = need(older, newer)
    assert found.workers == 4
    assert "90% off" in found.why


def test_forecasts_may_be_switched_off() -> None:
    found = need(fleet(9, 9), rules=ForecastRules(use=False))
    assert found.workers is None
    assert "switched off" in found.why


def test_a_fleet_that_nobody_forecast_is_as_measured() -> None:
    assert said(fleet(9)).need("gold", NOW_MS) is None
    assert joined(MEASURED, None) is MEASURED


def test_a_workloads_busiest_hour_to_come_has_its_margin() -> None:
    forecasts = said(workload(400.0, 100.0, 300.0))
    busiest = forecasts.workload("billing/orders", NOW_MS)
    assert busiest is not None
    assert (busiest.rate_per_s, busiest.hour, busiest.partitions) == (600.0, "2025-11-22T12:00Z", 8)
    later = forecasts.workload("billing/orders", NOW_MS + HOUR_MS)
    assert later is not None
    assert (later.rate_per_s, later.hour) == (450.0, "2025-11-22T14:00Z")
    assert forecasts.workload("billing/orders", NOW_MS + 3 * HOUR_MS) is None
    assert forecasts.workload("no/such", NOW_MS) is None


def test_a_tombstone_takes_a_forecast_back_and_a_day_has_one() -> None:
    forecasts = said(fleet(9, 9), fleet(5, 5, made_ms=NOW_MS - HOUR_MS))
    assert key(fleet(1)) == b'["fleet","","2025-11-22"]'
    found = forecasts.need("", NOW_MS)
    assert found is not None
    assert found.workers == 5
    forecasts.accept(key(fleet(1)), None, NOW_MS)
    assert forecasts.need("", NOW_MS) is None


def test_only_the_newest_are_kept_in_whatever_order_they_come() -> None:
    made = [fleet(day, day, made_ms=NOW_MS - day * DAY_MS) for day in (3, 1, 5, 2, 4, 6)]
    forecasts = said(*made, rules=ForecastRules(max_age_s=90 * 86_400))
    (kept,) = forecasts._kept.values()
    assert sorted(record.workers[0] for record, _ in kept.values()) == [1, 2, 3]  # type: ignore[union-attr]
    assert len(forecasts._names) == KEPT_FORECASTS


BAD = [
    (b"", "no forecast"),
    (b"{", "no forecast"),
    (b"\xff\xfe", "no forecast"),
    (b"[" * 40_000, "no forecast"),
    (b'{"kind":"fleet"}', "missing required field"),
    (b'{"kind":"ship"}', "Invalid value 'ship'"),
    (b'{"kind":"fleet","workers":' + b"9" * 60_000 + b"}", "no forecast"),
    (b" " * (MOST_RECORD_BYTES + 1), "more than a forecast has"),
    (msgspec.json.encode(fleet(-1)), "`$.workers[0]`"),
    (msgspec.json.encode(fleet(10_001)), "`$.workers[0]`"),
    (msgspec.json.encode(fleet(*[1] * (MOST_HOURS + 1))), "`$.workers`"),
    (msgspec.json.encode(fleet()), "`$.workers`"),
    (msgspec.json.encode(fleet(1, format=2)), "`$.format`"),
    (msgspec.json.encode(fleet(1, from_hour=10**12)), "`$.from_hour`"),
    (msgspec.json.encode(fleet(1, group="g" * 513)), "`$.group`"),
    (msgspec.json.encode(workload(float("nan"))), "no forecast"),
    (msgspec.json.encode(fleet(1)).replace(b"0.1", b"1e999"), "no forecast"),
    (msgspec.json.encode(fleet(1, region="west")), "is of region 'west'"),
    (msgspec.json.encode(fleet(1, made_ms=NOW_MS + 2 * HOUR_MS)), "in the future"),
]


@pytest.mark.parametrize(("value", "words"), BAD)
def test_what_is_no_forecast_is_passed_over_counted_and_told(value: bytes, words: str) -> None:
    forecasts = said(fleet(5, 5))
    assert words in forecasts.accept(b"other", value, NOW_MS)
    assert (forecasts.passed_over, words in forecasts.last_passed_over) == (1, True)
    found = forecasts.need("", NOW_MS)
    assert found is not None
    assert found.workers == 5


def test_a_flood_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.sizing.forecasts.MOST_BYTES", 10_000)
    forecasts = Forecasts("east")
    for number in range(1000):
        record = fleet(1, group=f"g{number}")
        forecasts.accept(key(record), msgspec.json.encode(record), NOW_MS)
    assert forecasts._nbytes <= 10_000
    assert len(forecasts._names) == sum(map(len, forecasts._kept.values())) < 100
    assert "more than 10,000 bytes" in forecasts.last_passed_over
    assert forecasts.accept(b"k" * 3000, msgspec.json.encode(fleet(1)), NOW_MS) != ""
    assert forecasts.accept(None, msgspec.json.encode(fleet(1)), NOW_MS) != ""


HOURS = st.integers(NOON_H - 30, NOON_H + 30)
FLEETS = st.builds(
    lambda workers, from_hour, made_h, error: fleet(
        *workers, from_hour=from_hour, made_ms=NOW_MS - made_h * HOUR_MS, error=error
    ),
    st.lists(st.none() | st.integers(0, 50), min_size=1, max_size=40),
    HOURS,
    st.integers(0, 400) | st.just(1),
    st.none() | st.floats(0, 2) | st.just(0.0),
)


@given(
    records=st.lists(FLEETS, max_size=6),
    measured=st.integers(0, 50),
    look_ahead_s=st.integers(0, 10 * 3600),
    max_error=st.floats(0, 1),
)
@example(records=[fleet(2, 2)], measured=7, look_ahead_s=3600, max_error=0.5)
@example(records=[fleet(9, 9, made_ms=NOW_MS - 8 * DAY_MS)], measured=7, look_ahead_s=3600, max_error=0.5)
def test_never_below_what_is_measured_and_only_by_what_counts(
    records: list[FleetForecastRecord], measured: int, look_ahead_s: int, max_error: float
) -> None:
    rules = ForecastRules(look_ahead_s=look_ahead_s, max_error=max_error)
    forecasts = said(*records, rules=rules)
    figure = joined(Figure(measured, "so"), forecasts.need("", NOW_MS))
    assert figure.value is not None
    assert figure.value >= measured
    hours = range(NOON_H, (NOW_MS + look_ahead_s * 1000) // HOUR_MS + 1)
    counting = {
        record.workers[hour - record.from_hour]
        for record in records
        if NOW_MS - record.made_ms <= rules.max_age_s * 1000
        and record.error is not None
        and record.error <= max_error
        for hour in hours
        if 0 <= hour - record.from_hour < len(record.workers)
    } - {None}
    assert figure.value in {measured, *counting}
    if not counting:
        assert figure.value == measured


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_bytes_whatever_raise_anything_else(at: bytes, value: bytes) -> None:
    Forecasts("east").accept(at, value, NOW_MS)


@given(FLEETS)
def test_a_record_reads_back_as_it_was(record: FleetForecastRecord) -> None:
    assert decode(msgspec.json.encode(record)) == record
