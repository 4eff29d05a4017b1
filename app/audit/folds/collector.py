"""The collector: folds a partition of the audit topic into the records of windows and tiers.

Every record is a fold of its own (`window`, `tier`): it may be restored at any age, older or newer than its
neighbours. A replay of the topic from an offset that all records have reached brings them to the same state,
byte by byte. It does not matter what was written twice or lost in between.

Bounds, so that no client fills the memory (tests/audit/folds/test_bounds.py)
1. A partition has at most `MOST_TIERS` shards of tiers and `MOST_WINDOWS` windows, a tier `MOST_OF_TIER`
   windows. Near that bound a tier's oldest closed windows are dropped early (`KEPT_OF_TIER`).
2. At most `MAX_FUTURE_WINDOWS` of a tier may begin ahead of the clock, because nothing closes them before
   their time. They may fill half of a partition, so that current windows have room.
3. Records without room for a window are counted once their part is final, beside the records without a time
   (`WindowRecord.apart`, `ReportOutcome.APART`). Until then they are refused (`ReportOutcome.FULL`). So are a
   tier too many, and a value larger than the changelog takes (`MOST_VALUE_BYTES`).
4. The bounds count all records, which have different ages in a replay. So a replay may count a report that
   was refused before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from app.audit.folds import tier as tiers
from app.audit.folds import window as windows
from app.audit.folds.counted_parts import ReportOutcome
from app.audit.folds.tier import CloseWindows, ForgetWindows, PlanBounds, TierKey, TierRecord
from app.audit.folds.window import WindowKey, WindowRecord
from switchyard.audit.model.reports import Report, Scope, bounded, checked
from switchyard.audit.model.tally import SKEW_MS, UNTIMED
from switchyard.audit.model.totals import NO_TOTALS

MOST_TIERS = 20_000
MOST_WINDOWS = 500_000
MOST_OF_TIER = 100_000
MAX_FUTURE_WINDOWS = 2_000  # of a tier: two weeks of ten minutes each
KEPT_OF_TIER = 80_000  # with more, the oldest are dropped early, down to nine tenths of it
# The changelog takes values of 2 MB: closings and the names of silent sources come on top.
MOST_VALUE_BYTES = 1_200_000
UNKNOWN_MS = 1 << 62  # the time of an event in a topic without the brokers' time


class CollectorTick(msgspec.Struct, frozen=True, tag="tick"):
    """Carries nothing: a worker that reads it begins its book of the partition, if it has none."""

    at_ms: int


Event = Report | CloseWindows | ForgetWindows | CollectorTick
TierName = tuple[str, str, str]  # topic, tier, cluster


class TableChanges(NamedTuple):
    """The effect of an event: records to write, and keys to delete. `verdicts`: a report's, by window."""

    windows: tuple[WindowKey, ...] = ()
    tiers: tuple[TierKey, ...] = ()
    deleted: tuple[WindowKey, ...] = ()
    verdicts: tuple[tuple[WindowKey, ReportOutcome], ...] = ()


class Collector:
    """The state of a partition of the topic. `windows`, `tiers`: the tables' values by key; callers only
    read."""

    __slots__ = ("_of_tier", "_shards", "tiers", "windows")

    def __init__(self) -> None:
        self.windows: dict[WindowKey, WindowRecord] = {}
        self.tiers: dict[TierKey, TierRecord] = {}
        self._of_tier: dict[TierName, set[WindowKey]] = {}
        self._shards: dict[TierName, set[TierKey]] = {}

    def restore_window(self, key: WindowKey, record: WindowRecord) -> None:
        """Takes in a table's value, before any event."""
        self.windows[key] = record
        self._of_tier.setdefault(key[:3], set()).add(key)

    def restore_tier(self, key: TierKey, record: TierRecord) -> None:
        self.tiers[key] = record
        self._shards.setdefault(key[:3], set()).add(key)

    def copy(self) -> Collector:
        """A copy of the state, which a thread may read while this one changes."""
        found = Collector()
        found.windows, found.tiers = dict(self.windows), dict(self.tiers)
        return found

    def rewind(self, end: int) -> tuple[list[WindowKey], list[TierKey]]:
        """Adapts to a topic that was truncated to `end` (`window.rewound`); returns the changed keys."""
        of_windows = {key: windows.rewound(record, end) for key, record in self.windows.items()}
        of_tiers = {key: tiers.rewound(record, end) for key, record in self.tiers.items()}
        found = (
            [key for key, record in of_windows.items() if record is not self.windows[key]],
            [key for key, record in of_tiers.items() if record is not self.tiers[key]],
        )
        self.windows, self.tiers = of_windows, of_tiers
        return found

    def apply(self, event: Event, position: int, recorded_ms: int = UNKNOWN_MS) -> TableChanges:
        """Folds in the event at an offset of the topic. Raises BadReport, and then changes nothing. No time
        in the event exceeds `recorded_ms`, the brokers' time of the record (below 0: the topic has none)."""
        if recorded_ms < 0:
            recorded_ms = UNKNOWN_MS
        match event:
            case Report():
                report = bounded(checked(event), recorded_ms)
                now_ms = report.at_ms if recorded_ms == UNKNOWN_MS else recorded_ms
                return self._report(report, position, now_ms)
            case CloseWindows():
                tiers.check(event)
                close = tiers.bounded(event, recorded_ms)
                return self._close((close.topic, close.tier, close.cluster), close, position)
            case ForgetWindows():
                tiers.check(event)
                forget = tiers.bounded(event, recorded_ms)
                return self._forget((forget.topic, forget.tier, forget.cluster), forget, position)
            case CollectorTick():
                return TableChanges()

    def due(
        self, now_ms: int, bounds: PlanBounds, scopes: Iterable[Scope] | None = None
    ) -> list[CloseWindows | ForgetWindows]:
        """The events to append now, closings and droppings of old windows, which count once the topic has
        them. `scopes`: the tiers to look at; None: all with windows."""
        wanted = {key.scope for key in self.windows} if scopes is None else set(scopes)
        events: list[CloseWindows | ForgetWindows] = []
        for scope in sorted(wanted):
            events += tiers.due(scope, self.shards(scope[:3]), now_ms, bounds)
        for name in sorted({scope[:3] for scope in wanted}):
            if len(self._of_tier.get(name, ())) > KEPT_OF_TIER:
                events += self._oldest(name, now_ms)
        return events

    def _oldest(self, name: TierName, now_ms: int) -> list[ForgetWindows]:
        """Drops the oldest closed windows of a tier that has too many."""
        keys = self._of_tier[name]
        ends = sorted(key.end_ms for key in keys if self.windows[key].is_closed and key.start_ms != UNTIMED)
        last = min(len(keys) - KEPT_OF_TIER * 9 // 10, len(ends)) - 1
        forgotten_ms = max((record.forgotten_ms for record in self.shards(name)), default=0)
        return [ForgetWindows(*name, ends[last], now_ms)] if last >= 0 and ends[last] > forgotten_ms else []

    def shards(self, name: TierName) -> list[TierRecord]:
        """A tier's records, of all shards."""
        return [self.tiers[key] for key in sorted(self._shards.get(name, ()))]

    def keys_of(self, name: TierName) -> list[WindowKey]:
        """The keys of a tier's windows."""
        return sorted(self._of_tier.get(name, ()))

    def _report(self, report: Report, position: int, now_ms: int) -> TableChanges:
        name = (report.topic, report.tier, report.cluster)
        verdicts: list[tuple[WindowKey, ReportOutcome]] = []
        changed: list[WindowKey] = []
        apart, untimed = NO_TOTALS, WindowKey(*report.scope, UNTIMED, report.shard)
        untimed_is_new = untimed not in self.windows or self.windows[untimed].position < position
        has_room = self._room_for_windows(name, now_ms)
        for increment in report.windows:
            key = WindowKey(*report.scope, increment.start_ms, report.shard)
            before = self._window(key, position)
            if before is None:
                verdicts.append((key, ReportOutcome.FORGOTTEN))
                continue
            if key not in self.windows and not has_room(key):
                is_counted = report.final and not self._exceeds_tiers(TierKey(*name, report.shard))
                apart = apart.plus(increment.totals) if is_counted else apart
                verdicts.append((key, ReportOutcome.APART if is_counted else ReportOutcome.FULL))
                continue
            after, _, verdict = windows.on_report(before, report, increment.totals, position, increment.span)
            if after is not before and _is_too_large(after):
                verdict, after = ReportOutcome.FULL, before
            verdicts.append((key, verdict))
            if after is not before:
                self.restore_window(key, after)
                changed.append(key)
        if apart.count and untimed_is_new:
            record = windows.on_apart(self.windows.get(untimed, WindowRecord()), apart, position)
            if not _is_too_large(record):
                self.restore_window(untimed, record)
                changed += [untimed] if untimed not in changed else []
        tier = TierKey(*name, report.shard)
        if self._exceeds_tiers(tier):
            return TableChanges((), (), (), tuple(verdicts))
        known = self.tiers.get(tier, TierRecord())
        updated = tiers.on_report(known, report, position)
        if report.source not in known.sources and _is_too_large(updated):
            updated = known  # windows do not wait for it; known sources are updated as before
        if updated is not known:
            self.restore_tier(tier, updated)
        return TableChanges(tuple(changed), (tier,) if updated is not known else (), (), tuple(verdicts))

    def _room_for_windows(self, name: TierName, now_ms: int) -> Callable[[WindowKey], bool]:
        """A function that says whether a new window of the tier has room (bounds 1 and 2)."""
        last_ms = now_ms + SKEW_MS
        future_windows = -1  # counted on first use

        def has_room(key: WindowKey) -> bool:
            nonlocal future_windows
            if self._exceeds_tiers(TierKey(*key[:3], key.shard)):
                return False
            if key.start_ms == UNTIMED:
                return True  # there is one in each shard
            held = self._of_tier.get(name, set())
            most = MOST_WINDOWS
            if key.start_ms > last_ms:
                if future_windows < 0 and len(held) >= MAX_FUTURE_WINDOWS:
                    future_windows = sum(window.start_ms > last_ms for window in held)
                if future_windows >= MAX_FUTURE_WINDOWS:
                    return False
                future_windows += future_windows >= 0
                most //= 2
            return len(self.windows) < most and len(held) < MOST_OF_TIER

        return has_room

    def _exceeds_tiers(self, tier: TierKey) -> bool:
        return tier not in self.tiers and len(self.tiers) >= MOST_TIERS

    def _window(self, key: WindowKey, position: int) -> WindowRecord | None:
        """A window's record; a new one is closed if its closing is past. None: it was dropped before."""
        found = self.windows.get(key)
        if found is not None:
            return found
        records = self.shards(key[:3])
        if any(tiers.is_forgotten(record, key.end_ms, position) for record in records):
            return None
        for record in records:
            closing = tiers.closed_at(record, key.end_ms, position)
            if closing is not None:
                return WindowRecord(closed_ms=closing.at_ms, without=closing.missed(key.end_ms))
        return WindowRecord()

    def _close(self, name: TierName, close: CloseWindows, position: int) -> TableChanges:
        changed: list[WindowKey] = []
        for key in self.keys_of(name):
            if key.end_ms > close.before_ms:
                continue
            record = self.windows[key]
            without = tiers.missed(close.without, key.end_ms)
            closed = windows.on_close(record, close.at_ms, without, position)
            if closed is not record:
                self.windows[key] = closed
                changed.append(key)
        written: list[TierKey] = []
        for tier in sorted(self._shards.get(name, ())):
            known = self.tiers[tier]
            self.tiers[tier] = tiers.on_close(known, close, position)
            if self.tiers[tier] is not known:
                written.append(tier)
        return TableChanges(tuple(changed), tuple(written))

    def _forget(self, name: TierName, forget: ForgetWindows, position: int) -> TableChanges:
        old = [key for key in self.keys_of(name) if key.end_ms <= forget.before_ms]
        for key in old:
            del self.windows[key]
            self._of_tier[name].discard(key)
        written: list[TierKey] = []
        for tier in sorted(self._shards.get(name, ())):
            known = self.tiers[tier]
            self.tiers[tier] = tiers.on_forget(known, forget, position)
            if self.tiers[tier] is not known:
                written.append(tier)
        return TableChanges((), tuple(written), tuple(old))


def _is_too_large(record: WindowRecord | TierRecord) -> bool:
    return len(msgspec.json.encode(record)) > MOST_VALUE_BYTES
