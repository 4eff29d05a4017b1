"""Forecasts of a region's sizes as `python -m spark size --publish` writes them; what of them counts. Pure.

    records of switchyard-<region>-forecast --take--> Forecasts --+-need------> workers, now and in an hour
                                                                  +-workload--> the busiest hour to come

Rules
1. A record is of one fleet (isolation group) or one workload, as it was forecast at one time; it stands for
   itself. Its key is a JSON list: kind, name, and the day (UTC) it was made, so that a topic keeps one a day.
2. Of an hour the newest record counts that covers it. Only the `KEPT_FORECASTS` newest of a name are kept
   here.
3. A record counts while its hours last, up to `max_age_s` after it was made and after its history ended, and
   while its error is known and not above `max_error`: how good the same method was in the last week. What
   does not count is told, and changes nothing.
4. Workers recommended are the most of what is measured now and what the hours say that begin before
   `look_ahead_s` is over: never below what is measured.
5. What is no record, is of another region, too long, or made in the future is passed over, counted and told.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar

import msgspec

from app.kernel.job import MAX_NAME_CHARS
from app.sizing.recommendation import Figure

HOUR_MS = 3_600_000
HOURS_A_WEEK = 168
MOST_HOURS = 10 * HOURS_A_WEEK  # that a record may cover
MOST_KEY_BYTES = 2048
MOST_MARGIN = 1e6
MOST_RECORD_BYTES = 64 * 1024  # the hours of ten weeks take half of it
MOST_BYTES = 16 * 1024 * 1024  # of all records that are kept: three each of five thousand names
KEPT_FORECASTS = 3  # of a name: the newest, one for the hour in which that was made, and one more
CLOCK_SKEW_MS = HOUR_MS  # by which the clocks of who makes and who reads may differ
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
_Text = Annotated[str, msgspec.Meta(max_length=1000)]
_Hour = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
_Workers = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
_Partitions = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_OfHours = msgspec.Meta(min_length=1, max_length=MOST_HOURS)


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of records say.

    Attributes:
        format: 1.
        made_ms: when.
        from_hour: the first hour that it is for, in hours since 1970; one figure an hour from there on.
        history_hours: that were measured and that it rests on.
        error: mean absolute error of the last week, forecast by the same method from those before it, as a
            share of that week's mean; None: there was too little history to tell.
        method: in words.
    """

    format: Literal[1] = 1
    region: _Name
    made_ms: Annotated[int, msgspec.Meta(ge=0, le=10**14)]
    from_hour: _Hour
    history_hours: _Hour
    error: _Amount | None
    method: _Text


class FleetForecastRecord(Made, frozen=True, kw_only=True, tag_field="kind", tag="fleet"):
    """A fleet's: `workers` that each hour needs, with the margin and those that may be lost; None: no number
    is enough."""

    group: _Name
    workers: Annotated[tuple[_Workers | None, ...], _OfHours]

    @property
    def name(self) -> str:
        """Of its fleet."""
        return self.group

    @property
    def hours(self) -> int:
        """That it covers."""
        return len(self.workers)


class WorkloadForecastRecord(Made, frozen=True, kw_only=True, tag_field="kind", tag="workload"):
    """A workload's: messages that arrive a second in each hour (`rates`), and `margin`, the factor that real
    hours were above those in the percentile asked for; `partitions` by the busiest hour, with the reason."""

    workload: _Name
    rates: Annotated[tuple[_Amount, ...], _OfHours]
    margin: Annotated[float, msgspec.Meta(ge=1, le=MOST_MARGIN)]
    partitions: _Partitions | None
    partitions_now: _Partitions
    partitions_why: _Text

    @property
    def name(self) -> str:
        """Its key."""
        return self.workload

    @property
    def hours(self) -> int:
        """That it covers."""
        return len(self.rates)


Record = FleetForecastRecord | WorkloadForecastRecord
R = TypeVar("R", FleetForecastRecord, WorkloadForecastRecord)
_records: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class BadForecast(ValueError):
    """Bytes that are no record of forecasts."""


class ForecastRules(msgspec.Struct, frozen=True):
    """What of a forecast counts (rules 3 and 4)."""

    use: bool = True
    look_ahead_s: float = 3600.0
    max_age_s: float = 7 * 86_400.0
    max_error: float = 0.5


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a forecast says of a fleet in this and the coming hour.

    Attributes:
        workers: that the busiest of those hours needs; None: nothing that counts is said.
        hour: that one, as "2026-11-23T09:00Z".
        made: when it was made.
        history_hours, error: what it rests on, and how far off it was in the last week.
        why: in words; also why it does not count.
    """

    workers: int | None
    hour: str | None = None
    made: str | None = None
    history_hours: int | None = None
    error: float | None = None
    why: str


class Busiest(msgspec.Struct, frozen=True, kw_only=True):
    """The busiest hour to come of a workload, by the newest forecast: `rate_per_s` with its margin."""

    rate_per_s: float
    hour: str
    made: str
    partitions: int | None
    partitions_why: str
    error: float | None
    told: str


def key(record: Record) -> bytes:
    """Of the record in its topic (rule 1)."""
    kind = "fleet" if isinstance(record, FleetForecastRecord) else "workload"
    return msgspec.json.encode([kind, record.name, iso(record.made_ms)[:10]])


def decode(value: bytes) -> Record:
    """The record.

    Raises:
        BadForecast: it is none, and why.
    """
    if len(value) > MOST_RECORD_BYTES:
        raise BadForecast(f"{len(value):,} bytes are more than a forecast has: {MOST_RECORD_BYTES:,}")
    try:
        return _records.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadForecast(f"is no forecast: {str(error)[:300]}") from None


def covers(record: Record, hour: int) -> bool:
    """Whether it says something of that hour."""
    return 0 <= hour - record.from_hour < record.hours


class Forecasts:
    """What a region's topic says; fed with its records in their order.

    Attributes:
        passed_over: records so far that were none.
        last_passed_over: why the last of them was none, "" without any.
    """

    def __init__(self, region: str, rules: ForecastRules = ForecastRules()) -> None:  # noqa: B008 - frozen
        self.rules = rules
        self.passed_over = 0
        self.last_passed_over = ""
        self._region = region
        self._kept: dict[tuple[type[Record], str], dict[bytes, tuple[Record, int]]] = {}
        self._names: dict[bytes, tuple[type[Record], str]] = {}
        self._nbytes = 0

    def accept(self, at: bytes | None, value: bytes | None, now_ms: int) -> str:
        """Takes one in; without a value what was under that key is gone. Returns why it is passed over, ""
        when it is not."""
        self._drop(at or b"")
        if value is None:
            return ""
        try:
            if not at or len(at) > MOST_KEY_BYTES:
                raise BadForecast(f"its key has not 1 to {MOST_KEY_BYTES:,} bytes")
            self._keep(at, decode(value), len(value), now_ms)
        except BadForecast as error:
            self.passed_over += 1
            self.last_passed_over = str(error)
            return self.last_passed_over
        return ""

    def need(self, group: str, now_ms: int) -> Need | None:
        """Workers of a fleet (rules 2 to 4); None: nobody has forecast it."""
        newest = self._newest(FleetForecastRecord, group)
        if not newest:
            return None
        if not self.rules.use:
            return Need(workers=None, why="forecasts are switched off: sizing.forecasts in switchyard.yaml")
        first = now_ms // HOUR_MS
        last = (now_ms + round(self.rules.look_ahead_s * 1000)) // HOUR_MS
        said: list[tuple[int, int, FleetForecastRecord]] = []
        against = ""
        for hour in range(first, last + 1):
            record = next((one for one in newest if covers(one, hour)), None)
            if record is None:
                continue
            workers = record.workers[hour - record.from_hour]
            why_not = self._why_not(record, now_ms)
            if workers is None and not why_not:
                why_not = f"for {hour_words(hour)} it found no number of workers that is enough"
            if why_not or workers is None:
                against = against or f"the forecast {_origin(record, now_ms)} does not count: {why_not}"
            else:
                said.append((workers, -hour, record))
        if not said:
            return Need(workers=None, why=against or self._uncovered(newest, first, now_ms))
        workers, minus, record = max(said, key=lambda one: one[:2])
        why = f"the forecast for {hour_words(-minus)} says {workers} ({_origin(record, now_ms)})"
        return Need(
            workers=workers,
            hour=iso(-minus * HOUR_MS),
            made=iso(record.made_ms),
            history_hours=record.history_hours,
            error=record.error,
            why=f"{why}; {against}" if against else why,
        )

    def workload(self, name: str, now_ms: int) -> Busiest | None:
        """The busiest hour that a workload's newest forecast knows of, this one or one to come; None: there
        is no forecast that counts."""
        newest = self._newest(WorkloadForecastRecord, name)
        if not newest or not self.rules.use or self._why_not(newest[0], now_ms):
            return None
        record = newest[0]
        begins = max(0, now_ms // HOUR_MS - record.from_hour)
        if begins >= record.hours:
            return None
        at = max(range(begins, record.hours), key=record.rates.__getitem__)
        hour = record.from_hour + at
        return Busiest(
            rate_per_s=round(record.rates[at] * record.margin, 2),
            hour=iso(hour * HOUR_MS),
            made=iso(record.made_ms),
            partitions=record.partitions,
            partitions_why=record.partitions_why,
            error=record.error,
            told=f"{hour_words(hour)} ({_origin(record, now_ms)})",
        )

    def _newest(self, kind: type[R], name: str) -> list[R]:
        kept = self._kept.get((kind, name), {}).values()
        found = [one for one, _ in kept if isinstance(one, kind)]
        return sorted(found, key=lambda one: one.made_ms, reverse=True)

    def _why_not(self, record: Record, now_ms: int) -> str:
        """Why it does not count (rule 3), "" when it does."""
        if now_ms - record.made_ms > self.rules.max_age_s * 1000:
            return f"older than {_span(self.rules.max_age_s)}; run python -m spark size --publish again"
        if now_ms - record.from_hour * HOUR_MS > self.rules.max_age_s * 1000:
            ended = (
                f"its history ended on {hour_words(record.from_hour)}, more than "
                f"{_span(self.rules.max_age_s)} ago"
            )
            remedy = "bring it up to date with python -m spark dashboard, then run size --publish again"
            return f"{ended}; {remedy}"
        if record.error is None:
            return "how good it is is not known yet: that takes two weeks of history"
        if record.error > self.rules.max_error:
            return f"last week it would have been {record.error:.0%} off, above {self.rules.max_error:.0%}"
        return ""

    def _uncovered(self, newest: Sequence[Record], hour: int, now_ms: int) -> str:
        record = newest[0]
        if record.from_hour > hour:
            return f"the forecast {_origin(record, now_ms)} begins on {hour_words(record.from_hour)}"
        return (
            f"the forecast {_origin(record, now_ms)} does not count: its hours are over; "
            "run python -m spark size --publish again"
        )

    def _keep(self, at: bytes, record: Record, nbytes: int, now_ms: int) -> None:
        if record.region != self._region:
            raise BadForecast(f"is of region {record.region!r}, not of {self._region!r}")
        if record.made_ms > now_ms + CLOCK_SKEW_MS:
            raise BadForecast(f"was made in the future, {iso(record.made_ms)}: compare the clocks")
        name = type(record), record.name
        where = self._kept.setdefault(name, {})
        where[at] = record, len(at) + nbytes
        self._names[at] = name
        self._nbytes += len(at) + nbytes
        while len(where) > KEPT_FORECASTS:
            self._drop(min(where, key=lambda one: where[one][0].made_ms))
        if self._nbytes > MOST_BYTES:
            self._drop(at)
            raise BadForecast(f"all forecasts together are more than {MOST_BYTES:,} bytes")

    def _drop(self, at: bytes) -> None:
        name = self._names.pop(at, None)
        if name is not None:
            where = self._kept[name]
            self._nbytes -= where.pop(at)[1]
            if not where:
                del self._kept[name]


def joined(measured: Figure, need: Need | None) -> Figure:
    """What is recommended: the most of both (rule 4), with the reason."""
    if need is None:
        return measured
    if need.workers is None or measured.value is None:
        return Figure(measured.value, f"{measured.why}; {need.why}")
    if need.workers <= measured.value:
        return Figure(measured.value, f"{measured.why}; {need.why}, which is no more")
    return Figure(need.workers, f"{need.why}; by what is measured now {measured.value}: {measured.why}")


def iso(at_ms: int) -> str:
    """A time as "2026-11-23T09:00Z"."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")


def hour_words(hour: int) -> str:
    """An hour as "Monday 23 Nov 09:00 UTC"."""
    at = datetime.fromtimestamp(hour * 3600, UTC)
    return f"{DAYS[at.weekday()]} {at:%d %b %H:%M} UTC"


def _origin(record: Record, now_ms: int) -> str:
    error = "" if record.error is None else f", {record.error:.0%} off in the last of them"
    age = f"{_span(max(0, now_ms - record.made_ms) / 1000)} ago"
    return f"made {age} of {_span(record.history_hours * 3600)}{error}"


def _span(seconds: float) -> str:
    """ "3 weeks", "2 h", in the largest unit of which there are two at least."""
    for unit, name in ((7 * 86_400, "weeks"), (86_400, "days"), (3600, "h")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 60:.0f} min"
