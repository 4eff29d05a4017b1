"""A marker behind a log's end, which nobody is shown."""

from __future__ import annotations

from app.kafka.client.cluster import ClusterClient
from app.kafka.producers.transaction_marker import mark
from tests.kafka.conftest import create, producing, pumping


async def test_a_marker_is_behind_the_logs_end_and_shows_no_record(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    node = await client.leader(topic_name, 0)
    assert node is not None
    async with producing(bootstrap) as producer:
        for value in (b"a", b"b"):
            await producer.send_and_wait(topic_name, value, partition=0)
            assert await mark(client, node, topic_name, 0) == ""
    assert await client.end_offsets([(topic_name, 0)]) == {(topic_name, 0): 4}
    async with pumping(client) as pump:
        pump.service.add(0, topic_name, 0, 0)
        await pump.until(lambda: pump.position.get(0, 0) == 4)
        assert (pump.values(0), pump.offsets(0)) == ([b"a", b"b"], [0, 2])


async def test_why_no_marker_was_appended_is_told(client: ClusterClient) -> None:
    assert "UnknownTopicOrPartition" in await mark(client, await client.any_node(), "no-such-topic", 0)
