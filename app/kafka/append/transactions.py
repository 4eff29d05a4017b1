"""Transactions under a name: a new producer of the name fences the former one.

    transactional(name) --aborts the former producer's open transaction, and fences it--> producer
    one_transaction(producer)  all records sent within it are visible, or none

So a new producer may read what the name has written so far: no other producer adds to it meanwhile.
Sources: KIP-98, KIP-360.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import groupby

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder

from app.kafka.append.encoder import NO_TIMESTAMP, Headers
from app.kafka.client.cluster import ClusterClient
from app.kafka.records.record import Record

TRANSACTION_MS = 30_000  # the longest that a killed producer's open transaction blocks readers
TRANSACTION_S = 25.0  # shorter, so that giving up leads to a retry and is not mistaken for fencing
TRANSACTION_START_TIMEOUT_S = 45.0
TRANSACTION_ABORT_TIMEOUT_S = 5.0
TRANSACTION_STOP_TIMEOUT_S = 10.0
REQUEST_MS = 10_000
BATCH_BYTES = 256 * 1024


@asynccontextmanager
async def transactional(
    client: ClusterClient,
    name: str,
    *,
    max_request_bytes: int,
    value_serializer: Callable[[bytes | None], bytes | None] | None = None,
) -> AsyncIterator[AIOKafkaProducer]:
    """A producer with the transactional id `name`. Raises KafkaError, TimeoutError: it cannot start; the
    former producer may still be at work."""
    producer = AIOKafkaProducer(
        transactional_id=name,
        transaction_timeout_ms=TRANSACTION_MS,
        request_timeout_ms=REQUEST_MS,
        max_batch_size=BATCH_BYTES,
        max_request_size=max_request_bytes,
        value_serializer=value_serializer,
        **client.spec.aiokafka_options(),
    )
    try:
        async with asyncio.timeout(TRANSACTION_START_TIMEOUT_S):
            await producer.start()
        yield producer
    finally:
        with contextlib.suppress(KafkaError, TimeoutError):  # the outcome is known already
            async with asyncio.timeout(TRANSACTION_STOP_TIMEOUT_S):
                await producer.stop()


@asynccontextmanager
async def one_transaction(producer: AIOKafkaProducer) -> AsyncIterator[None]:
    """One transaction of at most `TRANSACTION_S`. After an error the producer is unusable."""
    async with asyncio.timeout(TRANSACTION_S):
        await producer.begin_transaction()
        try:
            yield
        except BaseException:
            # Without the abort readers would wait. It fails, harmlessly, if the producer is fenced.
            with contextlib.suppress(KafkaError, TimeoutError, AssertionError):
                async with asyncio.timeout(TRANSACTION_ABORT_TIMEOUT_S):
                    await producer.abort_transaction()
            raise
        await producer.commit_transaction()


RecordsWithHeaders = Iterable[tuple[Record, Headers]]


def batches_of(records: RecordsWithHeaders, codec: int, max_batch_bytes: int) -> list[BatchBuilder]:
    """Packs records, with these headers and their own timestamps, into batches for a transaction. The batches
    are in order, and as few as `max_batch_bytes` allows; a larger record gets its own. `codec`: Kafka's
    number."""
    found: list[BatchBuilder] = []
    # aiokafka's encoder takes a first timestamp of -1 for a missing one: such records get their own batches.
    for _, group in groupby(records, key=lambda row: row[0].timestamp == NO_TIMESTAMP):
        batch: BatchBuilder | None = None
        for record, headers in group:
            row = {"timestamp": record.timestamp, "key": record.key, "value": record.value}
            if batch is None or batch.append(**row, headers=list(headers)) is None:
                batch = BatchBuilder(max_batch_bytes, codec, is_transactional=True)
                batch.append(**row, headers=list(headers))
                found.append(batch)
    return found
