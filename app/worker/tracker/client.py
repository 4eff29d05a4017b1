"""Talking to the tracker topic: takeovers and snapshots.

The answer comes from whoever follows the job's partition (`app.worker.tracker.follower`), several times as
a rule, on a topic of our own that exists beforehand and that every worker reads from its end: Faust's `ask`
takes 45 s for its first reply, and the table's HTTP route is wrong during rebalances.
A takeover is asked again every `TAKEOVER_RETRY_INTERVAL_S` until it is answered: the same epoch by the same
worker is granted again, so asking twice changes nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer
from mode import Service

from app.controllog import codec
from app.controllog.topics import TRACKER_PARTITIONS, ControlTopics
from app.kafka.client.startup_retry import start_patiently
from app.kafka.client.topic_tail import TAIL_STOP_TIMEOUT_S, TopicTail, bounded
from app.kernel.clock import now_ms
from app.kernel.fencing import SnapshotItem, Takeover, TakeoverAnswer

log = structlog.get_logger(__name__)

TAKEOVER_RETRY_INTERVAL_S = 0.5


def tracker_partition(job: str) -> int:
    """The partition of the tracker topic, and so of its table, in which `job` lives."""
    return zlib.crc32(job.encode()) % TRACKER_PARTITIONS


class TrackerClient(Service):
    """Asks for takeovers and sends snapshots on behalf of `worker`."""

    def __init__(self, worker: str, topics: ControlTopics, kafka_options: dict[str, Any]) -> None:
        super().__init__()
        self.worker = worker
        self._topic = topics.trackers.name
        self._options = kafka_options
        self._producer: AIOKafkaProducer | None = None
        self._waiting: dict[str, asyncio.Future[TakeoverAnswer]] = {}
        self._tail = TopicTail(topics.answers.name, kafka_options, self._on_answers, from_start=False)

    async def on_start(self) -> None:
        self._producer = AIOKafkaProducer(
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=10_000,
            **self._options,
        )
        await start_patiently(self._producer.start, "producer of takeovers")
        await self.add_runtime_dependency(self._tail)
        await self._tail.caught_up.wait()

    async def on_stop(self) -> None:
        for waiting in self._waiting.values():
            waiting.cancel()
        if self._producer is not None:
            await bounded(self._producer.stop(), TAIL_STOP_TIMEOUT_S, "producer of tracker events")

    def _on_answers(self, records: list[Any]) -> None:
        for record in records:
            try:
                answer = codec.takeover_answer(record.value)
            except codec.BadEvent as error:
                log.warning("a record of the answers topic is no answer", error=str(error))
                continue
            waiting = self._waiting.get(answer.nonce)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    async def takeover(self, job: str, epoch: int, *, over: int = -1) -> TakeoverAnswer:
        """Takes `job` over under `epoch`; waits as long as it takes (the caller may cancel). `over`: as in
        `Takeover`.

        Raises:
            aiokafka.errors.KafkaError: the tracker topic did not take the question.
        """
        assert self._producer is not None, "the tracker client has not been started"
        nonce = secrets.token_hex(8)
        answer: asyncio.Future[TakeoverAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[nonce] = answer
        asked = 0
        try:
            while True:
                event = Takeover(
                    job=job, epoch=epoch, worker=self.worker, nonce=nonce, at_ms=now_ms(), over=over
                )
                await self._producer.send_and_wait(
                    self._topic, codec.encode(event), key=job.encode(), partition=tracker_partition(job)
                )
                asked += 1
                try:
                    return await asyncio.wait_for(asyncio.shield(answer), TAKEOVER_RETRY_INTERVAL_S)
                except TimeoutError:
                    if asked % 20 == 0:
                        log.warning(
                            "no answer to a takeover yet; nobody follows its partition of the tracker topic",
                            job=job,
                            epoch=epoch,
                            asked=asked,
                        )
        finally:
            del self._waiting[nonce]

    async def send_snapshots(self, items: Iterable[SnapshotItem]) -> list[asyncio.Future[Any]]:
        """Sends snapshots, as few events as they fit into; they will stand in the tracker topic in the order
        of these calls. The futures end once they do.

        Raises:
            aiokafka.errors.KafkaError: (a future, too) one was not taken; sending them again is harmless.
        """
        assert self._producer is not None, "the tracker client has not been started"
        by_partition: dict[int, list[SnapshotItem]] = defaultdict(list)
        for item in items:
            by_partition[tracker_partition(item.job)].append(item)
        return [
            await self._producer.send(
                self._topic,
                event,
                key=self.worker.encode(),
                partition=partition,
            )
            for partition, batch in by_partition.items()
            for event in codec.snapshots_events(self.worker, now_ms(), batch)
        ]
