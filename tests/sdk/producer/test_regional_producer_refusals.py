"""Messages that no region accepts: each fails alone, with its reason, and the others arrive in order. The
brokers are real; only the link that fails at one message is a fake.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from app.dev.yard import Yard
from switchyard.producer import Hooks, NotDelivered, Refused, Region, RegionalProducer
from switchyard.producer.messages import PendingMessage
from switchyard.producer.region_link import RegionLink
from tests.kafka.conftest import connected, create
from tests.sdk.producer.regions import (
    AWAY,
    ENOUGH_S,
    HOME,
    QUICK,
    RecordingHooks,
    records,
    regions,
    topics,
    until,
)

ON_ITS_WAY_S = 0.2  # by then a message is on its way to a broker


async def create_unequal(yard: Yard, topic: str, home: dict[str, Any], away: dict[str, Any]) -> None:
    """Creates the topic with different settings in the two regions."""
    for name, options in ((HOME, home), (AWAY, away)):
        async with connected(yard.bootstrap(name)) as client:
            await create(client, topic, **options)


async def stored_numbers(yard: Yard, topic: str) -> list[int]:
    """The numbers in partition 0 at home, each once, in order."""
    return [
        int(value) for value in dict.fromkeys(r.value or b"" for r in (await records(yard, HOME, topic))[0])
    ]


async def test_a_message_without_a_partition_in_the_next_region_fails_alone(
    killable_yard: Yard, topic_name: str
) -> None:
    yard = killable_yard
    await create_unequal(yard, topic_name, {"partitions": 2}, {"partitions": 1})
    async with asyncio.timeout(ENOUGH_S), RegionalProducer(regions(yard), **QUICK) as producer:
        await producer.send_and_wait(topic_name, b"all is well", partition=1)
        await asyncio.to_thread(yard.pause, HOME)
        on_its_way = await producer.send(topic_name, b"on its way", partition=1)
        await asyncio.sleep(ON_ITS_WAY_S)
        behind = await producer.send(topic_name, b"behind it", partition=1)
        other = [await producer.send(topic_name, b"%d" % n, partition=0) for n in range(10)]
        why = f"{AWAY}, topic {topic_name}: NoSuchPartition: there is no partition 1; the topic has 1 here"
        with pytest.raises(NotDelivered, match=f"{why}; these regions may have it: {HOME}"):
            await on_its_way
        with pytest.raises(Refused, match=why):
            await behind
        assert {(await future).region for future in other} == {AWAY}
        with pytest.raises(Refused, match="no partition 7"):
            await producer.send_and_wait(topic_name, b"for a partition of nobody's", partition=7)
        assert (await producer.send_and_wait(topic_name, b"and on it goes")).region == AWAY


async def test_a_topic_that_the_next_region_lacks_delays_no_other(
    killable_yard: Yard, topic_name: str
) -> None:
    yard, lacking = killable_yard, f"{topic_name}-at-home"
    await topics(yard, topic_name)
    async with connected(yard.bootstrap(HOME)) as client:
        await create(client, lacking)
    async with asyncio.timeout(ENOUGH_S), RegionalProducer(regions(yard), **QUICK) as producer:
        for topic in (lacking, topic_name):
            await producer.send_and_wait(topic, b"all is well")
        await asyncio.to_thread(yard.pause, HOME)
        fails = await producer.send(lacking, b"v")
        other = await producer.send(topic_name, b"v")
        first, _ = await asyncio.wait([fails, other], return_when=asyncio.FIRST_COMPLETED)
        assert first == {other}
        assert (await other).region == AWAY
        with pytest.raises(NotDelivered, match=f"{AWAY}, topic {lacking}: .* does not exist in Kafka at"):
            await fails


async def test_an_invalid_message_is_refused_and_delays_no_other(yard: Yard, topic_name: str) -> None:
    await topics(yard, topic_name)
    wrong: list[dict[str, Any]] = [
        {"value": "text"},
        {"key": "text"},
        {"value": b"x", "headers": [("name", "text")]},
        {"value": b"x", "timestamp_ms": 1 << 70},
        {"value": b"x", "partition": -1},
        {"value": b"x", "topic": topic_name.encode()},
        {"value": b"x", "topic": "no such name"},
        {"value": b"x", "topic": "\ud800"},
    ]
    async with asyncio.timeout(ENOUGH_S), RegionalProducer(regions(yard, HOME)) as producer:
        for one in wrong:
            with pytest.raises(Refused, match=r"Error: |NoSuchPartition: "):
                await producer.send_and_wait(**{"topic": topic_name, **one})
        await until(lambda: producer.pending == 0)
        assert (await producer.send_and_wait(topic_name, b"a message")).region == HOME


async def test_the_error_names_regions_that_may_have_the_message(
    killable_yard: Yard, topic_name: str
) -> None:
    yard = killable_yard
    await create_unequal(yard, topic_name, {"partitions": 1}, {"partitions": 1, "max_message_bytes": "2000"})
    large = b"x" * 5_000
    async with asyncio.timeout(ENOUGH_S), RegionalProducer(regions(yard), **QUICK) as producer:
        await producer.send_and_wait(topic_name, large)
        await asyncio.to_thread(yard.pause, HOME)
        on_its_way = await producer.send(topic_name, large)
        with pytest.raises(
            NotDelivered, match=f"{AWAY}.*MessageSizeTooLargeError; these regions may have it: {HOME}"
        ):
            await on_its_way
        with pytest.raises(Refused, match=f"{AWAY}.*MessageSizeTooLargeError"):
            await producer.send_and_wait(topic_name, large)
        assert (await producer.send_and_wait(topic_name, b"small")).region == AWAY


async def test_newer_messages_wait_until_older_ones_are_handed_to_a_link_that_works(
    yard: Yard, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topics(yard, topic_name, max_message_bytes="2000")
    links: list[RegionLink] = []
    failed: list[RegionLink] = []
    reasons_at_move: list[str] = []  # for each move, why the link of that time is broken
    send = RegionLink.send

    class Watching(Hooks):
        def moved(self, left: str, to: str, why: str, again: int) -> None:
            reasons_at_move.append(links[-1].broken)

    async def fails_once(link: RegionLink, message: PendingMessage) -> None:
        if link not in links:
            links.append(link)
        if message.value == b"3" and len(links) > 1 and not failed:
            failed.append(link)
            raise KafkaConnectionError("the link breaks after half of the waiting messages")
        await send(link, message)

    monkeypatch.setattr(RegionLink, "send", fails_once)
    async with asyncio.timeout(ENOUGH_S), RegionalProducer(regions(yard, HOME), hooks=Watching()) as producer:
        large = await producer.send(topic_name, b"x" * 5_000, partition=0)
        waiting = [await producer.send(topic_name, b"%d" % n, partition=0) for n in range(10)]
        with pytest.raises(Refused):
            await large
        waiting += [await producer.send(topic_name, b"%d" % n, partition=0) for n in range(10, 60)]
        for future in waiting:
            await future
    assert await stored_numbers(yard, topic_name) == list(range(60))
    assert failed
    assert set(reasons_at_move) == {""}


async def test_later_batches_are_not_stored_before_the_messages_of_a_refused_one(
    killable_yard: Yard, topic_name: str
) -> None:
    yard = killable_yard
    await topics(yard, topic_name, max_message_bytes="2000")
    patient = RegionalProducer(regions(yard, HOME), unhealthy_after_s=ENOUGH_S)
    async with asyncio.timeout(ENOUGH_S), patient as producer:
        await producer.send_and_wait(topic_name, b"all is well", partition=1)
        await asyncio.to_thread(yard.pause, HOME)
        large = await producer.send(topic_name, b"x" * 5_000, partition=0)
        waiting = [await producer.send(topic_name, b"%d" % n, partition=0) for n in range(5)]
        await asyncio.sleep(ON_ITS_WAY_S)
        waiting += [await producer.send(topic_name, b"%d" % n, partition=0) for n in range(5, 10)]
        await asyncio.to_thread(yard.resume, HOME)
        with pytest.raises(Refused):
            await large
        for future in waiting:
            await future
    assert await stored_numbers(yard, topic_name) == list(range(10))


async def test_a_record_that_a_broker_finds_invalid_moves_no_producer_to_another_region(
    yard: Yard, topic_name: str
) -> None:
    await topics(yard, topic_name, cleanup_policy="compact")
    hooks = RecordingHooks()
    async with asyncio.timeout(ENOUGH_S), RegionalProducer(regions(yard), hooks=hooks) as producer:
        invalid = await producer.send(topic_name, b"compaction needs a key", partition=0)
        valid = [await producer.send(topic_name, b"%d" % n, key=b"k", partition=0) for n in range(20)]
        with pytest.raises(NotDelivered, match=f"{HOME}.*(Unknown|InvalidRecord)Error"):
            await invalid
        assert {(await future).region for future in valid} == {HOME}
    assert {move[:2] for move in hooks.moves} == {(HOME, HOME)}


async def test_calls_that_waited_for_a_region_go_before_later_calls(yard: Yard, topic_name: str) -> None:
    await topics(yard, topic_name)
    async with RegionalProducer(regions(yard, HOME)) as producer:
        await producer.send_and_wait(topic_name, b"0", partition=0)
        producer._gate.clear()
        early = asyncio.create_task(producer.send(topic_name, b"1", partition=0))
        await asyncio.sleep(0)
        producer._gate.set()
        late = await producer.send(topic_name, b"2", partition=0)
        assert (await (await early)).offset < (await late).offset


@pytest.mark.deep(minutes=0.2)
async def test_a_region_with_one_answering_broker_is_healthy_while_others_hang(
    yard: Yard, topic_name: str
) -> None:
    await topics(yard, topic_name)
    hooks = RecordingHooks()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
        hangs = f"127.0.0.1:{silent.getsockname()[1]}"
        east = Region(HOME, ",".join([*[hangs] * 8, yard.bootstrap(HOME)]))
        producer = RegionalProducer([east, *regions(yard, AWAY)], hooks=hooks, **QUICK)
        async with producer:
            assert (await producer.send_and_wait(topic_name, b"x")).region == HOME
            await asyncio.sleep(2 * QUICK["unhealthy_after_s"])
            assert (await producer.send_and_wait(topic_name, b"y")).region == HOME
    assert hooks.moves == []


async def test_options_of_a_region_may_be_a_producers(yard: Yard, topic_name: str) -> None:
    await topics(yard, topic_name)
    east = Region(HOME, yard.bootstrap(HOME), {"compression_type": "gzip", "linger_ms": 0})
    async with RegionalProducer([east]) as producer:
        assert (await producer.send_and_wait(topic_name, b"x" * 1_000)).region == HOME
