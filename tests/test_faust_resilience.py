"""Faust's clients outlast a broker that is away or paused for longer than Faust would wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import faust
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    IllegalStateError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    UnknownError,
)
from aiokafka.producer.message_accumulator import MessageBatch
from faust.types import TP
from structlog.testing import capture_logs

from app import faust_resilience
from app.dev.yard import Yard
from app.faust_resilience import (
    PatientAIOKafkaProducer,
    PatientApp,
    PatientBuffer,
    PatientConsumerThread,
    PatientProducer,
    PatientRecovery,
    PatientTableManager,
)
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter
from app.kafka.client.topics import TopicSpec, ensure_topics
from tests.kafka import bounded
from tests.kafka.conftest import bound, connected, producing

CLUSTER = "east-aggregate"  # other tests use another cluster at the same time
ENOUGH_S = 60.0
SOON_S = 0.05
NOTHING_BYTES = 50  # below the size of any record


def make_app(bootstrap: str = "127.0.0.1:1", name: str = "patient", **options: Any) -> PatientApp:
    """An application with the patient clients; by default its broker does not exist."""
    return PatientApp(
        name, broker=f"aiokafka://{bootstrap}", store="memory://", TableManager=PatientTableManager, **options
    )


class ClosedChannel(faust.Channel[bytes]):
    """A channel that takes no message until it is opened."""

    def __init__(self, app: PatientApp) -> None:
        super().__init__(app)
        self.opened, self.reached = asyncio.Event(), asyncio.Event()
        self.taken: list[Any] = []

    async def publish_message(self, fut: Any, wait: bool = True) -> Any:
        """Takes the message once the channel is opened."""
        self.reached.set()
        await self.opened.wait()
        self.taken.append(fut.message.value)


@asynccontextmanager
async def blocked_producer(app: PatientApp) -> AsyncIterator[tuple[PatientProducer, ClosedChannel]]:
    """A producer whose first message of two waits for a closed channel, and that channel."""
    producer, channel = app.producer, ClosedChannel(app)
    assert isinstance(producer, PatientProducer)
    assert isinstance(producer.buffer, PatientBuffer)
    await producer.buffer.start()
    try:
        for value in (b"first", b"second"):
            producer.send_soon(channel.as_future_message(value=value))
        await channel.reached.wait()
        yield producer, channel
    finally:
        channel.opened.set()
        await producer.buffer.stop()


@asynccontextmanager
async def consumer_thread(app: PatientApp | None = None) -> AsyncIterator[PatientConsumerThread]:
    """The thread of a consumer that has one partition."""
    thread = (app or make_app()).consumer._thread  # type: ignore[attr-defined]
    assert isinstance(thread, PatientConsumerThread)
    thread._consumer = AIOKafkaConsumer(group_id="patient", bootstrap_servers="127.0.0.1:1")
    thread._consumer.assign([TopicPartition("here", 0)])
    try:
        yield thread
    finally:
        await thread._consumer.stop()


async def test_a_step_of_a_recovery_has_no_timeout() -> None:
    recovery = make_app().tables.recovery  # type: ignore[attr-defined]
    assert isinstance(recovery, PatientRecovery)
    await recovery._wait(asyncio.sleep(2 * SOON_S), timeout=SOON_S)  # Faust's own would abandon the recovery


async def test_a_recovery_ends_although_the_last_record_of_a_changelog_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reads and recovers a partition whose last offset is 5."""
    app = make_app()
    recovery, tp = app.tables.recovery, TP("here", 0)  # type: ignore[attr-defined]
    async with consumer_thread(app) as thread:
        recovery.active_tps, recovery.active_highwaters = {tp, TP("elsewhere", 0)}, {tp: 5}
        recovery.active_offsets = {tp: 3}
        assert thread._consumer is not None
        state = thread._consumer._subscription.subscription.assignment.state_value(TopicPartition(*tp))
        assert recovery._read_to_the_end() == {}, "a partition with an unknown position was passed over"
        for position, ends in ((4, {}), (5, {}), (6, {tp: 5})):
            state.seek(position)
            assert recovery._read_to_the_end() == ends
        recovery.tables.changelog_queue.put_nowait(object())
        assert recovery._read_to_the_end() == {}, "records that wait in the queue were passed over"
        recovery.tables.changelog_queue.get_nowait()
        recovery.active_offsets[tp] = 5
        assert recovery._read_to_the_end() == {}
        recovery.active_offsets[tp] = 3
        monkeypatch.setattr(faust_resilience, "RECOVERY_POLL_INTERVAL_S", SOON_S)
        recovery.in_recovery = True
        passing = asyncio.ensure_future(PatientRecovery._pass_over_unreadable_ends.fun(recovery))
        async with asyncio.timeout(ENOUGH_S):
            while recovery.active_offsets[tp] != 5:  # noqa: ASYNC110 - the task changes it
                await asyncio.sleep(SOON_S)
        passing.cancel()
        assert recovery.active_offsets == {tp: 5}


async def test_a_commit_of_a_revoked_partition_fails_without_a_crash() -> None:
    async with consumer_thread() as thread:
        assert await thread._commit({TP("elsewhere", 0): 7}) is False
        assert thread.crash_reason is None


async def test_a_flush_waits_for_all_earlier_records_even_those_being_sent() -> None:
    async with blocked_producer(make_app()) as (producer, channel):
        flushing = asyncio.ensure_future(producer.flushed())
        await asyncio.wait([flushing], timeout=10 * SOON_S)  # Faust's own flush ends before
        assert not flushing.done()
        cancelled = asyncio.ensure_future(producer.flushed())
        await asyncio.sleep(0)
        cancelled.cancel()  # a cancelled flush must not cancel the other
        channel.opened.set()
        async with asyncio.timeout(ENOUGH_S):
            assert await flushing
        assert channel.taken == [b"first", b"second"]


async def test_a_flush_does_not_wait_for_later_records() -> None:
    async with blocked_producer(make_app()) as (producer, channel):
        flushing = asyncio.ensure_future(producer.buffer.flush())
        await asyncio.sleep(0)
        channel.opened.set()

        async def more() -> None:
            while not flushing.done():
                producer.send_soon(channel.as_future_message(value=b"more"))
                await asyncio.sleep(0)

        async with asyncio.timeout(ENOUGH_S):
            await more()


async def test_a_stop_ends_a_flush_and_no_offset_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faust_resilience, "FLUSH_POLL_INTERVAL_S", SOON_S)
    monkeypatch.setattr(faust_resilience, "FLUSH_TIMEOUT_S", 2 * SOON_S)
    app, tp = make_app(), TP("here", 0)
    async with blocked_producer(app) as (producer, _), consumer_thread(app):
        committing = asyncio.ensure_future(app.consumer._commit_offsets({tp: 7}))  # type: ignore[attr-defined]
        await asyncio.wait([committing], timeout=10 * SOON_S)
        assert not committing.done(), "the commit did not wait for the flush"
        app._stopped.set()
        async with asyncio.timeout(ENOUGH_S):
            assert await committing is False
            assert await producer.flushed() is False


async def test_a_buffer_that_cannot_send_never_reports_a_flush() -> None:
    app = make_app()
    async with blocked_producer(app) as (producer, _):
        producer.buffer._crash(RuntimeError("the record is too large"))
        assert await producer.flushed() is False


async def test_a_stop_before_a_record_is_sent_is_no_crash_and_commits_no_later_offset() -> None:
    """A worker that was stopped during an outage once reported a crash and ended with 1."""
    app = make_app()
    producer = app.producer
    assert isinstance(producer, PatientProducer)
    await producer.buffer.start()
    producer._stopped.set()  # its stop begins; it has no client any more
    topic = app.topic("here", value_serializer="raw")
    try:
        producer.send_soon(topic.as_future_message(value=b"v", partition=0))
        async with asyncio.timeout(ENOUGH_S):
            while producer.buffer.size:  # noqa: ASYNC110 - a task of its own
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await producer.flushed() is False
    finally:
        await producer.buffer.stop()
    assert app.crash_reason is None


async def test_no_offset_is_committed_after_a_rebalance_during_the_flush() -> None:
    app, tp = make_app(), TP("here", 0)
    async with blocked_producer(app) as (_, channel), consumer_thread(app):
        committing = asyncio.ensure_future(app.consumer._commit_offsets({tp: 7}))  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        app.rebalancing_count += 1
        channel.opened.set()
        async with asyncio.timeout(ENOUGH_S):
            assert await committing is False


async def test_a_commit_follows_its_flush_without_waiting_for_later_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Faust's own flush waits for later records, so a rebalance could come before the commit."""
    app, tp = make_app(), TP("here", 0)
    committed: list[int] = []

    async def commit(offsets: Mapping[TP, int]) -> bool:
        committed.append(app.rebalancing_count)
        return True

    monkeypatch.setattr(app.consumer, "_commit", commit)
    async with blocked_producer(app) as (producer, channel), consumer_thread(app):
        committing = asyncio.ensure_future(app.consumer._commit_offsets({tp: 7}))  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        later = ClosedChannel(app)
        producer.send_soon(later.as_future_message(value=b"later"))
        channel.opened.set()
        async with asyncio.timeout(ENOUGH_S):
            await later.reached.wait()
            await asyncio.wait([committing], timeout=10 * SOON_S)
            app.rebalancing_count += 1
            later.opened.set()
            assert await committing
        assert committed == [0]


class Offline(PatientAIOKafkaProducer):
    """A producer that batches records and has no broker."""

    async def send(self, topic: str, value: Any = None, *_: Any, key: Any = None, **__: Any) -> Any:
        """The future of the record's batch."""
        return await self._message_accumulator.add_message(TopicPartition(topic, 0), key, value, ENOUGH_S)

    @property
    def batch(self) -> MessageBatch:
        """The only batch."""
        batch: MessageBatch
        ((batch,),) = self._message_accumulator._batches.values()
        return batch


@asynccontextmanager
async def waiting_flush(app: PatientApp) -> AsyncIterator[tuple[MessageBatch, asyncio.Task[bool]]]:
    """A batch of two records that a producer's client holds, and the flush that waits for it."""
    producer = app.producer
    assert isinstance(producer, PatientProducer)
    await producer.buffer.start()
    client: Any = Offline(bootstrap_servers="127.0.0.1:1")
    producer._producer = client
    for value in (b"first", b"second"):
        await producer.send("here", None, value, 0, None, None)
    flushing = asyncio.create_task(producer.flushed())
    await asyncio.wait([flushing], timeout=SOON_S)
    assert not flushing.done()
    client.batch.drain_ready()  # the client's sender does this
    try:
        yield client.batch, flushing
    finally:
        client._closed = True  # the client has nothing to close
        await producer.buffer.stop()


@pytest.mark.parametrize("error", [MessageSizeTooLargeError(), UnknownError(), KafkaTimeoutError()])
async def test_a_record_that_kafka_refuses_fails_the_flush_and_ends_the_worker(error: Exception) -> None:
    """aiokafka's flush ends then and Faust only warns, so the position was committed and the value lost."""
    app = make_app()
    async with waiting_flush(app) as (batch, flushing):
        batch.failure(error)
        async with asyncio.timeout(ENOUGH_S):
            assert await flushing is False
            while app.crash_reason is None:  # noqa: ASYNC110 - a task of its own
                await asyncio.sleep(0)
        assert repr(error) in str(app.crash_reason)
        assert "here" in str(app.crash_reason)
        assert await app.producer.flushed() is False  # type: ignore[attr-defined]


async def test_a_record_that_kafka_refuses_during_a_stop_is_no_crash_but_fails_the_flush() -> None:
    app = make_app()
    async with waiting_flush(app) as (batch, flushing):
        app._stopped.set()
        batch.failure(MessageSizeTooLargeError())
        async with asyncio.timeout(ENOUGH_S):
            assert await flushing is False
        await asyncio.sleep(SOON_S)
    assert app.crash_reason is None


@asynccontextmanager
async def committing_worker(
    client: ClusterClient, topic: str
) -> AsyncIterator[tuple[PatientApp, Callable[[int], Awaitable[bool]]]]:
    """An application with real clients; a function that writes a changelog record and commits an offset."""
    app = make_app(client.spec.bootstrap[0], f"group-{topic}", broker_commit_interval=3_600.0)
    table = app.Table("counts", partitions=1, key_type=bytes, value_type=bytes)
    consumer: Any = app.consumer

    async def process(offset: int) -> bool:
        written: Any = table.send_changelog(0, b"key", b"value")
        written.add_done_callback(lambda ended: ended.exception())  # else asyncio logs the unread error
        return bool(await consumer._commit_offsets({TP(topic, 0): offset + 1}))

    await app.producer.start()
    await consumer.start()
    try:
        await consumer._thread.call_thread(consumer._thread._consumer.assign, [TopicPartition(topic, 0)])
        yield app, process
    finally:
        await consumer.stop()
        await app.producer.stop()


async def test_a_changelog_that_refuses_a_batch_ends_the_worker_and_the_next_worker_continues(
    bootstrap: str, topic_name: str
) -> None:
    """No offset is committed after the refused value, even once the changelog accepts records again."""
    group, place = f"group-{topic_name}", (topic_name, 0)
    changelog = f"{group}-counts-changelog"
    async with connected(bootstrap, CLUSTER) as client, asyncio.timeout(ENOUGH_S):
        await ensure_topics(client, [TopicSpec(topic_name, 1), TopicSpec(changelog, 1)])
        committed, offset = OffsetCommitter(client).committed, 1
        async with committing_worker(client, topic_name) as (app, process):
            assert await process(0)
            await bound(client, NOTHING_BYTES, changelog)
            while await process(offset):  # the broker applies the limit a moment later
                offset += 1
                assert await client.end_offsets([(changelog, 0)]) == {(changelog, 0): offset}
            while app.crash_reason is None:  # noqa: ASYNC110 - a task of its own
                await asyncio.sleep(0)
            assert changelog in str(app.crash_reason)
            assert "MessageSizeTooLarge" in str(app.crash_reason)
            await bound(client, None, changelog)
            async with producing(bootstrap) as producer:
                is_taken = False
                while not is_taken:
                    with contextlib.suppress(MessageSizeTooLargeError):
                        is_taken = bool(await producer.send_and_wait(changelog, b"of another", b"key"))
            assert not await process(offset + 1)
        assert await committed(group, [place]) == {place: offset}
        async with committing_worker(client, topic_name) as (app, process):
            assert await process(offset)
            assert app.crash_reason is None
        assert await committed(group, [place]) == {place: offset + 1}


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_record_that_was_written_or_abandoned_by_a_stop_is_not_refused(is_left: bool) -> None:
    app = make_app()
    async with waiting_flush(app) as (batch, flushing):
        if is_left:
            for sent, _ in batch._msg_futures:
                sent.cancel()
        batch.done(7)
        async with asyncio.timeout(ENOUGH_S):
            assert await flushing
    assert app.crash_reason is None


@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_stop_warns_of_unwritten_records_however_its_flush_ended(is_sent: bool) -> None:
    app = make_app()
    async with blocked_producer(app) as (producer, channel):
        if is_sent:
            channel.opened.set()
        else:
            producer.buffer._crash(RuntimeError("the record is too large"))  # no flush waits for it
        with capture_logs() as logs:
            await app._producer_flush(app.log)
    assert [entry["log_level"] for entry in logs] == ([] if is_sent else ["warning"])


async def test_a_revocation_does_not_wait_for_ever_for_unsent_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faust_resilience, "FLUSH_TIMEOUT_S", SOON_S)
    app = make_app()
    async with blocked_producer(app) as (_, channel):
        async with asyncio.timeout(ENOUGH_S):
            await app._producer_flush(app.log)
        assert not channel.taken


async def test_an_offset_is_committed_only_after_earlier_records_are_in_the_log(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faust_resilience, "FLUSH_RETRY_INTERVAL_S", SOON_S)
    group, changelog = f"group-{topic_name}", f"{topic_name}-changelog"
    client = ClusterClient(ClusterSpec(CLUSTER, (bootstrap,)))
    await client.start()
    await ensure_topics(client, [TopicSpec(topic_name, 1)])
    app = make_app(bootstrap, group, producer_request_timeout=1.0, broker_commit_interval=3_600.0)
    consumer: Any = app.consumer
    committed = OffsetCommitter(client).committed
    await app.producer.start()
    await consumer.start()
    try:
        await consumer._thread.call_thread(consumer._thread._consumer.assign, [TopicPartition(topic_name, 0)])
        topic = app.topic(changelog, value_serializer="raw", value_type=bytes)
        sent = app.producer.send_soon(topic.as_future_message(value=b"value", partition=0))
        assert sent is None, "the record did not wait for its topic"
        committing = asyncio.ensure_future(consumer._commit_offsets({TP(topic_name, 0): 7}))
        await asyncio.wait([committing], timeout=40 * SOON_S)  # Faust's own would have committed
        assert await committed(group, [(topic_name, 0)]) == {(topic_name, 0): None}
        await ensure_topics(client, [TopicSpec(changelog, 1)])
        async with asyncio.timeout(ENOUGH_S):
            assert await committing
        assert await client.end_offsets([(changelog, 0)]) == {(changelog, 0): 1}
        assert await committed(group, [(topic_name, 0)]) == {(topic_name, 0): 7}
    finally:
        await consumer.stop()
        await app.producer.stop()
        await client.stop()


async def test_a_request_about_changelogs_is_retried_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faust_resilience, "FLUSH_RETRY_INTERVAL_S", 0.0)
    tp = TP("changelog", 0)

    async def retried(*answers: Exception | Mapping[TP, int], stops: bool = False) -> Mapping[TP, int]:
        left = list(answers)

        async def ask() -> Mapping[TP, int]:
            match left.pop(0):
                case Exception() as error:
                    raise error
                case answer:
                    return answer

        async with consumer_thread() as thread:
            if stops:
                thread._stopped.set()
            return await thread._retried(ask, "where it ends")

    assert await retried(KafkaTimeoutError(), KafkaTimeoutError(), {tp: 7}) == {tp: 7}
    for final in (IllegalStateError(), TopicAuthorizationFailedError()):
        with pytest.raises(type(final)):
            await retried(final, {tp: 7})
    with pytest.raises(asyncio.CancelledError):  # no service treats it as a crash
        await retried(KafkaTimeoutError(), {tp: 7}, stops=True)


async def test_no_record_is_fetched_while_none_would_be_processed(
    yard: Yard, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded.install(monkeypatch)
    bootstrap, tp, at = yard.bootstrap(CLUSTER), TP(topic_name, 0), TopicPartition(topic_name, 0)
    client = ClusterClient(ClusterSpec(CLUSTER, (bootstrap,)))
    await client.start()
    await ensure_topics(client, [TopicSpec(topic_name, 1)])
    await client.stop()
    producer: Any = PatientAIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for number in range(3):
        await producer.send_and_wait(topic_name, b"%d" % number, partition=0)
    await producer.stop()
    async with consumer_thread() as thread, asyncio.timeout(ENOUGH_S):
        consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign([at])
            active: set[TP] = set()  # Faust's own set, which it changes during the fetch
            fetching = asyncio.ensure_future(thread._fetch_records(consumer, active, timeout=1.0))
            await consumer._fetcher._create_fetch_waiter()
            assert await fetching == {}
            thread.consumer.flow_active = False
            active.add(tp)
            assert await thread._fetch_records(consumer, active, timeout=ENOUGH_S) == {}
            assert await consumer.position(at) == 0

            active.clear()
            thread.consumer.flow_active = True
            fetching = asyncio.ensure_future(thread._fetch_records(consumer, active, timeout=ENOUGH_S))
            await asyncio.sleep(SOON_S)
            active.add(tp)
            assert [record.value for record in (await fetching)[tp]] == [b"0", b"1", b"2"]
        finally:
            await consumer.stop()


async def test_the_producer_drops_no_record_while_its_broker_is_paused(
    killable_yard: Yard, topic_name: str
) -> None:
    timeout_s, client = 1.0, ClusterClient(ClusterSpec(CLUSTER, (killable_yard.bootstrap(CLUSTER),)))
    await client.start()
    await ensure_topics(client, [TopicSpec(topic_name, 1)])
    await client.stop()
    producer: Any = PatientAIOKafkaProducer(
        bootstrap_servers=killable_yard.bootstrap(CLUSTER), request_timeout_ms=int(timeout_s * 1000)
    )
    await producer.start()
    try:
        await producer.send_and_wait(topic_name, b"before", partition=0)
        await asyncio.to_thread(killable_yard.pause, CLUSTER)
        sent = await producer.send(topic_name, b"meanwhile", partition=0)
        _, unanswered = await asyncio.wait([sent], timeout=5 * timeout_s)
        await asyncio.to_thread(killable_yard.resume, CLUSTER)
        assert unanswered == {sent}
        async with asyncio.timeout(ENOUGH_S):
            assert (await sent).offset > 0
    finally:
        await producer.stop()
