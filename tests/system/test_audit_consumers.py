"""Dispatch as a tier: messages that a workload's group finished are counted once, although workers are
killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import create_topic
from tests.system.fleet import assignments, start_workers
from tests.system.test_audit import ENOUGH_S, PARTITIONS, Traffic, audit_rows, plan, window_counts

pytestmark = pytest.mark.system

HOME = "east-regional"


def _counted_more_than(worker: Process, topic: str, enough: int) -> bool:
    return window_counts(worker, topic, "consumer").total() > enough


def _progress(workers: list[Process], tier: str, counted: int, sent: int) -> str:
    """The count of a tier, and its workers' logs."""
    tails = "\n".join(f"{worker.name}, {worker.jobs()}:\n{worker.tail(40)}" for worker in workers)
    latest_windows = http("GET", f"{workers[0].url}/api/v1/audit/windows?limit=1&tier={tier}")
    return (
        f"{counted} of {sent} records counted at {tier} for {ENOUGH_S:.0f} s; now {latest_windows}\n{tails}"
    )


def _verdicts(worker: Process, topic: str) -> list[tuple[Any, str]]:
    rows = audit_rows(worker, "loss", topic=topic)
    return [(row["group"], row["state"]) for row in rows if row["state"] not in {"late", "provisional"}]


@pytest.mark.deep(minutes=1.4)
def test_messages_that_a_group_finished_are_counted_once_although_workers_are_killed(
    stage: DemoStage, topic_name: str
) -> None:
    home = stage.yard.bootstrap(HOME)
    asyncio.run(create_topic(home, topic_name, PARTITIONS))
    workers = start_workers(stage)
    receiver = stage.receiver("billing", topic_name)
    stage.deploy(workers[0], plan("all", topic_name))
    spec = {"start": "earliest", "retry": [{"delay": "1s", "attempts": 2}]}
    stage.deploy(workers[0], workload("billing", topic_name, HOME, receiver.address, **spec))
    # A busy machine delivers slowly, so a backlog grows; it must be delivered in the end.
    with Traffic([home], topic_name, (3, 20, 200)) as traffic:
        for kills in (True, False, True):
            wait_until(
                lambda: len(dict(assignments(workers[0]))) >= 2 * PARTITIONS, ENOUGH_S,
                lambda: str(assignments(workers[0])),
            )  # fmt: skip
            enough = window_counts(workers[0], topic_name, "consumer").total() + 300
            wait_until(partial(_counted_more_than, workers[0], topic_name, enough), ENOUGH_S, workers[0].tail)
            owners = Counter(dict(workers[0].jobs()))
            victim = max(workers, key=lambda worker: owners[worker.url])
            workers.remove(victim)
            workers.append(stage.worker())
            if kills:
                victim.kill()
            else:
                assert victim.terminate() == 0
    sent, worker = traffic.sent, workers[0]
    for tier in ("regional", "consumer"):
        while (counted := window_counts(worker, topic_name, tier).total()) < sent.total():
            wait_until(
                lambda tier=tier, counted=counted: window_counts(worker, topic_name, tier).total() > counted,
                ENOUGH_S,
                partial(_progress, workers, tier, counted, sent.total()),
            )  # fmt: skip
        assert window_counts(worker, topic_name, tier) == sent
    places = {row["cluster"] for row in audit_rows(worker, "windows", topic=topic_name, tier="consumer")}
    assert places == {f"{HOME}:billing"}
    assert all(row["p50_ms"] for row in audit_rows(worker, "windows", topic=topic_name, tier="consumer"))
    assert _verdicts(worker, topic_name) == [], "nothing was lost"
