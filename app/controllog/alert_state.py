"""Alert states in the control log, and their fold.

Rules
1. A state counts only under the current leader's term, so a deposed leader neither fires nor resolves an
   alert. The leader writes the valid state again where compaction could keep a refused one (rule 5 of
   `app.controllog.state`). Only the leader writes states, so no older state follows a newer one.
2. An id belongs to one episode, from pending to its end, and is never used again. So a dropped record
   cannot belong to a later episode.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

KEY = "alert-state/"
AlertPhase = Literal["pending", "firing", "resolved", "gone"]


class AlertWindow(msgspec.Struct, frozen=True, array_like=True):
    """A window of an alert, as in `app.audit.query.view`.

    `missing` or `extra` -1: the counts differ by an unknown number. `lag_ms` -1: not known, or recorded by
    an earlier version.
    """

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
    """The last notice that a channel accepted, and when (0: none).

    Since `failing_ms` the channel refuses the next notice, because of `why`.
    """

    notice: int
    at_ms: int
    failing_ms: int = 0
    why: str = ""


class AlertSubject(NamedTuple):
    """The subject of an alert. `reader` is the consumer group compared; "" where no tier is a group's."""

    rule: str
    topic: str
    from_tier: str
    to_tier: str
    reader: str = ""


class AlertState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event",
                 tag="alert-state"):  # fmt: skip
    """An alert in one of its states.

    Attributes:
        at_ms: When this record was written.
        id: The episode; its first part is the same for all episodes of a subject.
        reader: As in `AlertSubject`.
        since_ms: Since when the condition holds.
        fired_ms, resolved_ms: When the alert fired, and was resolved.
        over_ms: For a firing alert, since when its condition no longer holds; 0: it holds.
        aged: The condition no longer holds only because its windows are older than the rule's range.
        windows: The newest windows, and how many `more` there are.
        notice: The number of the newest notice: 0 before the alert fires, 1 when it fires, 2 when it is
            resolved. An earlier version counted reminders, too.
        told: By channel, the last notice that it accepted.
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
        """The alert's subject."""
        return AlertSubject(self.rule, self.topic, self.from_tier, self.to_tier, self.reader)

    @property
    def tiers(self) -> str:
        """The two tiers, for people."""
        group = f" (group {self.reader})" if self.reader else ""
        return f"{self.from_tier} to {self.to_tier}{group}"

    @property
    def is_live(self) -> bool:
        """Whether it is pending or firing; a subject has one live alert at most."""
        return self.state in {"pending", "firing"}

    @property
    def is_news(self) -> bool:
        """Whether this record fires or resolves the alert, or deletes it while it fires. Other records
        only update it."""
        if self.state == "gone":
            return self.fired_ms > 0 and not self.resolved_ms
        return self.at_ms == (self.resolved_ms or self.fired_ms)


def alert_key(of: str) -> str:
    """The record key of the alert with this id: compaction keeps its last state."""
    return f"{KEY}{of}"


class AlertStates:
    """The current states, by id."""

    __slots__ = ("states",)

    def __init__(self) -> None:
        self.states: dict[str, AlertState] = {}

    def put(self, event: AlertState, term: int) -> bool:
        """Takes a state; returns whether it counted (rule 1)."""
        if event.term != term:
            return False
        self.states[event.id] = event
        if event.state == "gone":
            del self.states[event.id]
        return True

    def drop(self, key: str) -> None:
        """Forgets the state under this record key: the log has a tombstone for it."""
        if key.startswith(KEY):
            self.states.pop(key.removeprefix(KEY), None)
