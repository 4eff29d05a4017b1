"""Sends takeovers and snapshots to the tracker topic, and waits for the answers to takeovers.

Every follower of the job's partition (`app.worker.tracker.follower`) answers, so several answers come as a
rule. They come on a topic of their own, which exists beforehand and which each worker reads from its end.
Faust's `ask` takes 45 s for its first reply, and the table's HTTP route is wrong during rebalances.
The client repeats a takeover every `TAKEOVER_RETRY_INTERVAL_S` until an answer comes. A repetition changes
nothing, because the same epoch is granted to the same worker again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog import codec
from app.controllog.topics import TRACKER_PARTITIONS, ControlTopics
from app.kafka.append.replaceable_producer import RecordSeal, ReplaceableProducer
from app.kafka.client.aiokafka_types import Answer, ClientOptions
from app.kafka.client.topic_tail import TopicTail
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kafka.records.record import PlacedRecord
from app.kernel.clock import now_ms
from app.kernel.fencing import SnapshotItem, Snapshots, Takeover, TakeoverAnswer
from app.worker.tracker.write_health import ProbeFailure, WriteHealth

log = structlog.get_logger(__name__)

TAKEOVER_RETRY_INTERVAL_S = 0.5
PROBE_TIMEOUT_S = 5.0


def tracker_partition(job: str) -> int:
    """The partition of the tracker topic, and of its table, that has `job`."""
    return zlib.crc32(job.encode()) % TRACKER_PARTITIONS


class TrackerClient(Service):
    """Takes jobs over and sends snapshots for `worker`."""

    def __init__(
        self,
        worker: str,
        topics: ControlTopics,
        kafka_options: ClientOptions,
        seal: RecordSeal | None = None,
    ) -> None:
        super().__init__()
        self.worker = worker
        self.topic = topics.trackers.name
        self._options = kafka_options
        self.writes = WriteHealth()
        self._seal = seal
        self._producer = ReplaceableProducer("tracker events", kafka_options, seal=seal)
        self._waiting: dict[str, asyncio.Future[TakeoverAnswer]] = {}
        self._unreadable = UnreadableRecords("the answers topic has records that are no answers")
        self._tail = TopicTail(topics.answers.name, kafka_options, self._on_answers, from_start=False)

    async def on_start(self) -> None:
        await self._producer.start_patiently()
        await self.add_runtime_dependency(self._tail)
        await self._tail.caught_up.wait()

    async def on_stop(self) -> None:
        for waiting in self._waiting.values():
            waiting.cancel()
        await self._producer.stop()

    def _on_answers(self, records: Sequence[PlacedRecord]) -> None:
        for record in records:
            try:
                answer = codec.takeover_answer(record.value)
            except codec.BadEvent as error:
                self._unreadable.add_for_later(record.offset, error)
                continue
            waiting = self._waiting.get(answer.nonce)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    async def takeover(self, job: str, epoch: int, *, over: int = -1) -> TakeoverAnswer:
        """Takes `job` over, without a timeout; the caller may cancel. `over`: see `Takeover`. Raises
        KafkaError."""
        nonce = secrets.token_hex(8)
        answer: asyncio.Future[TakeoverAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[nonce] = answer
        attempts = 0
        try:
            while True:
                event = Takeover(
                    job=job, epoch=epoch, worker=self.worker, nonce=nonce, at_ms=now_ms(), over=over
                )
                await (await self._send(tracker_partition(job), codec.encode(event), job.encode()))
                attempts += 1
                try:
                    return await asyncio.wait_for(asyncio.shield(answer), TAKEOVER_RETRY_INTERVAL_S)
                except TimeoutError:
                    if attempts % 20 == 0:
                        log.warning(
                            "a takeover has no answer yet: no worker follows its tracker partition",
                            job=job,
                            epoch=epoch,
                            attempts=attempts,
                        )
        finally:
            del self._waiting[nonce]

    async def send_snapshots(self, items: Iterable[SnapshotItem]) -> list[Answer]:
        """Sends snapshots in few events, in the order of these calls; a future ends when its event is in
        the topic. Raises KafkaError, also in a future: sending them again is harmless."""
        by_partition: dict[int, list[SnapshotItem]] = defaultdict(list)
        for item in items:
            by_partition[tracker_partition(item.job)].append(item)
        return [
            await self._send(partition, event, self.worker.encode())
            for partition, batch in by_partition.items()
            for event in codec.snapshots_events(self.worker, now_ms(), batch)
        ]

    async def _send(self, partition: int, event: bytes, key: bytes) -> Answer:
        self.writes.began(partition, time.monotonic())
        try:
            sent = await self._producer.send(self.topic, event, key=key, partition=partition)
        except asyncio.CancelledError:
            self.writes.abandoned(partition)
            raise
        except Exception as error:
            self.writes.ended(partition, time.monotonic(), error)
            raise
        sent.add_done_callback(partial(self._record_outcome, partition))
        return sent

    def _record_outcome(self, partition: int, sent: Answer) -> None:
        if sent.cancelled():
            self.writes.abandoned(partition)
        else:
            self.writes.ended(partition, time.monotonic(), sent.exception())

    async def probe(self, timeout_s: float = PROBE_TIMEOUT_S) -> ProbeFailure | None:
        """Writes an event to each partition through a new connection; returns the first failure, or None."""
        producer = ReplaceableProducer(
            "a probe of the tracker topic",
            self._options,
            enable_idempotence=False,
            seal=self._seal,
            request_timeout_ms=round(timeout_s * 1000),
        )
        event, partition = codec.encode(Snapshots(worker=self.worker, at_ms=now_ms(), items=[])), 0
        try:
            async with asyncio.timeout(
                2 * timeout_s
            ):  # the producer's timeout ends first, with the broker's error
                await producer.start()
                for partition in range(TRACKER_PARTITIONS):
                    await producer.send_and_wait(self.topic, event, partition=partition)
        except (KafkaError, OSError, TimeoutError) as error:
            return ProbeFailure.of(partition, error)
        finally:
            await producer.stop()
        return None
