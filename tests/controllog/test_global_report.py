"""A report in its topic, of this version and of others."""

from __future__ import annotations

import msgspec
import pytest

from app.controllog.global_report import FORMAT, HEAD, PARTS, folded


def written(**head: object) -> dict[bytes, bytes]:
    """A report of one topic, whose head says this besides."""
    told = {"generated": "now", "rows": 1, **head}
    row = {"topic": "orders", "generated": "now"}
    rows = {(HEAD,): told, ("topics", "orders"): row}
    return {msgspec.json.encode(key): msgspec.json.encode(value) for key, value in rows.items()}


def test_a_report_of_this_format_is_shown() -> None:
    found = folded(written(format=FORMAT))
    assert found is not None
    assert (found["complete"], found["topics"]) == (True, [{"topic": "orders"}])


@pytest.mark.parametrize(("head", "told"), [({}, None), ({"format": 1}, 1), ({"format": FORMAT + 1}, 3)])
def test_of_a_report_of_another_format_nothing_is_shown_but_that(
    head: dict[str, object], told: int | None
) -> None:
    found = folded(written(**head))
    assert found == {"format": told, "generated": None, "complete": False, **{part: [] for part in PARTS}}
