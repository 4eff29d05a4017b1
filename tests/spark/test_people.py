"""Whether a workload could be failed over, by the small tables of its region and of the other."""

from __future__ import annotations

from typing import Any

import pytest

from app import wire
from app.core.offset_map import Line
from spark.dashboard.people import STALE_MS, Tables, readiness_rows
from tests.spark.conftest import NOON_MS
from tests.spark.regions import assignment, line, tracker, workload

KEY = "billing/orders"
JOBS = [f"dispatch:{KEY}:orders:{partition}" for partition in range(2)]


def told(
    lines: dict[tuple[str, str], Line], *, jobs: int = 2, reads: str = "east-aggregate", newest_ms: int = 0
) -> dict[str, Any]:
    """Of a workload that reads a cluster in the east, ready for the west but for what is copied. `lines`: by
    region and key."""
    rows: list[tuple[str, str, str, Any]] = [
        *((region, "workloads", KEY, workload("billing", "orders")) for region in ("east", "west")),
        *(("east", "assignments", job, assignment(job, "w-1")) for job in JOBS[:jobs]),
        *(("east", "trackers", job, tracker(NOON_MS, 1, reads)) for job in JOBS),
        *((region, "checkpoints", key, one) for (region, key), one in lines.items()),
    ]
    tables = Tables((region, table, key, wire.encode(value)) for region, table, key, value in rows)
    regions = ("east", "west")
    (row,) = (
        one
        for one in readiness_rows(tables, regions, {}, {"orders": newest_ms}, NOON_MS)
        if one["region"] == "east"
    )
    return row


def copied(region: str, source: str, target: str, partitions: int = 2) -> dict[tuple[str, str], Line]:
    return {
        (region, f"{source}-to-{target}/orders/{number}"): line(NOON_MS, source, target)
        for number in range(partitions)
    }


HERE = copied("east", "east-regional", "east-aggregate")
NOTHING = ["nothing copies what it reads of orders to west"]


@pytest.mark.parametrize(
    ("lines", "why", "partitions"),
    [
        ({}, NOTHING, (2, 0)),
        ({**HERE, **copied("west", "west-regional", "west-aggregate")}, NOTHING, (2, 0)),
        (copied("west", "east-aggregate", "west-aggregate"), [], (2, 2)),
        (
            copied("west", "east-aggregate", "west-aggregate", 1),
            ["1 of 2 partitions are copied in west"],
            (2, 1),
        ),
        ({**HERE, **copied("west", "east-regional", "west-aggregate")}, [], (2, 2)),
        (
            {
                **HERE,
                **copied("east", "west-regional", "east-aggregate", 3),
                **copied("west", "east-regional", "west-aggregate"),
            },
            ["0 of 3 partitions are copied in west"],
            (5, 2),
        ),
        (
            {
                **HERE,
                **copied("east", "elsewhere", "east-other"),  # no part of what is read
                **copied("west", "east-regional", "west-aggregate"),
                **copied("west", "west-regional", "west-aggregate"),
            },
            [],
            (2, 2),
        ),
    ],
)
def test_only_what_copies_between_the_regions_makes_ready(
    lines: dict[tuple[str, str], Line], why: list[str], partitions: tuple[int, int]
) -> None:
    row = told(lines)
    assert (row["why"], row["ready"]) == (why, not why)
    assert (row["partitions"], row["partitions_copied"]) == partitions


def test_a_workload_without_jobs_is_not_known_to_be_copied() -> None:
    row = told(copied("west", "east-aggregate", "west-aggregate"), jobs=0)
    assert (row["ready"], row["why"]) == (False, ["its partitions are not known in east"])


def test_a_copy_that_stands_still_while_there_is_traffic_is_told() -> None:
    lines = copied("west", "east-aggregate", "west-aggregate")
    assert told(lines, newest_ms=NOON_MS + STALE_MS)["ready"]
    (why,) = told(lines, newest_ms=NOON_MS + STALE_MS + 1)["why"]
    assert "newest barrier" in why
