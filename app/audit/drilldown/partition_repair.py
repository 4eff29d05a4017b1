"""Appends the copies of one partition: nobody else does meanwhile, each comes once, none holds up the others.

    begin: end the former producer -> read what came since -> transactions --one is refused--> divide, begin

Rules
1. Copies into a partition are made in transactions under its own transactional id: who begins aborts what the
   one before has left open, and the brokers refuse whatever that one still sends, though it may believe that
   it leads. Who knows that it does not lead stops before the next transaction.
2. What came into the partition behind what the drill-down has read is looked at once nobody else can add to
   it. What is there is not copied.
3. A record that the broker refuses, for its size or by the topic's settings, is left out and counted; all
   others are copied. Brokers refuse batches, so a batch is divided until the record is alone.
4. aiokafka does not take the number of a refused batch back, so a new producer begins. Another worker may
   have begun and ended meanwhile: rule 2 holds again.
5. A window that is too old for its topic has thousands of such records. So records of the times nearest to
   now are tried first, and what is older than a record that was too old is left out without a try.
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
OPEN_TRANSACTION_TIMEOUT_S = 60.0  # until what others have open in the partition has ended
VISIBLE_TIMEOUT_S = 10.0  # until what was copied is shown to those who read
COPY_POLL_INTERVAL_S = 0.2
NAMED_REFUSED = 10  # of the refused ones; all are counted

Rows = Sequence[tuple[Record, Headers]]
PlaceAndOffset = tuple[ClusterPartition, int]

_turns: WeakValueDictionary[ClusterPartition, asyncio.Lock] = WeakValueDictionary()


class RefusedCopy(NamedTuple):
    """A record upstream whose copy the broker downstream refuses, and why."""

    place: ClusterPartition
    offset: int
    why: str


class _BatchRefused(Exception):
    """Nothing of the transaction is there. `number`: which of its batches the broker refused first."""

    def __init__(self, number: int, error: BrokerResponseError) -> None:
        super().__init__(str(error))
        self.number = number
        self.error = error


@asynccontextmanager
async def repairing(
    client: ClusterClient, part: ScanRange, asked: Collection[ObservedRecord], go_on: Callable[[], None]
) -> AsyncIterator[PartitionRepair]:
    """A repair that has begun (rule 1).

    Args:
        part: the partition downstream. asked: what it lacks. go_on: is called before each try, and raises
            where no more may be copied.

    Raises:
        NotReadable: what is there cannot be told. KafkaError, TimeoutError.
    """
    async with _turn(part.reader.place):
        made = PartitionRepair(client, part, asked, go_on)
        try:
            await made.begin()
            yield made
        finally:
            await made.end()


class PartitionRepair:
    """See the module.

    Attributes:
        copied, refused: records. there: what others have copied since the drill-down.
        first_refused: `NAMED_REFUSED` at most.
    """

    def __init__(
        self,
        client: ClusterClient,
        part: ScanRange,
        asked: Collection[ObservedRecord],
        go_on: Callable[[], None],
    ) -> None:
        self.copied = self.refused = 0
        self.there: set[PlaceAndOffset] = set()
        self.first_refused: list[RefusedCopy] = []
        self._client = client
        self._part = part
        self._place = part.reader.place
        self._go_on = go_on
        self._left = {(one.place, one.offset): one for one in asked}
        self._read_end = part.log_end
        self._own: set[int] = set()  # offsets of what was copied here
        self._last = -1
        self._most_bytes = KAFKA_MAX_BYTES
        self._producer: AIOKafkaProducer | None = None
        self._producers = AsyncExitStack()
        # Timestamps in ms at and beyond which the broker refuses (rule 5).
        self._too_old_ms, self._too_new_ms = NO_TIMESTAMP, float("inf")
        self._why_timestamp = ""

    def left_of(self, asked: Mapping[int, ObservedRecord]) -> dict[int, ObservedRecord]:
        """Those that are not settled yet."""
        return {offset: one for offset, one in asked.items() if (one.place, offset) in self._left}

    async def begin(self) -> None:
        """Ends whoever copies into the partition, and sees what that one has done. Raises as `repairing`."""
        await self.end()
        self._most_bytes = await _max_bytes(self._client, self._place.topic)
        self._producer = await self._producers.enter_async_context(
            _alone(self._client, self._place, self._most_bytes)
        )
        asked = list(self._left.values())
        known = copied_already(asked, await self._copies_of_others(asked))
        self.there |= known
        for at in known:
            del self._left[at]

    async def end(self) -> None:
        """Closes the producer."""
        self._producer = None
        await self._producers.aclose()

    async def add(self, place: ClusterPartition, rows: Rows, codec: int) -> None:
        """Copies these records of a partition upstream, and leaves out what the broker refuses.

        Raises:
            As `go_on`, `repairing`: what is there stays.
        """
        pieces: list[Rows] = [rows]
        while pieces:
            self._go_on()
            if self._producer is None:
                await self.begin()
            assert self._producer is not None
            piece = self._wanted(place, pieces.pop())
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
                self._own.update(range(offset, offset + batch.record_count()))
            self._last = max(self._last, *offsets)
            self.copied += len(piece)
            for record, _ in piece:
                del self._left[place, record.offset]

    async def shown(self) -> None:
        """Waits until who reads what is committed gets what was copied there."""
        if self._last >= 0:
            await _shown(self._client, self._place, self._last)

    def _wanted(self, place: ClusterPartition, rows: Rows) -> Rows:
        found: list[tuple[Record, Headers]] = []
        for row in rows:
            at_ms = row[0].timestamp
            if (place, row[0].offset) not in self._left:
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
        del self._left[place, offset]
        if len(self.first_refused) < NAMED_REFUSED:
            self.first_refused.append(RefusedCopy(place, offset, why))

    async def _copies_of_others(self, asked: Collection[ObservedRecord]) -> list[ObservedRecord]:
        """Which copies of them came into the partition behind what was read of it.

        Raises:
            NotReadable: that cannot be told.
        """
        place, start = self._place, self._read_end
        end = await _settled_end(self._client, place)
        if end < start:
            raise NotReadable(f"{place} has lost its end since it was read; ask again what is missing")
        found: list[ObservedRecord] = []
        contents = {one.contents: 1 for one in asked}
        async for piece in read_span(self._client, place.topic, place.partition, start, end):
            if piece.damage:
                raise NotReadable(f"what came into {place} meanwhile cannot be read: {piece.damage}")
            found += await asyncio.to_thread(self._part.reader.seen, piece, None, contents)
        self._read_end = end
        return [one for one in found if one.offset not in self._own]


def _halves(rows: Rows, error: BrokerResponseError) -> list[Rows]:
    """Both halves, each in the order of offsets; of timestamps that are refused, the nearest ones first."""
    if isinstance(error, InvalidTimestampError):
        now = now_ms()
        near = sorted(rows, key=lambda row: row[0].timestamp != NO_TIMESTAMP and abs(now - row[0].timestamp))
    else:
        near = list(rows)
    middle = len(near) // 2
    return [sorted(half, key=lambda row: row[0].offset) for half in (near[:middle], near[middle:])]


def copied_already(
    asked: Iterable[ObservedRecord], copies: Iterable[ObservedRecord]
) -> set[tuple[ClusterPartition, int]]:
    """Which of these records the copies are of: by where they come from, if that is known, else the first of
    the same contents. A copy stands for one record."""
    left: dict[int, list[tuple[ClusterPartition, int]]] = {}
    for one in sorted(asked, key=lambda one: (one.place, one.offset)):
        left.setdefault(one.contents, []).append((one.place, one.offset))
    found: set[tuple[ClusterPartition, int]] = set()
    for copy in copies:
        places = left.get(copy.contents, [])
        may_be = [at for at in places if copy.origin is None or copy.origin.may_be(*at)]
        if may_be:
            places.remove(may_be[0])
            found.add(may_be[0])
    return found


# -- of the partition --------------------------------------------------------------------------------------


def _turn(place: ClusterPartition) -> asyncio.Lock:
    """Those of this worker come one after the other: they would end each other."""
    return _turns.setdefault(place, asyncio.Lock())


def _alone(
    client: ClusterClient, place: ClusterPartition, most_bytes: int
) -> AbstractAsyncContextManager[AIOKafkaProducer]:
    """Rule 1."""
    name = f"switchyard-copy-again/{place.topic}/{place.partition}"
    return transactional(client, name, max_request_bytes=2 * most_bytes)


async def _settled_end(client: ClusterClient, place: ClusterPartition) -> int:
    """Where the log ends, once no transaction hides what is there.

    Raises:
        TimeoutError: one does, for `OPEN_TRANSACTION_TIMEOUT_S`, or nobody tells.
    """
    at, deadline_s = (place.topic, place.partition), time.monotonic() + OPEN_TRANSACTION_TIMEOUT_S
    high = (await client.offsets([at], LATEST)).get(at)
    while time.monotonic() < deadline_s:
        end = (await client.offsets([at], LATEST, READ_COMMITTED)).get(at, -1)
        if high is not None and end >= high:
            return end
        await asyncio.sleep(COPY_POLL_INTERVAL_S)
        high = high if high is not None else (await client.offsets([at], LATEST)).get(at)
    raise TimeoutError(
        f"an open transaction hides the end of {place}, or its leader does not answer: what is there already "
        "cannot be told; ask again once it has ended"
    )


async def _append(
    producer: AIOKafkaProducer, place: ClusterPartition, batches: Sequence[BatchBuilder]
) -> list[int]:
    """All of them, or none; where each begins in the log.

    Raises:
        _BatchRefused; KafkaError, TimeoutError: they are not there, or it is not certain.
    """
    sent: list[asyncio.Future[RecordMetadata]] = []
    try:
        async with one_transaction(producer):
            for batch in batches:  # one by one: what was sent is looked at where the next is not taken
                sent.append(await producer.send_batch(batch, place.topic, partition=place.partition))  # noqa: PERF401
            return [int(one.offset) for one in await asyncio.gather(*sent)]
    except (KafkaError, TimeoutError) as error:
        refused = first_refused(sent)
        if refused is None:
            raise
        raise _BatchRefused(*refused) from error


async def _shown(client: ClusterClient, place: ClusterPartition, offset: int) -> None:
    """Waits until who reads what is committed gets what was copied there: brokers say that a transaction is
    committed before its partitions know, and who asks then what is missing would be told the same again.
    Others' transactions may hide it for longer; that is theirs to end."""
    at, deadline_s = (place.topic, place.partition), time.monotonic() + VISIBLE_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if (await client.offsets([at], LATEST, READ_COMMITTED)).get(at, -1) > offset:
            return
        await asyncio.sleep(COPY_POLL_INTERVAL_S)


async def _max_bytes(client: ClusterClient, topic: str) -> int:
    found = (await describe(client, [topic], [MAX_BYTES])).get(topic)
    return int(found.config[MAX_BYTES]) if isinstance(found, TopicSettings) else KAFKA_MAX_BYTES
