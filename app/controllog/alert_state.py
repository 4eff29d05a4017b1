"""What stands in the control log of alerts, and its fold.

Rules
1. A state counts only under the current leader's term: one that was deposed fires and resolves nothing. What
   a refused one may overwrite in compaction is written again (as by rule 5 of `app.controllog.state`), by
   whom it is written always: nobody else's older one comes behind a newer one.
2. An id is one episode's, from pending to its end, and never used again: what is dropped when it is over
   cannot be what a later one has written.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

KEY = "alert-state/"
AlertPhase = Literal["pending", "firing", "resolved", "gone"]


class AlertWindow(msgspec.Struct, frozen=True, array_like=True):
    """A window of an alert, as `app.audit.query.view` tells it. `missing`, `extra` -1: they differ, by an
    unknown number. `lag_ms` -1: not known, or earlier."""

    start_ms: int
    end_ms: int
    state: str
    from_count: int
    to_count: int
    missing: int = 0
    extra: int = 0
    lag_ms: int = -1
    absent: tuple[str, ...] = ()


class LastNotice(msgspec.Struct, frozen=True, array_like=True):
    """The last notice that a channel took, and when (0: none). `why`: since `failing_ms` it does not take the
    one that came behind it."""

    notice: int
    at_ms: int
    failing_ms: int = 0
    why: str = ""


class AlertSubject(NamedTuple):
    """What one alert is about. `reader`: the group whose work is compared, "" where a tier is none's."""

    rule: str
    topic: str
    from_tier: str
    to_tier: str
    reader: str = ""


class AlertState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event",
                 tag="alert-state"):  # fmt: skip
    """An alert, in one of its states.

    Attributes:
        at_ms: when this was written.
        id: of this episode; the first part is the same for all episodes of a group.
        reader: as in `AlertSubject`.
        since_ms: since when it holds. fired_ms, resolved_ms: when it fired, and was resolved.
        over_ms: of one that fires, since when it does not hold any more; 0: it does.
        aged: it is over only because its windows are longer ago than its rule looks: nothing was mended.
        windows: the newest ones, and how many `more`.
        notice: the number of the newest notice: 0 before the alert fires, 1 when it fires, 2 when it is
            resolved. An earlier version counted reminders, too.
        told: by channel, the last notice that it took.
    """

    at_ms: int
    id: str
    term: int
    state: AlertPhase
    rule: str
    topic: str
    from_tier: str
    to_tier: str
    since_ms: int
    reader: str = ""
    fired_ms: int = 0
    over_ms: int = 0
    resolved_ms: int = 0
    aged: bool = False
    windows: tuple[AlertWindow, ...] = ()
    more: int = 0
    notice: int = 0
    told: dict[str, LastNotice] = {}

    @property
    def group(self) -> AlertSubject:
        """What it is about."""
        return AlertSubject(self.rule, self.topic, self.from_tier, self.to_tier, self.reader)

    @property
    def tiers(self) -> str:
        """Between which tiers, in words."""
        group = f" (group {self.reader})" if self.reader else ""
        return f"{self.from_tier} to {self.to_tier}{group}"

    @property
    def is_live(self) -> bool:
        """Pending or firing: its group has no other one."""
        return self.state in {"pending", "firing"}

    @property
    def is_news(self) -> bool:
        """Whether this record fires or resolves the alert, or deletes it while it fires, as its rule does.
        Records that only update an alert are no news."""
        if self.state == "gone":
            return self.fired_ms > 0 and not self.resolved_ms
        return self.at_ms == (self.resolved_ms or self.fired_ms)


def alert_key(of: str) -> str:
    """The record key of the alert with this id: compaction keeps its last state."""
    return f"{KEY}{of}"


class AlertStates:
    """All that stand, by id."""

    __slots__ = ("states",)

    def __init__(self) -> None:
        self.states: dict[str, AlertState] = {}

    def put(self, event: AlertState, term: int) -> bool:
        """Whether it counted (rule 1)."""
        if event.term != term:
            return False
        self.states[event.id] = event
        if event.state == "gone":
            del self.states[event.id]
        return True

    def drop(self, key: str) -> None:
        """Nothing stands under this record key any more."""
        if key.startswith(KEY):
            self.states.pop(key.removeprefix(KEY), None)
