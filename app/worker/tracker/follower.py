"""Answers takeovers: each worker follows some partitions of the tracker topic and folds them in memory.

Each partition has a few followers among the live workers (`followers`), and each of them answers. So a
takeover waits for no rebalance, table or backlog. Faust's agent writes the folded rows to the table, for
new followers, for Spark and for people, and may be seconds behind. `app.worker.tracker.fold` says why this
is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata
from mode import Service

from app.controllog import codec
from app.controllog.topics import ControlTopics
from app.kafka.append.replaceable_producer import RecordSeal, ReplaceableProducer
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.commits import OffsetCommitter
from app.kafka.client.consumer_shutdown import stop_consumer
from app.kafka.client.topic_tail import TAIL_RETRY_INTERVAL_S, TAIL_STOP_TIMEOUT_S, bounded
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kafka.fetch.bounded_consumer import TAKEN_RECORDS, was_passed_over
from app.kafka.fetch.offsets_at_time import offsets_at
from app.kafka.records.record import Record
from app.kernel.clock import now_ms
from app.worker.members.membership import Members
from app.worker.tracker.fold import TrackerFold, followers

log = structlog.get_logger(__name__)

PARTITIONS_POLL_INTERVAL_S = 0.5  # between two choices of what to follow
MARGIN_S = 60.0  # rows of committed events arrive in the changelog within this time, or never
MARGIN_EVENTS = 1_000  # where no event is that new: the topic is idle, or a clock is wrong
WRITTEN_S = 600.0  # a partition whose table is written here is followed for this long after the last write
FOLD_INTERVAL_S = 0.02  # events of this time are folded together: they come from every worker


class TrackerFollower(Service):
    """`folds`: partition of the tracker topic -> its fold."""

    def __init__(
        self,
        worker: str,
        topics: ControlTopics,
        kafka_options: ClientOptions,
        members: Members,
        client: ClusterClient,
        seal: RecordSeal | None = None,
    ) -> None:
        super().__init__()
        self.worker = worker
        self._client = client
        self.folds: dict[int, TrackerFold] = {}
        self._topics = topics
        self._options = kafka_options
        self._members = members
        self._groups = OffsetCommitter(client)
        self._starting: dict[int, asyncio.Task[TrackerFold]] = {}
        self._retry_at_s: dict[int, float] = {}  # for partitions whose start failed
        self._written_s: dict[int, float] = {}
        self._progress = asyncio.Event()
        self._unreadable = [
            UnreadableRecords("the tracker topic has unreadable events", partition=partition)
            for partition in range(topics.trackers.partitions)
        ]
        self._producer = ReplaceableProducer(
            "answers to takeovers", kafka_options, enable_idempotence=False, seal=seal
        )

    async def on_start(self) -> None:
        await self._producer.start_patiently()

    async def on_stop(self) -> None:
        for task in self._starting.values():
            task.cancel()
        await self._producer.stop()

    async def folded(self, partition: int, offset: int) -> TrackerFold:
        """The fold of a partition with the event at `offset`; the worker follows it from now on."""
        while True:
            self._written_s[partition] = time.monotonic()
            fold = self.folds.get(partition)
            if fold is not None and fold.next_offset > offset:
                return fold
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._progress.wait(), PARTITIONS_POLL_INTERVAL_S)

    @Service.task
    async def _follow_for_ever(self) -> None:
        while not self.should_stop:
            try:
                await self._follow()
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning(
                    "this worker cannot follow the tracker topic",
                    error=repr(error),
                    retry_s=TAIL_RETRY_INTERVAL_S,
                )
            except Exception:
                # A programming error must not end the answers; the records are read again.
                log.exception("following the tracker topic failed; this worker reads it again from the table")
                self.folds.clear()
            await self.sleep(TAIL_RETRY_INTERVAL_S)

    async def _follow(self) -> None:
        consumer = AIOKafkaConsumer(
            enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_wait_ms=500, **self._options
        )
        await consumer.start()
        try:
            followed: set[int] = set()
            while not self.should_stop:
                self._choose()
                if followed != set(self.folds):
                    followed = set(self.folds)
                    consumer.assign([self._at(partition) for partition in followed])
                    for partition, fold in self.folds.items():
                        consumer.seek(self._at(partition), fold.next_offset)
                if not followed:
                    await self.sleep(FOLD_INTERVAL_S)
                    continue
                found = await consumer.getmany(timeout_ms=int(PARTITIONS_POLL_INTERVAL_S * 1000))
                for at, records in found.items():
                    await self._fold(consumer, at, records)
                for partition in followed & self.folds.keys():
                    self._pass_over(partition, await consumer.position(self._at(partition)))
                if sum(map(len, found.values())) < TAKEN_RECORDS:  # else it is behind, and reads on
                    await self.sleep(FOLD_INTERVAL_S)
        finally:
            await bounded(stop_consumer(consumer), TAIL_STOP_TIMEOUT_S, "reader of the tracker topic")

    def _at(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topics.trackers.name, partition)

    # -- what to follow --------------------------------------------------------------------------

    def _choose(self) -> None:
        for partition, task in list(self._starting.items()):
            if task.done():
                del self._starting[partition]
                if task.cancelled():
                    continue
                if (error := task.exception()) is None:
                    self.folds[partition] = task.result()
                else:
                    log.warning(
                        "this worker cannot read a partition of the tracker table yet",
                        partition=partition,
                        error=repr(error),
                        retry_s=TAIL_RETRY_INTERVAL_S,
                    )
                    self._retry_at_s[partition] = time.monotonic() + TAIL_RETRY_INTERVAL_S
        now_s = time.monotonic()
        live = self._members.live(now_s)
        if self.worker not in live:
            return  # it just started, or was paused: it does not know the other workers
        written = {p for p, at_s in self._written_s.items() if now_s - at_s < WRITTEN_S}
        for partition in range(self._topics.trackers.partitions):
            mine = partition in written or self.worker in followers(partition, live)
            if not mine:
                self.folds.pop(partition, None)
                if (starting := self._starting.pop(partition, None)) is not None:
                    starting.cancel()
            elif partition not in self.folds | self._starting and now_s >= self._retry_at_s.get(
                partition, 0.0
            ):
                self._starting[partition] = asyncio.create_task(self._start_partition(partition))

    async def _start_partition(self, partition: int) -> TrackerFold:
        """Reads the table writer's committed offset before the changelog (rule 3 of `fold`)."""
        at = self._at(partition)
        committed = (await self._groups.committed(self._topics.app_id, [at])).get(at)
        changelog = TopicPartition(self._topics.changelog("trackers", 0).name, partition)
        consumer = AIOKafkaConsumer(enable_auto_commit=False, auto_offset_reset="earliest", **self._options)
        await consumer.start()
        try:
            consumer.assign([changelog])
            start = (await consumer.beginning_offsets([at]))[at]
            base = min(committed or 0, (await consumer.end_offsets([at]))[at])  # a commit may be wrong
            since_ms = now_ms() - int(MARGIN_S * 1000)
            lately = (await offsets_at(self._client, [at], since_ms)).get(at, -1)
            fold = TrackerFold(max(start, min(base, lately) if lately >= 0 else base - MARGIN_EVENTS))
            end = (await consumer.end_offsets([changelog]))[changelog]
            upto = (await consumer.end_offsets([at]))[at]
            await consumer.seek_to_beginning(changelog)
            while await consumer.position(changelog) < end:
                unreadable = UnreadableRecords(
                    "the tracker table has unreadable records", partition=partition
                )
                for record in (await consumer.getmany(changelog, timeout_ms=500)).get(changelog, []):
                    self._restore(fold, record, upto, unreadable)
                unreadable.report()
        finally:
            await bounded(stop_consumer(consumer), TAIL_STOP_TIMEOUT_S, "reader of the tracker's changelog")
        return fold

    def _restore(self, fold: TrackerFold, record: Record, upto: int, unreadable: UnreadableRecords) -> None:
        """`upto`: a later end of the topic. A row beyond it is forged, or of a former topic."""
        if record.key is None or record.value is None:
            return
        try:
            found = codec.tracker_record(record.value)
            if found.offset >= upto:
                found = msgspec.structs.replace(found, offset=-1)  # else no event would ever change it
            fold.restore(record.key.decode(), found)
        except (codec.BadEvent, UnicodeDecodeError) as error:
            unreadable.add(record.offset, error)

    # -- folding ---------------------------------------------------------------------------------

    def _pass_over(self, partition: int, position: int) -> None:
        """Advances the fold over records that were read and do not count."""
        fold = self.folds[partition]
        start = fold.next_offset
        if position > start and was_passed_over(self._topics.trackers.name, partition, start, position):
            fold.next_offset = position
            self._progress.set()
            self._progress = asyncio.Event()

    async def _fold(self, consumer: AIOKafkaConsumer, at: TopicPartition, records: Sequence[Record]) -> None:
        fold = self.folds.get(at.partition)
        records = [record for record in records if fold is not None and record.offset >= fold.next_offset]
        if fold is None or not records:
            return
        if records[0].offset > fold.next_offset:  # deleted, unless the records between cannot be read
            start = (await consumer.beginning_offsets([at]))[at]
            if start > fold.next_offset:
                log.error(
                    "events of the tracker topic were deleted before this worker read them; it starts again "
                    "from the table",
                    partition=at.partition,
                    since=fold.next_offset,
                    present=start,
                )
                del self.folds[at.partition]
                return
        for record in records:
            try:
                answer = fold.apply(codec.tracker_event(record.value), record.offset)
            except codec.BadEvent as error:
                fold.next_offset = record.offset + 1
                self._unreadable[at.partition].add_for_later(record.offset, error)
                continue
            if answer is not None:
                sent = await self._producer.send(self._topics.answers.name, codec.encode(answer), partition=0)
                sent.add_done_callback(_report_refusal)
        self._progress.set()
        self._progress = asyncio.Event()


def _report_refusal(sent: asyncio.Future[RecordMetadata]) -> None:
    """The worker repeats its takeover; if each answer is refused, this line says why its job waits."""
    if not sent.cancelled() and (error := sent.exception()) is not None:
        log.warning("the answer to a takeover was not written; its job waits", error=repr(error))
