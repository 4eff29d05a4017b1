"""Batches with inconsistent headers, which any producer can send, among valid ones and on the control topics.

Workers deliver, copy and count every valid record around them; one worker is killed and a new one reads them
from the start.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable

import orjson
import pytest

from app.controllog.topics import ControlTopics
from app.dev.demo.stage import DemoStage, route, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, read_all
from tests.kafka import bounded
from tests.kafka.conftest import connected
from tests.kafka.odd_batches import append, batch, lying, odd, record
from tests.system.fleet import incidents, start_workers
from tests.system.test_audit import plan, window_counts

pytestmark = pytest.mark.system

SOURCE, TARGET, GROUP = "east-regional", "east-aggregate", "billing"
PARTITIONS, SETTLE_S, SEED = 2, 120.0, 5
ODD = ((0, 1000, 2000), (5, 6, 7), (2, 1, 0), (0, 0, 0), (0, 1, (1 << 31) - 1))
ODD_VALUE = SentMessage("odd", "ok").value()


async def write(bootstrap: str, topic: str, good: Iterable[SentMessage], chance: random.Random) -> int:
    """Writes valid records, and odd batches between them; returns how many records of odd batches brokers
    accepted."""
    taken = 0
    async with connected(bootstrap) as client:
        for number, message in enumerate(good):
            partition = number % PARTITIONS
            answer = await append(client, topic, partition, batch([record(0, message.value())]))
            assert answer.code == 0, answer
            which = number // PARTITIONS
            lie = lying(ODD[which], ODD_VALUE) if which < len(ODD) else odd(chance, ODD_VALUE, in_time=False)
            if (await append(client, topic, partition, lie)).code == 0:
                taken += int.from_bytes(lie[57:61])
    return taken


async def spoil_control_topics(bootstrap: str, topics: ControlTopics) -> None:
    """Appends odd batches between and behind the workers' records."""
    async with connected(bootstrap) as client:
        for one in topics.all():
            for partition in range(one.partitions):
                for deltas in ODD:  # a compacted topic takes no record without a key
                    answer = await append(client, one.name, partition, lying(deltas, b"{}", b"odd"))
                    assert answer.code == 0, (one.name, answer)


async def records_in(bootstrap: str, topic: str) -> int:
    """The sum of the topic's end offsets."""
    async with connected(bootstrap) as client:
        return sum((await client.end_offsets([(topic, number) for number in range(PARTITIONS)])).values())


def test_valid_records_among_inconsistent_batches_are_delivered_copied_and_counted(
    stage: DemoStage, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded.install(monkeypatch)  # aiokafka's reader ends at batches that it cannot read
    source, target = stage.yard.bootstrap(SOURCE), stage.yard.bootstrap(TARGET)
    asyncio.run(create_topic(source, topic_name, PARTITIONS))
    receiver = stage.receiver(GROUP, topic_name)
    first, second = start_workers(stage)
    stage.deploy(first, workload(GROUP, topic_name, SOURCE, receiver.address))
    stage.deploy(first, route("copy", SOURCE, TARGET, topic_name))
    stage.deploy(first, plan("all", topic_name))
    chance, good = random.Random(SEED), [SentMessage(f"good-{at}", "ok") for at in range(300)]
    taken = asyncio.run(write(source, topic_name, good[:100], chance))
    asyncio.run(spoil_control_topics(source, ControlTopics(stage.region)))
    first.kill()
    taken += asyncio.run(write(source, topic_name, good[100:200], chance))
    third = stage.worker()
    second.kill()
    taken += asyncio.run(write(source, topic_name, good[200:], chance))

    wanted = {message.id for message in good}

    def delivered() -> set[str]:
        return {one["id"] for one in stage.deliveries() if one["outcome"] == "ok"}

    def total() -> int:
        return asyncio.run(records_in(target, topic_name))

    def copied() -> Counter[str]:
        return Counter(orjson.loads(one.value)["id"] for one in asyncio.run(read_all(target, topic_name)))

    wait_until(lambda: wanted <= delivered(), SETTLE_S, lambda: f"{wanted - delivered()} {third.tail()}")
    wait_until(lambda: wanted <= copied().keys(), SETTLE_S, lambda: f"{wanted - copied().keys()}")
    assert {copied()[one] for one in wanted} == {1}, "once each"
    for tier in ("regional", "aggregate"):
        wait_until(
            lambda tier=tier: window_counts(third, topic_name, tier).total() == total(),
            SETTLE_S,
            lambda tier=tier: f"{tier}: {window_counts(third, topic_name, tier)} of {total()}",
        )
    assert total() == taken + len(good), "all that brokers took is copied"
    letters = asyncio.run(read_all(source, f"{topic_name}__{GROUP}__dlq"))
    assert len(letters) >= len(ODD)
    assert incidents(third, "undecodable")
    assert incidents(third, "batch-renumbered")
    assert third.running
