"""Producers that write topics of several profiles through broker failures.

    with Sources({"east-regional": bootstrap, ...}, "prefix") as sources: ...     # until the end of the block
    sources.written                                                               # topic -> records

Rules
1. Each record has a number that is unique in its topic: a producer that failed continues with the next
   number. A comparison can therefore find repeated copies, whichever of the failed records the source got.
2. A producer that fails is replaced, as often as necessary. At the end of the block each producer writes once
   more into every partition, so that all partitions have records behind the last failure.
3. Each topic is written at the pace that gives `per_second` since the beginning: producers make up for
   outages.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from app.dev.demo.background_thread import Background
from app.dev.demo.traffic import create_topic

HOME, AWAY = "east-regional", "east-aggregate"
# brokers soon forget idempotent producers of old records: `app.kafka.producers.history`
LONG_AGO_MS = 1_600_000_000_000
BATCH_BYTES = 64 * 1024
PRODUCER_ROUNDS = 200  # then another begins, under another id
STOP_S, PAUSE_S = 30.0, 0.5
TRANSACTION_TIMEOUT_MS = 20_000  # then brokers abort a transaction that a producer left open


@dataclass(frozen=True, slots=True)
class TopicProfile:
    """How a topic is created and written.

    Attributes:
        per_second: Records a second, over all partitions.
        batch: The most records in a batch.
        home: The cluster that gets the records.
        old: Timestamps lie years back; otherwise they are the current time.
        mixed: Keys, headers and tombstones; otherwise values alone.
        keys: The number of different keys.
    """

    name: str
    per_second: float
    batch: int
    partitions: int = 2
    home: str = HOME
    codec: str | None = None
    old: bool = False
    mixed: bool = False
    keys: int = 1_000
    transactional: bool = False
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_compacted(self) -> bool:
        """Whether brokers remove older records of a key."""
        return "compact" in self.config.get("cleanup_policy", "")


OFTEN_COMPACTED = {
    "cleanup_policy": "compact", "segment_ms": "1000", "min_cleanable_dirty_ratio": "0.01",
    "segment_bytes": "1048576",
}  # fmt: skip
TOPIC_PROFILES = (
    TopicProfile("plain", 7_000, 400, partitions=3),
    TopicProfile("zstd", 5_000, 400, codec="zstd", old=True),
    TopicProfile("lz4", 2_500, 200, codec="lz4", mixed=True),
    TopicProfile("mixed", 2_500, 150, mixed=True, old=True),
    TopicProfile("single", 150, 1, mixed=True, old=True),
    TopicProfile("back", 2_000, 200, home=AWAY, old=True),
    TopicProfile("compacted", 600, 40, mixed=True, keys=200, config=OFTEN_COMPACTED),
    TopicProfile("transactional", 1_200, 40, mixed=True, transactional=True),
)


class Sources(Background):
    """Producers of all profiles; creates a topic `<prefix>.<profile>` for each."""

    def __init__(
        self, bootstraps: Mapping[str, str], prefix: str, profiles: tuple[TopicProfile, ...] = TOPIC_PROFILES
    ) -> None:
        super().__init__()
        self.bootstraps = bootstraps
        self.topics = {f"{prefix}.{profile.name}": profile for profile in profiles}
        self.written: Counter[str] = Counter()  # acknowledged records, without open or aborted transactions
        self.aborted: Counter[str] = Counter()
        self.producer_restarts: Counter[str] = Counter()  # producers
        self._numbers = {topic: count() for topic in self.topics}
        self._began_s = time.monotonic()
        for topic, profile in self.topics.items():
            asyncio.run(create_topic(bootstraps[profile.home], topic, profile.partitions, **profile.config))

    def partitions(self, home: str) -> list[tuple[str, int]]:
        """All partitions of topics that are written to this cluster."""
        return [
            (t, p)
            for t, profile in self.topics.items()
            if profile.home == home
            for p in range(profile.partitions)
        ]

    def work(self) -> None:
        asyncio.run(self._write_all())

    async def _write_all(self) -> None:
        self._began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for topic, profile in self.topics.items():
                tasks.create_task(self._write(topic, profile))

    async def _write(self, topic: str, profile: TopicProfile) -> None:
        is_last = False
        while not is_last:
            producer = self._producer(topic, profile)
            try:
                await producer.start()
                for _ in range(PRODUCER_ROUNDS):
                    is_last = self.ended.is_set()
                    await self._round(producer, topic, profile)
                    if is_last:
                        break
                    await self._pace(topic, profile)
            except (KafkaError, OSError, TimeoutError):
                self.producer_restarts[topic] += 1
                is_last = False
                await asyncio.sleep(PAUSE_S)
            finally:
                await _stop(producer)

    def _producer(self, topic: str, profile: TopicProfile) -> AIOKafkaProducer:
        transactional = {"transactional_id": topic, "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}
        return AIOKafkaProducer(
            bootstrap_servers=self.bootstraps[profile.home], acks="all", enable_idempotence=True,
            compression_type=profile.codec, max_batch_size=BATCH_BYTES, metadata_max_age_ms=2_000,
            **(transactional if profile.transactional else {}),
        )  # fmt: skip

    async def _pace(self, topic: str, profile: TopicProfile) -> None:
        done = self.written[topic] + self.aborted[topic]
        due_s = self._began_s + done / profile.per_second
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def _round(self, producer: AIOKafkaProducer, topic: str, profile: TopicProfile) -> None:
        """Writes a batch into each partition; of three transactions the second is aborted."""
        commits, sent, records = True, [], 0
        if profile.transactional:
            await producer.begin_transaction()
            commits = next(self._numbers[topic]) % 3 != 1
        for partition in range(profile.partitions):
            batch, size = producer.create_batch(), 0
            while (
                size < profile.batch
                and batch.append(**record(profile, next(self._numbers[topic]))) is not None
            ):
                size += 1
            sent.append(await producer.send_batch(batch, topic, partition=partition))
            records += size
        await asyncio.gather(*sent)
        if profile.transactional:
            await (producer.commit_transaction() if commits else producer.abort_transaction())
        (self.written if commits else self.aborted)[topic] += records


def record(profile: TopicProfile, number: int) -> dict[str, Any]:
    """The record of this number; each number gives a different record."""
    if profile.old:
        timestamp_ms = LONG_AGO_MS + 37 * (number % 1_000) + number // 1_000
    else:
        timestamp_ms = time.time_ns() // 1_000_000
    name = b"%d" % number
    if not profile.mixed:
        return {"timestamp": timestamp_ms, "key": None, "value": name + b" of " + name * (6 + number % 15)}
    headers: list[tuple[str, bytes | None]] = [("n", name), ("n", None), ("", b"")]
    return {
        "timestamp": timestamp_ms,
        "key": None
        if number % 13 == 5 and not profile.is_compacted
        else b"k%d" % (number * 7 % profile.keys),
        "value": None if number % 7 == 3 else name * (number % 9),
        "headers": headers[: 1 + number % 3],
    }


async def _stop(producer: AIOKafkaProducer) -> None:
    """Stops the producer, also when its brokers do not answer."""
    try:
        await asyncio.wait_for(producer.stop(), STOP_S)
    except (KafkaError, OSError, TimeoutError):
        return
