"""A worker whose clock is wrong, or jumps, works by the brokers' time, and says so."""

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
    """Starts workers whose clock is so many seconds ahead, and tells the file that says so."""

    def start(seconds: float) -> tuple[Process, Path]:
        file = stage.home / f"clock-{len(stage.processes)}"
        set_clock(file, seconds)
        with monkeypatch.context() as patch:
            patch.setenv(VARIABLE, str(file))
            patch.setenv("PYTHONPATH", str(Path(__file__).parent / "shifted_clock"))
            return stage.worker(), file

    return start


class Play:
    """A workload with a retry tier, its receiver, and what is sent."""

    def __init__(self, stage: DemoStage, topic: str, partitions: int = 4) -> None:
        self.stage, self.topic = stage, topic
        self.bootstrap = stage.yard.bootstrap(CLUSTER)
        asyncio.run(create_topic(self.bootstrap, topic, partitions))
        self.receiver = stage.receiver(GROUP, topic)
        self.sent: set[str] = set()

    def deploy(self, worker: Process) -> None:
        retry = [{"delay": f"{DELAY_S:.0f}s", "attempts": 3}]
        self.stage.deploy(worker, workload(GROUP, self.topic, CLUSTER, self.receiver.address, retry=retry))

    def send(self, sent: list[SentMessage]) -> None:
        self.sent |= {one.id for one in sent if one.behaviour != "poison"}
        asyncio.run(produce(self.bootstrap, self.topic, sent))

    def all_arrive(self, worker: Process) -> None:
        """Each is acknowledged."""

        def missing() -> set[str]:
            return self.sent - {one["id"] for one in self.stage.deliveries() if one["outcome"] == "ok"}

        wait_until(
            lambda: not missing(), ENOUGH_S, lambda: f"{len(missing())} are missing\n{worker.tail(40)}", 0.5
        )

    def waited_s(self) -> list[float]:
        """How long after its failure each of the retried came again."""
        failed = {one["id"]: one["at_ms"] for one in self.stage.deliveries() if one["outcome"] == "retryable"}
        again = {one["id"]: one["at_ms"] for one in self.stage.deliveries() if one["outcome"] == "ok"}
        return [(again[name] - at_ms) / 1000 for name, at_ms in failed.items()]


def ready(worker: Process) -> dict[str, Any]:
    body: dict[str, Any] = http("GET", f"{worker.url}/health/ready")[1]
    return body


@pytest.mark.parametrize(
    ("hours", "words"),
    [(2, "2h ahead of the brokers'"), (-2, "2h behind the brokers'")],
    ids=["ahead", "behind"],
)
def test_a_worker_whose_clock_is_hours_off_works_and_says_so(
    stage: DemoStage, topic_name: str, shifted_worker: ShiftedWorker, hours: int, words: str
) -> None:
    """One that was ahead was never ready; one that was behind delivered retries at once."""
    worker, _ = shifted_worker(hours * HOURS_S)
    play = Play(stage, topic_name)
    play.deploy(worker)
    play.send(list(messages(400)))
    play.all_arrive(worker)
    assert min(play.waited_s()) >= DELAY_S - 0.1
    assert words in ready(worker)["clock"]
    (seen,) = known_workers(worker)
    assert abs(seen["clock_ahead_s"] - hours * HOURS_S) < 5.0
    (told,) = incidents(worker, "clock")
    assert words in told["message"]
    assert abs(told["at_ms"] / 1000 - time.time()) < ENOUGH_S + 30.0, "by the brokers' clock"


@pytest.mark.deep(minutes=0.5)
def test_a_retry_that_a_slow_worker_wrote_is_due_when_it_should_be_for_another(
    stage: DemoStage, topic_name: str, shifted_worker: ShiftedWorker
) -> None:
    slow, _ = shifted_worker(-0.5 * HOURS_S)
    play = Play(stage, topic_name)
    play.deploy(slow)
    play.send([SentMessage(f"m-{n}", "retryable") for n in range(40)])

    def all_failed() -> bool:
        return len({one["id"] for one in stage.deliveries() if one["outcome"] == "retryable"}) == 40

    wait_until(all_failed, ENOUGH_S, slow.tail)
    other = stage.worker(wait=False)
    slow.kill()
    stage.wait_ready(other)
    play.all_arrive(other)
    assert min(play.waited_s()) >= DELAY_S - 0.1
    assert ready(other)["clock"] == ""


@pytest.mark.deep(minutes=0.5)
def test_a_clock_that_jumps_stops_nothing(
    stage: DemoStage, topic_name: str, shifted_worker: ShiftedWorker
) -> None:
    """It stood for ever, also once the clock was right again."""
    worker, file = shifted_worker(0.0)
    play = Play(stage, topic_name)
    play.deploy(worker)
    play.send(list(messages(200, "before")))
    play.all_arrive(worker)
    assert ready(worker)["clock"] == ""
    for number, hours in enumerate((20, -20, 0)):
        set_clock(file, hours * HOURS_S)
        play.send(list(messages(200, f"jump{number}")))
        play.all_arrive(worker)
        side = {20: "ahead", -20: "behind", 0: ""}[hours]
        wait_until(lambda side=side: side in ready(worker)["clock"], ENOUGH_S, lambda: str(ready(worker)))
    wait_until(lambda: ready(worker)["clock"] == "", ENOUGH_S, lambda: str(ready(worker)))
    assert min(play.waited_s()) >= DELAY_S - 0.1
    assert worker.running
