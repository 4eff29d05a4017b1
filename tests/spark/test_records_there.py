"""Whether Kafka has any record in a range, which Spark's reader does not answer."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from pyspark.sql import SparkSession

from spark.__main__ import main
from spark.kafka import KafkaCluster
from spark.schemas import RECORD
from spark.topics import Range


async def make(bootstrap: str, whole: str, aborted: str) -> None:
    """Writes three records to topic `whole`, and only an aborted transaction to topic `aborted`."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 1, 1) for name in (whole, aborted)])
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=aborted)
    await producer.start()
    try:
        async with producer.transaction():
            for number in range(3):
                await producer.send_and_wait(whole, b"%d" % number, partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(aborted, b"no", partition=0)
        await producer.abort_transaction()
    finally:
        await producer.stop()


@pytest.mark.deep(minutes=0.3)
def test_kafka_knows_whether_a_range_has_records_and_verify_relies_on_it(
    session: SparkSession,
    bootstrap: str,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    aborted = f"{topic_name}.aborted"
    asyncio.run(make(bootstrap, topic_name, aborted))
    cluster = KafkaCluster(session, bootstrap)
    ends = {name: cluster.topic(name).partitions[0].end for name in (topic_name, aborted)}
    assert ends == {topic_name: 4, aborted: 2}  # a transaction's end has an offset, too
    assert cluster.has_records([Range(topic_name, 0, 0, 4), Range(aborted, 0, 0, 2)])
    assert cluster.has_records([Range(topic_name, 0, 2, 4)])
    assert not cluster.has_records([Range(topic_name, 0, 3, 4)])
    assert not cluster.has_records([Range(aborted, 0, 0, 2)])
    assert not cluster.has_records([])

    comparing = ("verify", "topic", "--bootstrap", bootstrap, "--topic", topic_name)
    comparing = (*comparing, "--copy-bootstrap", bootstrap, "--copy")
    assert main((*comparing, aborted)) == 8
    assert json.loads(capsys.readouterr().out)["findings"] == {"missing": 3}
    read = KafkaCluster.read
    monkeypatch.setattr(
        KafkaCluster, "read", lambda self, *ranges: read(self, *ranges).where("offset < 0").to(RECORD)
    )
    assert main((*comparing, topic_name)) == 1
    assert (
        f"read 0 records of {topic_name}, which has up to 4: nothing was compared" in capsys.readouterr().err
    )
