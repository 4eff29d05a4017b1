"""What the API takes and answers of offsets across clusters, as `app.web.http.schemas` does of everything
else."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from app.offsets.sync.group_syncer import GroupState
from app.web.http.request_bodies import Body, Execute

GroupName = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(min_length=1, max_length=249)]


class SyncBody(Body, kw_only=True, frozen=True):
    """A group, and the clusters that it is mapped from and committed in. `topic`: of only this one."""

    group: GroupName
    source: Text = msgspec.field(name="from")
    target: Text = msgspec.field(name="to")
    topic: Text | None = None
    execute: Execute = False


class BarrierTold(TypedDict):
    """An entry of the offset map: all of the source below `source_end` is below `target_end`, and the rest is
    not. `age_s`: since it was recorded."""

    source_end: int
    target_end: int
    at_ms: int
    age_s: float


class ReadingTold(TypedDict):
    """How far a source was read, as one partition that was read tells: at `next_offset` the reader was behind
    `barrier`, and so had all of the source below `read_up_to`; null: `why` says why not."""

    partition: int
    next_offset: int | None
    region: str
    route: str
    barrier: BarrierTold | None
    read_up_to: int | None
    why: str


class SourceTold(TypedDict):
    """What one source says: it was read below `read_up_to`, the least of its readings; by `barrier` nothing
    of it from there on lies below `next_offset` here. At most `again` records of it are read again."""

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
    """Where to go on in a partition; `least` is the source that held it back. With a `why` that is the log's
    start, as nothing better is known."""

    partition: int
    next_offset: int
    log_start: int
    log_end: int
    least: str | None
    again: int | None
    why: str
    sources: list[SourceTold]


class MappedTopic(TypedDict):
    """A topic that was read, and one there. `road`: that one is its copy, has `common` sources with it, or is
    its source (the way `back`). `elsewhere`: sources of what was read that are not there."""

    topic: str
    to_topic: str
    road: Literal["copy", "common", "back"]
    partitions: list[MappedPartition]
    elsewhere: list[str]


class RegionKnown(TypedDict):
    """How well a region's offset map is known here: its own, from a copy, read over there (`remote`), `none`
    as it has none, or `away`. `read_ms`: as of then, null when it never was read."""

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
    "Positions of one cluster in another; `unmapped` are the group's topics that nothing joins with it."
)


class SyncRow(TypedDict):
    """One partition there: `have` is the group's position, `mapped` what it should be, `commit` what is
    committed (null: nothing, and `why`)."""

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
    "A group that is brought in step, or would be: `synced`; `unchanged`, as it was; `live`, as somebody "
    "consumes there; `refused`, as it would go back; `failed`; `nothing`, as nothing joins a topic of it."
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
    "A group that a route keeps in step, or whose workload is passive here, as of the last round, and when "
    "it was in step last. `no-round`: of no group, as the route's groups could not be looked at; `away`: of "
    "a workload, as a cluster or the map does not answer; `starting`: it was not looked at yet."
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
    "How the positions of a workload that is passive here follow those in the active region's cluster: as in "
    "GroupKept, and how long ago they were in step (null: not since this worker leads)."
)


class TimePartition(TypedDict):
    """The first record at or after the time. `beyond-end`: there is none that new, the offset is the log's
    end (or that of all that was counted); `before-start`: the log begins later, older ones may have been
    there; `window`: the first of its audit window, which begins before the time. Of the audit's answers there
    is no timestamp, and nothing of the log where its cluster cannot be asked."""

    partition: int
    next_offset: int
    timestamp_ms: int | None
    log_start: int | None
    log_end: int | None
    note: Literal["", "before-start", "beyond-end", "window"]


class TimeTopic(TypedDict):
    """A topic in a cluster; `error`: why it cannot be asked. `by` which time: the records' timestamps, as the
    broker tells them, or the event time of their audit plan, as their audit does; `why` that one."""

    cluster: str
    topic: str
    by: Literal["timestamps", "audit"]
    why: str
    partitions: list[TimePartition]
    error: str


class AtTime(TypedDict):
    """Every cluster that has the topic, or a copy of it by a route, or that cannot be asked."""

    topic: str
    time_ms: int
    topics: list[TimeTopic]
