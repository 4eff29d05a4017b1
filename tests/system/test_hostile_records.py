"""Real brokers and a real worker: records that any producer can write end no worker and stop no message."""

from __future__ import annotations

import asyncio

import pytest

from app.dev.demo.stage import DemoStage, http, wait_until, workload
from app.dev.demo.traffic import create_topic, read_all
from app.kafka.append.appender import Appender
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from switchyard.receiver import Message
from tests.kafka.records.batches import CODECS, batch_of_packed, make_batch, packed_record
from tests.system.receiver_thread import ReceiverThread

pytestmark = pytest.mark.system

CLUSTER, GROUP = "east-aggregate", "billing"
SETTLE_S = 120.0
MIB = 1024 * 1024
ZSTD = CODECS["zstd"]
HEADERS = [packed_record(0, b"a"), packed_record(1, headers=4_000_000), packed_record(2, b"c")]
BATCHES = [
    (make_batch(0, [(None, b"first")]), 1),
    (batch_of_packed(0, HEADERS, ZSTD), 3),
    (batch_of_packed(0, [packed_record(at, bytes(MIB)) for at in range(40)], ZSTD), 40),
    (batch_of_packed(0, [packed_record(0, bytes(130 * MIB))], ZSTD), 1),
    (make_batch(0, [(None, b"last")]), 1),
]


async def append(bootstrap: str, topic: str) -> None:
    """Writes the batches unchanged."""
    client = ClusterClient(ClusterSpec("test", (bootstrap,)))
    await client.start()
    appender = Appender(client)
    await appender.start()
    try:
        lane = await appender.lane(topic, 0)
        for data, count in BATCHES:
            await (await lane.append(data, count))
    finally:
        await appender.stop()
        await client.stop()


class Counting(ReceiverThread):
    """A receiver in this process that acknowledges everything."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, GROUP)
        self.offsets: list[int] = []

    def handle(self, message: Message) -> None:
        """Handles one delivery."""
        self.offsets.append(message.offset)


def test_batches_that_decompress_to_huge_records_go_to_the_dlq_and_all_other_messages_arrive_once(
    stage: DemoStage, topic_name: str
) -> None:
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, 1))
    asyncio.run(append(bootstrap, topic_name))
    with Counting(topic_name).serving() as receiver:
        worker = stage.worker()
        stage.deploy(worker, workload(GROUP, topic_name, CLUSTER, receiver.address))
        wait_until(lambda: 45 in receiver.offsets, SETTLE_S, lambda: f"{receiver.offsets}\n{worker.tail()}")
        url = f"{worker.url}/api/v1/dlq/{GROUP}/{topic_name}/messages?limit=9"
        wait_until(
            lambda: len(http("GET", url)[1].get("items", ())) == 2, SETTLE_S, lambda: str(http("GET", url))
        )

        assert sorted(receiver.offsets) == [0, 1, *range(3, 44), 45]
        letters = asyncio.run(read_all(bootstrap, f"{topic_name}__{GROUP}__dlq"))
        assert [dict(one.headers)["switchyard-raw-batch"] for one in letters] == [b"2-3", b"44-45"]
        assert worker.running
