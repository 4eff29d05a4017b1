"""A region's producer from start to end on real brokers: delivery reports, bounds, and what a stop leaves
behind.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.dev.yard import Yard
from switchyard.producer import Delivered, NotDelivered, RegionalProducer
from switchyard.producer.room import Room
from switchyard.producer.topic_creation import careful_producer, end_producer
from tests.sdk.producer.regions import AWAY, ENOUGH_S, HOME, QUICK, records, regions, topics, until


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
async def test_each_message_of_a_batch_gets_its_own_offset_and_time(
    yard: Yard, topic_name: str, kind: str
) -> None:
    await topics(yard, topic_name, message_timestamp_type=kind)
    async with RegionalProducer(regions(yard, HOME)) as producer:
        waiting = [
            await producer.send(topic_name, b"%d" % n, partition=0, timestamp_ms=1_700_000_000_000 + n)
            for n in range(200)
        ]
        places = [await future for future in waiting]
    stored = (await records(yard, HOME, topic_name))[0]
    assert [place.offset for place in places] == list(range(200))
    assert [place.timestamp_ms for place in places] == [record.timestamp for record in stored]
    assert len({place.timestamp_ms for place in places}) > 100 or kind == "LogAppendTime"


async def test_waiting_messages_are_bounded_by_their_bytes(killable_yard: Yard, topic_name: str) -> None:
    await topics(killable_yard, topic_name)
    half = b"x" * 500_000
    limits: dict[str, Any] = {"unhealthy_after_s": ENOUGH_S, "max_pending_bytes": 1_000_000}
    patient = RegionalProducer(regions(killable_yard, HOME), **limits)
    async with asyncio.timeout(ENOUGH_S), patient as producer:
        await producer.send_and_wait(topic_name, b"all is well", partition=0)
        await asyncio.to_thread(killable_yard.pause, HOME)
        waiting = [await producer.send(topic_name, half, partition=0) for _ in range(2)]
        third = asyncio.create_task(producer.send(topic_name, half, partition=0))
        small = asyncio.create_task(producer.send(topic_name, b"behind it", partition=0))
        done, _ = await asyncio.wait({third, small}, timeout=0.5)
        assert not done
        assert producer.pending == 2
        await asyncio.to_thread(killable_yard.resume, HOME)
        places = [await future for future in [*waiting, await third, await small]]
    assert [place.offset for place in places] == list(range(1, 5))


async def test_room_is_given_in_order_and_returned_by_cancelled_calls() -> None:
    room, inside = Room(3, 100), list[str]()

    async def enter(name: str, nbytes: int) -> None:
        await room.enter(nbytes)
        inside.append(name)

    await enter("larger than all", 1_000)
    tasks = {name: asyncio.create_task(enter(name, nbytes)) for name, nbytes in
             {"large": 90, "larger": 95, "small": 5, "smaller": 1}.items()}  # fmt: skip
    await asyncio.sleep(0)
    assert inside == ["larger than all"]
    room.leave(1_000)
    tasks["large"].cancel()  # just when it gets its room
    tasks["larger"].cancel()  # while it waits
    await asyncio.wait(tasks.values())
    assert inside == ["larger than all", "small", "smaller"]
    await enter("the rest", 94)
    late = asyncio.create_task(enter("late", 1))
    await asyncio.sleep(0)
    assert not late.done(), "the room is full: three calls are in it"
    room.leave(1)
    await late


async def test_a_producer_whose_region_hangs_ends_and_leaves_nothing_behind(
    killable_yard: Yard, topic_name: str
) -> None:
    yard, before = killable_yard, asyncio.all_tasks()
    await topics(yard, topic_name)
    async with asyncio.timeout(ENOUGH_S):
        async with RegionalProducer(regions(yard), **QUICK) as producer:
            await producer.send_and_wait(topic_name, b"all is well")
            await asyncio.to_thread(yard.pause, HOME)
            waiting = [await producer.send(topic_name, b"x" * 1_000, partition=n % 2) for n in range(200)]
            assert {(await future).region for future in waiting} == {AWAY}
            await asyncio.to_thread(yard.pause, AWAY)
            stuck = await producer.send(topic_name, b"nobody answers")
            await producer.close(timeout_s=0.1)
        with pytest.raises(NotDelivered, match="closed"):
            await stuck
        await until(lambda: asyncio.all_tasks() == before)


async def test_after_a_stop_sent_batches_are_answered_and_nothing_else_is_sent(
    killable_yard: Yard, topic_name: str
) -> None:
    yard = killable_yard
    await topics(yard, topic_name)
    patient = RegionalProducer(regions(yard, HOME), unhealthy_after_s=ENOUGH_S)
    async with asyncio.timeout(ENOUGH_S), patient as producer:
        await producer.send_and_wait(topic_name, b"all is well", partition=1)
        link = producer._link
        assert link is not None
        outbox = link._outbox
        # The next link would send what this one has not.
        producer._replace = lambda _: asyncio.sleep(ENOUGH_S)  # type: ignore[method-assign]
        await asyncio.to_thread(yard.pause, HOME)
        sent = await producer.send(topic_name, b"0", partition=0)
        await until(lambda: any(batch.is_sent for batch in outbox._tasks.values()))
        behind = [await producer.send(topic_name, b"%d" % n, partition=n % 2) for n in range(1, 50)]
        link.stop("because")
        assert link.flying == 1, "the other batches were never sent"
        await asyncio.to_thread(yard.resume, HOME)
        await link.settled()
        assert isinstance(await sent, Delivered)
        assert not any(future.done() for future in behind)
        assert [len(many) for many in (await records(yard, HOME, topic_name)).values()] == [1, 1]


async def test_metadata_is_refreshed_by_age_until_the_producer_ends(yard: Yard, topic_name: str) -> None:
    await topics(yard, topic_name)
    producer = careful_producer(bootstrap_servers=yard.bootstrap(HOME), metadata_max_age_ms=50)
    updates: list[set[str]] = []
    async with asyncio.timeout(ENOUGH_S):
        await producer.start()
        producer.client.cluster.add_listener(lambda cluster: updates.append(cluster.topics()))
        assert await producer.client.add_topic(topic_name)
        await until(lambda: len(updates) > 3)
        assert updates[-1] == {topic_name}
        pending_update = producer.client.force_metadata_update()
        await end_producer(producer, ENOUGH_S)
        ended = len(updates)
        assert not await pending_update
        assert not await producer.client.force_metadata_update(), "a caller that waits for it returns"
    assert len(updates) == ended
