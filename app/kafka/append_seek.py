"""What a producer id has written to a partition, read from the log's batch headers.

A broker's own memory of producers (duplicates, DescribeProducers, fencing) is not enough for copies: when it
starts, and every ten minutes, it forgets a producer whose last batch's *record timestamps* are older than
`producer.id.expiration.ms` (a day). Copies keep the source's timestamps: of a backlog all is forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest

from app.core.record_batch import Batch, BatchHeader, iter_batches
from app.kafka.append_protocol import EpochEndRequest
from app.kafka.clusters import READ_UNCOMMITTED, ClusterClient, ClusterUnreachable
from app.kafka.topic_ids import TopicIdsRequest

WAIT_S, RETRY_S = 10.0, 0.2
FETCH_WAIT_MS = 50
FETCH_BYTES = 1024 * 1024
OFFSET_OUT_OF_RANGE = 1
CONNECTION = "append-seek"


async def written(
    cluster: ClusterClient, topic: str, partition: int, producer_id: int, start_offset: int
) -> list[BatchHeader]:
    """The headers of a producer's batches from `start_offset` up to the log's end, in order; [] when the log
    does not reach to `start_offset` (any more). What the leader has and its replicas have not is waited for.

    Raises:
        ClusterUnreachable: no leader answered, or its replicas did not follow, in time.
        KafkaError: not authorised (Read and Describe on the topic).
    """
    found: list[BatchHeader] = []

    def take(batch: Batch) -> None:
        if batch.header.producer_id == producer_id:
            found.append(batch.header)

    await walk(cluster, topic, partition, start_offset, take)
    return found


async def walk(
    cluster: ClusterClient, topic: str, partition: int, start_offset: int, take: Callable[[Batch], None]
) -> int:
    """Hands every batch from `start_offset` to the log's end to `take`, in order, committed or not.

    Returns:
        Where the log ends; -1 when it does not reach to `start_offset` (any more).

    Raises:
        As `written`.
    """
    next_offset, deadline_s = start_offset, time.monotonic() + WAIT_S
    while True:
        trouble: Exception = ClusterUnreachable("it has no leader")
        try:
            node = await cluster.leader(topic, partition)
            if node is not None:
                log_end = await _log_end(cluster, node, topic, partition)
                asked = [(topic, [(partition, next_offset, FETCH_BYTES)])]
                request = FetchRequest(FETCH_WAIT_MS, 1, FETCH_BYTES, READ_UNCOMMITTED, asked)
                response = await cluster.send(node, request, CONNECTION)
                ((_, ((_, code, high_watermark, *rest),)),) = response.topics
                if code == OFFSET_OUT_OF_RANGE:
                    return -1
                if code == 0:
                    for batch in iter_batches(rest[-1]):
                        if batch.header.next_offset > next_offset:
                            next_offset = batch.header.next_offset
                            take(batch)
                            deadline_s = time.monotonic() + WAIT_S
                    if next_offset >= max(log_end, high_watermark):
                        return next_offset
                    if next_offset < high_watermark:
                        continue
                    trouble = ClusterUnreachable(f"its replicas have offset {high_watermark} of {log_end}")
                else:
                    trouble = for_code(code)()
        except (KafkaError, OSError, TimeoutError) as error:
            trouble = error
        if isinstance(trouble, KafkaError) and not trouble.retriable:
            raise trouble
        if time.monotonic() > deadline_s:
            raise ClusterUnreachable(f"{topic}-{partition} in {cluster.name}: {trouble!r}") from trouble
        cluster.client.force_metadata_update()
        await asyncio.sleep(RETRY_S)


async def _log_end(cluster: ClusterClient, node: int, topic: str, partition: int) -> int:
    """The end of the leader's log. Above the high watermark may lie what nobody can read yet."""
    described = await cluster.send(node, TopicIdsRequest([topic]))
    epochs = {entry[1]: entry[3] for _, _, _, _, partitions, *_ in described.topics for entry in partitions}
    response = await cluster.send(node, EpochEndRequest(topic, partition, epochs.get(partition, -1)))
    ((_, ((code, _, _, end_offset),)),) = response.topics
    if code:
        raise for_code(code)()
    return int(end_offset)
