"""Handlers that take several timeouts, through a real broker and by both contracts. They ask for more time, a
worker is killed meanwhile, and every message is counted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from typing import Any

import orjson
import pytest

from app.dev.demo.stage import DemoStage, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, produce, read_all
from switchyard.receiver import Message, Renew
from tests.system.fleet import start_workers
from tests.system.receiver_thread import ReceiverThread

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, COUNT, SETTLE_S = "east-aggregate", "billing", 4, 400, 90.0
TIMEOUT_S, LONG_S = 5.0, 11.0  # of a delivery, and of the work for each twentieth message


class Exporter(ReceiverThread):
    """Takes long for each twentieth message, and asks for the time that this needs."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, GROUP)
        self.done: Counter[str] = Counter()
        self.attempts: set[int] = set()
        self.granted: dict[str, set[bool]] = defaultdict(set)  # what `renew` said

    def handle(self, message: Message) -> Any:
        name = orjson.loads(message.value)["id"]
        self.attempts.add(message.attempt)
        if int(name) % 20:
            self.done[name] += 1
            return None
        return self._export(message, name)

    async def _export(self, message: Message, name: str) -> Any:
        if message.time_left() < LONG_S + 5:
            self.granted[name].add(is_granted := message.renew(60.0))
            if not is_granted:
                return Renew(60.0)
        await asyncio.sleep(LONG_S)
        self.done[name] += 1
        return None


@pytest.mark.parametrize("contract", ["unary", "stream"])
def test_long_handlers_end_while_a_worker_is_killed(stage: DemoStage, topic_name: str, contract: str) -> None:
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    workers = start_workers(stage, 2)

    def send(first: int) -> None:
        some = [SentMessage(str(number), "ok") for number in range(first, first + COUNT)]
        asyncio.run(produce(bootstrap, topic_name, some))

    with Exporter(topic_name).serving() as receiver:
        target = {"contract": contract, "timeout": f"{TIMEOUT_S:.0f}s"}
        spec: dict[str, Any] = {"target": target, "redelivery": {"maxAttempts": 1}, "dlq": {"share": 1.0}}
        stage.deploy(workers[0], workload(GROUP, topic_name, CLUSTER, receiver.address, **spec))
        send(0)
        wait_until(lambda: len(receiver.done) >= COUNT // 2, SETTLE_S, workers[0].tail)
        send(COUNT)
        time.sleep(LONG_S / 3)  # long ones are under way
        workers[1].kill()
        every = {str(number) for number in range(2 * COUNT)}
        wait_until(lambda: set(receiver.done) == every, SETTLE_S, workers[0].tail)

    said = {contract == "stream"}
    assert receiver.granted == {str(number): said for number in range(0, 2 * COUNT, 20)}
    assert receiver.attempts == {1}, "more time is no attempt"
    assert not asyncio.run(read_all(bootstrap, f"{topic_name}__{GROUP}__dlq"))
