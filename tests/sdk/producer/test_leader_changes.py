"""A service writes while partition leaders move between two brokers of a region, one of which is killed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.dev.yard import Yard
from switchyard.producer import Delivered, RegionalProducer
from tests.kafka.conftest import connected
from tests.kafka.second_broker import FIRST, SECOND, create_on, delete, offsets_partitions, second_broker
from tests.sdk.producer.regions import AWAY, ENOUGH_S, RecordingHooks, records, regions, until

MORE = 500


@pytest.mark.deep(minutes=0.4)
async def test_every_message_is_written_once_and_in_order_while_leaders_change(
    killable_yard: Yard, topic_name: str, tmp_path: Path
) -> None:
    yard, hooks = killable_yard, RecordingHooks()
    waiting: list[list[asyncio.Future[Delivered]]] = [[], []]
    is_over = False

    async def write(producer: RegionalProducer) -> None:
        while not is_over:
            for partition, futures in enumerate(waiting):
                futures.append(await producer.send(topic_name, b"%d" % len(futures), partition=partition))
            await asyncio.sleep(0.001)

    async def flows() -> None:
        taken = [len(futures) + MORE for futures in waiting]
        for futures, number in zip(waiting, taken, strict=True):
            await until(lambda f=futures, n=number: len(f) > n and f[n].done())  # type: ignore[misc]

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(yard.bootstrap(AWAY)))
        second = await stack.enter_async_context(second_broker(yard, AWAY, tmp_path, client))
        one_each = {(topic_name, 0): [FIRST, SECOND], (topic_name, 1): [SECOND, FIRST]}
        offsets = {at: [FIRST] for at in await offsets_partitions(client)}
        await second.assign(offsets)
        await create_on(client, one_each)
        stack.push_async_callback(delete, client, topic_name)
        patient = RegionalProducer(regions(yard, AWAY), hooks=hooks, unhealthy_after_s=ENOUGH_S)
        async with patient as producer:
            writing = asyncio.create_task(write(producer))
            await flows()
            for node in (FIRST, SECOND):
                led = {at: [node, FIRST + SECOND - node] for at in one_each}
                await second.assign(led)
                await second.elect(led)
                await flows()
            await second.kill()
            await second.until_led_by(FIRST, list(one_each))
            await flows()
            await second.start()
            await second.until_in_sync(led)
            for node in (SECOND, FIRST):  # the other broker drops its replicas
                await second.assign({at: [node] for at in one_each})
                await flows()
            is_over = True
            await writing
        stored = await records(yard, AWAY, topic_name)
        for partition, futures in enumerate(waiting):
            assert [int(record.value or b"") for record in stored[partition]] == list(range(len(futures)))
            assert [future.result().offset for future in futures] == list(range(len(futures)))
    assert hooks.moves == []
    assert hooks.failures == []
