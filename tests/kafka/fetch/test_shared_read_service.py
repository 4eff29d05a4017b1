"""A follower of another reader gets its data: each record once, in order."""

from __future__ import annotations

import asyncio
from typing import Any

from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.deliveries import LogGap
from app.kafka.fetch.shared_read_service import SharedReadService
from tests.kafka.conftest import Pump, Start, create, producing, write
from tests.kafka.second_broker import delete

LEADER, FOLLOWER = "leader", "follower"


async def follow(pump: Pump, client: ClusterClient, topic: str, at: int = 0) -> SharedReadService:
    """Starts two readers of a partition, one of which follows the other from offset `at` on."""
    ids = await client.topic_ids([topic])
    pump.service.add(LEADER, topic, 0, 0, ids[topic])
    pump.service.add(FOLLOWER, topic, 0, at, ids[topic], counts=lambda _: 0)
    return pump.service.shared_reads


async def both(pump: Pump, count: int, at: int = 0) -> None:
    """Waits until both have read `count` records, and asserts that they read the same."""
    await pump.until(lambda: (pump.count(LEADER), pump.count(FOLLOWER)) == (count, count - at))
    assert pump.values(FOLLOWER) == pump.values(LEADER)[at:]
    assert pump.offsets(FOLLOWER) == list(range(at, count))


async def test_new_records_are_fetched_once_for_both_readers(
    client: ClusterClient, bootstrap: str, topic_name: str, start: Start
) -> None:
    pump, count = await start(), 0
    await create(client, topic_name)
    followers = await follow(pump, client, topic_name)
    while followers.given < 5:
        await write(bootstrap, topic_name, [b"%d" % number for number in range(count, count + 100)])
        count += 100
        await both(pump, count)
    pump.service.remove(FOLLOWER)
    assert followers.follower(topic_name, 0) is None


async def test_follower_with_a_backlog_catches_up_and_then_follows(
    client: ClusterClient, bootstrap: str, topic_name: str, start: Start
) -> None:
    pump, count = await start(), 3_000
    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"%d" % number * 300 for number in range(count)])
    followers = await follow(pump, client, topic_name, at=1_234)
    await both(pump, count, 1_234)
    before = followers.given
    while followers.given == before:
        await write(bootstrap, topic_name, [b"more"])
        count += 1
        await both(pump, count, 1_234)


async def test_follower_of_a_stalled_reader_is_fetched_itself(
    client: ClusterClient, bootstrap: str, topic_name: str, start: Start
) -> None:
    pump, count = await start(), 0
    await create(client, topic_name)
    followers = await follow(pump, client, topic_name)
    while not followers.given:
        await write(bootstrap, topic_name, [b"first"])
        count += 1
        await both(pump, count)
    pump.holding.add(LEADER)
    big = [b"%d" % number * 200_000 for number in range(60)]  # more than it may hold
    await write(bootstrap, topic_name, big, max_request_size=1 << 21)
    await pump.until(lambda: pump.count(FOLLOWER) == count + len(big))
    assert pump.count(LEADER) < count + len(big)
    assert pump.offsets(FOLLOWER) == list(range(count + len(big)))
    for held in pump.held:
        held.release()
    pump.holding.clear()
    await both(pump, count + len(big))


async def test_aborted_transactions_are_hidden_from_a_follower(
    client: ClusterClient, bootstrap: str, topic_name: str, start: Start
) -> None:
    pump, shown = await start(), list[bytes]()

    def have_all() -> bool:
        return pump.count(LEADER) == pump.count(FOLLOWER) == len(shown)

    await create(client, topic_name)
    followers = await follow(pump, client, topic_name)
    number = 0
    async with producing(bootstrap, transactional_id=topic_name) as producer:
        while followers.given < 4 or number < 30:
            number += 1
            await producer.begin_transaction()
            for name in (b"a", b"b"):
                await producer.send_and_wait(topic_name, b"%s %d" % (name, number), partition=0)
            if number % 3:
                await producer.commit_transaction()
                shown += [b"a %d" % number, b"b %d" % number]
            else:
                await producer.abort_transaction()
            if number % 5 == 0:
                await pump.until(have_all)
    assert pump.values(FOLLOWER) == pump.values(LEADER) == shown


async def test_recreated_topic_is_reported_to_a_follower(
    client: ClusterClient, bootstrap: str, topic_name: str, start: Start
) -> None:
    pump, count = await start(), 0
    await create(client, topic_name)
    followers = await follow(pump, client, topic_name)
    while not followers.given:
        await write(bootstrap, topic_name, [b"old"] * 10)
        count += 10
        await both(pump, count)
    await delete(client, topic_name)
    while topic_name in await client.topics():  # noqa: ASYNC110 - the broker's
        await asyncio.sleep(0.05)
    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"new"] * 2 * count)

    def gaps() -> dict[Any, LogGap]:
        return {one.key: one for one in pump.reports if isinstance(one, LogGap)}

    await pump.until(lambda: len(gaps()) == 2 and pump.count(FOLLOWER) == 3 * count)
    assert all(gap.begun_anew and gap.start == count for gap in gaps().values())
    assert pump.values(FOLLOWER) == [b"old"] * count + [b"new"] * 2 * count
