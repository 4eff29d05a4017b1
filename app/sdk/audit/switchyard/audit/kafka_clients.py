"""aiokafka's producer and consumer, audited. Other attributes are those of the wrapped client.

Rules
1. A produced record counts once the brokers have acknowledged it, a record of a transaction once that is
   committed. A record whose future the application cancelled does not count. Bytes are the lengths of keys
   and values that are given as bytes.
2. A consumed record counts once, when the application gets it. After a restart it is recognised by its
   offset. `commit` waits until the counts are logged, so with `enable_auto_commit=False` every record is
   counted exactly once, whenever the process is killed. An application that commits in another way, such as
   in a producer's transaction, must await `audit.logged()` first.
3. The audit never fails a call: a commit is sent even if the log cannot be written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import ConsumerRecord, RecordMetadata, TopicPartition

from switchyard.audit.session import Audit

if TYPE_CHECKING:
    from typing_extensions import Self

MESSAGE_ID = "switchyard-message-id"
LOG_APPEND_TIME = 1
COMMIT_TRIES = 100
Headers = Sequence[tuple[str, bytes]]
Entry = tuple[int, int, bytes | None]  # timestamp, bytes, id


class AuditedBatch:
    """aiokafka's `BatchBuilder`, with the entries that were appended to it."""

    def __init__(self, builder: Any, id_header: str) -> None:
        self.builder = builder
        self.entries: list[Entry] = []
        self._id_header = id_header

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)

    def append(
        self, *, timestamp: int | None, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> Any:
        """As aiokafka's. None: the batch had no room."""
        found = self.builder.append(timestamp=timestamp, key=key, value=value, headers=list(headers))
        if found is not None:
            at_ms = int(time.time() * 1000) if timestamp is None else timestamp
            self.entries.append((at_ms, _size(key) + _size(value), _header_value(headers, self._id_header)))
        return found


class AuditedProducer:
    """Counts the records that a producer has sent.

    Args:
        is_durable: `send_and_wait` waits for the log, at most 5 s. Once the log has the count, the record is
            counted exactly once. Without it a killed process loses the counts of `log_interval_s`.
        id_header: The header with the message's id; "": none.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        audit: Audit,
        *,
        is_durable: bool = False,
        id_header: str = MESSAGE_ID,
    ) -> None:
        self._producer = producer
        self._audit = audit
        self._is_durable = is_durable
        self._id_header = id_header
        self._in_transaction: list[tuple[str, int, int, bytes | None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """As aiokafka's. The record counts once the future is done."""
        # The timestamp is set here: aiokafka's answer has the time of the first record of the batch.
        at_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        future: asyncio.Future[RecordMetadata] = await self._producer.send(
            topic, value, key, partition, at_ms, headers
        )
        entries = ((at_ms, _size(key) + _size(value), _header_value(headers, self._id_header)),)
        future.add_done_callback(lambda done: self._acknowledged(done, topic, entries))
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """As aiokafka's."""
        # Shielded: a caller that stops waiting does not stop the record, which must be counted.
        found = await asyncio.shield(await self.send(topic, value, key, partition, timestamp_ms, headers))
        if self._is_durable and self._in_transaction is None:
            await self._audit.logged()
        return found

    def create_batch(self) -> AuditedBatch:
        """As aiokafka's; the batch remembers its records."""
        return AuditedBatch(self._producer.create_batch(), self._id_header)

    async def send_batch(
        self, batch: AuditedBatch, topic: str, *, partition: int
    ) -> asyncio.Future[RecordMetadata]:
        """As aiokafka's. The records count once the future is done."""
        future: asyncio.Future[RecordMetadata] = await self._producer.send_batch(
            batch.builder, topic, partition=partition
        )
        future.add_done_callback(lambda done: self._acknowledged(done, topic, batch.entries))
        return future

    def _acknowledged(
        self, done: asyncio.Future[RecordMetadata], topic: str, entries: Sequence[Entry]
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        found = done.result()  # None: the producer asks for no acknowledgements
        log_ms = found.timestamp if found is not None and found.timestamp_type == LOG_APPEND_TIME else None
        counted = [
            (topic, at_ms if log_ms is None else log_ms, nbytes, name) for at_ms, nbytes, name in entries
        ]
        if self._in_transaction is not None:
            self._in_transaction += counted
            return
        for entry in counted:
            self._audit.sent(*entry)

    async def begin_transaction(self) -> None:
        await self._producer.begin_transaction()
        self._in_transaction = []

    async def commit_transaction(self) -> None:
        await self._producer.commit_transaction()
        await self._committed()

    async def abort_transaction(self) -> None:
        await self._producer.abort_transaction()
        await self._aborted()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """As aiokafka's: commits at the end, aborts after an error."""
        self._in_transaction = []
        try:
            async with self._producer.transaction():
                yield self
        except BaseException:
            await self._aborted()
            raise
        await self._committed()

    async def _committed(self) -> None:
        await asyncio.sleep(0)  # all records are acknowledged, but the last callbacks may not have run
        committed, self._in_transaction = self._in_transaction or [], None
        for entry in committed:
            self._audit.sent(*entry)
        if self._is_durable:
            await self._audit.logged()

    async def _aborted(self) -> None:
        await asyncio.sleep(0)
        self._in_transaction = None

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()


class AuditedConsumer:
    """Counts the records that a consumer hands out. `id_header`: the header with the message's id; "": none.

    Start the audit before consuming: it reads which records were counted before.
    """

    def __init__(self, consumer: AIOKafkaConsumer, audit: Audit, *, id_header: str = MESSAGE_ID) -> None:
        self._consumer = consumer
        self._audit = audit
        self._id_header = id_header
        self._received = 0  # batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord[Any, Any]:
        """As aiokafka's."""
        record: ConsumerRecord[Any, Any] = await self._consumer.getone(*partitions)
        self._received += 1
        self._audit.handled(
            record.topic, record.partition, record.offset, record.timestamp, _consumed_size(record),
            _header_value(record.headers, self._id_header),
        )  # fmt: skip
        return record

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[Any, Any]]]:
        """As aiokafka's."""
        found: dict[TopicPartition, list[ConsumerRecord[Any, Any]]] = await self._consumer.getmany(
            *partitions, timeout_ms=timeout_ms, max_records=max_records
        )
        for (topic, partition), records in found.items():
            if records:
                self._count(topic, partition, records)
        return found

    def _count(self, topic: str, partition: int, records: Sequence[ConsumerRecord[Any, Any]]) -> None:
        self._received += 1
        self._audit.handled_many(
            topic,
            partition,
            [record.offset for record in records],
            [record.timestamp for record in records],
            [_consumed_size(record) for record in records],
            [_header_value(record.headers, self._id_header) for record in records]
            if self._id_header
            else None,
        )

    async def commit(self, offsets: Mapping[TopicPartition, Any] | None = None) -> None:
        """As aiokafka's, once the counts are logged."""
        for _ in range(COMMIT_TRIES):
            received = self._received
            if not await self._audit.logged() or received == self._received:
                break  # otherwise another task got records meanwhile, whose offsets would be committed too
        await self._consumer.commit(offsets)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord[Any, Any]:
        record: ConsumerRecord[Any, Any] = await anext(self._consumer)
        self._count(record.topic, record.partition, [record])
        return record

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()


def _header_value(headers: Sequence[tuple[str, bytes]] | None, wanted: str) -> bytes | None:
    if headers and wanted:
        for name, value in headers:
            if name == wanted:
                return value
    return None


def _size(data: Any) -> int:
    return len(data) if isinstance(data, bytes | bytearray | memoryview) else 0


def _consumed_size(record: ConsumerRecord[Any, Any]) -> int:
    """The bytes of key and value as received; aiokafka has -1 for a missing one."""
    return max(0, record.serialized_key_size) + max(0, record.serialized_value_size)
