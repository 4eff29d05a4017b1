"""Faust's Kafka clients, which outlast an outage of the control cluster.

Faust ends the worker when its clients cannot start, when a commit or a question about a changelog fails, and
gives up recovering its tables for good (without a word) when a step of it takes longer than
`broker_request_timeout`. All of that comes of a broker that is away for some seconds, or minutes, and heals
when it is back. Here it waits instead; the data plane goes on by its lease meanwhile, or pauses.

And Faust commits although a record of a table's changelog still waits to be sent: its flush gives up after
0.1 s. A worker that dies then has lost that value, as the event that it came of does not come again. Here

1. a position is committed once all that events before it have changed in tables is in the changelogs;
2. so is a table recovered, which would get a former value of its own otherwise;
3. a record that Kafka refuses ends the worker, and nothing is committed from then on, as its value would be
   lost. So does any other error that aiokafka ends a record with: what a broker's return heals it tries again
   by itself, for ever, and a record that was sent again from here could overtake, or follow, a later one;
4. nobody waits for that for ever: a stop, and a revocation, which all of the group wait for, go on after
   `FLUSH_TIMEOUT_S`. What is not sent by then was not committed either: its events come again. After a
   revocation it may be sent yet, behind what the next owner of its partition wrote: as with Faust's own
   clients, a key may show a former value then, until it changes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, cast

import faust
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import (
    ConsumerStoppedError,
    IllegalStateError,
    KafkaError,
    ProducerClosed,
)
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
from app.kafka.client.startup_retry import heals, start_patiently
from app.kafka.fetch.bounded_consumer import BoundedFetcher
from app.kafka.fetch.reader_turns import ReaderTurns

log = structlog.get_logger(__name__)

FLUSH_RETRY_INTERVAL_S = 1.0
FLUSH_TIMEOUT_S = 5.0  # less than the session's timeout, and than a worker's stop may take (`app.main`)
FLUSH_POLL_INTERVAL_S = 0.5
RECOVERY_POLL_INTERVAL_S = 1.0
# how often it is looked which partitions are active: what was fetched may wait for that
ACTIVE_PARTITIONS_INTERVAL_S = 0.1
COMMIT_LATER = (
    "none, once the control cluster's brokers run: what was not committed comes again, and is known"
)
COMMIT_SEE = (
    "if it goes on, see what the error names: this worker needs the right to Read its own group and the "
    "control topics there; until then a worker that starts reads more of them again"
)


class PatientAIOKafkaProducer(AIOKafkaProducer):
    """Starts whenever its cluster does, and keeps what it was given until then.

    aiokafka drops a batch that is older than the request timeout; Faust would go on and commit the event that
    the lost record of a table's changelog came from.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]  # aiokafka has no types
        self._message_accumulator._batch_ttl = math.inf

    async def start(self) -> None:
        """Waits for the cluster as long as it takes."""
        await start_patiently(super().start, "Faust's producer")


class FlushMarker(asyncio.Future[None]):
    """Stands in the buffer behind what was put there before; done when all of that was sent."""


class PatientBuffer(ProducerBuffer):
    """Faust's buffer of what is to be sent, whose flush waits until it is."""

    async def flush(self) -> None:
        """Waits until aiokafka has all that was put before, also what is being sent now. While the buffer
        does not run nobody sends, and it returns at once."""
        if self.state == "running":
            mark = FlushMarker()
            self.pending.put_nowait(mark)
            await mark

    async def _send_pending(self, fut: FutureMessage | FlushMarker) -> None:
        if not isinstance(fut, FlushMarker):
            await fut.message.channel.publish_message(fut, wait=False)
        elif not fut.done():  # who waited may have left
            fut.set_result(None)


class PatientProducer(driver.Producer):
    """Sends once the cluster is there again, and is flushed when all is sent."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._refused = False
        self.buffer = PatientBuffer(loop=self.loop, beacon=self.beacon)
        self.buffer.app = self.app

    async def flush(self) -> None:
        """Waits until all that was given before is in the log, or the worker stops: see `flushed`."""
        await self.flushed()

    async def flushed(self) -> bool:
        """Waits until all that was given before is in the log; returns False when the worker ends before
        that: it waits for `FLUSH_TIMEOUT_S` then, and not at all once it cannot send any more; and ever after
        a record was refused, for which aiokafka's flush waits no longer."""
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
        """Waits for room in the buffer, and for a topic's leaders, as long as it takes. Returns a future,
        which ends when the record is in the log, or refused: that ends the worker (rule 3).

        Raises:
            ProducerSendError: the record cannot be sent ever: it is too large, or the like.
            CancelledError: a stop came first. That is no crash: nothing behind it is committed.
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
                    "an event cannot be sent yet",
                    topic=topic,
                    error=str(error),
                    retry_s=FLUSH_RETRY_INTERVAL_S,
                    remedy="see that the control cluster's brokers run, and that the topic is there",
                )
            await self.sleep(FLUSH_RETRY_INTERVAL_S)
        raise asyncio.CancelledError(f"a record for {topic} was not sent before the stop")

    def _on_sent(self, topic: str, sent: asyncio.Future[Any]) -> None:
        if sent.cancelled() or (error := sent.exception()) is None:
            return
        is_first, self._refused = not self._refused, True
        if is_first and not self.app.should_stop:  # a stop ends as it would, only without a commit
            reason = ProducerSendError(f"a record for {topic} was refused: {error!r}")
            reason.__cause__ = error
            self.add_future(self.crash(reason))


class PatientConsumerThread(driver.AIOKafkaConsumerThread):
    """A failed commit, or question, is no reason to end the worker."""

    async def on_start(self) -> None:
        """Waits for the cluster as long as it takes."""
        self._consumer = consumer = self._create_consumer(loop=self.thread_loop)
        self.time_started = monotonic()
        await start_patiently(consumer.start, "Faust's consumer", lambda: bool(self.should_stop))

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        """Commits what is still assigned here; whether it did. What it did not comes again."""
        consumer, assigned, now_s = self._ensure_consumer(), self.assignment(), monotonic()
        wanted = {
            driver.ensure_aiokafka_TP(tp): OffsetAndMetadata(offset, "")
            for tp, offset in offsets.items()
            if tp in assigned
        }
        if not wanted:  # a rebalance has taken all of it while the producer was flushed
            return False
        self.tp_last_committed_at.update({tp: now_s for tp in offsets if tp in assigned})
        try:
            await consumer.commit(wanted)
        except KafkaError as error:
            log.warning(
                "positions of the control topics were not committed; they are with what comes there next",
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
        """What has come of the active partitions; {}: nothing did in time. Takes nothing while the flow is
        stopped, or partitions are being assigned: who asked would drop it.

        Faust's asks aiokafka once. What waits there outlasts a rebalance, takes all partitions for active
        while none is, and so may take the first records of the changelogs that a recovery has just sought:
        it would wait for them for ever, or end without them.
        """
        assert isinstance(consumer._fetcher, BoundedFetcher), "installed before consumers are made"
        fetcher: Any = consumer._fetcher
        until_s = monotonic() + (timeout or 0.0)
        with fetcher._subscriptions.fetch_context():
            while self.consumer.flow_active:
                if consumer._closed or fetcher._closed:
                    raise ConsumerStoppedError
                await fetcher.wait_for_turn()
                wanted = None if active_partitions is None else set(active_partitions)
                is_still = self.consumer.flow_active and not fetcher._subscriptions.reassignment_in_progress
                if wanted != set() and is_still:
                    records: RecordMap = await fetcher.take(wanted, max_records)
                    if records:
                        return records
                    if fetcher._passes_over(wanted or ()):
                        continue
                left_s = until_s - monotonic()
                if left_s <= 0:
                    break
                came = fetcher._create_fetch_waiter()
                try:
                    await asyncio.wait([came], timeout=min(left_s, ACTIVE_PARTITIONS_INTERVAL_S))
                    if came.done():
                        came.result()  # the right to read it may be missing
                finally:
                    came.cancel()
        return {}

    def position_now(self, tp: TP) -> int | None:
        """See `PatientConsumer`."""
        consumer = self._consumer
        subscription = None if consumer is None else consumer._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is None or (state := assignment.state_value(tp)) is None:
            return None
        return int(state.position) if state.has_valid_position else None

    async def highwaters(self, *partitions: TP) -> Mapping[TP, int]:
        """Where these end. Asked anew from here: a question that waited in the consumer's thread would keep
        commits and revocations from it."""
        return await self._answered(partial(super().highwaters, *partitions), "where changelogs end")

    async def earliest_offsets(self, *partitions: TP) -> Mapping[TP, int]:
        """Where these begin."""
        return await self._answered(partial(super().earliest_offsets, *partitions), "where changelogs begin")

    async def _answered(self, ask: Callable[[], Awaitable[Mapping[TP, int]]], what: str) -> Mapping[TP, int]:
        while True:
            try:
                return await ask()
            except IllegalStateError:  # a rebalance has begun; recovery begins again
                raise
            except KafkaError as error:
                if not heals(error):
                    raise
                if self.should_stop:
                    raise asyncio.CancelledError(f"{what} was not answered before the stop") from error
                log.warning("the control cluster does not answer; tables wait for it", asked=what,
                            error=repr(error), retry_s=FLUSH_RETRY_INTERVAL_S)  # fmt: skip
            await asyncio.sleep(FLUSH_RETRY_INTERVAL_S)


class PatientConsumer(driver.Consumer):
    """Faust's consumer with that thread, which commits what is finished. It takes turns with whatever else
    reads control topics: Faust takes 0.1 ms and more for each record."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns, self._works = ReaderTurns(), False

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> RecordMap:
        if self._works:
            await self._turns.wait()
        found: RecordMap = await super()._getmany(active_partitions, timeout)
        self._turns.begin()
        self._works = bool(found)
        return found

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        """Commits once all that was done up to these offsets is in the logs; whether it did. What a rebalance
        took meanwhile begins where it was committed before, also if it came back.

        Instead of Faust's, which flushes once more, so that a rebalance may come before it commits.
        """
        producer, rebalances = self.app.producer, self.app.rebalancing_count
        assert isinstance(producer, PatientProducer), "of the same transport"
        if not await producer.flushed() or self.app.rebalancing_count != rebalances:
            log.info(
                "positions of the control topics are not committed: a stop, a rebalance, or a record that is "
                "refused, came before all that was done up to them was written; their events come again",
                partitions=len(offsets),
            )
            return False
        assigned = self.assignment()
        offsets = {tp: offset for tp, offset in offsets.items() if tp in assigned}
        did_commit = bool(offsets) and await self._commit(offsets)
        if did_commit:
            self.app.tables.on_commit(offsets)
        self._committed_offset.update(offsets)  # as Faust does: what failed goes with what comes next
        self.app.monitor.on_tp_commit(offsets)
        return did_commit

    def position_now(self, tp: TP) -> int | None:
        """From where a partition is read next, as far as that is known; asks and waits for nothing."""
        return cast("PatientConsumerThread", self._thread).position_now(tp)

    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return PatientConsumerThread(self, loop=self.loop, beacon=self.beacon)


class PatientTransport(driver.Transport):
    """Faust's transport with these clients."""

    Consumer = PatientConsumer
    Producer = PatientProducer


class PatientApp(faust.App):
    """A Faust app with these clients.

    Attributes: `seal` (of what is written; None: it has none).
    """

    seal: RecordSeal | None = None

    def _new_transport(self) -> PatientTransport:
        return PatientTransport(self.conf.broker_consumer, self)

    def _new_producer_transport(self) -> PatientTransport:
        return PatientTransport(self.conf.broker_producer, self)

    async def _producer_flush(self, logger: Any) -> None:
        """When partitions are revoked, and at the stop: rule 4."""
        producer, is_flushed = self._producer, False
        if not isinstance(producer, PatientProducer) or not producer.buffer.started:
            return  # which has been given nothing yet
        logger.info("Flush producer buffer...")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                is_flushed = await producer.flushed()
        if not is_flushed:
            log.warning(
                "not all that was written to tables is in the control cluster; a rebalance, or this stop, "
                "goes on without", waits_s=FLUSH_TIMEOUT_S,
                remedy="see that its brokers run, and take records; nothing was committed of what is "
                "missing: its events come again",
            )  # fmt: skip


class PatientRecovery(Recovery):
    """Its steps take as long as they take; a rebalance, or the worker's end, ends them.

    Faust counts a partition as recovered once it has the record at its end. Where that cannot be read
    (`app.kafka.fetch.decoder`), there is none, and it would wait for ever.
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
                if before.get(tp) == highwater:  # twice: what was read in between is in the queue by now
                    self.active_offsets[tp] = highwater
            before = read

    def _read_to_the_end(self) -> dict[TP, int]:
        """Where partitions end that are read to their end, of which nothing waits, and whose last record is
        missing."""
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
        """The service that reads changelogs."""
        if self._recovery is None:
            self._recovery = PatientRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
