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
from app.kafka.append_marker import mark
from app.kafka.clusters import READ_UNCOMMITTED, ClusterClient, ClusterUnreachable
from app.kafka.epochs import epoch_ends

WAIT_S, RETRY_S = 10.0, 0.2
FETCH_WAIT_MS = 50
FETCH_BYTES = 1024 * 1024
OFFSET_OUT_OF_RANGE = 1
CONNECTION = "append-seek"


class TooFewReplicas(ClusterUnreachable):
    """What the leader has appended is not in as many replicas as it takes to count."""


async def written(
    cluster: ClusterClient, topic: str, partition: int, producer_id: int, start_offset: int
) -> list[BatchHeader]:
    """The headers of a producer's batches from `start_offset` up to the log's end, in order; [] when the log
    does not reach to `start_offset` (any more). What the leader has and its replicas have not is waited for.

    Raises:
        ClusterUnreachable: no leader answered, or (TooFewReplicas) its replicas did not follow, in time.
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
    """Hands every batch from `start_offset` to where the log ends now to `take`, in order, committed or not.
    Where the leader has more than it shows for `WAIT_S`, it is asked to append a marker (`append_marker`).

    Returns:
        Where it has read to; -1 when the log does not reach to `start_offset` (any more).

    Raises:
        As `written`.
    """
    next_offset, deadline_s = start_offset, time.monotonic() + WAIT_S
    log_end = -1  # asked of each leader once: what comes later is not looked for
    is_marked = False
    while True:
        trouble: Exception = ClusterUnreachable("it has no leader")
        node: int | None = None
        try:
            node = await cluster.leader(topic, partition)
            if node is not None:
                if log_end < 0:
                    log_end = await _log_end(cluster, node, topic, partition)
                    if next_offset >= log_end >= 0:  # a fetch of what is not there would only wait for it
                        return log_end if next_offset == log_end else -1
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
                    if next_offset >= (log_end if log_end >= 0 else high_watermark):
                        return next_offset
                    if next_offset < high_watermark:
                        continue
                    trouble = TooFewReplicas(
                        f"its leader has offset {log_end}, too few replicas have more than {high_watermark} "
                        "(NotEnoughReplicas)"
                    )
                else:
                    trouble = for_code(code)()
        except (KafkaError, OSError, TimeoutError) as error:
            trouble = error
        log_end = -1
        if isinstance(trouble, KafkaError) and not trouble.retriable:
            raise trouble
        if time.monotonic() > deadline_s:
            at = f"{topic}-{partition} in {cluster.name}"
            if node is None or not isinstance(trouble, TooFewReplicas):
                raise ClusterUnreachable(f"{at}: {trouble!r}") from trouble
            why = "it took one already" if is_marked else await mark(cluster, node, topic, partition)
            if why:
                raise TooFewReplicas(f"{at}: {trouble}; no marker behind it: {why}") from trouble
            is_marked, deadline_s = True, time.monotonic() + WAIT_S
        cluster.client.force_metadata_update()
        await asyncio.sleep(RETRY_S)


async def _log_end(cluster: ClusterClient, node: int, topic: str, partition: int) -> int:
    """The end of the leader's log. Above the high watermark may lie what nobody can read yet."""
    await cluster.topic_ids([topic], node)
    epoch, at = cluster.leader_epoch(topic, partition), (topic, partition)
    ends = await epoch_ends(cluster, node, {at: (epoch, epoch)})
    if at not in ends:
        raise ClusterUnreachable(f"broker {node} does not tell where the log ends")
    if ends[at].code:
        raise for_code(ends[at].code)()
    return ends[at].end_offset
