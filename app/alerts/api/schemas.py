"""What the API answers of alerts: definitions, what fires, who was told."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from app.web.http.schemas import Deployed


class AlertWindowTold(TypedDict):
    """A window of an alert; null: not known."""

    start_ms: int
    start: str
    end_ms: int
    state: str
    from_count: int
    to_count: int
    missing: int | None
    extra: int | None
    lag_ms: int | None
    absent: list[str]


class ChannelTold(TypedDict):
    """A channel of an alert: the last notice that it took, and when (null: none). `waits`: it has not taken
    the newest notice; `trouble` says why, since `failing_ms`. A `slack` or `email` channel, which an earlier
    version stored, always waits."""

    channel: str
    place: str
    notice: int | None
    at_ms: int | None
    waits: bool
    trouble: str
    failing_ms: int | None


class Alert(TypedDict):
    """An alert: one for a rule, topic and pair of tiers; `group`: who consumes, where the second tier is what
    a workload has finished. `since_ms`: the rule holds; `fired_ms`: it was told;
    `over_ms`: it holds no more, and is resolved once that has lasted; null: not yet. `aged`: only because its
    windows are looked at no more. `windows` are the newest ones, beside `more_windows`. `todo`: commands that
    say more."""

    id: str
    name: str
    state: Literal["pending", "firing", "resolved"]
    severity: str
    owner: str
    on: list[str]
    topic: str
    from_tier: str
    to_tier: str
    group: str | None
    what: str
    since_ms: int
    since: str
    fired_ms: int | None
    over_ms: int | None
    resolved_ms: int | None
    aged: bool
    notice: int
    windows: list[AlertWindowTold]
    more_windows: int
    channels: list[ChannelTold]
    todo: list[str]


class AlertRule(TypedDict):
    """An alert's definition as PUT takes it back; how many of it are in which state, and its channels."""

    name: str
    definition: dict[str, Any]
    etag: str
    firing: int
    pending: int
    channels: list[ChannelTold]
    deployed: Deployed


class ChannelTested(TypedDict):
    """What became of a test."""

    channel: str
    place: str
    taken: bool
    why: str


class AlertTested(TypedDict):
    """Which worker told the channels that this is a test, and what became of it."""

    name: str
    worker: str
    channels: list[ChannelTested]
