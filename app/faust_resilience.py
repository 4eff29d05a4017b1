"""Faust's Kafka clients, adapted to survive an outage of the control cluster.

Faust ends the worker when its clients cannot start, or when a commit or a request about a changelog fails.
It gives up the recovery of its tables, without a message, when a step takes longer than
`broker_request_timeout`. An unreachable broker causes all of these, and its return heals them. So these
clients wait; meanwhile the data plane continues while its lease holds.

Faust also commits although a changelog record still waits to be sent: its flush gives up after 0.1 s. If
the worker then dies, the value is lost, because its event does not come again.

Rules
1. A position is committed when the changelogs have all table changes of the events before it.
2. A table is recovered after such a flush, too; otherwise it would get a former value of its own.
3. A record that Kafka refuses ends the worker. Nothing is committed from then on, because its value would
   be lost. Any other error by which aiokafka ends a record does the same. aiokafka itself retries, without
   a limit, the errors that a broker's return heals. A repetition from here could overtake or follow a
   later record.
4. A stop, and a revocation, for which the whole group waits, continue after `FLUSH_TIMEOUT_S`. Records
   that are unsent by then were not committed, so their events come again. After a revocation such a record
   may still be sent, behind the next owner's. A key may then show a former value until it changes again,
   as with Faust's own clients.

This file is the place for Faust's internals. Its classes override these methods and properties of Faust:
`ProducerBuffer.flush` and `_send_pending`, `Producer.flush`, `send` and `_producer_type`,
`AIOKafkaConsumerThread.on_start`, `_commit`, `_fetch_records`, `highwaters` and `earliest_offsets`,
`Consumer._getmany`, `_commit_offsets` and `_new_consumer_thread`, `App._new_transport`,
`_new_producer_transport` and `_producer_flush`, `Recovery._wait`, and `TableManager.recovery`. No upstream
issues are known for them. aiokafka's internals are in `app.kafka.client.aiokafka_internals`.

Tests: `tests/test_faust_resilience.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, cast

import faust
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import ConsumerStoppedError, IllegalStateError, KafkaError, ProducerClosed
from aiokafka.structs import OffsetAndMetadata
from faust.exceptions import ProducerSendError
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.transport.consumer import RecordMap
from faust.transport.drivers import aiokafka as driver
from faust.transport.producer import ProducerBuffer
from faust.types import TP, FutureMessage
from mode import Service

from app.kafka.append.replaceable_producer import RecordSeal
from app.kafka.client import aiokafka_internals
from app.kafka.client.startup_retry import heals, start_patiently
from app.kafka.fetch.bounded_consumer import BoundedFetcher
from app.kafka.fetch.reader_turns import ReaderTurns

log = structlog.get_logger(__name__)

FLUSH_RETRY_INTERVAL_S = 1.0
FLUSH_TIMEOUT_S = 5.0  # below the session's timeout and the time of a worker's stop (`app.main`)
FLUSH_POLL_INTERVAL_S = 0.5
RECOVERY_POLL_INTERVAL_S = 1.0
ACTIVE_PARTITIONS_INTERVAL_S = (
    0.1  # between two checks of the active partitions; fetched records may wait for one
)
COMMIT_LATER = "nothing to do if the control cluster's brokers run: events that were not committed come again"
COMMIT_SEE = (
    "if it happens again, check the error: this worker needs Read permission for its group and the "
    "control topics; without commits a starting worker reads more of these topics again"
)


class PatientAIOKafkaProducer(AIOKafkaProducer):
    """Waits for its cluster at the start, and keeps unsent records until the cluster returns.

    aiokafka drops a batch that is older than the request timeout. Faust would then commit the event whose
    changelog record was lost.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]  # aiokafka has no types
        aiokafka_internals.keep_unsent(self)

    async def start(self) -> None:
        await start_patiently(super().start, "Faust's producer")


class FlushMarker(asyncio.Future[None]):
    """A marker in the buffer; done when all entries before it were sent."""


class PatientBuffer(ProducerBuffer):
    """Faust's send buffer, whose flush waits until everything was sent."""

    async def flush(self) -> None:
        """Waits until aiokafka has all earlier entries; at once while the buffer, and so sending, is
        stopped."""
        if self.state == "running":
            mark = FlushMarker()
            self.pending.put_nowait(mark)
            await mark

    async def _send_pending(self, fut: FutureMessage | FlushMarker) -> None:
        if not isinstance(fut, FlushMarker):
            await fut.message.channel.publish_message(fut, wait=False)
        elif not fut.done():  # its caller may have been cancelled
            fut.set_result(None)


class PatientProducer(driver.Producer):
    """Retries while the cluster is unreachable; a flush waits until all records are in the log."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._refused = False
        self.buffer = PatientBuffer(loop=self.loop, beacon=self.beacon)
        self.buffer.app = self.app

    async def flush(self) -> None:
        """Waits until all earlier records are in the log, or the worker stops: see `flushed`."""
        await self.flushed()

    async def flushed(self) -> bool:
        """Waits until all earlier records are in the log; returns whether they are.

        A stop limits it to `FLUSH_TIMEOUT_S`, or ends it at once if the buffer cannot send any more. After
        a refused record it returns False for ever, because aiokafka's flush does not wait for that record.
        """
        flushing, waited_s = asyncio.ensure_future(super().flush()), 0.0
        try:
            while not flushing.done() and waited_s < FLUSH_TIMEOUT_S and not self.should_stop:
                await asyncio.wait([flushing], timeout=FLUSH_POLL_INTERVAL_S)
                waited_s += FLUSH_POLL_INTERVAL_S if self.app.should_stop else 0.0
            if not flushing.done():
                return False
            await flushing
            return self.buffer.state == "running" and not self._refused
        finally:
            flushing.cancel()

    @property
    def _producer_type(self) -> type[AIOKafkaProducer]:
        return PatientAIOKafkaProducer

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp: float | None,
        headers: Any,
        **options: Any,
    ) -> Any:
        """Waits for room in the buffer and for a topic's leaders, without a timeout.

        Returns a future, which ends when the record is in the log or refused. A refusal ends the worker
        (rule 3).

        Raises:
            ProducerSendError: The record can never be sent; it is too large, for example.
            CancelledError: A stop came first. Nothing crashes then, and no later position is
                committed.
        """
        app = cast("PatientApp", self.app)
        headers = [*(headers or ()), *(app.seal.headers(topic, key, value) if app.seal else ())]
        while not self.should_stop:
            try:
                sent: Any = await super().send(
                    topic, key, value, partition, timestamp, headers or None, **options
                )
                sent.add_done_callback(partial(self._on_sent, topic))
                return sent
            except ProducerSendError as error:
                if self.should_stop and isinstance(error.__cause__, ProducerClosed):
                    break
                if not heals(error.__cause__):
                    raise
                log.warning(
                    "this worker cannot send an event yet",
                    topic=topic,
                    error=str(error),
                    retry_s=FLUSH_RETRY_INTERVAL_S,
                    remedy="check that the control cluster's brokers run, and that the topic exists",
                )
            await self.sleep(FLUSH_RETRY_INTERVAL_S)
        raise asyncio.CancelledError(f"a record for {topic} was not sent before the stop")

    def _on_sent(self, topic: str, sent: asyncio.Future[Any]) -> None:
        if sent.cancelled() or (error := sent.exception()) is None:
            return
        is_first, self._refused = not self._refused, True
        if is_first and not self.app.should_stop:  # a stop continues, but without a commit
            reason = ProducerSendError(f"a record for {topic} was refused: {error!r}")
            reason.__cause__ = error
            self.add_future(self.crash(reason))


class PatientConsumerThread(driver.AIOKafkaConsumerThread):
    """A failed commit or request does not end the worker."""

    async def on_start(self) -> None:
        self._consumer = consumer = self._create_consumer(loop=self.thread_loop)
        self.time_started = monotonic()
        await start_patiently(consumer.start, "Faust's consumer", lambda: bool(self.should_stop))

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        """Commits the positions of assigned partitions; returns whether it did."""
        consumer, assigned, now_s = self._ensure_consumer(), self.assignment(), monotonic()
        mine = {tp: offset for tp, offset in offsets.items() if tp in assigned}
        wanted = {driver.ensure_aiokafka_TP(tp): OffsetAndMetadata(at, "") for tp, at in mine.items()}
        if not wanted:  # a rebalance took all of them during the flush
            return False
        self.tp_last_committed_at.update(dict.fromkeys(mine, now_s))
        try:
            await consumer.commit(wanted)
        except KafkaError as error:
            log.warning(
                "this worker could not commit positions of the control topics; the next commit includes them",
                error=repr(error), partitions=len(wanted),
                remedy=COMMIT_LATER if heals(error) else COMMIT_SEE,
            )  # fmt: skip
            return False
        return True

    async def _fetch_records(
        self,
        consumer: AIOKafkaConsumer,
        active_partitions: set[TP] | None,
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> RecordMap:
        """The records of the active partitions; {}: none came in time.

        It takes none while the flow is stopped or partitions are being assigned, because its caller would
        drop them.

        Faust's version calls aiokafka once. The call survives a rebalance, and treats all partitions as
        active while none is. So it may take the first changelog records of a new recovery, which then
        waits for them for ever or ends without them.
        """
        fetcher = aiokafka_internals.fetcher_of(consumer)
        assert isinstance(fetcher, BoundedFetcher), "installed before consumers are made"
        until_s = monotonic() + (timeout or 0.0)
        with aiokafka_internals.counts_as_fetching(fetcher):
            while self.consumer.flow_active:
                if aiokafka_internals.is_closed(consumer) or aiokafka_internals.is_closed(fetcher):
                    raise ConsumerStoppedError
                await fetcher.wait_for_turn()
                wanted = None if active_partitions is None else set(active_partitions)
                is_being_assigned = aiokafka_internals.is_being_assigned(fetcher)
                if wanted != set() and self.consumer.flow_active and not is_being_assigned:
                    records: RecordMap = await fetcher.take(wanted, max_records)
                    if records:
                        return records
                    if fetcher.passes_over(wanted or ()):
                        continue
                left_s = until_s - monotonic()
                if left_s <= 0:
                    break
                came = aiokafka_internals.next_fetch(fetcher)
                try:
                    await asyncio.wait([came], timeout=min(left_s, ACTIVE_PARTITIONS_INTERVAL_S))
                    if came.done():
                        came.result()  # raises, if the permission to read is missing
                finally:
                    came.cancel()
        return {}

    def position_now(self, tp: TP) -> int | None:
        """The next offset to read of a partition, if known; sends no request and does not wait."""
        if self._consumer is None:
            return None
        return aiokafka_internals.position_now(self._consumer, driver.ensure_aiokafka_TP(tp))

    async def highwaters(self, *partitions: TP) -> Mapping[TP, int]:
        """The ends of partitions. Retries outside the consumer's thread, which must revoke and commit."""
        return await self._retried(partial(super().highwaters, *partitions), "ends of changelogs")

    async def earliest_offsets(self, *partitions: TP) -> Mapping[TP, int]:
        return await self._retried(partial(super().earliest_offsets, *partitions), "beginnings of changelogs")

    async def _retried(
        self, request: Callable[[], Awaitable[Mapping[TP, int]]], what: str
    ) -> Mapping[TP, int]:
        while True:
            try:
                return await request()
            except IllegalStateError:  # a rebalance has begun, after which recovery starts again
                raise
            except KafkaError as error:
                if not heals(error):
                    raise
                if self.should_stop:
                    raise asyncio.CancelledError(f"no answer to {what} before the stop") from error
                log.warning(
                    "the control cluster does not answer; the tables wait for it",
                    request=what,
                    error=repr(error),
                    retry_s=FLUSH_RETRY_INTERVAL_S,
                )
            await asyncio.sleep(FLUSH_RETRY_INTERVAL_S)


class PatientConsumer(driver.Consumer):
    """Faust's consumer with that thread. It takes turns with the other readers of control topics."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns, self._had_records = ReaderTurns(), False

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> RecordMap:
        if self._had_records:
            await self._turns.wait()
        found: RecordMap = await super()._getmany(active_partitions, timeout)
        self._turns.begin()
        self._had_records = bool(found)
        return found

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        """Commits when all work up to these offsets is in the logs; returns whether it did.

        A partition that a rebalance took meanwhile keeps its former commit, even if it came back. Faust's
        version flushes once more before it commits, so a rebalance may come in between.
        """
        producer, rebalances = self.app.producer, self.app.rebalancing_count
        assert isinstance(producer, PatientProducer), "this transport makes it"
        if not await producer.flushed() or self.app.rebalancing_count != rebalances:
            log.info(
                "positions of the control topics are not committed, because a stop, a rebalance or a refused "
                "record came before all table changes were written; their events come again",
                partitions=len(offsets),
            )
            return False
        assigned = self.assignment()
        offsets = {tp: offset for tp, offset in offsets.items() if tp in assigned}
        did_commit = bool(offsets) and await self._commit(offsets)
        if did_commit:
            self.app.tables.on_commit(offsets)
        self._committed_offset.update(offsets)  # as Faust does: the next commit includes failed ones
        self.app.monitor.on_tp_commit(offsets)
        return did_commit

    def position_now(self, tp: TP) -> int | None:
        """The next offset to read of a partition, if known; sends no request and does not wait."""
        return cast("PatientConsumerThread", self._thread).position_now(tp)

    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return PatientConsumerThread(self, loop=self.loop, beacon=self.beacon)


class PatientTransport(driver.Transport):
    """Faust's transport with these clients."""

    Consumer = PatientConsumer
    Producer = PatientProducer


class PatientApp(faust.App):
    """A Faust app with these clients. `seal` signs the records that it writes; None: they have no seal."""

    seal: RecordSeal | None = None

    def _new_transport(self) -> PatientTransport:
        return PatientTransport(self.conf.broker_consumer, self)

    def _new_producer_transport(self) -> PatientTransport:
        return PatientTransport(self.conf.broker_producer, self)

    async def _producer_flush(self, logger: Any) -> None:
        """Flushes at a revocation and at the stop (rule 4)."""
        producer, is_flushed = self._producer, False
        if not isinstance(producer, PatientProducer) or not producer.buffer.started:
            return  # nothing was sent yet
        logger.info("Flush producer buffer...")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                is_flushed = await producer.flushed()
        if not is_flushed:
            log.warning(
                "a rebalance or this stop continues before all table changes are in the control cluster",
                waits_s=FLUSH_TIMEOUT_S,
                remedy="check that its brokers run and accept records; events of missing changes were not "
                "committed and come again",
            )


class PatientRecovery(Recovery):
    """A recovery whose steps have no timeout; a rebalance or the worker's end stops them.

    Faust counts a partition as recovered when it has the record at its end. If that record cannot be read
    (`app.kafka.fetch.decoder`), Faust would wait for ever.
    """

    async def _wait(self, coro: Any, timeout: Any = None) -> None:
        await super()._wait(coro)

    @Service.task
    async def _pass_over_unreadable_ends(self) -> None:
        before: dict[TP, int] = {}
        while not self.should_stop:
            await self.sleep(RECOVERY_POLL_INTERVAL_S)
            read = self._read_to_the_end() if self.in_recovery else {}
            for tp, highwater in read.items():
                if before.get(tp) == highwater:  # twice: records read in between are in the queue by now
                    self.active_offsets[tp] = highwater
            before = read

    def _read_to_the_end(self) -> dict[TP, int]:
        """The ends of partitions that are read, have nothing queued, and lack their last record."""
        found: dict[TP, int] = {}
        if not self.tables.changelog_queue.empty():
            return found
        position_of = cast("PatientConsumer", self.app.consumer).position_now
        for tp in self.active_tps:
            highwater, offset = self.active_highwaters.get(tp), self.active_offsets.get(tp)
            if highwater is None or (-1 if offset is None else offset) >= highwater:
                continue
            if (position := position_of(tp)) is not None and position > highwater:
                found[tp] = highwater
        return found


class PatientTableManager(TableManager):
    """Faust's tables with that recovery."""

    @property
    def recovery(self) -> Recovery:
        if self._recovery is None:
            self._recovery = PatientRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
