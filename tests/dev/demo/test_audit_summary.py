"""The demo's summary of its audit, from given answers of the API."""

from __future__ import annotations

from typing import Any

import pytest

from app.dev.demo.audit_summary import taken

TIERS = ("regional", "aggregate", "consumer")


def window(tier: str, count: int) -> dict[str, Any]:
    return {"tier": tier, "count": count}


def verdict(state: str, missing: int | None = 0, extra: int | None = 0) -> dict[str, Any]:
    return {"state": state, "missing": missing, "extra": extra}


ALL = [window(tier, count) for tier in TIERS for count in (7, 3)]


def test_an_audit_is_complete_when_every_tier_counted_every_record_without_a_difference() -> None:
    audited = taken(ALL, [verdict("ok"), verdict("ok"), verdict("provisional")])
    assert audited.is_all(10, TIERS)
    assert audited.tiers == dict.fromkeys(TIERS, 10)
    assert audited.describe == "2 arrived, 1 not over yet"


@pytest.mark.parametrize(
    "found",
    [
        verdict("lossy", missing=2),
        verdict("provisional", missing=2),  # provisional, and records are missing
        verdict("duplicated", extra=1),
        verdict("corrupted", None, None),
        verdict("absent-audit"),
        verdict("late", missing=1),
    ],
)
def test_an_audit_with_any_differing_window_is_not_complete(found: dict[str, Any]) -> None:
    audited = taken(ALL, [verdict("ok"), found])
    assert not audited.is_all(10, TIERS)
    assert (audited.missing, audited.extra) == (found["missing"] or 0, found["extra"] or 0)


def test_an_audit_is_not_complete_where_a_tier_is_missing_or_has_another_count() -> None:
    assert not taken(ALL, []).is_all(11, TIERS)
    assert not taken(ALL[:4], []).is_all(10, TIERS)
    assert not taken([*ALL, window("consumer", 1)], []).is_all(10, TIERS)
