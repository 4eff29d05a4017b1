"""Which records of control topics count: from which offset they need a seal, and whose seal."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog import codec
from app.controllog.events import Claim, compaction_key
from app.controllog.log import ControlLog
from app.controllog.seals import SealedTopic, Seals, SealsBegin, seal_in
from app.controllog.topics import ControlTopics
from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.fetch import bounded_consumer
from app.kernel.seals import HEADER, is_same, record_seal
from tests.kafka import bounded
from tests.kafka.conftest import ENOUGH_S, connected, producing

PARTS = st.none() | st.binary(max_size=3)
RECORDS = st.tuples(st.text("ab", min_size=1, max_size=3), PARTS, PARTS)


@pytest.mark.property
@given(RECORDS, RECORDS, st.binary(min_size=1, max_size=3), st.binary(min_size=1, max_size=3))
def test_a_seal_is_of_one_record_and_one_key_only(one: Any, other: Any, key: bytes, another: bytes) -> None:
    seal = record_seal(key, *one)
    assert is_same(seal, record_seal(key, *one))
    assert is_same(seal, record_seal(key, *other)) == (one == other)
    assert is_same(seal, record_seal(another, *one)) == (key == another)


@pytest.mark.parametrize("headers", [(), ((HEADER, None),), (("other", b"x"),)])
def test_a_record_without_a_seal_has_none(headers: Any) -> None:
    assert seal_in(headers) is None


@asynccontextmanager
async def region(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ClusterClient, ControlTopics, dict[str, Any]]]:
    """Control topics of one region, for consumers like a worker's."""
    bounded.install(monkeypatch)
    monkeypatch.setattr(bounded_consumer.BoundedResult, "checks", [])
    topics = ControlTopics(f"r{uuid.uuid4().hex[:8]}")
    async with connected(bootstrap) as client:
        await ensure_topics(
            client, [TopicSpec(t.name, t.partitions, 1, config=t.config) for t in topics.all()]
        )
        yield client, topics, {"bootstrap_servers": bootstrap}


@asynccontextmanager
async def started_seals(
    topics: ControlTopics, options: dict[str, Any], client: ClusterClient
) -> AsyncIterator[Seals]:
    seals = Seals(topics, options)
    await seals.learn(client)
    await seals.start()
    try:
        yield seals
    finally:
        await seals.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - of a reader of its own
            await asyncio.sleep(0.02)


def record_at(topic: str, offset: int, headers: Any = (), partition: int = 0) -> Any:
    return SimpleNamespace(
        topic=topic, partition=partition, offset=offset, key=b"k", value=b"v", headers=headers
    )


async def test_seals_begin_at_the_end_of_a_topic_and_at_the_start_of_a_recreated_one(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with region(bootstrap, monkeypatch) as (client, topics, options):
        control, trackers = topics.control.name, topics.trackers.name
        async with producing(bootstrap) as producer:
            for _ in range(3):
                await producer.send_and_wait(control, b"{}", key=b"k", partition=0)
            forged = SealsBegin(at_ms=0, worker="evil", topics={control: SealedTopic("", [1 << 40])})
            await producer.send_and_wait(topics.seals.name, msgspec.json.encode(forged), partition=0)
        async with started_seals(topics, options, client) as seals:
            assert not seals.begins, "a record that no worker sealed sets no start"
            assert not seals.refuses(record_at(control, 9))
            await seals.begin(client, "w")
            await until(lambda: not seals.missing)
            assert (seals.begins[control, 0], seals.begins[trackers, 7]) == (3, 0)
            sealed = tuple(seals.headers(control, b"k", b"v"))
            assert not seals.refuses(record_at(control, 2))
            assert not seals.refuses(record_at(control, 3, sealed))
            assert not seals.refuses(record_at(topics.audit.name, 3)), (
                "clients write to this topic without seals"
            )
            wrong = [(), ((HEADER, b""),), tuple(seals.headers(trackers, b"k", b"v"))]
            assert all(seals.refuses(record_at(control, 3 + n, headers)) for n, headers in enumerate(wrong))
            (refused,) = seals.take_refused()
            assert (refused.topic, refused.count, refused.offset) == (control, 3, 5)
            assert seals.take_refused() == []
            async with producing(bootstrap) as producer:
                await producer.send_and_wait(control, b"{}", key=b"k", partition=0)
            await seals.begin(client, "another")  # a worker that has not read the start yet
        async with started_seals(topics, options, client) as later:
            assert later.begins[control, 0] == 3, "the first start counts"
            later._ids[trackers] = "another-topic-id-00000"
            later.begins.clear()
            later._take(SealsBegin(at_ms=0, worker="w", topics={
                trackers: SealedTopic(seals._ids[trackers], [7] * 8),
                control: SealedTopic(later._ids[control], [3]),
            }))  # fmt: skip
            assert (later.begins[trackers, 0], later.begins[control, 0]) == (0, 3)
            assert later.missing, "the other topics have no start"


@pytest.mark.parametrize("headers", [[], [(HEADER, b"x" * 32)]])
async def test_a_control_log_forgets_unsealed_records_from_before_seals_began(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, headers: Any
) -> None:
    """Also where such a record is the last of the log."""
    async with (
        region(bootstrap, monkeypatch) as (client, topics, options),
        started_seals(topics, options, client) as seals,
    ):
        bounded_consumer.check_by(seals.refuses)
        log = ControlLog(topics.control.name, options, seals)
        await log.start()
        try:
            await log.append(Claim(at_ms=0, term=1, worker="a"))
            begin = SealsBegin(at_ms=0, worker="w", topics={
                topics.control.name: SealedTopic(seals._ids[topics.control.name], [1])
            })  # fmt: skip
            evil = Claim(at_ms=0, term=2, worker="evil")
            async with producing(bootstrap) as producer:
                key = compaction_key(evil).encode()
                await producer.send_and_wait(
                    topics.control.name, codec.encode(evil), key=key, partition=0, headers=headers
                )
            await until(lambda: log.view.leader == "evil")
            seal = ReplaceableProducer("a test", options, seal=seals)
            await seal.start()
            await seal.send_and_wait(topics.seals.name, msgspec.json.encode(begin), partition=0)
            await seal.stop()
            await until(lambda: log.view.leader == "a")
            await log.append(Claim(at_ms=0, term=2, worker="b"))
            assert (log.view.leader, log.view.refused) == ("b", 0)
        finally:
            await log.stop()


async def test_a_flood_of_unsealed_records_is_skipped_and_every_sealed_one_is_read(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        region(bootstrap, monkeypatch) as (client, topics, options),
        started_seals(topics, options, client) as seals,
    ):
        bounded_consumer.check_by(seals.refuses)
        await seals.begin(client, "w")
        await until(lambda: not seals.missing)
        log = ControlLog(topics.control.name, options, seals)
        await log.start()
        try:
            for term in range(1, 4):
                await log.append(Claim(at_ms=0, term=term, worker="a"))
                async with producing(bootstrap) as producer:
                    sent = [
                        await producer.send(topics.control.name, b"{}", key=b"k%d" % n, partition=0)
                        for n in range(5_000)
                    ]
                    last = (await asyncio.gather(*sent))[-1].offset
            view = log.view
            assert await log.up_to(last) is view, "skipped records are not taken for compaction"
            assert (view.term, view.refused) == (3, 0)
            assert sum(one.count for one in seals.take_refused()) == 15_000
        finally:
            await log.stop()
