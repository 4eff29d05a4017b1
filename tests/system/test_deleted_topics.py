"""Brokers that create topics on request, which is Kafka's default.

The leader recreates a deleted topic of Switchyard's with its settings, and no message is lost.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import orjson
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from app.dev.demo.stage import DemoStage, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, produce, read_all
from app.dev.yard import Yard
from app.dispatch.topics.settings import COPY_MAX_BYTES
from app.kafka.client.topic_configs import TopicSettings, describe
from switchyard.audit import KafkaOutput, kafka_output
from switchyard.audit.model.reports import Report
from tests.kafka.conftest import connected
from tests.system.conftest import make_stage
from tests.system.fleet import incidents

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, SETTLE_S = "east-aggregate", "billing", 3, 120.0


@pytest.fixture(scope="module")
def creating_yard() -> Iterator[Yard]:
    with Yard(regions=1, settings={"auto.create.topics.enable": "true"}) as yard:
        yield yard


@pytest.fixture
def creating_stage(creating_yard: Yard) -> Iterator[DemoStage]:
    with make_stage(creating_yard) as new_stage:
        yield new_stage


async def delete(bootstrap: str, *topics: str) -> None:
    """Deletes topics, as Kafka UIs do to purge them."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_topics([*topics])
    await admin.close()


async def partitions_and_max_bytes(bootstrap: str, topic: str) -> tuple[int | None, int]:
    """The topic's partitions, and the size of its largest batch."""
    async with connected(bootstrap) as client:
        found = (await describe(client, [topic], ["max.message.bytes"]))[topic]
        most = int(found.config["max.message.bytes"]) if isinstance(found, TopicSettings) else 0
        return await client.partitions(topic), most


def test_deleted_retry_and_dlq_topics_are_recreated_with_their_settings_and_no_message_is_lost(
    creating_stage: DemoStage, topic_name: str
) -> None:
    stage, bootstrap = creating_stage, creating_stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    receiver = stage.receiver(GROUP, topic_name)
    worker = stage.worker()
    retry = [{"delay": "1s", "attempts": 1}]
    stage.deploy(worker, workload(GROUP, topic_name, CLUSTER, receiver.address, retry=retry))
    tier, dlq = f"{topic_name}__{GROUP}__retry_1", f"{topic_name}__{GROUP}__dlq"

    def letters() -> set[str]:
        return {orjson.loads(one.value)["id"] for one in asyncio.run(read_all(bootstrap, dlq))}

    def delivered() -> set[str]:
        return {one["id"] for one in stage.deliveries() if one["outcome"] == "ok"}

    def check_messages_pass(name: str) -> None:
        """Sends thirty messages and waits until each ends in the DLQ or at the receiver."""
        sent = [SentMessage(f"{name}-{n}", ("poison", "retryable", "ok")[n % 3]) for n in range(30)]
        poison = {one.id for one in sent if one.behaviour == "poison"}
        fine = {one.id for one in sent} - poison
        asyncio.run(produce(bootstrap, topic_name, sent))
        wait_until(lambda: poison <= letters(), SETTLE_S, lambda: f"{poison - letters()} {worker.tail()}")
        wait_until(lambda: fine <= delivered(), SETTLE_S, lambda: f"{fine - delivered()} {worker.tail()}")
        for topic in (tier, dlq):
            assert asyncio.run(partitions_and_max_bytes(bootstrap, topic)) == (PARTITIONS, COPY_MAX_BYTES)

    check_messages_pass("first")
    asyncio.run(delete(bootstrap, tier, dlq))
    check_messages_pass("second")
    assert not incidents(worker, "workload-trouble")


async def test_the_audit_library_never_creates_the_audit_topic_and_reports_that_it_is_missing(
    creating_yard: Yard, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_output, "SEND_TIMEOUT_S", 5.0)
    bootstrap, topic = creating_yard.bootstrap(CLUSTER), kafka_output.audit_topic(topic_name)
    report = Report("1", "orders", "consumer", "east", 1000, "web@1", 1)
    output = KafkaOutput(bootstrap, topic_name)

    async def check_topic_is_missing() -> None:
        with pytest.raises(kafka_output.NoTopic) as error:  # noqa: PT012 - a loop
            while True:  # a broker may accept reports until it learns of the deletion
                await output.send([report])
        assert str(error.value) == (
            f"topic {topic} does not exist in Kafka at {bootstrap}: workers of region {topic_name} create it "
            f"when they start; start one, or correct region={topic_name!r} or bootstrap"
        )
        async with connected(bootstrap) as client:
            assert await client.partitions(topic) is None

    try:
        await check_topic_is_missing()
        await create_topic(bootstrap, topic, PARTITIONS)
        await output.send([report])
        assert len(await read_all(bootstrap, topic)) == 1
        await delete(bootstrap, topic)  # while its producer runs
        await check_topic_is_missing()
        await check_topic_is_missing()
    finally:
        await output.close()


# A process of its own, like a service: the worker's modules would keep all clients from creating topics.
SERVICE = """
import asyncio, sys
from aiokafka.admin import AIOKafkaAdminClient
from switchyard.audit.kafka_output import KafkaOutput, NoTopic
from switchyard.producer import ProducerError, Region, RegionalProducer

bootstrap, missing, there = sys.argv[1:]

async def failure(producer, topic):
    try:
        while True:  # a broker may accept messages until it learns of the deletion
            await producer.send_and_wait(topic, b"v")
    except ProducerError as error:
        return f"{type(error).__name__}: {error}"

async def main():
    async with RegionalProducer([Region("east", bootstrap, {"metadata_max_age_ms": 50})]) as producer:
        asked = asyncio.create_task(failure(producer, missing))
        for _ in range(10):
            await producer.send_and_wait(there, b"v")
        print(await asked)
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.delete_topics([there])
        await admin.close()
        print(await failure(producer, there))
    output = KafkaOutput(bootstrap, "east", topic=missing)
    try:
        await output._started()
    except NoTopic as error:
        print(error)

asyncio.run(main())
assert "app.kafka.client" not in sys.modules
"""


async def test_clients_never_create_a_topic_and_fail_only_messages_to_a_missing_topic(
    creating_yard: Yard, topic_name: str
) -> None:
    bootstrap, missing = creating_yard.bootstrap(CLUSTER), f"{topic_name}-missing"
    await create_topic(bootstrap, topic_name, PARTITIONS)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", SERVICE, bootstrap, missing, topic_name],
        capture_output=True, text=True, timeout=SETTLE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    never, deleted, audit = done.stdout.splitlines()
    why = f"UnknownTopicOrPartitionError: it does not exist in Kafka at {bootstrap}: create it, or correct"
    assert never.startswith(f"Refused: region east, topic {missing}: {why}")
    assert f": region east, topic {topic_name}: {why}" in deleted
    assert f"topic {missing} does not exist" in audit
    async with connected(bootstrap) as client:
        assert [await client.partitions(topic) for topic in (missing, topic_name)] == [None, None]
