"""The API's answers about alerts: definitions, firing alerts, and channels."""

from __future__ import annotations

from typing import Literal, TypedDict

from app.kernel.json_types import JsonObject
from app.web.http.schemas import Deployed


class AlertWindowFields(TypedDict):
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


class ChannelNotices(TypedDict):
    """A channel of an alert: the last notice that it took, and when (null: none).

    `waits`: it has not taken the newest notice; `trouble` says why, since `failing_ms`. A `slack` or
    `email` channel, which an earlier version stored, always waits.
    """

    channel: str
    place: str
    notice: int | None
    at_ms: int | None
    waits: bool
    trouble: str
    failing_ms: int | None


class Alert(TypedDict):
    """An alert: one for a rule, topic and pair of tiers; `group` is the consumer group at the consumers'
    tier.

    `since_ms`: the rule holds; `fired_ms`: the alert fired; `over_ms`: the rule holds no more, and the
    alert is resolved once that has lasted; null: not yet. `aged`: the rule holds no more only because its
    windows are too old to be checked. `windows` are the newest ones, beside `more_windows`. `todo`:
    commands that show more.
    """

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
    windows: list[AlertWindowFields]
    more_windows: int
    channels: list[ChannelNotices]
    todo: list[str]


class AlertRule(TypedDict):
    """An alert's definition in the form of a PUT, the number of its alerts by state, and its channels."""

    name: str
    definition: JsonObject
    etag: str
    firing: int
    pending: int
    channels: list[ChannelNotices]
    deployed: Deployed


class ChannelTested(TypedDict):
    """A channel's answer to a test notice."""

    channel: str
    place: str
    taken: bool
    why: str


class AlertTested(TypedDict):
    """The worker that sent a test notice, and the channels' answers."""

    name: str
    worker: str
    channels: list[ChannelTested]
