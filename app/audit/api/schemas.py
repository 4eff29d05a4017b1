"""What the API answers of audits: plans, windows, differences between tiers."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypedDict, TypeVar

from app.web.http.schemas import Deployed

T = TypeVar("T")


class Noted(TypedDict, Generic[T]):
    """A piece of a list. `next` is the `cursor` of what follows, null at the end. `notes`: why the list is
    not all there is, if it is not."""

    items: list[T]
    next: str | None
    notes: list[str]


class AuditPlanDetail(TypedDict):
    """A plan as PUT takes it back; the clusters that it counts, as this worker is configured; its jobs, how
    many records they have not reported yet, and their troubles."""

    name: str
    definition: dict[str, Any]
    etag: str
    clusters: list[str]
    jobs: int
    lag_messages: int
    troubles: list[str]
    deployed: Deployed


class Taken(TypedDict):
    """How many reports were taken."""

    taken: int


class AuditWindow(TypedDict):
    """What was counted of a topic at a tier in a window of event time; without a start, the records that have
    no time. `late` (which `count` and `bytes` hold, too) came after it was closed. Latencies are null while
    none were measured, `ids`, a fingerprint of all message ids, where not every record has one. It was closed
    `without` sources that were silent. `complete`: nothing was gone before it was counted.
    `remark`: what its client counts otherwise than planned.
    """

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
    """Two tiers in a window. `by` says what was compared; where counts are the same and contents are not,
    `missing` and `extra` are null. The audit of those `absent` is missing. `lag_ms`: by how much the median
    record is later at the second tier, null: not known; `behind_ms`: by how much its audit is behind.
    `closed`: both have closed the window. `group`: who consumes them, where the second tier is what a
    workload has finished. `remark`: why it is not compared."""

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
    """Where a record is."""

    cluster: str
    topic: str
    partition: int
    offset: int


class AuditFinding(TypedDict):
    """What became of a record of the window: it is missing downstream, altered, doubled, or nobody upstream
    has it; it waits for its copier; or it is unclear, `why`. Where it is upstream, and its copy. An id or key
    that is no text is base64:… It is `one_of` so many records of the same contents, nobody knows which."""

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
    """Offsets [start, end) that cannot be read (any more)."""

    cluster: str
    topic: str
    partition: int
    start: int
    end: int
    why: str


class AuditMissing(TypedDict):
    """What of a window did not come from one tier to another, as the logs show it now; a page of findings.
    The window's `state` is as in AuditVerdict, null: the two tiers are not compared. About so many records
    differ (`differs`); not `complete`: not all of them are named. `group`: which was asked for."""

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
    """How many records would be copied again, by what was found last."""

    execute: Literal[False]
    missing: int
    state: str | None
    complete: bool


class AuditTopic(TypedDict):
    """A topic in the time that was asked for: `states` of its verdicts and the worst of them, its windows,
    those of them that are incomplete; records missing (of lossy windows) and too many (of doubled ones), at
    least; late ones and duplicates. Tiers whose audit is `absent`, and those (tier/cluster) `silent` now."""

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
