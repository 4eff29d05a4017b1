"""One series of hours, forecast: an hour-of-week profile times a trend, as the package states. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

HOURS_A_WEEK, HOURS_A_DAY = 168, 24
MOST_GROWTH = 4.0  # of the last week's mean: what is beyond is no trend, but a mistake or a launch
LEAST_WEEK_H = 84  # of a week that may count in the trend


class Forecast(NamedTuple):
    """What is to come.

    Attributes:
        hours: the mean of each hour to come.
        margin: what real hours were above their forecast, as a factor (at least 1), at the percentile asked.
        method: in words.
        weekly_growth: of the trend, as a share of the last week's mean.
        error: mean absolute error of the last week, forecast from those before, as a share of its mean; None:
            there is too little history to tell.
    """

    hours: list[float]
    margin: float
    method: str
    weekly_growth: float
    error: float | None

    @property
    def busiest(self) -> float:
        """The highest hour with its margin."""
        return max(self.hours, default=0.0) * self.margin


def forecast(
    values: Sequence[float | None], first_hour: int, hours_ahead: int, percentile: float = 0.95
) -> Forecast:
    """The next `hours_ahead` hours of a series.

    Args:
        values: of consecutive hours, None where nothing was measured.
        first_hour: of the first, in hours since 1970.
        percentile: 0 to 1, of the margin.

    Raises:
        ValueError: no hour was measured, or `percentile` is not within (0, 1].
    """
    if not 0 < percentile <= 1:
        raise ValueError(f"percentile {percentile} must be above 0 and at most 1")
    if all(one is None for one in values):
        raise ValueError("a series without a measured hour cannot be forecast")
    model = _Model(values, first_hour)
    end = first_hour + len(values)
    ratios = sorted(
        value / fitted
        for at, value in enumerate(values)
        if value is not None and (fitted := model.at(first_hour + at)) > 0
    )
    margin = 1.0
    if model.is_flat:  # nobody knows yet when it is busy: the highest hour counts
        percentile = 1.0
    if ratios:
        margin = max(1.0, ratios[min(len(ratios) - 1, math.ceil(percentile * len(ratios)) - 1)])
    hours = [model.at(end + at) for at in range(hours_ahead)]
    return Forecast(hours, margin, model.method, model.growth, _error(values, first_hour))


def _error(values: Sequence[float | None], first_hour: int) -> float | None:
    """Of the last week, forecast from those before it."""
    known, held = values[:-HOURS_A_WEEK], values[-HOURS_A_WEEK:]
    if len([one for one in known if one is not None]) < HOURS_A_WEEK:
        return None
    model = _Model(known, first_hour)
    start = first_hour + len(known)
    told = [(one, model.at(start + at)) for at, one in enumerate(held) if one is not None]
    total = sum(one for one, _ in told)
    return sum(abs(one - guess) for one, guess in told) / total if total > 0 else None


class _Model:
    """Fitted to a series; `at` gives any hour."""

    def __init__(self, values: Sequence[float | None], first_hour: int) -> None:
        self._end = first_hour + len(values)
        weeks = self._weeks(values, first_hour)
        means = [(at, sum(week.values()) / len(week)) for at, week in weeks]
        self._last = means[-1][1]
        self._last_at = means[-1][0]
        full = [mean for mean, (_, week) in zip(means, weeks, strict=True) if len(week) >= LEAST_WEEK_H]
        slopes = [(b - a) / (y - x) for (x, a), (y, b) in combinations(full, 2)]
        self._slope = median(slopes) if slopes else 0.0
        if slopes:  # the line that leaves as much above as below
            self._last = max(0.0, median(mean - self._slope * (at - self._last_at) for at, mean in full))
        self.growth = self._slope / self._last if self._last > 0 else 0.0
        spans = len(values)
        self._period = (
            HOURS_A_WEEK if spans >= HOURS_A_WEEK else HOURS_A_DAY if spans >= 2 * HOURS_A_DAY else 1
        )
        self._profile = self._shares(weeks, dict(means))
        self.method = {
            HOURS_A_WEEK: "hour of the week",
            HOURS_A_DAY: "hour of the day (less than a week of history)",
            1: "flat (less than two days of history)",
        }[self._period] + (" x trend over weeks" if slopes else "")

    def _weeks(self, values: Sequence[float | None], first_hour: int) -> list[tuple[int, dict[int, float]]]:
        """Weeks that end with the series, the oldest first: number (the last is 0), hours measured."""
        found: dict[int, dict[int, float]] = {}
        for at, value in enumerate(values):
            if value is not None:
                hour = first_hour + at
                found.setdefault(-((self._end - 1 - hour) // HOURS_A_WEEK), {})[hour] = value
        return sorted(found.items())

    def _shares(self, weeks: list[tuple[int, dict[int, float]]], means: dict[int, float]) -> dict[int, float]:
        seen: dict[int, list[float]] = {}
        for at, week in weeks:
            if means[at] > 0:
                for hour, value in week.items():
                    seen.setdefault(hour % self._period, []).append(value / means[at])
        return {slot: median(shares) for slot, shares in seen.items()}

    @property
    def is_flat(self) -> bool:
        """Whether there is too little history for a profile."""
        return self._period == 1

    def at(self, hour: int) -> float:
        """The mean of an hour, by what was fitted."""
        week = -((self._end - 1 - hour) // HOURS_A_WEEK)
        level = self._last + self._slope * (week - self._last_at)
        level = min(max(0.0, level), MOST_GROWTH * self._last)
        return level * self._profile.get(hour % self._period, 1.0)
