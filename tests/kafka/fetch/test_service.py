"""Every visible record is fetched, once and in order; lost records are reported as a gap."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import TopicPartition

from app.kafka.client.cluster import EARLIEST, LATEST, ClusterClient
from app.kafka.fetch.deliveries import FetchIncident, LogGap
from tests.kafka.conftest import Start, create, producing, write


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [str(number).encode() for number in range(first, first + count)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_records_of_every_codec_are_read_unchanged(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str, codec: str | None
) -> None:
    await create(client, topic_name)
    sent: list[tuple[Any, ...]] = [
        (number, 1_700_000_000_000 + number, None if number % 2 else f"k{number}".encode(),
         None if number % 22 == 0 else bytes(range(256)) * (number % 5), [("h", b"\x00\xff"), ("h", None)])
        for number in range(500)
    ]  # fmt: skip
    async with producing(bootstrap, compression_type=codec, linger_ms=20) as producer:
        for _, timestamp_ms, key, value, headers in sent:
            await producer.send(
                topic_name, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=0
            )
    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.count("k") >= 500)

    found = [
        (r.offset, r.timestamp, r.key, r.value, [(name, value) for name, value in r.headers])
        for r in pump.records["k"]
    ]
    assert found == sent
    assert pump.service.high_watermark("k") == 500
    assert pump.budget.used_bytes == 0


async def test_only_committed_records_are_shown_and_the_position_moves_past_the_others(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    expected: list[bytes] = []
    async with producing(bootstrap, transactional_id=topic_name) as producer, producing(bootstrap) as plain:
        for number in range(6):
            await producer.begin_transaction()
            for part in range(3):
                value = f"t{number}.{part}".encode()
                await producer.send_and_wait(topic_name, value, partition=0)
                expected += [value] if number % 2 == 0 else []
            await plain.send_and_wait(topic_name, f"p{number}".encode(), partition=0)
            expected.append(f"p{number}".encode())
            await (producer.commit_transaction() if number % 2 == 0 else producer.abort_transaction())
    end = 6 * (3 + 1 + 1)
    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.position.get("k") == end)

    assert pump.values("k") == expected
    assert pump.offsets("k") == sorted(set(pump.offsets("k")))


async def test_records_behind_an_open_transaction_flow_once_it_commits(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    async with producing(bootstrap, transactional_id=topic_name) as producer:
        await write(bootstrap, topic_name, [b"before"])
        await producer.begin_transaction()
        await producer.send_and_wait(topic_name, b"inside", partition=0)
        await write(bootstrap, topic_name, [b"behind"])
        await pump.until(lambda: pump.count("k"))
        assert pump.values("k") == [b"before"]
        await producer.commit_transaction()
    await pump.until(lambda: pump.count("k") == 3)

    assert pump.values("k") == [b"before", b"inside", b"behind"]


async def test_position_within_a_batch_shows_no_earlier_record(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, numbered(100), linger_ms=100, compression_type="gzip")
    pump = await start()
    pump.service.add("k", topic_name, 0, 57)
    await pump.until(lambda: pump.count("k"))

    assert pump.values("k") == numbered(43, 57)


async def test_deleted_records_are_reported_as_a_gap(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, numbered(10))
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_records({TopicPartition(topic_name, 0): RecordsToDelete(before_offset=6)})
    await admin.close()
    pump = await start()
    pump.service.add("k", topic_name, 0, 2)
    await pump.until(lambda: pump.count("k") == 4)

    (gap,) = pump.reports
    assert isinstance(gap, LogGap)
    assert (gap.key, gap.topic, gap.partition, gap.start, gap.end) == ("k", topic_name, 0, 2, 6)
    assert "retention" in gap.reason
    assert pump.values("k") == numbered(4, 6)


async def test_position_beyond_the_log_end_is_reported_and_restarts_at_the_log_start(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, numbered(5))
    pump = await start()
    pump.service.add("k", topic_name, 0, 100)
    await pump.until(lambda: pump.count("k") == 5)

    (gap,) = pump.reports
    assert isinstance(gap, LogGap)
    assert (gap.start, gap.end) == (100, 0)
    assert "recreated" in gap.reason
    assert pump.values("k") == numbered(5)


async def test_topic_recreated_during_a_fetch_is_reported_and_read_from_its_beginning(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, numbered(20))
    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.count("k") == 20)
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_topics([topic_name])
    await admin.close()
    await pump.until(lambda: any(isinstance(item, FetchIncident) for item in pump.reports))
    await create(client, topic_name)
    await write(bootstrap, topic_name, numbered(3, 1000))
    await pump.until(lambda: pump.count("k") == 23)

    assert pump.values("k")[20:] == numbered(3, 1000)
    (gap,) = [item for item in pump.reports if isinstance(item, LogGap)]
    assert (gap.start, gap.end) == (20, 0)


async def test_missing_topic_is_reported_with_a_remedy_and_flows_once_it_exists(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.reports)
    (trouble,) = pump.reports
    assert isinstance(trouble, FetchIncident)
    assert (trouble.key, trouble.topic, trouble.partition) == ("k", topic_name, 0)
    assert "create the topic" in trouble.remedy
    assert await client.partitions(topic_name) is None  # fetching did not create it

    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"v"])
    await pump.until(lambda: pump.count("k"))

    assert pump.values("k") == [b"v"]


async def test_offsets_are_found_by_time_and_at_both_ends(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    async with producing(bootstrap) as producer:
        for number in range(5):
            await producer.send_and_wait(topic_name, b"v", partition=0, timestamp_ms=1000 * (number + 1))
    service = (await start()).service

    assert await service.offsets_at(topic_name, 0, EARLIEST) == 0
    assert await service.offsets_at(topic_name, 0, LATEST) == 5
    assert await service.offsets_at(topic_name, 0, 2001) == 2
    assert await service.offsets_at(topic_name, 0, 9999) == -1
    with pytest.raises(LookupError, match="no leader"):
        await service.offsets_at(f"{topic_name}-none", 0, EARLIEST)
