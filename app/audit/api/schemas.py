"""The API's answers about audits: plans, windows, differences between tiers."""

from __future__ import annotations

from typing import Generic, Literal, TypedDict, TypeVar

from app.kernel.json_types import JsonObject
from app.web.http.schemas import Deployed

T = TypeVar("T")


class Noted(TypedDict, Generic[T]):
    """A page of a list. `next` is the `cursor` of the next page, null at the end. `notes`: why the list is
    incomplete, if it is."""

    items: list[T]
    next: str | None
    notes: list[str]


class AuditPlanDetail(TypedDict):
    """A plan as PUT takes it. `clusters`: the counted ones, by this worker's configuration. `jobs`: how many
    have an owner. `lag_messages`: how many records they have not reported yet."""

    name: str
    definition: JsonObject
    etag: str
    clusters: list[str]
    jobs: int
    lag_messages: int
    troubles: list[str]
    deployed: Deployed


class Taken(TypedDict):
    """The number of reports that were taken."""

    taken: int


class AuditWindow(TypedDict):
    """A topic's counts at a tier, in a window of event time; `start` null: the records without a time. `late`
    records came after the window was closed; `count` and `bytes` include them. `bytes` are those of batches
    as stored, so tiers with the same records may differ in them: only `count` shows loss. Latencies are null
    if none were measured. `ids`, a fingerprint of all message ids, is null unless each record has one.
    `without`: sources that were silent when the window was closed. `complete`: no record was gone before it
    was counted. `remark`: the client's deviation from the plan."""

    topic: str
    tier: str
    cluster: str
    start_ms: int | None
    start: str | None
    end_ms: int | None
    state: Literal["open", "provisional", "closed"]
    complete: bool
    count: int
    bytes: int
    duplicates: int
    late: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    ids: str | None
    without: list[str]
    remark: str


class AuditVerdict(TypedDict):
    """A comparison of two tiers in a window. `by`: what was compared. `missing` and `extra` are null if
    counts are equal and contents differ. `absent`: tiers or clusters whose audit is missing. `lag_ms`: by how
    much the median record is later at the second tier; null: unknown. `behind_ms`: by how much the second
    tier's watermark is behind. `closed`: both tiers have closed the window. `group`: the consumer group, if
    the second tier is what a workload has finished. `remark`: why the tiers are not compared."""

    topic: str
    group: str | None
    from_tier: str
    to_tier: str
    start_ms: int
    start: str
    end_ms: int
    state: Literal["ok", "provisional", "lossy", "duplicated", "corrupted", "late", "absent-audit"]
    from_count: int
    to_count: int
    missing: int | None
    extra: int | None
    by: Literal["count", "ids", "values", "offsets"]
    absent: list[str]
    lag_ms: float | None
    behind_ms: int
    closed: bool
    remark: str


class AuditPlace(TypedDict):
    """A record's place."""

    cluster: str
    topic: str
    partition: int
    offset: int


class AuditFinding(TypedDict):
    """A record of the window that differs: missing downstream, altered, doubled, foreign (not upstream),
    waiting for its copier, or unclear (`why`). `source`: the record upstream. An id or key that is not text
    is base64:… `one_of`: how many records with the same contents may be the missing one."""

    kind: Literal["missing", "altered", "doubled", "foreign", "waiting", "unclear"]
    id: str | None
    key: str | None
    at_ms: int
    at: str
    source: AuditPlace | None
    copy: AuditPlace | None
    one_of: int
    why: str


class AuditUnread(TypedDict):
    """Offsets [start, end) that cannot be read."""

    cluster: str
    topic: str
    partition: int
    start: int
    end: int
    why: str


class AuditMissing(TypedDict):
    """A window's records that did not come from one tier to another, as the logs are now; a page of findings.
    `state`: as in AuditVerdict; null: the two tiers are not compared. `differs`: about how many records
    differ. `complete`: all of them are named. `group`: the requested one. `looked_ms`: when the logs were
    read."""

    topic: str
    from_tier: str
    to_tier: str
    group: str | None
    start_ms: int
    start: str
    end_ms: int
    state: str | None
    counts: dict[str, int]
    complete: bool
    differs: int
    unread: list[AuditUnread]
    notes: list[str]
    looked_ms: int
    items: list[AuditFinding]
    next: str | None


class AuditCopyForeseen(TypedDict):
    """The number of records that would be copied again, by the last drill-down."""

    execute: Literal[False]
    missing: int
    state: str | None
    complete: bool


class AuditTopic(TypedDict):
    """A topic in the requested time. `state` is the worst of its verdicts. `incomplete`: windows that may
    lack records. `missing` and `extra`: at least this many records, in lossy and in duplicated windows.
    `absent`: tiers or clusters whose audit is missing. `silent`: tiers (tier/cluster) that are silent now."""

    topic: str
    tiers: list[str]
    state: Literal[
        "ok", "provisional", "lossy", "duplicated", "corrupted", "late", "absent-audit", "not-compared"
    ]
    states: dict[str, int]
    windows: int
    incomplete: int
    missing: int
    extra: int
    late: int
    duplicates: int
    absent: list[str]
    silent: list[str]
    newest_ms: int | None
    newest: str | None
