"""The report's rows of workloads and owners: their deliveries, and whether a failover could move them."""

from __future__ import annotations

from typing import Any

import pytest

from app.controllog import codec
from app.offsets.model.offset_map import OffsetMapLine
from spark.dashboard.people import (
    STALE_MS,
    GroupDelivery,
    SmallTables,
    owner_rows,
    readiness_rows,
    topic_owners,
    workload_rows,
)
from tests.spark.conftest import NOON_MS
from tests.spark.regions import assignment, audit_plan, latencies, line, tracker, workload

KEY = "billing/orders"
JOBS = [f"dispatch:{KEY}:orders:{partition}" for partition in range(2)]


def readiness(
    lines: dict[tuple[str, str], OffsetMapLine],
    *,
    jobs: int = 2,
    reads: str = "east-aggregate",
    newest_ms: int = 0,
) -> dict[str, Any]:
    """The readiness of a workload in the east for the west, which depends on its copies.

    `lines`: The offset maps by region and key.
    """
    rows: list[tuple[str, str, str, Any]] = [
        *((region, "workloads", KEY, workload("billing", "orders")) for region in ("east", "west")),
        *(("east", "assignments", job, assignment(job, "w-1")) for job in JOBS[:jobs]),
        *(("east", "trackers", job, tracker(NOON_MS, 1, reads)) for job in JOBS),
        *((region, "checkpoints", key, one) for (region, key), one in lines.items()),
    ]
    tables = SmallTables((region, table, key, codec.encode(value)) for region, table, key, value in rows)
    regions = ("east", "west")
    (row,) = (
        one
        for one in readiness_rows(tables, regions, {}, {"orders": newest_ms}, NOON_MS)
        if one["region"] == "east"
    )
    return row


def copied(
    region: str, source: str, target: str, partitions: int = 2
) -> dict[tuple[str, str], OffsetMapLine]:
    return {
        (region, f"{source}-to-{target}/orders/{number}"): line(NOON_MS, source, target)
        for number in range(partitions)
    }


HERE = copied("east", "east-regional", "east-aggregate")
NOTHING = ["no route copies the orders that it reads to west"]


@pytest.mark.parametrize(
    ("lines", "why", "partitions"),
    [
        ({}, NOTHING, (2, 0)),
        ({**HERE, **copied("west", "west-regional", "west-aggregate")}, NOTHING, (2, 0)),
        (copied("west", "east-aggregate", "west-aggregate"), [], (2, 2)),
        (
            copied("west", "east-aggregate", "west-aggregate", 1),
            ["1 of 2 partitions are copied to west"],
            (2, 1),
        ),
        ({**HERE, **copied("west", "east-regional", "west-aggregate")}, [], (2, 2)),
        (
            {
                **HERE,
                **copied("east", "west-regional", "east-aggregate", 3),
                **copied("west", "east-regional", "west-aggregate"),
            },
            ["0 of 3 partitions are copied to west"],
            (5, 2),
        ),
        (
            {
                **HERE,
                **copied("east", "elsewhere", "east-other"),  # the workload does not read this cluster
                **copied("west", "east-regional", "west-aggregate"),
                **copied("west", "west-regional", "west-aggregate"),
            },
            [],
            (2, 2),
        ),
    ],
)
def test_only_copies_between_the_two_regions_make_a_workload_ready(
    lines: dict[tuple[str, str], OffsetMapLine], why: list[str], partitions: tuple[int, int]
) -> None:
    row = readiness(lines)
    assert (row["why"], row["ready"]) == (why, not why)
    assert (row["partitions"], row["partitions_copied"]) == partitions


def test_a_workload_without_jobs_is_not_known_to_be_copied() -> None:
    row = readiness(copied("west", "east-aggregate", "west-aggregate"), jobs=0)
    assert (row["ready"], row["why"]) == (False, ["region east has no assignments of its partitions"])


def test_a_copy_that_stands_still_during_traffic_is_not_ready() -> None:
    lines = copied("west", "east-aggregate", "west-aggregate")
    assert readiness(lines, newest_ms=NOON_MS + STALE_MS)["ready"]
    (why,) = readiness(lines, newest_ms=NOON_MS + STALE_MS + 1)["why"]
    assert "newest offset sync" in why


def deployed(*of: tuple[str, str, str], plans: dict[str, Any] | None = None) -> SmallTables:
    """Tables with these workloads (region, key, owner), and with each region's audit plan."""
    rows: list[tuple[str, str, str, Any]] = [
        (region, "workloads", key, workload(*key.split("/"), owner)) for region, key, owner in of
    ]
    rows += [(region, "audit_plans", "audit:all", plan) for region, plan in (plans or {}).items()]
    return SmallTables((region, table, key, codec.encode(value)) for region, table, key, value in rows)


def test_a_workloads_deliveries_are_those_of_its_own_group_and_region() -> None:
    tables = deployed(
        ("east", "billing/orders", "ann"), ("west", "billing/orders", "ann"), ("east", "mail/orders", "bob")
    )
    fast, slow = latencies(*[5] * 9), latencies(*[80] * 4)
    deliveries = {
        ("east", "billing", "orders"): GroupDelivery(9, 1, 2, 3, 4, fast),
        ("west", "billing", "orders"): GroupDelivery(4, latencies=slow),
    }
    first, mail, west = workload_rows(tables, {}, deliveries, NOON_MS)
    assert [first[name] for name in ("audited", "delivered", "duplicates", "late", "missing", "extra")] == [
        "deliveries", 9, 1, 2, 3, 4,
    ]  # fmt: skip
    assert first["p50_ms"] == pytest.approx(5, rel=0.02)
    assert (west["delivered"], west["p99_ms"]) == (4, pytest.approx(80, rel=0.02))
    assert (mail["audited"], mail["delivered"], mail["p50_ms"]) == ("not audited", None, None)


def test_a_workload_that_is_not_audited_differs_from_one_without_traffic() -> None:
    spec = {"tiers": ["regional", "aggregate"]}
    of = [("east", "billing/orders", "ann"), ("east", "billing/payments", "ann")]
    for plan, audited, delivered in (
        (audit_plan(), "deliveries", 0),
        (audit_plan(**spec), "topic only", None),
    ):
        tables = deployed(*of, plans={"east": plan})
        orders, payments = workload_rows(tables, {}, {}, NOON_MS)
        assert (orders["audited"], orders["delivered"]) == (audited, delivered)
        assert (payments["audited"], payments["delivered"]) == ("not audited", None)


def test_an_owners_percentiles_are_of_all_its_records_not_means_of_percentiles() -> None:
    tables = deployed(
        ("east", "billing/orders", "ann"), ("east", "mail/orders", "ann"), ("east", "x/other", "bob")
    )
    deliveries = {
        ("east", "billing", "orders"): GroupDelivery(990, 1, latencies=latencies(*[5] * 990)),
        ("east", "mail", "orders"): GroupDelivery(10, 2, latencies=latencies(*[1000] * 10)),
    }
    workloads = workload_rows(tables, {}, deliveries, NOON_MS)
    topics = [{"topic": "orders", "records": 1000, "missing": 3, "extra": 0}]
    readiness = readiness_rows(tables, ["east", "west"], {}, {}, NOON_MS)
    readiness[0]["ready"] = True
    ann, bob = owner_rows(workloads, topics, topic_owners(tables), deliveries, readiness)
    assert (ann["delivered"], ann["duplicates"], ann["records"], ann["missing"]) == (1000, 3, 1000, 3)
    assert ann["p99_ms"] == pytest.approx(5, rel=0.02)  # the mean of both p99 would be 500
    assert (ann["ready"], ann["not_ready"], ann["not_audited"]) == (1, 1, 0)
    assert (bob["ready"], bob["not_ready"], bob["not_audited"]) == (0, 1, 1)
    assert [bob[name] for name in ("records", "missing", "delivered", "p50_ms")] == [None] * 4
