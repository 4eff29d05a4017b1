"""A workload's limits change while messages flow through a real broker, and a worker is killed. All workers
heed them, and every message is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson
import pytest

from app.dev.demo.stage import DemoStage, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, produce
from switchyard.receiver import Message
from tests.system.fleet import start_workers
from tests.system.receiver_thread import ReceiverThread
from tests.system.records import dead_letters

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, COUNT, SETTLE_S = "east-aggregate", "billing", 4, 200, 90.0
SOON = {"initialBackoff": "1ms", "maxBackoff": "50ms"}
NEEDED = 5  # attempts of each tenth message


class Stubborn(ReceiverThread):
    """A receiver that takes each tenth message at its fifth attempt only."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, GROUP)
        self.attempts: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()

    def handle(self, message: Message) -> None:
        name = orjson.loads(message.value)["id"]
        self.attempts[name] += 1
        if int(name) % 10 == 0 and self.attempts[name] < NEEDED:
            raise LookupError("not yet")
        self.taken[name] += 1


def test_changed_limits_hold_on_all_workers_at_once(stage: DemoStage, topic_name: str) -> None:
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    workers = start_workers(stage, 2)

    def send(first: int) -> set[str]:
        names = [str(number) for number in range(first, first + COUNT)]
        asyncio.run(produce(bootstrap, topic_name, [SentMessage(name, "ok") for name in names]))
        return set(names)

    def dead() -> set[str]:
        return set(dead_letters(bootstrap, topic_name, GROUP))

    def settle(names: set[str]) -> set[str]:
        """Waits until all of these are taken or given up; returns those given up."""
        wait_until(lambda: receiver.taken.keys() | dead() >= names, SETTLE_S, workers[0].tail)
        return dead() & names

    with Stubborn(topic_name).serving() as receiver:
        spec: dict[str, Any] = {"dlq": {"share": 1.0}, "redelivery": {**SOON, "maxAttempts": NEEDED - 1}}
        stage.deploy(workers[0], workload(GROUP, topic_name, CLUSTER, receiver.address, **spec))
        given_up = settle(send(0))
        assert given_up == {str(number) for number in range(0, COUNT, 10)}
        assert {receiver.attempts[name] for name in given_up} == {NEEDED - 1}

        spec["redelivery"]["maxAttempts"] = NEEDED
        spec |= {"breaker": {"failures": 1_000}, "headOfLine": {"patience": "5s"}}
        stage.deploy(workers[0], workload(GROUP, topic_name, CLUSTER, receiver.address, **spec))
        rounds = 1
        while late := settle(send(rounds * COUNT)):  # a worker still has the former definition
            given_up |= late
            rounds += 1
            assert rounds < 10
        last = send((rounds + 1) * COUNT)
        workers[1].kill()
        assert not settle(last)
        every = {str(number) for number in range((rounds + 2) * COUNT)}
        assert receiver.taken.keys() | given_up == every
    assert dead() == given_up
