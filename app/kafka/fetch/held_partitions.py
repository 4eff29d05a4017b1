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
from app.kafka.producers.open_transactions import ONGOING, OpenTransaction, first_open_transaction
from app.kernel.clock import iso

log = structlog.get_logger(__name__)

HELD_S = 10.0  # shorter transactions are not reported
SEEN_S = 2.0  # an older answer of the partition's leader says nothing any more
ASKED_AT_ONCE = 10  # partitions per poll
ANSWER_TIMEOUT_S = 5.0


class HeldPartitions:
    def __init__(self, client: ClusterClient, deliver: Callable[[FetchIncident], Awaitable[None]]) -> None:
        self._client = client
        self._deliver = deliver

    async def try_poll(self, parts: Iterable[PartitionFetch], now_s: float) -> None:
        """Reports partitions that are held up for `HELD_S`, each once. Never raises; the next poll tries
        again."""
        held = [
            part
            for part in parts
            if part.is_held(now_s - HELD_S) and part.held_seen_s > now_s - SEEN_S and not part.incident
        ]
        await asyncio.gather(*(self._try_report(part) for part in held[:ASKED_AT_ONCE]))

    async def _try_report(self, part: PartitionFetch) -> None:
        if (node := part.node) is None:  # a new leader is being elected
            return
        held_at = part.held_at
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                found = await first_open_transaction(self._client, node, part.topic, part.partition)
            has_ended = found is not None and found.start_offset != held_at
            if part.removed or part.held_at != held_at or has_ended:
                return
            part.incident = _words(part, found)
            remedy = _remedy(part, found, self._client.spec.bootstrap)
            await self._deliver(FetchIncident(part.key, part.topic, part.partition, part.incident, remedy))
        except (KafkaError, OSError, TimeoutError) as error:
            log.debug("the transaction that holds up a partition is not known", error=repr(error))
        except Exception:
            log.exception("a held partition was not reported", topic=part.topic, partition=part.partition)


def _words(part: PartitionFetch, found: OpenTransaction | None) -> str:
    place = f"{part.topic}-{part.partition} at offset {part.held_at}"
    waiting = f"{part.high_watermark - part.held_at} messages wait behind it"
    if found is None:
        return f"an open transaction holds up {place}; {waiting}"
    name = (
        f"{found.transactional_id!r}, {found.state or 'state not known'}"
        if found.transactional_id
        else ("not known to the coordinators that answered")
    )
    return (
        f"an open transaction holds up {place} since {iso(found.since_ms)}; {waiting}. Its producer is "
        f"{found.producer_id} (transactional id {name})"
    )


def _remedy(part: PartitionFetch, found: OpenTransaction | None, bootstrap: Iterable[str]) -> str:
    tool = f"kafka-transactions.sh --bootstrap-server {','.join(bootstrap)}"
    place = f"--topic {part.topic} --partition {part.partition}"
    abort = f"{tool} abort {place} --start-offset {part.held_at}"
    if found is not None and found.state == ONGOING:
        ends = f"; Kafka aborts it at {iso(found.since_ms + found.timeout_ms)}" if found.timeout_ms else ""
        return f"let its producer end it{ends}. Only if the producer is gone for good: {abort}"
    if found is not None and found.transactional_id:
        return "its coordinator is ending it; if that lasts, see the coordinator's log"
    return (
        f"find out whether it hangs: {tool} find-hanging {place}; if so: {abort}. Workers see its "
        "transactional id if they may Describe it"
    )
