"""Control topics that refuse batches, for seconds or for good: no worker stands still in silence."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.controllog.topics import ControlTopics
from app.dev.demo.stage import DemoStage, Process, http, wait_until
from app.dev.demo.traffic import messages
from tests.kafka.conftest import bound, connected
from tests.system.fleet import incidents, together
from tests.system.test_delivery import GROUP, SETTLE_S, Scene

pytestmark = pytest.mark.system

REFUSED_S = 5.0
PER_SECOND = 100
NOTHING_BYTES = 50  # no record is as small


def refuse(stage: DemoStage, most_bytes: int | None, *names: str) -> None:
    """From now on these control topics take batches of so many bytes; None: what they took before."""
    control = stage.yard.bootstrap(f"{stage.yard.clusters[0].region}-regional")
    topics = ControlTopics(stage.region)
    before = {name: getattr(topics, name) for name in names}

    async def change() -> None:
        async with connected(control) as client:
            for topic in before.values():
                restored = int(topic.config.get("max.message.bytes", 1_048_588))
                await bound(client, restored if most_bytes is None else most_bytes, topic.name)

    asyncio.run(change())


def deliveries_go_on(stage: DemoStage) -> None:
    """Ends once two hundred more messages were delivered."""
    seen = len(stage.deliveries())
    wait_until(lambda: len(stage.deliveries()) > seen + 200, SETTLE_S, lambda: str(len(stage.deliveries())))


def ready(worker: Process) -> tuple[int, str]:
    """The status of its probe, and what it says of saving."""
    status, told = http("GET", f"{worker.url}/health/ready")
    return status, told["unsaved"]


def test_control_topics_that_refuse_for_seconds_stop_nothing_for_longer(
    stage: DemoStage, topic_name: str
) -> None:
    play = Scene(stage, topic_name, 0)
    (worker,) = together(stage, 1)
    stage.deploy(worker, play.definition())
    with play.load(messages(1_000_000), PER_SECOND):
        deliveries_go_on(stage)
        refuse(stage, NOTHING_BYTES, "trackers")
        wait_until(lambda: "MessageSizeTooLarge" in worker.tail(), SETTLE_S, worker.tail)
        time.sleep(REFUSED_S)
        refuse(stage, None, "trackers")
        deliveries_go_on(stage)

        refuse(stage, NOTHING_BYTES, "control", "heartbeats", "answers", "incidents")
        changed = play.definition(flow={"max_inflight": 7})
        status, _ = http("PUT", f"{worker.url}/api/v1/workloads/{GROUP}/{topic_name}", changed)
        assert status >= 500, "the control log took nothing"
        time.sleep(REFUSED_S)
        refuse(stage, None, "control", "heartbeats", "answers", "incidents")
        wait_until(lambda: ready(worker) == (200, ""), SETTLE_S, worker.tail)
        stage.deploy(worker, changed)
        deliveries_go_on(stage)
    assert play.settle().lost == ()
    assert worker.running


@pytest.mark.deep(minutes=1.3)
def test_workers_that_can_save_nothing_say_so_and_go_on_once_they_can(
    stage: DemoStage, topic_name: str
) -> None:
    """None ends, as no other could save; one is killed meanwhile."""
    play = Scene(stage, topic_name, 0)
    first, second = together(stage, 2)
    stage.deploy(first, play.definition())
    with play.load(messages(1_000_000), PER_SECOND):
        deliveries_go_on(stage)
        refuse(stage, NOTHING_BYTES, "trackers")
        for worker in (first, second):
            wait_until(lambda worker=worker: ready(worker)[0] == 503, SETTLE_S, worker.tail)
            assert "MessageSizeTooLarge" in ready(worker)[1]
        wait_until(lambda: incidents(second, "unsaved"), SETTLE_S, second.tail)
        told = incidents(second, "unsaved")[0]
        assert "MessageSizeTooLarge" in told["message"]
        assert "max.message.bytes" in told["remedy"]
        first.kill()
        refuse(stage, None, "trackers")
        wait_until(lambda: ready(second) == (200, ""), SETTLE_S, second.tail)
        deliveries_go_on(stage)
    assert play.settle().lost == ()
    assert second.running
