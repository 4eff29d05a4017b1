"""The collector: folds a partition of the reports' topic into the records of windows and tiers.

Every record is a fold of its own (`windows`, `tiers`): it may be restored at any age, older or newer than its
neighbours. Replaying the topic from an offset that all of them have reached brings all of them to the same
state, byte by byte, whatever was written twice or lost in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from app.core.audit import tiers, windows
from app.core.audit.reports import Report, Scope, Verdict, checked
from app.core.audit.tiers import Bounds, Close, Forget, TierKey, TierRecord
from app.core.audit.windows import WindowKey, WindowRecord


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Says nothing: whoever gets it begins to know what the tables have."""

    at_ms: int


Event = Report | Close | Forget | Tick
TierName = tuple[str, str, str]  # topic, tier, cluster


class Written(NamedTuple):
    """What an event has changed: records to write, and keys to delete. `verdicts`: of a report, by window."""

    windows: tuple[WindowKey, ...] = ()
    tiers: tuple[TierKey, ...] = ()
    deleted: tuple[WindowKey, ...] = ()
    verdicts: tuple[tuple[WindowKey, Verdict], ...] = ()


class Collector:
    """The state of a partition of the topic; one writer, the agent that owns it.

    Attributes: `windows`, `tiers` (the tables' values by key; read them, do not change them).
    """

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
        """Takes in a table's value, before any event."""
        self.tiers[key] = record
        self._shards.setdefault(key[:3], set()).add(key)

    def apply(self, event: Event, position: int) -> Written:
        """Folds in the event at an offset of the topic.

        Raises:
            BadReport: nothing is changed.
        """
        match event:
            case Report():
                return self._report(checked(event), position)
            case Close():
                return self._close((event.topic, event.tier, event.cluster), event, position)
            case Forget():
                return self._forget((event.topic, event.tier, event.cluster), event, position)
            case Tick():
                return Written()

    def due(self, now_ms: int, bounds: Bounds, scopes: Iterable[Scope] | None = None) -> list[Close | Forget]:
        """What is to be appended to the topic now: closings, and what is old. They count once they are there.

        Args:
            scopes: the tiers to look at, all whose windows are known by default.
        """
        wanted = {key.scope for key in self.windows} if scopes is None else set(scopes)
        return [
            event
            for scope in sorted(wanted)
            for event in tiers.due(scope, self.shards(scope[:3]), now_ms, bounds)
        ]

    def shards(self, name: TierName) -> list[TierRecord]:
        """A tier's records."""
        return [self.tiers[key] for key in sorted(self._shards.get(name, ()))]

    def keys_of(self, name: TierName) -> list[WindowKey]:
        """A tier's windows."""
        return sorted(self._of_tier.get(name, ()))

    def _report(self, report: Report, position: int) -> Written:
        name = (report.topic, report.tier, report.cluster)
        verdicts: list[tuple[WindowKey, Verdict]] = []
        changed: list[WindowKey] = []
        for increment in report.windows:
            key = WindowKey(*report.scope, increment.start_ms, report.shard)
            before = self._window(key, position)
            if before is None:
                verdicts.append((key, Verdict.FORGOTTEN))
                continue
            after, _, verdict = windows.on_report(before, report, increment.totals, position, increment.span)
            verdicts.append((key, verdict))
            if after is not before:
                self.restore_window(key, after)
                changed.append(key)
        tier = TierKey(*name, report.shard)
        known = self.tiers.get(tier, TierRecord())
        record = tiers.on_report(known, report, position)
        if record is not known:
            self.restore_tier(tier, record)
        return Written(tuple(changed), (tier,) if record is not known else (), (), tuple(verdicts))

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

    def _close(self, name: TierName, close: Close, position: int) -> Written:
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
        return Written(tuple(changed), tuple(written))

    def _forget(self, name: TierName, forget: Forget, position: int) -> Written:
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
        return Written((), tuple(written), tuple(old))
