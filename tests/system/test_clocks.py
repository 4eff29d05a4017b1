"""A worker whose clock is wrong, or jumps, works by the brokers' time and reports the difference."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, messages, produce
from tests.system.fleet import incidents, known_workers
from tests.system.shifted_clock.sitecustomize import VARIABLE, set_clock

pytestmark = pytest.mark.system

CLUSTER, GROUP = "east-aggregate", "billing"
ENOUGH_S = 150.0
DELAY_S = 4.0
HOURS_S = 3_600.0

ShiftedWorker = Callable[[float], tuple[Process, Path]]


@pytest.fixture
def shifted_worker(stage: DemoStage, monkeypatch: pytest.MonkeyPatch) -> ShiftedWorker:
    """Starts workers whose clock is this many seconds ahead; returns the file that sets the difference."""

    def start(seconds: float) -> tuple[Process, Path]:
        file = stage.home / f"clock-{len(stage.processes)}"
        set_clock(file, seconds)
        with monkeypatch.context() as patch:
            patch.setenv(VARIABLE, str(file))
            patch.setenv("PYTHONPATH", str(Path(__file__).parent / "shifted_clock"))
            return stage.worker(), file

    return start


class RetryScenario:
    """A workload with a retry tier, its receiver, and the ids of messages that must be acknowledged."""

    def __init__(self, stage: DemoStage, topic: str, partitions: int = 4) -> None:
        self.stage, self.topic = stage, topic
        self.bootstrap = stage.yard.bootstrap(CLUSTER)
        asyncio.run(create_topic(self.bootstrap, topic, partitions))
        self.receiver = stage.receiver(GROUP, topic)
        self.sent_ids: set[str] = set()

    def deploy(self, worker: Process) -> None:
        retry = [{"delay": f"{DELAY_S:.0f}s", "attempts": 3}]
        self.stage.deploy(worker, workload(GROUP, self.topic, CLUSTER, self.receiver.address, retry=retry))

    def send(self, new_messages: list[SentMessage]) -> None:
        self.sent_ids |= {one.id for one in new_messages if one.behaviour != "poison"}
        asyncio.run(produce(self.bootstrap, self.topic, new_messages))

    def wait_delivered(self, worker: Process) -> None:
        """Waits until every message is acknowledged."""

        def missing() -> set[str]:
            return self.sent_ids - {one["id"] for one in self.stage.deliveries() if one["outcome"] == "ok"}

        wait_until(
            lambda: not missing(), ENOUGH_S, lambda: f"{len(missing())} are missing\n{worker.tail(40)}", 0.5
        )

    def retry_delays_s(self) -> list[float]:
        """Seconds from each failure to the acknowledgement of the retry."""
        failed = {one["id"]: one["at_ms"] for one in self.stage.deliveries() if one["outcome"] == "retryable"}
        delivered_ms = {one["id"]: one["at_ms"] for one in self.stage.deliveries() if one["outcome"] == "ok"}
        return [(delivered_ms[name] - at_ms) / 1000 for name, at_ms in failed.items()]


def readiness(worker: Process) -> dict[str, Any]:
    body: dict[str, Any] = http("GET", f"{worker.url}/health/ready")[1]
    return body


@pytest.mark.parametrize(
    ("hours", "words"),
    [(2, "2h ahead of the brokers'"), (-2, "2h behind the brokers'")],
    ids=["ahead", "behind"],
)
def test_a_worker_with_a_clock_hours_off_keeps_retry_delays_and_reports_the_offset(
    stage: DemoStage, topic_name: str, shifted_worker: ShiftedWorker, hours: int, words: str
) -> None:
    """Regression: a worker with a clock ahead was never ready, and one behind delivered retries at once."""
    worker, _ = shifted_worker(hours * HOURS_S)
    scenario = RetryScenario(stage, topic_name)
    scenario.deploy(worker)
    scenario.send(list(messages(400)))
    scenario.wait_delivered(worker)
    assert min(scenario.retry_delays_s()) >= DELAY_S - 0.1
    assert words in readiness(worker)["clock"]
    (member,) = known_workers(worker)
    assert abs(member["clock_ahead_s"] - hours * HOURS_S) < 5.0
    (incident,) = incidents(worker, "clock")
    assert words in incident["message"]
    assert abs(incident["at_ms"] / 1000 - time.time()) < ENOUGH_S + 30.0, "by the brokers' clock"


@pytest.mark.deep(minutes=0.5)
def test_a_retry_written_by_a_worker_with_a_slow_clock_keeps_its_delay_at_the_next_worker(
    stage: DemoStage, topic_name: str, shifted_worker: ShiftedWorker
) -> None:
    slow, _ = shifted_worker(-0.5 * HOURS_S)
    scenario = RetryScenario(stage, topic_name)
    scenario.deploy(slow)
    scenario.send([SentMessage(f"m-{n}", "retryable") for n in range(40)])

    def all_failed() -> bool:
        return len({one["id"] for one in stage.deliveries() if one["outcome"] == "retryable"}) == 40

    wait_until(all_failed, ENOUGH_S, slow.tail)
    other = stage.worker(wait=False)
    slow.kill()
    stage.wait_ready(other)
    scenario.wait_delivered(other)
    assert min(scenario.retry_delays_s()) >= DELAY_S - 0.1
    assert readiness(other)["clock"] == ""


@pytest.mark.deep(minutes=0.5)
def test_a_clock_that_jumps_does_not_stop_deliveries(
    stage: DemoStage, topic_name: str, shifted_worker: ShiftedWorker
) -> None:
    """Regression: deliveries stopped for ever, even once the clock was right again."""
    worker, file = shifted_worker(0.0)
    scenario = RetryScenario(stage, topic_name)
    scenario.deploy(worker)
    scenario.send(list(messages(200, "before")))
    scenario.wait_delivered(worker)
    assert readiness(worker)["clock"] == ""
    for number, hours in enumerate((20, -20, 0)):
        set_clock(file, hours * HOURS_S)
        scenario.send(list(messages(200, f"jump{number}")))
        scenario.wait_delivered(worker)
        side = {20: "ahead", -20: "behind", 0: ""}[hours]
        wait_until(
            lambda side=side: side in readiness(worker)["clock"], ENOUGH_S, lambda: str(readiness(worker))
        )
    wait_until(lambda: readiness(worker)["clock"] == "", ENOUGH_S, lambda: str(readiness(worker)))
    assert min(scenario.retry_delays_s()) >= DELAY_S - 0.1
    assert worker.running
