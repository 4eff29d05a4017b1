"""The retention of a topic is known where its messages wait, and is updated."""

from __future__ import annotations

import asyncio

import pytest

from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.fetch import retention
from app.kafka.fetch.retention import retention_ms
from tests.kafka.conftest import ENOUGH_S, Start, write


async def test_topic_retention_comes_with_fetched_batches(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RETENTION_POLL_INTERVAL_S", 0.0)
    kept = {"retention.ms": "7200000"}
    await ensure_topics(client, [TopicSpec(topic_name, 1, config=kept)])
    pump = await start()
    pump.holding = {"k"}
    pump.service.add("k", topic_name, 0, 0)
    await write(bootstrap, topic_name, [b"a", b"b"])
    await pump.until(lambda: pump.held)
    async with asyncio.timeout(ENOUGH_S):
        while pump.held[0].retention.ms < 0:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.1)
    assert pump.held[0].retention.ms == 7_200_000


async def test_unlimited_and_missing_topics_have_no_retention(client: ClusterClient, topic_name: str) -> None:
    compacted, endless = f"{topic_name}-compacted", f"{topic_name}-endless"
    await ensure_topics(
        client,
        [
            TopicSpec(compacted, 1, config={"cleanup.policy": "compact"}),
            TopicSpec(endless, 1, config={"retention.ms": "-1"}),
        ],
    )
    found = await retention_ms(client, [compacted, endless, "nothing-here"])
    assert found == {compacted: -1, endless: -1}
