"""What the demo says of its audit, from answers of the API that are known."""

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


def test_it_is_all_when_every_tier_has_counted_every_record_and_nothing_differs() -> None:
    audited = taken(ALL, [verdict("ok"), verdict("ok"), verdict("provisional")])
    assert audited.is_all(10, TIERS)
    assert audited.tiers == dict.fromkeys(TIERS, 10)
    assert audited.describe == "2 arrived, 1 not over yet"


@pytest.mark.parametrize(
    "found",
    [
        verdict("lossy", missing=2),
        verdict("provisional", missing=2),  # not over, and not there
        verdict("duplicated", extra=1),
        verdict("corrupted", None, None),
        verdict("absent-audit"),
        verdict("late", missing=1),
    ],
)
def test_it_is_not_all_where_any_window_differs(found: dict[str, Any]) -> None:
    audited = taken(ALL, [verdict("ok"), found])
    assert not audited.is_all(10, TIERS)
    assert (audited.missing, audited.extra) == (found["missing"] or 0, found["extra"] or 0)


def test_it_is_not_all_where_a_tier_has_not_counted_so_many_or_was_not_heard() -> None:
    assert not taken(ALL, []).is_all(11, TIERS)
    assert not taken(ALL[:4], []).is_all(10, TIERS)
    assert not taken([*ALL, window("consumer", 1)], []).is_all(10, TIERS)
