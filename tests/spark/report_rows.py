"""A report as Spark's job writes it, with text that tries to inject markup."""

from __future__ import annotations

from typing import Any

from spark.dashboard.summary import FORMAT

EVIL = "<img src=x onerror=\"document.title='owned'\">"
NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00Z
HOUR_MS = 3_600_000
RANKS = {"p50_ms": 4.0, "p95_ms": 21.0, "p99_ms": None}


def timeline_row(
    minutes_ago: int, kind: str, what: str, who: str = "ann", minutes: int | None = 0, region: str = "east"
) -> dict[str, Any]:
    """A timeline row that lasted this many minutes. None: it is still open."""
    from_ms = NOON_MS - minutes_ago * 60_000
    until_ms = None if minutes is None else from_ms + minutes * 60_000
    begin = {"from_ms": from_ms, "until_ms": until_ms, "from": iso(minutes_ago)}
    until = None if minutes is None else iso(minutes_ago - minutes)
    return {**begin, "until": until, "region": region, "kind": kind, "what": what, "who": who}


def iso(minutes_ago: int) -> str:
    """The ISO time this many minutes before noon."""
    hours, minutes = divmod(12 * 60 - minutes_ago, 60)
    return f"2026-01-31T{hours:02}:{minutes:02}:00Z"


def line(place: str, *counts: int) -> dict[str, Any]:
    """A series of hourly record counts; the last hour ends at noon."""
    begin_ms = NOON_MS - len(counts) * HOUR_MS
    points = [[begin_ms + number * HOUR_MS, count] for number, count in enumerate(counts)]
    return {"topic": "orders", "place": place, "step_ms": HOUR_MS, "points": points}


def counted(tier: str, cluster: str) -> dict[str, Any]:
    """The counts of an audit tier."""
    totals = {"windows": 120, "open_windows": 1, "records": 41_234, "bytes": 9_000_000}
    return {"tier": tier, "cluster": cluster, **totals, "duplicates": 0, "late": 7, **RANKS}


def workload(key: str, audited: str, delivered: int | None) -> dict[str, Any]:
    """A row of the workloads table. `delivered` None: the group's deliveries are not audited."""
    used = {
        "jobs": 4,
        "workers": 2,
        "lag_messages": 17,
        "arriving": 3.5,
        "core_hours": 3.25,
        "network_bytes": 9_000_000,
        "memory_bytes": 4_000_000,
        "position_age_ms": 5000,
    }
    audit_counts = ("delivered", "duplicates", "late", "missing", "extra")
    found = dict.fromkeys(audit_counts, None if delivered is None else 0)
    ranks = dict.fromkeys(RANKS) if delivered is None else RANKS
    names = {"region": "east", "kind": "workload", "key": key, "topic": key.rpartition("/")[2]}
    return {**names, "owner": EVIL, **used, "audited": audited, **found, "delivered": delivered, **ranks}


WAVE = [400, 900, 1600, 2500, 3300, 3900, 4000, 3600, 2800, 1900, 1100, 500]

REPORT: dict[str, Any] = {
    "format": FORMAT,
    "generated": "2026-01-31T12:00:00Z",
    "from": "2026-01-24T12:00:00Z",
    "to": "2026-01-31T12:00:00Z",
    "regions": [{"region": "east"}, {"region": "west"}],
    "totals": {"records": 41_234, "missing": 3, "extra": 0, "topics": 1, "windows": 120},
    "cut": {"windows": 11, "timeline": 1234},
    "topics": [
        {
            "topic": "orders",
            "owners": [EVIL],
            "records": 41_234,
            "bytes": 9_000_000,
            "missing": 3,
            "extra": 0,
            "states": {"ok": 119, "lossy": 1},
        }
    ],
    "tiers": [
        {"name": f"{tier} east-{tier}", **counted(tier, f"east-{tier}"), "p99_ms": p99_ms}
        for tier, p99_ms in (("regional", 88.0), ("aggregate", None))
    ],
    "pairs": [
        {
            "topic": "orders",
            "region": "west",
            "from_tier": "regional",
            "to_tier": "aggregate",
            "group": None,
            "windows": 120,
            "from_count": 41_234,
            "to_count": 41_231,
            "missing": 3,
            "extra": 0,
            "lag_ms": 12.5,
            "behind_ms": 0,
            "states": {"ok": 119, "lossy": 1},
        }
    ],
    "traffic": [{"topic": "orders", **counted(tier, f"east-{tier}")} for tier in ("regional", "aggregate")],
    "untimed": [{"topic": "orders", **counted("regional", "east-regional"), "records": 4}],
    "windows": [
        {
            "start": "2026-01-31T10:00:00Z",
            "start_ms": NOON_MS - 2 * HOUR_MS,
            "width_ms": 60_000,
            "topic": "orders",
            "region": "west",
            "from_tier": "regional",
            "to_tier": "aggregate",
            "group": None,
            "state": "lossy",
            "from_count": 700,
            "to_count": 697,
            "missing": 3,
            "extra": 0,
            "absent": "",
        }
    ],
    "series": [
        line("regional east-regional", *WAVE),
        line("aggregate west-aggregate", *(count - count // 9 for count in WAVE)),
        line(f"consumer {EVIL} of west-aggregate", *(count // 2 for count in WAVE)),
    ],
    "workloads": [
        workload("billing/orders", "deliveries", 40_123),
        workload("mail/letters", "not audited", None),
    ],
    "owners": [
        {
            "owner": EVIL,
            "workloads": 2,
            "not_audited": 1,
            "topics": 1,
            "records": 41_234,
            "missing": 3,
            "extra": 0,
            "delivered": 40_123,
            "duplicates": 0,
            "late": 0,
            **RANKS,
            "ready": 0,
            "not_ready": 2,
            "lag_messages": 34,
            "core_hours": 3.25,
            "network_bytes": 9_000_000,
        }
    ],
    "readiness": [
        {
            "workload": "billing/orders",
            "owner": EVIL,
            "region": "east",
            "to": "west",
            "ready": False,
            "why": ["it is not deployed in west"],
            "partitions": 4,
            "partitions_copied": 3,
            "barrier_age_ms": 1500,
        }
    ],
    "timeline": [
        timeline_row(
            5, "incident", f"log-truncated: orders: {EVIL}; look at the disks of east-regional", "w-1"
        ),
        timeline_row(20, "alert", "orders-lost: orders, regional to aggregate: firing", "", None),
        timeline_row(55, "role", "billing/orders is active in west instead of east, epoch 3", minutes=1),
        timeline_row(60, "failover", "f-1 to west: done: the east is away", minutes=12, region="west"),
        timeline_row(61, "leader", "claims term 4", "w-2"),
        timeline_row(
            120, "audit", "orders, regional to aggregate: lossy, 3 missing, 1 window", EVIL, 1, "west"
        ),
        timeline_row(300, "operator", "billing/orders: skip orders/0 17", "bob"),
    ],
    "quarantine": [
        {
            "region": "east",
            "table": "trackers",
            "reason": f"the key is not one of trackers: {EVIL}",
            "count": 2,
        }
    ],
}
