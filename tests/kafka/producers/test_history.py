"""A producer's batches are found in a shared log without reading all batches of other producers."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest

from app.dev.yard import Yard
from app.kafka.append.protocol import AppendRequest
from app.kafka.client.cluster import ClusterClient
from app.kafka.producers.history import OwnBatches
from app.kafka.records.producer_sequences import ProducerStamp
from tests.kafka.append.test_appender import CLUSTER, appending, batch_of, gathered, written
from tests.kafka.conftest import connected, create, delete_before, producing

OTHERS_BYTES = 24 * 1024 * 1024
NEAR_BYTES = 4 * 1024 * 1024  # a few fetches


async def others_write(client: ClusterClient, topic: str, count: int, size: int = 10) -> None:
    async with producing(client.spec.bootstrap[0]) as other:
        for future in [await other.send(topic, b"x" * size, partition=0) for _ in range(count)]:
            await future


def count_fetched(client: ClusterClient, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each answer to a fetch from now on."""
    fetched: list[int] = []
    send = client.send

    async def counting(node: int, request: Any, group: Any = 0) -> Any:
        response = await send(node, request, group)
        if isinstance(request, FetchRequest):
            ((_, ((*_, data),)),) = response.topics
            fetched.append(len(data or b""))
        return response

    monkeypatch.setattr(client, "send", counting)
    return fetched


async def test_a_producers_last_batch_is_found_without_reading_what_others_wrote_behind_it(
    yard: Yard, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(yard.bootstrap(CLUSTER)) as client, appending(client) as (appender, _):
        await create(client, topic_name)
        lane = await appender.lane(topic_name, 0)
        await gathered(*[await lane.append(*batch_of(b"%d" % n)) for n in range(3)])
        await others_write(client, topic_name, OTHERS_BYTES // 100_000, 100_000)
        end = 3 + OTHERS_BYTES // 100_000
        fetched = count_fetched(client, monkeypatch)
        behind = ProducerStamp(*lane.producer, 3)
        headers, found = await written(
            client, topic_name, lane.producer.id, 1, ProducerStamp(*lane.producer, 1)
        )
        assert [header.base_offset for header in headers] == [1, 2]
        assert found == OwnBatches(end, 1, behind)
        assert sum(fetched) < NEAR_BYTES < OTHERS_BYTES
        fetched.clear()
        assert await written(client, topic_name, lane.producer.id, 3, behind) == (
            [],
            OwnBatches(end, 3, behind),
        )
        assert fetched == [], "all its batches are known"


@pytest.mark.parametrize("deleted_before", [5, -1])
async def test_an_unanswered_append_is_not_repeated_where_the_log_has_lost_its_beginning(
    yard: Yard, topic_name: str, monkeypatch: pytest.MonkeyPatch, deleted_before: int
) -> None:
    """5: the batch is still there, behind the new beginning; -1: it is deleted, the leader remembers it."""
    async with connected(yard.bootstrap(CLUSTER)) as client, appending(client) as (appender, incidents):
        await create(client, topic_name)
        lane = await appender.lane(topic_name, 0)
        assert await gathered(await lane.append(*batch_of(b"first"))) == [0]
        await others_write(client, topic_name, 9)
        send, lost = client.send, 0

        async def losing(node: int, request: Any, group: Any = 0) -> Any:
            nonlocal lost
            response = await send(node, request, group)
            if isinstance(request, AppendRequest) and not lost:
                lost = 1
                await delete_before(client, topic_name, deleted_before)
                raise ConnectionError("the answer is lost")
            return response

        monkeypatch.setattr(client, "send", losing)
        offset, behind = await gathered(
            await lane.append(*batch_of(b"unanswered")), await lane.append(*batch_of(b"behind"))
        )
        assert lost
        assert offset == (10 if deleted_before > 0 else -1)
        assert behind == 11
        assert incidents == []
        headers, _ = await written(client, topic_name, lane.producer.id, 1)
        assert [header.base_offset for header in headers] == ([10, 11] if deleted_before > 0 else [11])


async def test_a_log_without_its_beginning_gives_its_batches_and_the_first_read_offset(
    yard: Yard, topic_name: str
) -> None:
    async with connected(yard.bootstrap(CLUSTER)) as client, appending(client) as (appender, _):
        await create(client, topic_name)
        lane = await appender.lane(topic_name, 0)
        await gathered(*[await lane.append(*batch_of(b"%d" % n)) for n in range(6)])
        await delete_before(client, topic_name, 4)
        headers, found = await written(
            client, topic_name, lane.producer.id, 2, ProducerStamp(*lane.producer, 2)
        )
        assert [header.base_offset for header in headers] == [4, 5]
        assert found == OwnBatches(6, 4, ProducerStamp(*lane.producer, 6)), (
            "the result has the offset from which the log was read"
        )
