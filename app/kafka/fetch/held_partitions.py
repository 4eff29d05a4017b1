"""Names the transaction that holds up a fetched partition, so that it is not mistaken for slow fetching.

A reader of committed records gets nothing behind the last stable offset, where the first open transaction
begins. A producer that died is ended by its transaction's timeout. A transaction whose end was lost holds the
partition up for ever (KIP-664).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog
from aiokafka.errors import KafkaError

from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.deliveries import FetchIncident, PartitionFetch
from app.kafka.producers.open_transactions import OpenTransaction, first_open_transaction
from app.kernel.clock import iso

log = structlog.get_logger(__name__)

HELD_S = 10.0  # shorter transactions are not reported
ASKED_AT_ONCE = 10  # partitions per poll
ANSWER_TIMEOUT_S = 5.0


class HeldPartitions:
    def __init__(self, client: ClusterClient, deliver: Callable[[FetchIncident], Awaitable[None]]) -> None:
        self._client = client
        self._deliver = deliver

    async def try_poll(self, parts: Iterable[PartitionFetch], now_s: float) -> None:
        """Reports partitions that are held up for `HELD_S`, each once. Never raises; the next poll tries
        again."""
        held = [part for part in parts if part.is_held(now_s - HELD_S) and not part.incident]
        await asyncio.gather(*(self._try_report(part) for part in held[:ASKED_AT_ONCE]))

    async def _try_report(self, part: PartitionFetch) -> None:
        if (node := part.node) is None:  # a new leader is being elected
            return
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                found = await first_open_transaction(self._client, node, part.topic, part.partition)
            if part.removed or not part.is_held():
                return
            part.incident = _words(part, found)
            remedy = _remedy(part, found, self._client.spec.bootstrap)
            await self._deliver(FetchIncident(part.key, part.topic, part.partition, part.incident, remedy))
        except (KafkaError, OSError, TimeoutError) as error:
            log.debug("the transaction that holds up a partition is not known", error=repr(error))
        except Exception:
            log.exception(
                "a held partition could not be reported", topic=part.topic, partition=part.partition
            )


def _words(part: PartitionFetch, found: OpenTransaction | None) -> str:
    place = f"{part.topic}-{part.partition} at offset {part.held_at}"
    waiting = f"{part.high_watermark - part.held_at} messages wait behind it"
    if found is None:
        return f"an open transaction holds up {place}; {waiting}"
    name = f"{found.transactional_id!r}, {found.state}" if found.state else "not known to any coordinator"
    return (
        f"an open transaction holds up {place} since {iso(found.since_ms)}; {waiting}. Its producer is "
        f"{found.producer_id} (transactional id {name})"
    )


def _remedy(part: PartitionFetch, found: OpenTransaction | None, bootstrap: Iterable[str]) -> str:
    command = (
        f"kafka-transactions.sh --bootstrap-server {','.join(bootstrap)} abort --topic {part.topic} "
        f"--partition {part.partition} --start-offset {part.held_at}"
    )
    if found is not None and found.timeout_ms and found.state == "Ongoing":
        ends = iso(found.since_ms + found.timeout_ms)
        return f"end the producer's transaction; Kafka ends it at {ends}. To abort it now: {command}"
    return f"it does not end by itself; abort it: {command}"
