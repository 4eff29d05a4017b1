"""Limits hold over all workers of a region together, and busy jobs get the share of idle ones: with real
workers.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from app.dev.demo.stage import DemoStage, wait_until, workload
from app.dev.demo.traffic import create_topic
from tests.system.fleet import Flow, Journal, assignments, most_deliveries_within, start_workers

pytestmark = pytest.mark.system

CLUSTER, GROUP = "east-aggregate", "billing"
ENOUGH_S = 150.0
PER_S = 60
WINDOW_S = 5


@pytest.mark.deep(minutes=0.6)
def test_a_busy_partition_beside_idle_retry_jobs_gets_the_workloads_rate_and_the_fleet_never_more(
    stage: DemoStage, topic_name: str
) -> None:
    """The jobs of two retry tiers are on other workers, and idle."""
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, 1))
    first, *_ = start_workers(stage, 3)
    receiver = stage.receiver(GROUP, topic_name)
    spec = {"flow": {"messages_per_second": PER_S}, "retry": [{"delay": "1s"}, {"delay": "2s"}]}
    stage.deploy(first, workload(GROUP, topic_name, CLUSTER, receiver.address, **spec))
    wait_until(
        lambda: sorted(Counter(owner for owner, _ in assignments(first).values()).values()) == [1, 1, 1],
        ENOUGH_S,
        lambda: str(assignments(first)),
    )
    journal = Journal(stage.journal)

    def most_in_window() -> int:
        return most_deliveries_within(
            [{"at_ms": one.at_ms} for one in journal.read().entries_of(topic_name)], WINDOW_S * 1000
        )

    with Flow(bootstrap, {topic_name: 1}, per_partition=2 * PER_S):
        wait_until(
            lambda: most_in_window() > 0.7 * WINDOW_S * PER_S,
            ENOUGH_S,
            lambda: f"{most_in_window()} in {WINDOW_S} s",
        )
    # One second's messages more: a receiver that stood still for a moment notes later deliveries together.
    assert most_in_window() <= (WINDOW_S + 1) * PER_S
