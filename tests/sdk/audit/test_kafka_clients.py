"""aiokafka's clients with an audit, on a real broker; their reports go to Kafka."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.partitioner import DefaultPartitioner

from app.audit.folds.collector import Collector
from app.audit.jobs.report_sender import audit_partition
from app.controllog.topics import AUDIT_PARTITIONS, ControlTopics
from switchyard.audit import (
    Audit,
    AuditedConsumer,
    AuditedProducer,
    CallOutput,
    KafkaOutput,
    recovery,
    wal_frames,
)
from switchyard.audit.kafka_clients import MESSAGE_ID
from switchyard.audit.kafka_output import audit_topic
from switchyard.audit.model.fingerprint import ids_of, of_ids
from switchyard.audit.model.reports import Report
from switchyard.audit.model.totals import NO_TOTALS, Totals
from switchyard.audit.outputs import read_lines
from tests.kafka.conftest import connected, create
from tests.sdk.audit import kafka_processes
from tests.sdk.audit.test_session import counted_records

ENOUGH_S = 60.0
BEGAN_MS = 1_700_000_000_000
LIVES = 12


async def read_topic(bootstrap: str, topic: str, **wanted: Any) -> list[Any]:
    """All records of a topic."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", **wanted)
    await consumer.start()
    try:
        places = [TopicPartition(topic, one) for one in consumer.partitions_for_topic(topic) or {0}]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        found: list[Any] = []
        async with asyncio.timeout(ENOUGH_S):
            while any([await consumer.position(place) < ends[place] for place in places]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += records
        return found
    finally:
        await consumer.stop()


async def collected_totals(bootstrap: str, reports_topic: str) -> dict[str, Totals]:
    """The totals that a collector counts from the reports, by tier."""
    collector = Collector()
    for position, record in enumerate(await read_topic(bootstrap, reports_topic)):
        (report,) = read_lines(record.value)
        assert record.key == report.topic.encode()
        collector.apply(report, position)
    found: dict[str, Totals] = {}
    for key, window in collector.windows.items():
        found[key.tier] = found.get(key.tier, NO_TOTALS).plus(window.totals)
    return found


Make = Callable[[str], Awaitable[Audit]]


@pytest.fixture
async def make(bootstrap: str, topic_name: str, tmp_path: Path) -> AsyncIterator[Make]:
    """An audit of a tier, whose reports go to the topic "<topic_name>-audit"."""
    made: list[Audit] = []
    async with connected(bootstrap) as client:
        await create(client, topic_name, 1)
        await create(client, f"{topic_name}-audit", 1)

    async def start(tier: str) -> Audit:
        output = KafkaOutput(bootstrap, "east", topic=f"{topic_name}-audit")
        audit = Audit(origin="web", tier=tier, cluster="east", wal=tmp_path / tier, output=output)
        await audit.start()
        made.append(audit)
        return audit

    yield start
    for audit in made:
        await audit.close()


@asynccontextmanager
async def producing(bootstrap: str, audit: Audit, **options: Any) -> AsyncIterator[AuditedProducer]:
    async with AuditedProducer(AIOKafkaProducer(bootstrap_servers=bootstrap, **options), audit) as producer:
        yield producer


def test_reports_go_where_switchyard_reads_them() -> None:
    assert audit_topic("east") == ControlTopics("east").audit.name
    partitions = list(range(AUDIT_PARTITIONS))
    for topic in ("orders", "payments", "a", "b", "c"):  # producers choose a partition by the key
        assert DefaultPartitioner()(topic.encode(), partitions, partitions) == audit_partition(topic)


async def test_sent_and_consumed_records_are_reported_alike(
    bootstrap: str, topic_name: str, make: Make
) -> None:
    sends, handles = await make("proxy-client"), await make("consumer")
    names = [b"message %d" % number for number in range(300)]
    async with producing(bootstrap, sends) as producer:
        futures = [
            await producer.send(
                topic_name, name, b"key", timestamp_ms=BEGAN_MS + number, headers=[(MESSAGE_ID, name)]
            )
            for number, name in enumerate(names)
        ]
        await asyncio.gather(*futures)
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    reader = AIOKafkaConsumer(topic_name, bootstrap_servers=bootstrap, group_id=topic_name, **options)
    async with AuditedConsumer(reader, handles) as consumer, asyncio.timeout(ENOUGH_S):
        one = await consumer.getone()
        two = await anext(aiter(consumer))
        seen = [one.value, two.value]
        while len(seen) < len(names):
            for records in (await consumer.getmany(timeout_ms=200, max_records=70)).values():
                seen += [record.value for record in records]
        assert seen == names
        await consumer.commit()
        assert consumer.assignment()  # calls of aiokafka's own API pass through
        await consumer.seek_to_beginning()
        await consumer.getmany(timeout_ms=5_000)
        assert handles.stats.redelivered
    assert await sends.close()
    assert await handles.close()
    found = await collected_totals(bootstrap, f"{topic_name}-audit")
    for tier in ("proxy-client", "consumer"):
        one_tier = found[tier]
        assert (one_tier.count, one_tier.identified, one_tier.ids) == (300, 300, of_ids(ids_of(names)))
        assert (one_tier.first_ms, one_tier.last_ms) == (BEGAN_MS, BEGAN_MS + 299)
    assert found["proxy-client"].nbytes == found["consumer"].nbytes == sum(map(len, names)) + 3 * 300


async def test_a_refused_record_does_not_count_and_one_that_no_caller_awaits_does(
    bootstrap: str, topic_name: str, make: Make
) -> None:
    audit = await make("proxy-client")
    async with producing(bootstrap, audit, max_request_size=1_000) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic_name, bytes(2_000))
        waiting = asyncio.create_task(producer.send_and_wait(topic_name, b"left"))
        while not producer._message_accumulator._batches:  # noqa: ASYNC110 - it has no event for that
            await asyncio.sleep(0)
        waiting.cancel()
        await producer.send_and_wait(topic_name, b"waited for")
    assert await audit.close()
    in_topic = await read_topic(bootstrap, topic_name)
    assert (
        (await collected_totals(bootstrap, f"{topic_name}-audit"))["proxy-client"].count == len(in_topic) == 2
    )


async def test_batches_count_with_their_own_times(bootstrap: str, topic_name: str, make: Make) -> None:
    audit = await make("proxy-client")
    async with producing(bootstrap, audit) as producer:
        batch = producer.create_batch()
        for number in range(10):
            batch.append(
                timestamp=BEGAN_MS + number, key=None, value=b"v", headers=[(MESSAGE_ID, b"%d" % number)]
            )
        batch.close()
        await (await producer.send_batch(batch, topic_name, partition=0))
    assert await audit.close()
    found = (await collected_totals(bootstrap, f"{topic_name}-audit"))["proxy-client"]
    assert (found.count, found.nbytes, found.identified) == (10, 10, 10)
    assert (found.first_ms, found.last_ms) == (BEGAN_MS, BEGAN_MS + 9)


async def fail_within_a_transaction(producer: AuditedProducer, topic: str) -> None:
    async with producer.transaction():
        await producer.send_and_wait(topic, b"aborted")
        raise ZeroDivisionError


async def test_transactions_count_once_they_are_committed(
    bootstrap: str, topic_name: str, make: Make
) -> None:
    audit = await make("proxy-client")
    async with producing(bootstrap, audit, transactional_id=topic_name) as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic_name, b"one")
            await producer.send(topic_name, b"two")
        with pytest.raises(ZeroDivisionError):
            await fail_within_a_transaction(producer, topic_name)
        await producer.begin_transaction()
        await producer.send(topic_name, b"three")
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send(topic_name, b"aborted")
        await producer.abort_transaction()
    assert await audit.close()
    seen = await read_topic(bootstrap, topic_name, isolation_level="read_committed")
    assert [record.value for record in seen] == [b"one", b"two", b"three"]
    assert (await collected_totals(bootstrap, f"{topic_name}-audit"))["proxy-client"].count == 3


async def test_a_durable_send_returns_when_its_count_is_logged(
    bootstrap: str, topic_name: str, make: Make, tmp_path: Path
) -> None:
    audit = await make("proxy-client")
    raw = AIOKafkaProducer(bootstrap_servers=bootstrap)
    async with AuditedProducer(raw, audit, is_durable=True) as producer:
        logged = sum(path.stat().st_size for path in (tmp_path / "proxy-client").iterdir())
        await producer.send_and_wait(topic_name, b"one")
        assert sum(path.stat().st_size for path in (tmp_path / "proxy-client").iterdir()) > logged


async def test_committed_records_are_in_the_log_even_while_other_tasks_consume(
    bootstrap: str, topic_name: str, make: Make, tmp_path: Path
) -> None:
    audit = await make("consumer")
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(5_000):
            await producer.send(topic_name, b"%d" % number)
    place = TopicPartition(topic_name, 0)
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    reader = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=topic_name, **options)
    async with AuditedConsumer(reader, audit) as consumer:
        reader.assign([place])

        async def poll() -> None:
            while await consumer.position(place) < 5_000:
                await consumer.getmany(timeout_ms=10, max_records=5)

        polling = asyncio.create_task(poll())
        while not polling.done():
            await consumer.commit()
            committed = await reader.committed(place) or 0
            (path,) = (tmp_path / "consumer").glob("log-*")
            positions = recovery.read(wal_frames.found(path.read_bytes()).payloads).positions
            next_offset, _ = positions.get(topic_name, {}).get(0, (0, 0))
            assert next_offset >= committed
        await polling
    assert audit.stats.wrong == {}


@pytest.mark.deep(minutes=0.2)
async def test_a_broker_that_is_away_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    audit = Audit(origin="web", tier="consumer", wal=tmp_path, output=KafkaOutput("127.0.0.1:9", "east"))
    async with audit:
        audit.sent("orders", 5, 10)
        async with asyncio.timeout(ENOUGH_S):
            while "the output" not in audit.stats.wrong:  # noqa: ASYNC110 - a thread changes it
                await asyncio.sleep(0.01)
        assert "KafkaConnectionError" in audit.stats.wrong["the output"]
        assert not await audit.close(0.1)
    arrived: list[Report] = []
    async with Audit(origin="web", tier="consumer", wal=tmp_path, output=CallOutput(arrived.extend)):
        pass
    assert counted_records(arrived) == 1  # a client that closes while it sends may send a report twice


async def test_a_consumer_that_is_killed_again_and_again_counts_every_record_once(
    bootstrap: str, topic_name: str, make: Make, tmp_path: Path
) -> None:
    await make("unused")  # creates the topics
    names = [b"message %d" % number for number in range(kafka_processes.RECORDS)]
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number, name in enumerate(names):
            await producer.send(
                topic_name, name, timestamp_ms=BEGAN_MS + number, headers=[(MESSAGE_ID, name)]
            )
    command = [
        sys.executable,
        "-m",
        "tests.sdk.audit.kafka_processes",
        bootstrap,
        topic_name,
        str(tmp_path),
        str(LIVES),
    ]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert int(done.stdout) == LIVES - 1
    found = (await collected_totals(bootstrap, f"{topic_name}-audit"))["consumer"]
    assert (found.count, found.ids) == (len(names), of_ids(ids_of(names)))
