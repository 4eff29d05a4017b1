"""A workload's messages are delayed on their main topic, some by a time of their own. A worker is killed
while they wait. Every message is counted, and none is early."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from app.dev.demo.stage import DemoStage, wait_until, workload
from app.dev.demo.traffic import create_topic, read_all
from switchyard.receiver import Message
from tests.system.fleet import start_workers
from tests.system.receiver_thread import ReceiverThread
from tests.system.records import NewRecord, send_records

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, COUNT, SETTLE_S = "east-aggregate", "billing", 4, 800, 120.0
DELAY_MS = 3_000  # of all messages
SOON_MS, LATE_MS = 5_000, 35_000  # of some; late ones leave a topic whose tracker they fill
CLOCK_MS = 50.0  # that a clock may be set back


def now_ms() -> float:
    return time.time_ns() / 1e6


class Clocked(ReceiverThread):
    """Notes when each message is due, and when it came first."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, GROUP)
        self.due_ms: dict[str, float] = {}  # of all that were sent
        self.early: list[tuple[str, float]] = []
        self.taken: set[str] = set()

    def handle(self, message: Message) -> None:
        came_ms = now_ms()
        name = message.value.decode()
        early_ms = max(message.timestamp_ms + DELAY_MS, self.due_ms[name]) - came_ms
        if early_ms > CLOCK_MS:
            self.early.append((name, early_ms))
        self.taken.add(name)


def records(due_ms: dict[str, float]) -> list[NewRecord]:
    """The messages, whose due times it notes. The first of each partition is late, as are a few others."""
    made = []
    for number in range(COUNT):
        wait_ms = 0
        if number < PARTITIONS or number % 100 == 50:
            wait_ms = LATE_MS
        elif number % 10 == 3:
            wait_ms = SOON_MS
        due_ms[str(number)] = at_ms = now_ms() + max(DELAY_MS, wait_ms)
        headers = [("not-before", b"%d" % at_ms)] if wait_ms else []
        made.append(NewRecord(b"%d" % number, None, headers, number % PARTITIONS))
    return made


@pytest.mark.parametrize("contract", ["unary", "stream"])
def test_delayed_messages_come_in_time_when_a_worker_is_killed(
    stage: DemoStage, topic_name: str, contract: str
) -> None:
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    workers = start_workers(stage, 2)
    spec: dict[str, Any] = {
        "target": {"contract": contract},
        "delay": f"{DELAY_MS}ms",
        "tracker": {"capacity": 100},
        "dlq": {"share": 1.0},
    }
    with Clocked(topic_name).serving() as receiver:
        stage.deploy(workers[0], workload(GROUP, topic_name, CLUSTER, receiver.address, **spec))
        send_records(bootstrap, topic_name, records(receiver.due_ms))
        wait_until(lambda: len(receiver.taken) >= COUNT // 10, SETTLE_S, workers[0].tail)
        workers[1].kill()
        wait_until(lambda: len(receiver.taken) == COUNT, SETTLE_S, workers[0].tail)

    assert receiver.taken == {str(number) for number in range(COUNT)}
    assert not receiver.early
    assert asyncio.run(read_all(bootstrap, f"{topic_name}__{GROUP}__delayed")), "late ones made way"
    assert not asyncio.run(read_all(bootstrap, f"{topic_name}__{GROUP}__dlq"))
