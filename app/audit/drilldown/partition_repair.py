"""Appends missing copies to one partition: each once, by one writer at a time, whatever the broker refuses.

    begin: fence the former producer -> read new copies -> transactions --one is refused--> divide, begin

Rules (tests/audit/drilldown/test_repair_brokers.py)
1. The copies are made in transactions, under the partition's transactional id. A repair that begins aborts
   its predecessor's open transaction. From then on the brokers refuse the predecessor's records, even if its
   worker still believes that it leads. A worker that does not lead any more stops before the next
   transaction.
2. Once no other repair can append, the records that came since the drill-down are read. A record with a copy
   among them is not copied.
3. A record that the broker refuses, for its size or by the topic's settings, is left out and counted. All
   others are copied. Brokers refuse whole batches, so a batch is divided until the record is alone.
4. aiokafka does not take back the sequence number of a refused batch, so a new producer begins. Another
   worker may have copied meanwhile, so rule 2 applies again.
5. A window that is too old for its topic has thousands of refused records. So records with times nearest to
   now are tried first. Records farther from now than a refused one are left out without a try.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import NamedTuple
from weakref import WeakValueDictionary

from aiokafka import AIOKafkaProducer
from aiokafka.errors import BrokerResponseError, InvalidTimestampError, KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import RecordMetadata

from app.audit.drilldown.copy_origins import ClusterPartition
from app.audit.drilldown.findings import ObservedRecord
from app.audit.drilldown.scan import ScanRange
from app.audit.drilldown.sides import NotReadable
from app.kafka.append.encoder import NO_TIMESTAMP, Headers
from app.kafka.append.errors import first_refused, words_of
from app.kafka.append.transactions import batches_of, one_transaction, transactional
from app.kafka.client.cluster import LATEST, READ_COMMITTED, ClusterClient
from app.kafka.client.topic_configs import TopicSettings, describe
from app.kafka.fetch.span_reader import read_span
from app.kafka.records.record import Record
from app.kernel.clock import now_ms

MAX_BYTES, KAFKA_MAX_BYTES = "max.message.bytes", 1_048_588
OPEN_TRANSACTION_TIMEOUT_S = 60.0  # until others' open transactions in the partition have ended
VISIBLE_TIMEOUT_S = 10.0  # until consumers can read the copies
COPY_POLL_INTERVAL_S = 0.2
NAMED_REFUSED = 10  # of the refused records; all are counted

Rows = Sequence[tuple[Record, Headers]]
PlaceAndOffset = tuple[ClusterPartition, int]

_locks: WeakValueDictionary[ClusterPartition, asyncio.Lock] = WeakValueDictionary()


class RefusedCopy(NamedTuple):
    """A record upstream whose copy the broker downstream refuses."""

    place: ClusterPartition
    offset: int
    why: str


class _BatchRefused(Exception):
    """The transaction appended nothing. `number`: the first batch that the broker refused."""

    def __init__(self, number: int, error: BrokerResponseError) -> None:
        super().__init__(str(error))
        self.number = number
        self.error = error


@asynccontextmanager
async def repairing(
    client: ClusterClient,
    part: ScanRange,
    missing: Collection[ObservedRecord],
    check_may_copy: Callable[[], None],
) -> AsyncIterator[PartitionRepair]:
    """A repair that has begun (rule 1).

    Args:
        part: The partition downstream.
        missing: The records that it lacks.
        check_may_copy: Is called before each transaction; raises if the worker must not copy any more.

    Raises:
        NotReadable: The copies that came since the drill-down cannot be read.
        KafkaError, TimeoutError: A broker does not answer, or an open transaction hides the log's end.
    """
    async with _lock_of(part.reader.place):
        repair = PartitionRepair(client, part, missing, check_may_copy)
        try:
            await repair.begin()
            yield repair
        finally:
            await repair.end()


class PartitionRepair:
    """The repair of one partition.

    Attributes:
        copied, refused: Records.
        existing: Records that others have copied since the drill-down.
        first_refused: At most `NAMED_REFUSED`.
    """

    def __init__(
        self,
        client: ClusterClient,
        part: ScanRange,
        missing: Collection[ObservedRecord],
        check_may_copy: Callable[[], None],
    ) -> None:
        self.copied = self.refused = 0
        self.existing: set[PlaceAndOffset] = set()
        self.first_refused: list[RefusedCopy] = []
        self._client = client
        self._part = part
        self._place = part.reader.place
        self._check_may_copy = check_may_copy
        self._unsettled = {(record.place, record.offset): record for record in missing}
        self._read_end = part.log_end
        self._own_offsets: set[int] = set()  # offsets of copies that this repair made
        self._last_offset = -1
        self._most_bytes = KAFKA_MAX_BYTES
        self._producer: AIOKafkaProducer | None = None
        self._producers = AsyncExitStack()
        # Timestamps in ms at and beyond which the broker refuses (rule 5).
        self._too_old_ms, self._too_new_ms = NO_TIMESTAMP, float("inf")
        self._why_timestamp = ""

    def unsettled(self, missing: Mapping[int, ObservedRecord]) -> dict[int, ObservedRecord]:
        """The records that are neither copied nor refused yet."""
        return {
            offset: record for offset, record in missing.items() if (record.place, offset) in self._unsettled
        }

    async def begin(self) -> None:
        """Fences the producer of the repair before, and looks for its copies. Raises as `repairing`."""
        await self.end()
        self._most_bytes = await _max_bytes(self._client, self._place.topic)
        self._producer = await self._producers.enter_async_context(
            _fencing_producer(self._client, self._place, self._most_bytes)
        )
        missing = list(self._unsettled.values())
        known = already_copied(missing, await self._copies_of_others(missing))
        self.existing |= known
        for at in known:
            del self._unsettled[at]

    async def end(self) -> None:
        """Closes the producer."""
        self._producer = None
        await self._producers.aclose()

    async def add(self, place: ClusterPartition, rows: Rows, codec: int) -> None:
        """Copies these records of a partition upstream, and leaves out the refused ones. Raises as
        `check_may_copy` and `repairing`; the copies made stay."""
        pieces: list[Rows] = [rows]
        while pieces:
            self._check_may_copy()
            if self._producer is None:
                await self.begin()
            assert self._producer is not None
            piece = self._without_settled(place, pieces.pop())
            if not piece:
                continue
            batches = batches_of(piece, codec, self._most_bytes)
            try:
                offsets = await _append(self._producer, self._place, batches)
            except _BatchRefused as refused:
                await self.end()  # rule 4
                start = sum(batch.record_count() for batch in batches[: refused.number])
                end = start + batches[refused.number].record_count()
                if end - start == 1:
                    self._refuse(place, piece[start][0], refused.error)
                    parts = [piece[:start], piece[end:]]
                else:
                    parts = [piece[:start], *_halves(piece[start:end], refused.error), piece[end:]]
                pieces += [part for part in reversed(parts) if part]
                continue
            for offset, batch in zip(offsets, batches, strict=True):
                self._own_offsets.update(range(offset, offset + batch.record_count()))
            self._last_offset = max(self._last_offset, *offsets)
            self.copied += len(piece)
            for record, _ in piece:
                del self._unsettled[place, record.offset]

    async def wait_until_visible(self) -> None:
        """Waits until consumers of committed records can read the copies."""
        if self._last_offset >= 0:
            await _wait_until_visible(self._client, self._place, self._last_offset)

    def _without_settled(self, place: ClusterPartition, rows: Rows) -> Rows:
        found: list[tuple[Record, Headers]] = []
        for row in rows:
            at_ms = row[0].timestamp
            if (place, row[0].offset) not in self._unsettled:
                continue
            if NO_TIMESTAMP < at_ms <= self._too_old_ms or at_ms >= self._too_new_ms:
                self._leave_out(place, row[0].offset, self._why_timestamp)
            else:
                found.append(row)
        return found

    def _refuse(self, place: ClusterPartition, record: Record, error: BrokerResponseError) -> None:
        if isinstance(error, InvalidTimestampError):
            self._why_timestamp = words_of(error)
            if record.timestamp < now_ms():
                self._too_old_ms = max(self._too_old_ms, record.timestamp)
            else:
                self._too_new_ms = min(self._too_new_ms, record.timestamp)
        self._leave_out(place, record.offset, words_of(error))

    def _leave_out(self, place: ClusterPartition, offset: int, why: str) -> None:
        self.refused += 1
        del self._unsettled[place, offset]
        if len(self.first_refused) < NAMED_REFUSED:
            self.first_refused.append(RefusedCopy(place, offset, why))

    async def _copies_of_others(self, missing: Collection[ObservedRecord]) -> list[ObservedRecord]:
        """The copies of these records that others appended since the last reading. Raises NotReadable: the
        log lost its end, or cannot be read there."""
        place, start = self._place, self._read_end
        end = await _settled_end(self._client, place)
        if end < start:
            raise NotReadable(
                f"{place} lost its last records since it was read; ask again which records are missing"
            )
        found: list[ObservedRecord] = []
        contents = {record.contents: 1 for record in missing}
        async for piece in read_span(self._client, place.topic, place.partition, start, end):
            if piece.damage:
                raise NotReadable(f"the newest records of {place} cannot be read: {piece.damage}")
            found += await asyncio.to_thread(self._part.reader.observed, piece, None, contents)
        self._read_end = end
        return [copy for copy in found if copy.offset not in self._own_offsets]


def _halves(rows: Rows, error: BrokerResponseError) -> list[Rows]:
    """Both halves, by offset. If timestamps are refused, the first half has those nearest to now."""
    if isinstance(error, InvalidTimestampError):
        now = now_ms()
        near = sorted(rows, key=lambda row: row[0].timestamp != NO_TIMESTAMP and abs(now - row[0].timestamp))
    else:
        near = list(rows)
    middle = len(near) // 2
    return [sorted(half, key=lambda row: row[0].offset) for half in (near[:middle], near[middle:])]


def already_copied(
    missing: Iterable[ObservedRecord], copies: Iterable[ObservedRecord]
) -> set[tuple[ClusterPartition, int]]:
    """The places of records that have a copy: by its origin, else the first with the same contents. A copy
    stands for one record."""
    left: dict[int, list[tuple[ClusterPartition, int]]] = {}
    for record in sorted(missing, key=lambda record: (record.place, record.offset)):
        left.setdefault(record.contents, []).append((record.place, record.offset))
    found: set[tuple[ClusterPartition, int]] = set()
    for copy in copies:
        places = left.get(copy.contents, [])
        may_be = [at for at in places if copy.origin is None or copy.origin.may_be(*at)]
        if may_be:
            places.remove(may_be[0])
            found.add(may_be[0])
    return found


# -- the partition ---------------------------------------------------------------------------------------


def _lock_of(place: ClusterPartition) -> asyncio.Lock:
    """Repairs of one worker take turns, because each would fence the other."""
    return _locks.setdefault(place, asyncio.Lock())


def _fencing_producer(
    client: ClusterClient, place: ClusterPartition, most_bytes: int
) -> AbstractAsyncContextManager[AIOKafkaProducer]:
    """A producer that fences the other ones (rule 1)."""
    name = f"switchyard-copy-again/{place.topic}/{place.partition}"
    return transactional(client, name, max_request_bytes=2 * most_bytes)


async def _settled_end(client: ClusterClient, place: ClusterPartition) -> int:
    """The log's end, once no open transaction hides records. Raises TimeoutError: one did for
    `OPEN_TRANSACTION_TIMEOUT_S`, or no leader answered."""
    at, deadline_s = (place.topic, place.partition), time.monotonic() + OPEN_TRANSACTION_TIMEOUT_S
    high = (await client.offsets([at], LATEST)).get(at)
    while time.monotonic() < deadline_s:
        end = (await client.offsets([at], LATEST, READ_COMMITTED)).get(at, -1)
        if high is not None and end >= high:
            return end
        await asyncio.sleep(COPY_POLL_INTERVAL_S)
        high = high if high is not None else (await client.offsets([at], LATEST)).get(at)
    raise TimeoutError(
        f"an open transaction hides the end of {place}, or its leader does not answer, so existing copies "
        "cannot be found; ask again once the transaction has ended"
    )


async def _append(
    producer: AIOKafkaProducer, place: ClusterPartition, batches: Sequence[BatchBuilder]
) -> list[int]:
    """Appends all batches or none; returns their base offsets. Raises _BatchRefused: nothing was appended;
    KafkaError, TimeoutError: that is uncertain."""
    sent: list[asyncio.Future[RecordMetadata]] = []
    try:
        async with one_transaction(producer):
            for batch in batches:  # one by one, because `sent` is inspected if a later batch is refused
                sent.append(await producer.send_batch(batch, place.topic, partition=place.partition))  # noqa: PERF401
            return [int(metadata.offset) for metadata in await asyncio.gather(*sent)]
    except (KafkaError, TimeoutError) as error:
        refused = first_refused(sent)
        if refused is None:
            raise
        raise _BatchRefused(*refused) from error


async def _wait_until_visible(client: ClusterClient, place: ClusterPartition, offset: int) -> None:
    """Waits until consumers of committed records can read the copies, or for `VISIBLE_TIMEOUT_S`. Brokers
    confirm a commit before its partitions know it; a drill-down until then would name the same records again.
    Other transactions may hide the copies for longer."""
    at, deadline_s = (place.topic, place.partition), time.monotonic() + VISIBLE_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if (await client.offsets([at], LATEST, READ_COMMITTED)).get(at, -1) > offset:
            return
        await asyncio.sleep(COPY_POLL_INTERVAL_S)


async def _max_bytes(client: ClusterClient, topic: str) -> int:
    found = (await describe(client, [topic], [MAX_BYTES])).get(topic)
    return int(found.config[MAX_BYTES]) if isinstance(found, TopicSettings) else KAFKA_MAX_BYTES
