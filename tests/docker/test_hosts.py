"""Two workers on two hosts: each answers requests whose data only the other worker has."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from app.dev.demo.stage import http, wait_until
from app.dev.demo.traffic import create_topic
from tests.docker.region import CLUSTER, CONFIG, GROUP, PARTITIONS, SETTLE_S, TOPIC, Region, Worker, state
from tests.kafka.conftest import producing
from tests.system.test_audit import PARTITIONS as PAID_PARTITIONS
from tests.system.test_audit import WIDTH_MS, Traffic

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]  # the first test builds the images
AGGREGATE, PAID = "east-aggregate", "paid"
LOST = 3
PLAN = {
    "apiVersion": "switchyard/v1", "kind": "AuditPlan", "metadata": {"name": "paid"},
    "spec": {"topics": [PAID], "window": "5s", "lateness": "4s", "disorder": "3s"},
}  # fmt: skip


def alert(name: str) -> dict[str, Any]:
    """An alert without channels, which only the console shows."""
    return {
        "apiVersion": "switchyard/v1", "kind": "Alert", "metadata": {"name": name},
        "spec": {"on": ["loss"], "topics": [PAID], "tiers": ["regional", "aggregate"]},
    }  # fmt: skip


def put(worker: Worker, path: str, body: dict[str, Any]) -> None:
    """Deploys a definition through a worker."""
    status, body = http("PUT", f"{worker.url}/api/v1/{path}", body)
    assert status == 201, body


async def write(bootstrap: str, records: int, at_ms: int) -> None:
    """Writes this many records with the same timestamp."""
    async with producing(bootstrap) as producer:
        for _ in range(records):
            await producer.send_and_wait(PAID, b"lost", partition=0, timestamp_ms=at_ms)


@pytest.mark.deep(minutes=1.0)
def test_either_of_two_hosts_shows_trackers_plans_placements_reads_audits_and_fires_alerts(
    region: Region,
) -> None:
    broker, aggregate = region.start_broker("aggregate")
    region.wait_healthy(broker)
    cluster = {"name": AGGREGATE, "region": "east", "tier": "aggregate", "bootstrap": "aggregate:9092"}
    region.config["clusters"] = [*CONFIG["clusters"], cluster]  # type: ignore[misc]
    for bootstrap in (region.bootstrap, aggregate):  # a silent partition would keep windows open for minutes
        asyncio.run(create_topic(bootstrap, PAID, PAID_PARTITIONS))
    workers = region.two_workers()
    put(workers[0], "audit/plans/paid", PLAN)

    for number, worker in enumerate(workers):
        put(worker, f"alerts/paid-{number}", alert(f"paid-{number}"))
        # Each host shows trackers that only the other host has.
        assert {owner_by_tracker(worker, partition) for partition in range(PARTITIONS)} == worker.alive()
        status, body = http("POST", f"{worker.url}/api/v1/placement/plan", {})
        assert status == 200, body
        assert set(body["levels"]) == worker.alive()

    with Traffic(
        [region.bootstrap, aggregate], PAID, record_counts=(3, 60)
    ) as traffic:  # later records end the windows
        wait_until(lambda: traffic.sent.total() > 100, SETTLE_S, partial(report_text, workers[0]))
        at_ms = time.time_ns() // 1_000_000
        asyncio.run(write(region.bootstrap, LOST, at_ms))
        for worker in workers:
            wait_until(
                lambda worker=worker: firing(worker) == {"paid-0", "paid-1"},
                SETTLE_S, partial(report_text, worker), 0.5,
            )  # fmt: skip
            wait_until(partial(is_lost, worker, at_ms), SETTLE_S, partial(report_text, worker), 0.5)


def owner_by_tracker(worker: Worker, partition: int) -> str:
    """The worker whose tracker `worker` shows for a partition."""
    url = f"{worker.url}/api/v1/workloads/{GROUP}/{TOPIC}/partitions/{partition}/tracker"
    wait_until(lambda: http("GET", url)[0] == 200, SETTLE_S, lambda: str(http("GET", url)))
    return str(http("GET", url)[1]["worker"])


def firing(worker: Worker) -> set[str]:
    """The names of the firing alerts, as a worker shows them."""
    status, body = http("GET", f"{worker.url}/api/v1/alerts?state=firing")
    return {item["name"] for item in body["items"]} if status == 200 else set()


def report(worker: Worker) -> tuple[int, Any]:
    """A worker's audit report."""
    return http("GET", f"{worker.url}/api/v1/audit/windows?topic={PAID}&limit=1000")


def report_text(worker: Worker) -> str:
    """A worker's audit report as text, for a failure."""
    return str(report(worker))


def is_lost(worker: Worker, at_ms: int) -> bool:
    """Whether the regional cluster has `LOST` more records in the window of `at_ms`."""
    status, body = report(worker)
    rows = body["items"] if status == 200 else []
    start_ms = at_ms - at_ms % WIDTH_MS
    found = {row["cluster"]: row["count"] for row in rows if row["start_ms"] == start_ms}
    return found.get(CLUSTER, 0) - found.get(AGGREGATE, 0) == LOST


@pytest.mark.deep(minutes=0.5)
def test_a_worker_with_a_loopback_address_ends_when_another_host_has_a_worker(region: Region) -> None:
    first = region.start_worker()
    region.wait_healthy(first.container)
    region.config["web"] = {"host": "0.0.0.0", "advertise": "127.0.0.1"}  # noqa: S104 - of the container
    second = region.start_worker()
    wait_until(lambda: not state(second.container)["Running"], SETTLE_S, lambda: str(state(second.container)))
    assert state(second.container)["ExitCode"] != 0
    written = second.container.get_wrapped_container().logs().decode("utf-8", "replace")
    assert "on another host cannot reach" in written
    assert "web.advertise" in written
