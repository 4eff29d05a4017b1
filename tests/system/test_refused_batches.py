"""Control topics that refuse batches, for seconds or permanently: no worker stands still without a report."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.controllog.topics import ControlTopics
from app.dev.demo.stage import DemoStage, Process, http, wait_until
from app.dev.demo.traffic import messages
from tests.kafka.conftest import bound, connected
from tests.system.fleet import incidents, start_workers
from tests.system.test_delivery import GROUP, SETTLE_S, DeliveryScenario

pytestmark = pytest.mark.system

REFUSED_S = 5.0
PER_SECOND = 100
NOTHING_BYTES = 50  # no record is as small


def limit_batches(stage: DemoStage, most_bytes: int | None, *names: str) -> None:
    """Limits these control topics to batches of this many bytes; None restores the limit."""
    control = stage.yard.bootstrap(f"{stage.yard.clusters[0].region}-regional")
    topics = ControlTopics(stage.region)
    before = {name: getattr(topics, name) for name in names}

    async def change() -> None:
        async with connected(control) as client:
            for topic in before.values():
                restored = int(topic.config.get("max.message.bytes", 1_048_588))
                await bound(client, restored if most_bytes is None else most_bytes, topic.name)

    asyncio.run(change())


def wait_more_deliveries(stage: DemoStage) -> None:
    """Waits for two hundred more deliveries."""
    seen = len(stage.deliveries())
    wait_until(lambda: len(stage.deliveries()) > seen + 200, SETTLE_S, lambda: str(len(stage.deliveries())))


def readiness(worker: Process) -> tuple[int, str]:
    """The status of the readiness probe, and its text about saving."""
    status, body = http("GET", f"{worker.url}/health/ready")
    return status, body["unsaved"]


def test_deliveries_resume_after_control_topics_refused_batches_for_seconds(
    stage: DemoStage, topic_name: str
) -> None:
    scenario = DeliveryScenario(stage, topic_name, 0)
    (worker,) = start_workers(stage, 1)
    stage.deploy(worker, scenario.definition())
    with scenario.load(messages(1_000_000), PER_SECOND):
        wait_more_deliveries(stage)
        limit_batches(stage, NOTHING_BYTES, "trackers")
        wait_until(lambda: "MessageSizeTooLarge" in worker.tail(), SETTLE_S, worker.tail)
        time.sleep(REFUSED_S)
        limit_batches(stage, None, "trackers")
        wait_more_deliveries(stage)

        limit_batches(stage, NOTHING_BYTES, "control", "heartbeats", "answers", "incidents")
        changed = scenario.definition(flow={"max_inflight": 7})
        status, _ = http("PUT", f"{worker.url}/api/v1/workloads/{GROUP}/{topic_name}", changed)
        assert status >= 500, "the control log took nothing"
        time.sleep(REFUSED_S)
        limit_batches(stage, None, "control", "heartbeats", "answers", "incidents")
        wait_until(lambda: readiness(worker) == (200, ""), SETTLE_S, worker.tail)
        stage.deploy(worker, changed)
        wait_more_deliveries(stage)
    assert scenario.settle().lost == ()
    assert worker.running


@pytest.mark.deep(minutes=1.3)
def test_workers_that_cannot_save_report_it_and_resume_deliveries_once_they_can(
    stage: DemoStage, topic_name: str
) -> None:
    """No worker ends, as no other could save either; one is killed meanwhile."""
    scenario = DeliveryScenario(stage, topic_name, 0)
    first, second = start_workers(stage, 2)
    stage.deploy(first, scenario.definition())
    with scenario.load(messages(1_000_000), PER_SECOND):
        wait_more_deliveries(stage)
        limit_batches(stage, NOTHING_BYTES, "trackers")
        for worker in (first, second):
            wait_until(lambda worker=worker: readiness(worker)[0] == 503, SETTLE_S, worker.tail)
            assert "MessageSizeTooLarge" in readiness(worker)[1]
        wait_until(lambda: incidents(second, "unsaved"), SETTLE_S, second.tail)
        incident = incidents(second, "unsaved")[0]
        assert "MessageSizeTooLarge" in incident["message"]
        assert "max.message.bytes" in incident["remedy"]
        first.kill()
        limit_batches(stage, None, "trackers")
        wait_until(lambda: readiness(second) == (200, ""), SETTLE_S, second.tail)
        wait_more_deliveries(stage)
    assert scenario.settle().lost == ()
    assert second.running
