"""Requests and answers of the API for offsets across clusters; `app.web.http.schemas` has all others."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from app.offsets.sync.group_syncer import GroupState
from app.web.http.request_bodies import Body, Execute

GroupName = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(min_length=1, max_length=249)]


class SyncBody(Body, kw_only=True, frozen=True):
    """A group, the cluster that it is mapped from, and the one where it is committed. `topic`: only this
    one."""

    group: GroupName
    source: Text = msgspec.field(name="from")
    target: Text = msgspec.field(name="to")
    topic: Text | None = None
    execute: Execute = False


class BarrierTold(TypedDict):
    """An offset sync: all of the source below `source_end` is below `target_end`, the rest is not.
    `age_s`: since it was recorded."""

    source_end: int
    target_end: int
    at_ms: int
    age_s: float


class ReadingTold(TypedDict):
    """How far a source was read, by one partition of the topic that was read. At `next_offset` the reader
    was behind `barrier`, so it had read all of the source below `read_up_to`; null: not known, because of
    `why`."""

    partition: int
    next_offset: int | None
    region: str
    route: str
    barrier: BarrierTold | None
    read_up_to: int | None
    why: str


class SourceTold(TypedDict):
    """One source's part: it was read below `read_up_to`, the least of its readings. By `barrier`, no later
    record of it lies below `next_offset` here. At most `again` of its records are read again."""

    cluster: str
    topic: str
    partition: int
    readings: list[ReadingTold]
    region: str
    route: str
    read_up_to: int | None
    barrier: BarrierTold | None
    next_offset: int | None
    again: int | None
    why: str


class MappedPartition(TypedDict):
    """Where a reader continues in a partition; `least` is the source that decided. With a `why` it is the
    log's start, because nothing better is known."""

    partition: int
    next_offset: int
    log_start: int
    log_end: int
    least: str | None
    again: int | None
    why: str
    sources: list[SourceTold]


class MappedTopic(TypedDict):
    """A topic that was read, and a related topic. `road`: the other topic is its copy, has `common`
    sources with it, or is its source (`back`). `elsewhere`: sources that the other topic does not have."""

    topic: str
    to_topic: str
    road: Literal["copy", "common", "back"]
    partitions: list[MappedPartition]
    elsewhere: list[str]


class RegionKnown(TypedDict):
    """The state of a region's offset map: `own`, `copied` here, `remote` (read in its own cluster), `none`
    (it has none) or `away`. `read_ms`: when it was last read completely; null: never."""

    region: str
    state: Literal["own", "copied", "remote", "none", "away"]
    read_ms: int | None
    why: str


OffsetMap = TypedDict(
    "OffsetMap",
    {
        "from": str,
        "to": str,
        "group": str | None,
        "topics": list[MappedTopic],
        "unmapped": dict[str, str],
        "regions": list[RegionKnown],
    },
)
OffsetMap.__doc__ = (
    "Positions of one cluster in another; `unmapped`: the group's topics without a related topic, and why."
)


class SyncRow(TypedDict):
    """A partition of the destination: `have` is the group's position, `mapped` the mapped one, `commit`
    the one to commit (null: none, because of `why`)."""

    topic: str
    to_topic: str
    partition: int
    have: int | None
    mapped: int
    commit: int | None
    again: int | None
    why: str


Synced = TypedDict(
    "Synced",
    {
        "group": str,
        "from": str,
        "to": str,
        "state": GroupState,
        "why": str,
        "at_ms": int,
        "partitions": list[SyncRow],
        "unmapped": dict[str, str],
        "execute": bool,
        "done": bool,
    },
)
Synced.__doc__ = (
    "The outcome for a group, planned or done: `synced`; `unchanged`; `live`: consumed there; `refused`: a "
    "position would move back; `failed`; `nothing`: no topic of it has a related topic there."
)
GroupKept = TypedDict(
    "GroupKept",
    {
        "route": str | None,
        "workload": str | None,
        "from": str,
        "to": str,
        "group": str | None,
        "state": Literal[GroupState, "no-round", "away", "starting"],
        "why": str,
        "at_ms": int | None,
        "good_ms": int | None,
    },
)
GroupKept.__doc__ = (
    "A group that a route or a passive workload syncs, after the last round. `good_ms`: when it was last in "
    "step. `no-round`: the route's groups cannot be read; `away`: a cluster or the map is unavailable; "
    "`starting`: no round yet."
)
PassiveSync = TypedDict(
    "PassiveSync",
    {
        "region": str,
        "from": str,
        "to": str,
        "state": Literal[GroupState, "away", "starting"],
        "why": str,
        "lag_s": float | None,
    },
)
PassiveSync.__doc__ = (
    "How the positions of a workload that is passive here follow the active region's. States: see GroupKept. "
    "`lag_s`: seconds since they were in step; null: not since this worker leads."
)


class TimePartition(TypedDict):
    """The first record at or after the time. `beyond-end`: no record is that new, so the offset is the
    log's end, or the end of all counted records. `before-start`: the log begins later; older records may
    have been deleted. `window`: the first offset of its audit window, which begins earlier. Offsets from
    the audit have no timestamp, and no log offsets while the cluster does not answer."""

    partition: int
    next_offset: int
    timestamp_ms: int | None
    log_start: int | None
    log_end: int | None
    note: Literal["", "before-start", "beyond-end", "window"]


class TimeTopic(TypedDict):
    """A topic in a cluster; `error`: why the cluster gave no answer. `by`: the records' timestamps, from
    the broker, or the event time of their audit plan, from their audit; `why`: the reason for that."""

    cluster: str
    topic: str
    by: Literal["timestamps", "audit"]
    why: str
    partitions: list[TimePartition]
    error: str


class AtTime(TypedDict):
    """Every cluster that has the topic or a route's copy of it, or does not answer."""

    topic: str
    time_ms: int
    topics: list[TimeTopic]
