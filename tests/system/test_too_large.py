"""Messages above their receiver's limit, through a real broker and by both contracts while a worker is
killed. They become dead letters, whole and with the reason, and hold up nothing."""

from __future__ import annotations

import asyncio

import pytest

from app.dev.demo.stage import DemoStage, wait_until, workload
from app.dev.demo.traffic import create_topic
from switchyard.receiver import Message
from tests.system.fleet import start_workers
from tests.system.receiver_thread import ReceiverThread
from tests.system.records import NewRecord, dead_letters, send_records

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, COUNT, SETTLE_S = "east-aggregate", "billing", 4, 400, 90.0
LIMIT_BYTES = 200_000
FITS, EXCEEDS = b"f" * (LIMIT_BYTES - 1_000), b"e" * (LIMIT_BYTES + 1_000)


def body(number: int) -> bytes:
    """Every tenth message nearly fills the limit, and every fortieth exceeds it."""
    return EXCEEDS if number % 40 == 0 else FITS if number % 10 == 5 else b"small"


class Narrow(ReceiverThread):
    """Takes messages of `LIMIT_BYTES` at most."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, GROUP, options=[("grpc.max_receive_message_length", LIMIT_BYTES)])
        self.taken: dict[str, bytes] = {}

    def handle(self, message: Message) -> None:
        assert message.key is not None
        self.taken[message.key.decode()] = message.value


@pytest.mark.parametrize("contract", ["unary", "stream"])
def test_too_large_messages_become_dead_letters_and_the_others_arrive(
    stage: DemoStage, topic_name: str, contract: str
) -> None:
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    workers = start_workers(stage, 2)

    def send(first: int) -> None:
        numbers = range(first, first + COUNT)
        some = [NewRecord(body(number), b"%d" % number, [], number % PARTITIONS) for number in numbers]
        send_records(bootstrap, topic_name, some)

    def letters() -> dict[str, tuple[bytes | None, str]]:
        return dead_letters(bootstrap, topic_name, GROUP)

    with Narrow(topic_name).serving() as receiver:
        spec = {"target": {"contract": contract}, "dlq": {"share": 1.0}}
        stage.deploy(workers[0], workload(GROUP, topic_name, CLUSTER, receiver.address, **spec))
        send(0)
        wait_until(lambda: len(receiver.taken) >= COUNT // 2, SETTLE_S, workers[0].tail)
        workers[1].kill()
        send(COUNT)
        every = {str(number) for number in range(2 * COUNT)}
        wait_until(lambda: receiver.taken.keys() | letters().keys() == every, SETTLE_S, workers[0].tail)

    dead = letters()
    assert dead.keys() == {name for name in every if body(int(name)) == EXCEEDS}
    assert all(value == EXCEEDS for value, _ in dead.values())
    for _, reason in dead.values():
        assert "too large for the receiver" in reason
        assert f"vs. {LIMIT_BYTES}" in reason
    assert receiver.taken == {name: body(int(name)) for name in every - dead.keys()}
