"""Partitions side by side: memory is bounded in bytes, and no partition waits for another."""

from __future__ import annotations

import asyncio

import pytest

from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch import service
from app.kafka.fetch.broker_connections import CONNECTIONS
from app.kafka.fetch.deliveries import PARTITION_BUFFER_BYTES, PARTITION_MAX_BYTES, ByteBudget
from app.kafka.fetch.service import LEAST_BYTES, RESPONSE_MAX_BYTES
from tests.kafka.conftest import ENOUGH_S, Start, create, producing, write

KIB = 1024


async def test_hundred_partitions_share_a_small_budget_and_release_all_of_it(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name, 100)
    async with producing(bootstrap, linger_ms=5, max_batch_size=64 * KIB) as producer:
        sent = [
            await producer.send(topic_name, f"{number}".encode().ljust(2 * KIB), partition=number % 100)
            for number in range(5_000)
        ]
        await asyncio.gather(*sent)
    budget_bytes = 256 * KIB
    pump = await start(budget_bytes)
    for partition in range(100):
        pump.service.add(partition, topic_name, partition, 0)
    await pump.until(lambda: sum(map(len, pump.records.values())) >= 5_000)

    for partition in range(100):
        assert [int(value or b"") for value in pump.values(partition)] == list(range(partition, 5_000, 100))
    assert pump.budget.used_bytes == 0
    # Responses are requested while there is room; each is at most the room, or one batch.
    assert pump.most_used_bytes <= budget_bytes + CONNECTIONS * max(budget_bytes, 64 * KIB)


async def test_full_budget_stops_fetching_until_bytes_are_released(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    pump = await start(16 * KIB)
    pump.holding = {"k"}
    async with producing(bootstrap, max_batch_size=KIB) as producer:
        for _ in range(200):
            await producer.send_and_wait(topic_name, bytes(900), partition=0)
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.budget.free_bytes <= 0)
    held = pump.count("k")
    await asyncio.sleep(0.7)  # several times a poll
    assert pump.count("k") == held < 200
    assert pump.most_used_bytes <= 16 * KIB + 2 * KIB

    while pump.count("k") < 200:
        before = pump.count("k")
        for fetched in pump.held:
            fetched.release()
            fetched.release()  # once is enough, twice does no harm
        pump.held.clear()
        await pump.until(lambda: pump.count("k") > before)  # noqa: B023 - asked at once
    assert pump.offsets("k") == list(range(200))


async def test_partition_that_is_not_released_stalls_only_itself(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name, 2)
    for partition in (0, 1):
        await write(bootstrap, topic_name, [bytes(50 * KIB)] * 120, partition)
    pump = await start()
    pump.holding = {"slow"}
    pump.service.add("slow", topic_name, 0, 0)
    pump.service.add("fast", topic_name, 1, 0)
    await pump.until(lambda: pump.count("fast") == 120 and pump.budget.used_bytes >= PARTITION_BUFFER_BYTES)
    await write(bootstrap, topic_name, [b"more"], 1)
    await pump.until(lambda: pump.count("fast") == 121)

    assert pump.budget.used_bytes < PARTITION_BUFFER_BYTES + PARTITION_MAX_BYTES + 100 * KIB
    assert pump.count("slow") < 120


async def test_partitions_that_hold_the_whole_budget_do_not_starve_the_others(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    stuck, healthy = range(4), range(4, 7)
    await create(client, topic_name, 7)
    for partition in stuck:
        await write(bootstrap, topic_name, [bytes(10 * KIB)] * 100, partition, max_batch_size=20 * KIB)
    pump = await start(512 * KIB)
    pump.holding = set(stuck)
    for partition in stuck:
        pump.service.add(partition, topic_name, partition, 0)
    await pump.until(lambda: pump.budget.free_bytes <= 0)
    held_bytes = pump.budget.used_bytes
    for partition in healthy:
        pump.service.add(partition, topic_name, partition, 0)
    for count in (20, 40):
        for partition in healthy:
            await write(bootstrap, topic_name, [bytes(10 * KIB)] * 20, partition)
        await pump.until(lambda: all(pump.count(partition) == count for partition in healthy))  # noqa: B023

    assert pump.budget.used_bytes <= held_bytes + len(stuck) * LEAST_BYTES  # at most one that held nothing
    assert pump.most_used_bytes <= held_bytes + (len(stuck) + len(healthy)) * LEAST_BYTES


async def test_partition_added_during_a_poll_does_not_wait_for_it(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name, 8)
    pump = await start()
    for partition in range(7):
        pump.service.add(partition, topic_name, partition, 0)
    await write(bootstrap, topic_name, [b"here"], 7)
    await asyncio.sleep(0.4)  # the empty ones are in a long poll now
    pump.service.add(7, topic_name, 7, 0)
    await pump.until(lambda: pump.count(7))

    assert pump.values(7) == [b"here"]


async def test_partition_of_a_new_topic_flows_at_once(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WATERMARKS_S", 1e6)  # nothing may wait for this timer
    pump = await start()
    for number in range(5):
        topic = await create(client, f"{topic_name}-{number}")
        await write(bootstrap, topic, [b"v"])
        pump.service.add(number, topic, 0, 0)
        await pump.until(lambda: pump.count(number))  # noqa: B023 - asked at once


async def test_many_groups_read_the_same_partition_each_from_its_own_position(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    groups = range(CONNECTIONS + 3)
    await write(bootstrap, topic_name, [str(number).encode() for number in range(100)])
    pump = await start()
    for group in groups:
        pump.service.add(("job", group), topic_name, 0, 10 * group)
    await pump.until(lambda: all(pump.position.get(("job", group)) == 100 for group in groups))
    for number in (100, 101):
        await write(bootstrap, topic_name, [str(number).encode()])
        await pump.until(lambda: all(pump.count(("job", group)) for group in groups))
    await pump.until(lambda: all(pump.position["job", group] == 102 for group in groups))

    for group in groups:
        assert pump.offsets(("job", group)) == list(range(10 * group, 102))


async def test_nothing_is_delivered_after_remove(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name, 2)
    pump = await start()
    pump.service.add("gone", topic_name, 0, 0)
    pump.service.add("stays", topic_name, 1, 0)
    await asyncio.sleep(0.4)  # both are in one long poll
    pump.service.remove("gone")
    pump.service.remove("never there")
    for partition in (0, 1):
        await write(bootstrap, topic_name, [b"v"], partition)
    await pump.until(lambda: pump.count("stays"))
    await asyncio.sleep(0.5)

    assert pump.count("gone") == 0
    assert pump.budget.used_bytes == 0
    assert pump.service.high_watermark("gone") == -1


async def test_key_that_is_added_again_starts_only_from_its_new_position(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, [str(number).encode() for number in range(10)])
    pump = await start()
    pump.service.add("k", topic_name, 0, 10)
    await asyncio.sleep(0.4)
    pump.service.add("k", topic_name, 0, 4)
    await pump.until(lambda: pump.position.get("k") == 10)
    await write(bootstrap, topic_name, [b"10"])
    await pump.until(lambda: pump.position.get("k") == 11)
    await asyncio.sleep(0.5)

    assert pump.offsets("k") == list(range(4, 11))


async def test_batch_larger_than_every_limit_is_fetched(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name, max_message_bytes=str(32 * KIB * KIB))
    sizes = [1, RESPONSE_MAX_BYTES + KIB, 1, 3 * PARTITION_MAX_BYTES, 1]
    async with producing(bootstrap, max_request_size=32 * KIB * KIB) as producer:
        for size in sizes:
            await producer.send_and_wait(topic_name, bytes(size), partition=0)
    pump = await start(64 * KIB)
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.count("k") == len(sizes))

    assert [len(value or b"") for value in pump.values("k")] == sizes
    assert pump.budget.used_bytes == 0


async def test_high_watermark_of_a_stalled_partition_stays_current(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, [bytes(900)])
    pump = await start(100)
    pump.holding = {"k"}
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.count("k"))
    await write(bootstrap, topic_name, [b"v"] * 7)
    async with asyncio.timeout(ENOUGH_S):
        while pump.service.high_watermark("k") < 8:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.1)

    assert pump.count("k") == 1


def test_released_budget_wakes_its_waiters() -> None:
    budget, woken = ByteBudget(100), []
    budget.waiters.append(lambda: woken.append(budget.free_bytes))
    budget.used_bytes = 130

    assert budget.free_bytes == -30
    for _ in range(2):
        budget.give_back(50)
    assert woken == [20, 70]
