"""A report as Spark's job tells it, with evil text in it."""

from __future__ import annotations

from typing import Any

EVIL = "<img src=x onerror=\"document.title='owned'\">"

REPORT: dict[str, Any] = {
    "generated": "2026-01-31T12:00:00Z",
    "from": "2026-01-24T12:00:00Z",
    "to": "2026-01-31T12:00:00Z",
    "regions": [{"region": "east"}, {"region": "west"}],
    "totals": {"records": 41_234, "missing": 3, "extra": 0, "topics": 1, "windows": 120},
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
    "pairs": [
        {
            "topic": "orders",
            "region": "west",
            "from_tier": "regional",
            "to_tier": "aggregate",
            "group": None,
            "from_count": 41_234,
            "to_count": 41_231,
            "missing": 3,
            "extra": 0,
            "lag_ms": 12.5,
            "states": {"ok": 119, "lossy": 1},
        }
    ],
    "traffic": [
        {
            "topic": "orders",
            "tier": tier,
            "cluster": f"east-{tier}",
            "records": 41_234,
            "bytes": 9_000_000,
            "duplicates": 0,
            "late": 7,
            "p50_ms": 4.0,
            "p95_ms": 21.0,
            "p99_ms": None,
        }
        for tier in ("regional", "aggregate")
    ],
    "workloads": [
        {
            "region": "east",
            "kind": "workload",
            "key": "billing/orders",
            "owner": EVIL,
            "jobs": 4,
            "workers": 2,
            "lag_messages": 17,
            "core_hours": 3.25,
        }
    ],
    "owners": [{"owner": EVIL, "workloads": 1, "records": 41_234, "missing": 3, "core_hours": 3.25}],
    "readiness": [
        {
            "workload": "billing/orders",
            "region": "east",
            "to": "west",
            "ready": False,
            "why": ["it is not deployed in west"],
        }
    ],
}
