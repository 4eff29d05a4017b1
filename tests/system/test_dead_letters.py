"""A receiver that fails every message, on real brokers: its topic is not flushed into the DLQ."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson
import pytest

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, produce, read_all
from app.dispatch.model.dead_letter_budget import START_LETTERS
from switchyard.receiver import Message
from tests.system.fleet import incidents
from tests.system.receiver_thread import ReceiverThread

pytestmark = pytest.mark.system

CLUSTER, GROUP = "east-aggregate", "billing"
MESSAGES = 2_000
SETTLE_S = 120.0


class Deployment(ReceiverThread):
    """A receiver in this process that fails every message until `fails` is False."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, GROUP)
        self.fails = True
        self.failed = 0
        self.taken: Counter[str] = Counter()
        self.attempts: set[int] = set()

    def handle(self, message: Message) -> None:
        """Handles one delivery."""
        self.attempts.add(message.attempt)
        if self.fails:
            self.failed += 1
            raise RuntimeError("a bad deployment")
        self.taken[orjson.loads(message.value or b"")["id"]] += 1


def flow_of(worker: Process, topic: str) -> dict[str, Any]:
    """The workload's flow from the API: what limits it."""
    _, shown = http("GET", f"{worker.url}/api/v1/workloads/{GROUP}/{topic}")
    return dict(shown["flow"])


def test_a_receiver_that_fails_every_message_causes_few_dead_letters_and_all_others_arrive_once(
    stage: DemoStage, topic_name: str
) -> None:
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, 4))
    sent = [SentMessage(f"m-{number:05}", "ok") for number in range(MESSAGES)]

    def dead() -> list[str]:
        records = asyncio.run(read_all(bootstrap, f"{topic_name}__{GROUP}__dlq"))
        return [orjson.loads(record.value)["id"] for record in records]

    with Deployment(topic_name).serving() as deployment:
        worker = stage.worker()
        dlq = {"perMinute": 0.001}
        stage.deploy(worker, workload(GROUP, topic_name, CLUSTER, deployment.address, dlq=dlq))
        asyncio.run(produce(bootstrap, topic_name, sent))
        wait_until(
            lambda: bool(incidents(worker, "withheld")), SETTLE_S, lambda: str(flow_of(worker, topic_name))
        )
        wait_until(
            lambda: flow_of(worker, topic_name)["bound"] == "breaker",
            SETTLE_S,
            lambda: str(flow_of(worker, topic_name)),
        )
        (flow,) = flow_of(worker, topic_name)["workers"]
        assert flow["withheld"] > 0
        assert "a bad deployment" in flow["withheld_last"]
        _, metrics = http("GET", f"{worker.url}/metrics")
        assert f'switchyard_withheld_failures_total{{code="{next(iter(flow["withheld_by"]))}"' in str(metrics)
        assert len(dead()) <= START_LETTERS
        deployment.fails = False
        wait_until(
            lambda: len(deployment.taken) >= MESSAGES - START_LETTERS,
            SETTLE_S,
            lambda: str(len(deployment.taken)),
        )
        letters = dead()
        assert len(letters) <= START_LETTERS
        assert deployment.taken + Counter(letters) == Counter(message.id for message in sent)
        assert max(deployment.attempts) <= 3
