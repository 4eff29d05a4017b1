"""The producer SDK on real brokers, one of which is killed: every message is stored, or its future fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from typing import Any

import pytest

from app.dev.yard import Yard
from switchyard.producer import Delivered, NotDelivered, ProducerClosed, Refused, Region, RegionalProducer
from tests.sdk.producer.regions import (
    AWAY,
    HOME,
    QUICK,
    RETURNED,
    RecordingHooks,
    ids,
    records,
    regions,
    topics,
    until,
)


async def test_a_killed_region_loses_no_message_and_the_producer_returns_to_it(
    killable_yard: Yard, topic_name: str
) -> None:
    yard, hooks = killable_yard, RecordingHooks()
    await topics(yard, topic_name)
    waiting: list[asyncio.Future[Delivered]] = []
    stop = asyncio.Event()

    async def produce(producer: RegionalProducer) -> None:
        number = 0
        while not stop.is_set():
            key = f"{number % 7}".encode()
            waiting.append(await producer.send(topic_name, f"{number}".encode(), key=key))
            number += 1
            if not number % 20:
                await asyncio.sleep(0.005)

    producer = RegionalProducer(regions(yard), message_ids=True, hooks=hooks, **QUICK)
    async with producer:
        await until(lambda: producer.region == HOME)
        producing = asyncio.create_task(produce(producer))
        await until(lambda: hooks.at[HOME] > 1_000)
        await asyncio.to_thread(yard.kill, HOME)
        await until(lambda: hooks.at[AWAY] > 1_000)
        await asyncio.to_thread(yard.up)
        await until(lambda: RETURNED in hooks.reasons)
        before = hooks.at[HOME]
        await until(lambda: hooks.at[HOME] > before + 1_000)
        stop.set()
        await producing
    assert producer.pending == 0
    places = [future.result() for future in waiting]
    assert hooks.failures == []
    # A busy machine may be as silent as a dead one, so there may be more moves than these two.
    assert (HOME, AWAY) in [move[:2] for move in hooks.moves]
    returns = [move for move, why in zip(hooks.moves, hooks.reasons, strict=True) if why == RETURNED]
    assert (AWAY, HOME, 0) in returns
    assert all(again == 0 for _, _, again in returns), "a return to the home region sends nothing twice"
    sent_again = sum(again for _, _, again in hooks.moves)

    home, away = await records(yard, HOME, topic_name), await records(yard, AWAY, topic_name)
    at_home, at_away = ids(home), ids(away)
    if len(hooks.moves) == 2:
        assert set(at_home.values()) == set(at_away.values()) == {1}, "no region has a message twice"
    assert len(at_home | at_away) == len(waiting)
    copies = at_home.total() + at_away.total() - len(waiting)
    assert copies <= sent_again, "only messages that a region did not answer for are stored more than once"
    found = {HOME: home, AWAY: away}
    for number, place in enumerate(places):
        record = found[place.region][place.partition][place.offset]
        assert record.value == f"{number}".encode()
    for many in (home, away):
        by_key: dict[bytes | None, list[int]] = defaultdict(list)
        for partition in many.values():
            for record in partition:
                by_key[record.key].append(int(record.value or b""))
        firsts = [
            list(dict.fromkeys(numbers)) for numbers in by_key.values()
        ]  # without messages that were sent again
        assert all(numbers == sorted(numbers) for numbers in firsts)


async def test_the_producer_leaves_a_region_that_hangs_and_without_another_fails_in_bounded_time(
    killable_yard: Yard, topic_name: str
) -> None:
    yard, hooks = killable_yard, RecordingHooks()
    await topics(yard, topic_name)
    alone = RegionalProducer(regions(yard, HOME), **QUICK)
    await alone.start()
    async with RegionalProducer(
        regions(yard), hooks=hooks, **{**QUICK, "unhealthy_after_s": 8.0}
    ) as producer:
        await until(lambda: producer.region == HOME)
        await producer.send_and_wait(topic_name, b"1")
        await asyncio.to_thread(yard.pause, HOME)
        stuck = await alone.send(topic_name, b"nobody answers")
        assert (await producer.send_and_wait(topic_name, b"2")).region == AWAY
        await alone.close(timeout_s=0.5)
        with pytest.raises(NotDelivered, match="closed"):
            await stuck
        with pytest.raises(NotDelivered, match="none of the regions east-regional"):
            await RegionalProducer(regions(yard, HOME)).start(timeout_s=0.5)
    with pytest.raises(ProducerClosed):
        await producer.send(topic_name, b"3")
    assert (HOME, AWAY) in [move[:2] for move in hooks.moves]


async def test_a_refused_message_fails_alone_and_later_ones_stay_in_the_region(
    yard: Yard, topic_name: str
) -> None:
    hooks = RecordingHooks()
    await topics(yard, topic_name, max_message_bytes="2000")
    async with RegionalProducer(regions(yard), hooks=hooks, unhealthy_after_s=60.0) as producer:
        big = await producer.send(topic_name, b"x" * 5_000, partition=0)
        small = [await producer.send(topic_name, b"%d" % n, partition=n % 2) for n in range(50)]
        with pytest.raises(Refused, match=f"east-regional, topic {topic_name}: MessageSizeTooLarge"):
            await big
        with pytest.raises(Refused, match="MessageSizeTooLarge"):
            await producer.send_and_wait(topic_name, b"x" * 2_000_000)
        assert {(await future).region for future in small} == {HOME}
        with pytest.raises(ValueError, match="a key or a value"):
            await producer.send(topic_name)
    found = await records(yard, HOME, topic_name)
    for partition in (0, 1):
        numbers = [int(record.value or b"") for record in found[partition]]
        assert list(dict.fromkeys(numbers)) == [n for n in range(50) if n % 2 == partition], "in order"
    assert {type(error) for error in hooks.failures} == {Refused}


@pytest.mark.deep(minutes=0.6)
async def test_beyond_the_limit_send_waits_until_there_is_room(killable_yard: Yard, topic_name: str) -> None:
    await topics(killable_yard, topic_name)
    # The producer must stay in the region: during a move send waits, whether there is room or not.
    options: dict[str, Any] = {"unhealthy_after_s": 60.0, "max_pending": 5, "delivery_timeout_s": 5.0}
    async with RegionalProducer(regions(killable_yard, HOME), **options) as producer:
        await producer.send_and_wait(topic_name, b"first")
        await asyncio.to_thread(killable_yard.kill, HOME)
        waiting = [await producer.send(topic_name, b"%d" % n) for n in range(5)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await producer.send(topic_name, b"no room")
        assert producer.pending == 5
        for future in waiting:
            with pytest.raises(NotDelivered, match="no region acknowledged it for"):
                await future
        await asyncio.to_thread(killable_yard.up)
        assert (await producer.send_and_wait(topic_name, b"and on it goes")).region == HOME


def test_definitions_that_cannot_work_are_refused() -> None:
    one = Region("east", "h:1")
    wrong: list[tuple[list[Region], dict[str, Any]]] = [
        ([], {}),
        ([one, one], {}),
        ([Region("east", "nowhere")], {}),
        ([one], {"unhealthy_after_s": 0}),
        ([one], {"max_pending": 0}),
        ([one], {"max_pending_bytes": 0}),
    ]
    for given, options in wrong:
        with pytest.raises(ValueError, match=r"region|above 0"):
            RegionalProducer(given, **options)


def test_the_producer_needs_aiokafka_only_and_does_not_log_by_structlog() -> None:
    # unconfigured, structlog writes to stdout, into the application's output
    script = "import sys, switchyard.producer; print({'structlog', 'faust', 'grpc'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
