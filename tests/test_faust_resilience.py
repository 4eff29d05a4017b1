"""Faust's clients outlast a broker that is away, or lies still, for longer than they would wait."""

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

CLUSTER = "east-aggregate"  # not the one other tests use at the same time
ENOUGH_S = 60.0
SOON_S = 0.05
NOTHING_BYTES = 50  # no record is as small


def make_app(bootstrap: str = "127.0.0.1:1", name: str = "patient", **options: Any) -> PatientApp:
    """Of these clients, and of nothing else; unless told, of a broker that is not there."""
    return PatientApp(
        name, broker=f"aiokafka://{bootstrap}", store="memory://", TableManager=PatientTableManager, **options
    )


class Shut(faust.Channel[bytes]):
    """Takes nothing until it is opened."""

    def __init__(self, app: PatientApp) -> None:
        super().__init__(app)
        self.opened, self.asked = asyncio.Event(), asyncio.Event()
        self.taken: list[Any] = []

    async def publish_message(self, fut: Any, wait: bool = True) -> Any:
        """Waits."""
        self.asked.set()
        await self.opened.wait()
        self.taken.append(fut.message.value)


@asynccontextmanager
async def a_producer(app: PatientApp) -> AsyncIterator[tuple[PatientProducer, Shut]]:
    """One that sends no further than its client, and a channel that has not taken the second of two yet."""
    producer, shut = app.producer, Shut(app)
    assert isinstance(producer, PatientProducer)
    assert isinstance(producer.buffer, PatientBuffer)
    await producer.buffer.start()
    try:
        for value in (b"first", b"second"):
            producer.send_soon(shut.as_future_message(value=value))
        await shut.asked.wait()
        yield producer, shut
    finally:
        shut.opened.set()
        await producer.buffer.stop()


@asynccontextmanager
async def a_thread(app: PatientApp | None = None) -> AsyncIterator[PatientConsumerThread]:
    """Of a consumer that has one partition."""
    thread = (app or make_app()).consumer._thread  # type: ignore[attr-defined]
    assert isinstance(thread, PatientConsumerThread)
    thread._consumer = AIOKafkaConsumer(group_id="patient", bootstrap_servers="127.0.0.1:1")
    thread._consumer.assign([TopicPartition("here", 0)])
    try:
        yield thread
    finally:
        await thread._consumer.stop()


async def test_a_step_of_a_recovery_takes_as_long_as_it_takes() -> None:
    recovery = make_app().tables.recovery  # type: ignore[attr-defined]
    assert isinstance(recovery, PatientRecovery)
    await recovery._wait(asyncio.sleep(2 * SOON_S), timeout=SOON_S)  # Faust's gives the recovery up for good


async def test_a_recovery_ends_where_the_last_record_of_a_changelog_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a partition is read to, and recovered to: offset 5 is its last."""
    app = make_app()
    recovery, here = app.tables.recovery, TP("here", 0)  # type: ignore[attr-defined]
    async with a_thread(app) as thread:
        recovery.active_tps, recovery.active_highwaters = {here, TP("elsewhere", 0)}, {here: 5}
        recovery.active_offsets = {here: 3}
        assert thread._consumer is not None
        state = thread._consumer._subscription.subscription.assignment.state_value(TopicPartition(*here))
        assert recovery._read_to_the_end() == {}, "its position is not known yet, and nobody waits for it"
        for position, ends in ((4, {}), (5, {}), (6, {here: 5})):
            state.seek(position)
            assert recovery._read_to_the_end() == ends
        recovery.tables.changelog_queue.put_nowait(object())
        assert recovery._read_to_the_end() == {}, "what was read is not taken in yet"
        recovery.tables.changelog_queue.get_nowait()
        recovery.active_offsets[here] = 5
        assert recovery._read_to_the_end() == {}
        recovery.active_offsets[here] = 3
        monkeypatch.setattr(faust_resilience, "RECOVERY_POLL_INTERVAL_S", SOON_S)
        recovery.in_recovery = True
        passing = asyncio.ensure_future(PatientRecovery._pass_over_unreadable_ends.fun(recovery))
        async with asyncio.timeout(ENOUGH_S):
            while recovery.active_offsets[here] != 5:  # noqa: ASYNC110 - the task changes it
                await asyncio.sleep(SOON_S)
        passing.cancel()
        assert recovery.active_offsets == {here: 5}


async def test_a_commit_of_what_a_rebalance_has_taken_meanwhile_is_none() -> None:
    async with a_thread() as thread:
        assert await thread._commit({TP("elsewhere", 0): 7}) is False
        assert thread.crash_reason is None


async def test_a_flush_waits_for_all_that_was_given_before_also_for_what_is_being_sent() -> None:
    async with a_producer(make_app()) as (producer, shut):
        flushing = asyncio.ensure_future(producer.flushed())
        await asyncio.wait([flushing], timeout=10 * SOON_S)  # Faust's is back by then
        assert not flushing.done()
        left = asyncio.ensure_future(producer.flushed())
        await asyncio.sleep(0)
        left.cancel()  # whoever waits no longer keeps nobody
        shut.opened.set()
        async with asyncio.timeout(ENOUGH_S):
            assert await flushing
        assert shut.taken == [b"first", b"second"]


async def test_a_flush_does_not_wait_for_what_comes_after_it() -> None:
    async with a_producer(make_app()) as (producer, shut):
        flushing = asyncio.ensure_future(producer.buffer.flush())
        await asyncio.sleep(0)
        shut.opened.set()

        async def more() -> None:
            while not flushing.done():
                producer.send_soon(shut.as_future_message(value=b"more"))
                await asyncio.sleep(0)

        async with asyncio.timeout(ENOUGH_S):
            await more()


async def test_a_stop_ends_a_flush_and_nothing_is_committed_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faust_resilience, "FLUSH_POLL_INTERVAL_S", SOON_S)
    monkeypatch.setattr(faust_resilience, "FLUSH_TIMEOUT_S", 2 * SOON_S)
    app, tp = make_app(), TP("here", 0)
    async with a_producer(app) as (producer, _), a_thread(app):
        committing = asyncio.ensure_future(app.consumer._commit_offsets({tp: 7}))  # type: ignore[attr-defined]
        await asyncio.wait([committing], timeout=10 * SOON_S)
        assert not committing.done(), "it waits for as long as nothing stops"
        app._stopped.set()
        async with asyncio.timeout(ENOUGH_S):
            assert await committing is False
            assert await producer.flushed() is False


async def test_a_buffer_that_cannot_send_is_never_said_to_be_flushed() -> None:
    app = make_app()
    async with a_producer(app) as (producer, _):
        producer.buffer._crash(RuntimeError("the record is too large"))
        assert await producer.flushed() is False


async def test_a_stop_before_a_record_could_be_sent_is_no_crash_and_what_follows_is_not_committed() -> None:
    """A worker that was stopped during an outage said that it had crashed, and ended with 1."""
    app = make_app()
    producer = app.producer
    assert isinstance(producer, PatientProducer)
    await producer.buffer.start()
    producer._stopped.set()  # as its stop begins; it has no client from then on
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


async def test_nothing_is_committed_of_what_a_rebalance_took_meanwhile() -> None:
    app, tp = make_app(), TP("here", 0)
    async with a_producer(app) as (_, shut), a_thread(app):
        committing = asyncio.ensure_future(app.consumer._commit_offsets({tp: 7}))  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        app.rebalancing_count += 1
        shut.opened.set()
        async with asyncio.timeout(ENOUGH_S):
            assert await committing is False


async def test_no_rebalance_comes_between_the_last_flush_and_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Faust's own flush, which followed, waits for what was written after it, while a rebalance comes."""
    app, tp = make_app(), TP("here", 0)
    committed: list[int] = []

    async def commit(offsets: Mapping[TP, int]) -> bool:
        committed.append(app.rebalancing_count)
        return True

    monkeypatch.setattr(app.consumer, "_commit", commit)
    async with a_producer(app) as (producer, shut), a_thread(app):
        committing = asyncio.ensure_future(app.consumer._commit_offsets({tp: 7}))  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        later = Shut(app)
        producer.send_soon(later.as_future_message(value=b"later"))
        shut.opened.set()
        async with asyncio.timeout(ENOUGH_S):
            await later.asked.wait()
            await asyncio.wait([committing], timeout=10 * SOON_S)
            app.rebalancing_count += 1
            later.opened.set()
            assert await committing
        assert committed == [0]


class Offline(PatientAIOKafkaProducer):
    """Batches what it is given, and has no broker."""

    async def send(self, topic: str, value: Any = None, *_: Any, key: Any = None, **__: Any) -> Any:
        """A batch's future."""
        return await self._message_accumulator.add_message(TopicPartition(topic, 0), key, value, ENOUGH_S)

    @property
    def batch(self) -> MessageBatch:
        """The only one."""
        batch: MessageBatch
        ((batch,),) = self._message_accumulator._batches.values()
        return batch


@asynccontextmanager
async def a_flush(app: PatientApp) -> AsyncIterator[tuple[MessageBatch, asyncio.Task[bool]]]:
    """What waits for a batch of two records, which has been given to a producer's client."""
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
    client.batch.drain_ready()  # as its sender does
    try:
        yield client.batch, flushing
    finally:
        client._closed = True  # there is nothing to be closed
        await producer.buffer.stop()


@pytest.mark.parametrize("error", [MessageSizeTooLargeError(), UnknownError(), KafkaTimeoutError()])
async def test_what_kafka_refuses_was_never_flushed_and_ends_the_worker(error: Exception) -> None:
    """aiokafka's flush is over then, and Faust only warns: the position was committed, the value lost."""
    app = make_app()
    async with a_flush(app) as (batch, flushing):
        batch.failure(error)
        async with asyncio.timeout(ENOUGH_S):
            assert await flushing is False
            while app.crash_reason is None:  # noqa: ASYNC110 - a task of its own
                await asyncio.sleep(0)
        assert repr(error) in str(app.crash_reason)
        assert "here" in str(app.crash_reason)
        assert await app.producer.flushed() is False  # type: ignore[attr-defined]


async def test_what_kafka_refuses_at_a_stop_is_no_crash_but_nothing_is_committed() -> None:
    app = make_app()
    async with a_flush(app) as (batch, flushing):
        app._stopped.set()
        batch.failure(MessageSizeTooLargeError())
        async with asyncio.timeout(ENOUGH_S):
            assert await flushing is False
        await asyncio.sleep(SOON_S)
    assert app.crash_reason is None


@asynccontextmanager
async def a_worker(
    client: ClusterClient, topic: str
) -> AsyncIterator[tuple[PatientApp, Callable[[int], Awaitable[bool]]]]:
    """Real clients: it writes to a table's changelog what an event changed, and commits the next offset."""
    app = make_app(client.spec.bootstrap[0], f"group-{topic}", broker_commit_interval=3_600.0)
    table = app.Table("counts", partitions=1, key_type=bytes, value_type=bytes)
    consumer: Any = app.consumer

    async def process(offset: int) -> bool:
        written: Any = table.send_changelog(0, b"key", b"value")
        written.add_done_callback(lambda ended: ended.exception())  # or its loss is told at its end
        return bool(await consumer._commit_offsets({TP(topic, 0): offset + 1}))

    await app.producer.start()
    await consumer.start()
    try:
        await consumer._thread.call_thread(consumer._thread._consumer.assign, [TopicPartition(topic, 0)])
        yield app, process
    finally:
        await consumer.stop()
        await app.producer.stop()


async def test_a_changelog_that_refuses_one_batch_ends_the_worker_and_the_next_one_goes_on(
    bootstrap: str, topic_name: str
) -> None:
    """Nothing is committed where the refused value is lost, also once the changelog takes all again."""
    group, place = f"group-{topic_name}", (topic_name, 0)
    changelog = f"{group}-counts-changelog"
    async with connected(bootstrap, CLUSTER) as client, asyncio.timeout(ENOUGH_S):
        await ensure_topics(client, [TopicSpec(topic_name, 1), TopicSpec(changelog, 1)])
        committed, offset = OffsetCommitter(client).committed, 1
        async with a_worker(client, topic_name) as (app, process):
            assert await process(0)
            await bound(client, NOTHING_BYTES, changelog)
            while await process(offset):  # a broker learns of it a moment later
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
        async with a_worker(client, topic_name) as (app, process):
            assert await process(offset)
            assert app.crash_reason is None
        assert await committed(group, [place]) == {place: offset + 1}


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_record_that_is_written_or_left_by_a_stop_is_not_refused(is_left: bool) -> None:
    app = make_app()
    async with a_flush(app) as (batch, flushing):
        if is_left:
            for sent, _ in batch._msg_futures:
                sent.cancel()
        batch.done(7)
        async with asyncio.timeout(ENOUGH_S):
            assert await flushing
    assert app.crash_reason is None


@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_stop_says_what_was_not_written_however_the_wait_for_it_ended(is_sent: bool) -> None:
    app = make_app()
    async with a_producer(app) as (producer, shut):
        if is_sent:
            shut.opened.set()
        else:
            producer.buffer._crash(RuntimeError("the record is too large"))  # nobody waits for that
        with capture_logs() as told:
            await app._producer_flush(app.log)
    assert [entry["log_level"] for entry in told] == ([] if is_sent else ["warning"])


async def test_a_revocation_does_not_wait_for_ever_for_what_cannot_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faust_resilience, "FLUSH_TIMEOUT_S", SOON_S)
    app = make_app()
    async with a_producer(app) as (_, shut):
        async with asyncio.timeout(ENOUGH_S):
            await app._producer_flush(app.log)
        assert not shut.taken


async def test_a_position_is_committed_once_what_was_written_before_it_is_in_the_log(
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
        assert sent is None, "it waits in the buffer, as its topic is not there yet"
        committing = asyncio.ensure_future(consumer._commit_offsets({TP(topic_name, 0): 7}))
        await asyncio.wait([committing], timeout=40 * SOON_S)  # Faust's has committed by then
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


async def test_a_question_about_changelogs_is_asked_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faust_resilience, "FLUSH_RETRY_INTERVAL_S", 0.0)
    tp = TP("changelog", 0)

    async def asked(*answers: Exception | Mapping[TP, int], stops: bool = False) -> Mapping[TP, int]:
        left = list(answers)

        async def ask() -> Mapping[TP, int]:
            match left.pop(0):
                case Exception() as error:
                    raise error
                case answer:
                    return answer

        async with a_thread() as thread:
            if stops:
                thread._stopped.set()
            return await thread._retried(ask, "where it ends")

    assert await asked(KafkaTimeoutError(), KafkaTimeoutError(), {tp: 7}) == {tp: 7}
    for final in (IllegalStateError(), TopicAuthorizationFailedError()):
        with pytest.raises(type(final)):
            await asked(final, {tp: 7})
    with pytest.raises(asyncio.CancelledError):  # which no service takes for a crash
        await asked(KafkaTimeoutError(), {tp: 7}, stops=True)


async def test_nothing_is_taken_from_a_broker_while_nobody_would_process_it(
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
    async with a_thread() as thread, asyncio.timeout(ENOUGH_S):
        consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign([at])
            active: set[TP] = set()  # Faust's own, which it changes while it is asked
            asked = asyncio.ensure_future(thread._fetch_records(consumer, active, timeout=1.0))
            await consumer._fetcher._create_fetch_waiter()
            assert await asked == {}
            thread.consumer.flow_active = False
            active.add(tp)
            assert await thread._fetch_records(consumer, active, timeout=ENOUGH_S) == {}
            assert await consumer.position(at) == 0

            active.clear()
            thread.consumer.flow_active = True
            asked = asyncio.ensure_future(thread._fetch_records(consumer, active, timeout=ENOUGH_S))
            await asyncio.sleep(SOON_S)
            active.add(tp)
            assert [record.value for record in (await asked)[tp]] == [b"0", b"1", b"2"]
        finally:
            await consumer.stop()


async def test_nothing_that_was_given_to_the_producer_is_dropped_while_its_broker_lies_still(
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
