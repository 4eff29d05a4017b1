"""The copy of a control topic has no unsealed records, and all others unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from app.controllog.seals import Refused, Seals
from app.kafka.append import encoder
from app.kafka.client.cluster import ClusterClient
from tests.controllog.test_seals import region, started_seals, until
from tests.kafka.conftest import ENOUGH_S, create, producing
from tests.kafka.odd_batches import append, batch
from tests.kafka.records.batches import zigzag
from tests.replicate.rig import ReplicaRig


def with_a_bad_header_name(value: bytes) -> bytearray:
    """A record that brokers accept and no decoder reads: its header's name is not UTF-8."""
    body = bytes(1) + zigzag(0) + zigzag(0) + zigzag(-1) + zigzag(len(value)) + value
    body += zigzag(1) + zigzag(1) + b"\xff" + zigzag(-1)
    return batch([zigzag(len(body)) + body])


async def values(client: ClusterClient, topic: str) -> list[bytes | None]:
    """The values that a worker reads from partition 0."""
    at, found = TopicPartition(topic, 0), []
    async with AIOKafkaConsumer(**client.spec.aiokafka_options()) as consumer:
        consumer.assign([at])
        end = (await consumer.end_offsets([at]))[at]
        consumer.seek(at, 0)
        async with asyncio.timeout(ENOUGH_S):
            while await consumer.position(at) < end:
                found += [one.value for one in (await consumer.getmany(at, timeout_ms=100)).get(at, [])]
    return found


class SealedTopic(NamedTuple):
    """A topic on both sides, its seals, and a producer for the source."""

    name: str
    seals: Seals
    client: ClusterClient
    producer: AIOKafkaProducer

    async def begin(self) -> None:
        """Seals begin at the log's end."""
        await self.seals.begin(self.client, "w")
        await until(lambda: not self.seals.missing)

    async def write(self, value: bytes, headers: Iterable[Any] = ()) -> None:
        await self.producer.send_and_wait(self.name, value, key=b"k", partition=0, headers=list(headers))


@pytest.fixture
async def topic(rig: ReplicaRig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SealedTopic]:
    """A control topic of a region of its own."""
    (bootstrap,) = rig.source.spec.bootstrap
    async with (
        region(bootstrap, monkeypatch) as (client, topics, options),
        started_seals(topics, options, client) as seals,
        producing(bootstrap) as producer,
    ):
        await create(rig.target, topics.trackers.name, topics.trackers.partitions)
        yield SealedTopic(topics.trackers.name, seals, client, producer)


async def test_a_copy_has_the_sealed_records_and_those_before_the_first_seal(
    rig: ReplicaRig, topic: SealedTopic
) -> None:
    name, seals = topic.name, topic.seals
    await topic.write(b"before")
    pump = await rig.start_pump(name, seals=lambda: seals if seals.begins else None)
    await rig.copied([pump])
    await rig.until(lambda: pump.version == pump.snapshot_version)
    rig.saves = False
    await topic.begin()
    sealed = [b"sealed %d" % number for number in range(3)]
    for number, value in enumerate(sealed):
        await topic.write(value, seals.headers(name, b"k", value))
        await topic.write(b"forged %d" % number)
        await append(rig.source, name, 0, with_a_bad_header_name(b"forged, and odd"))
    await topic.write(b"forged with a seal of another", seals.headers(name, b"k", b"sealed 0"))
    await rig.copied([pump])
    target_end = (await rig.target.end_offsets([(name, 0)]))[name, 0]
    assert target_end == 1 + len(sealed)
    copied = [b"before", *sealed]
    assert await values(rig.target, name) == copied
    assert seals.take_refused() == [Refused(topic=name, count=7, partition=0, offset=10)]
    assert rig.incidents == []

    rig.kill(pump)  # with nothing saved since `before`
    again = await rig.start_pump(name, seals=lambda: seals)
    await rig.copied([again])
    assert await values(rig.target, name) == copied


async def test_a_sealed_batch_by_which_copying_breaks_waits_and_is_no_forgery(
    rig: ReplicaRig, topic: SealedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> Any:
        raise ZeroDivisionError("nobody foresaw it")

    await topic.begin()
    await topic.write(b"v", topic.seals.headers(topic.name, b"k", b"v"))
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "_copies_of", breaks)
        pump = await rig.start_pump(topic.name, seals=lambda: topic.seals)
        await rig.until(lambda: pump.stuck == ((0, 1),))
    assert topic.seals.take_refused() == []


async def test_a_batch_that_is_damaged_on_its_way_waits_and_is_no_forgery(
    rig: ReplicaRig, topic: SealedTopic
) -> None:
    await topic.begin()
    pump = await rig.start_pump(topic.name, seals=lambda: topic.seals, fetches=False)
    rig.feed(pump, bytes(batch([b""])), 0, 1, damage="its checksum does not match")
    await rig.until(lambda: rig.incidents)
    assert rig.kinds() == ["replica-stuck"]
    assert topic.seals.take_refused() == []
