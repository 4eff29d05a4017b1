"""Transactions under a name, which one at a time has: who begins ends (fences) whoever is at work under it.

    transactional(name) --the former one's open transaction is aborted, it is refused from then on--> producer
    one_transaction(producer)  all that is sent within it is there, or none

So who begins may look at what is there already: nobody adds to it under the name meanwhile.
Sources: KIP-98, KIP-360.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder

from app.kafka.append.encoder import NO_TIMESTAMP, Headers
from app.kafka.client.cluster import ClusterClient
from app.kafka.records.record import Record

TRANSACTION_MS = 30_000  # what a killed one has left open holds readers up no longer
TRANSACTION_S = 25.0  # below that: what is given up here is tried again, and not taken for fenced
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
    value_serializer: Callable[[Any], bytes | None] | None = None,
) -> AsyncIterator[AIOKafkaProducer]:
    """A producer with this transactional id.

    Raises:
        KafkaError, TimeoutError: there is none to be had; the former one may be at work.
    """
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
        with contextlib.suppress(KafkaError, TimeoutError):  # what was to be done is done, or told already
            async with asyncio.timeout(TRANSACTION_STOP_TIMEOUT_S):
                await producer.stop()


@asynccontextmanager
async def one_transaction(producer: AIOKafkaProducer) -> AsyncIterator[None]:
    """One transaction, bounded in time; what goes wrong ends with the producer: its successor settles it."""
    async with asyncio.timeout(TRANSACTION_S):
        await producer.begin_transaction()
        try:
            yield
        except BaseException:
            # For the readers, who would wait for it; of no use (and refused) once the producer is fenced.
            with contextlib.suppress(KafkaError, TimeoutError, AssertionError):
                async with asyncio.timeout(TRANSACTION_ABORT_TIMEOUT_S):
                    await producer.abort_transaction()
            raise
        await producer.commit_transaction()


RecordsWithHeaders = Iterable[tuple[Record, Headers]]


def batches_of(records: RecordsWithHeaders, codec: int, max_batch_bytes: int) -> list[BatchBuilder]:
    """Records in as few batches of a transaction as `max_batch_bytes` allows, in order, with these headers
    and their own timestamps; one that is too large by itself comes alone. `codec`: Kafka's number."""
    found: list[BatchBuilder] = []
    # The encoder tells a batch's first timestamp of -1 from none only where all are so.
    for _, some in groupby(records, key=lambda row: row[0].timestamp == NO_TIMESTAMP):
        batch: BatchBuilder | None = None
        for record, headers in some:
            row = {"timestamp": record.timestamp, "key": record.key, "value": record.value}
            if batch is None or batch.append(**row, headers=list(headers)) is None:
                batch = BatchBuilder(max_batch_bytes, codec, is_transactional=True)
                batch.append(**row, headers=list(headers))
                found.append(batch)
    return found
