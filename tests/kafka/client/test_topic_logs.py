"""Starts and ends of many logs, requested together."""

from __future__ import annotations

from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_logs import topic_logs
from tests.kafka.conftest import create, producing


async def test_topic_logs_have_every_start_and_end_and_omit_missing_topics(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    other, none = f"{topic_name}-other", f"{topic_name}-none"
    await create(client, topic_name, 3)
    await create(client, other)
    async with producing(bootstrap) as producer:
        for n in range(5):
            await producer.send_and_wait(topic_name, b"%d" % n, partition=1)
    admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
    await admin.start()
    await admin.delete_records({TopicPartition(topic_name, 1): RecordsToDelete(before_offset=2)})
    await admin.close()
    cluster_id, found = await topic_logs(client, [topic_name, none, other, topic_name])
    assert cluster_id == await client.cluster_id()
    assert {topic: (one.count, one.error) for topic, one in found.items()} == {
        topic_name: (3, None), other: (1, None),
    }  # fmt: skip
    assert found[topic_name].spans == {0: (0, 0), 1: (2, 5), 2: (0, 0)}
    assert found[other].spans == {0: (0, 0)}
