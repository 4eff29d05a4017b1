"""Reads a producer id's batches in a partition from the log's batch headers.

A broker's own memory of producers (duplicates, DescribeProducers, fencing) is not enough for copies. When
a broker starts, and every ten minutes, it forgets a producer whose last batch's *record timestamps* are
older than `producer.id.expiration.ms` (a day). Copies keep the source's timestamps, so it forgets the
producer of a backlog.

Other producers may write much to the same partition. Where the leader still remembers the producer, the
log is read only to its last batch, and not at all if that batch is known already (`own`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from app.kafka.client.cluster import EARLIEST, READ_UNCOMMITTED, ClusterClient, ClusterUnreachable
from app.kafka.client.epoch_ends import epoch_ends
from app.kafka.client.only_partition import only_partition
from app.kafka.client.permissions import NOT_AUTHORISED, lacks
from app.kafka.client.topic_configs import describe
from app.kafka.producers.state import remembered
from app.kafka.records.batch import RecordBatch, iter_batches
from app.kafka.records.producer_sequences import ProducerStamp

WAIT_S, RETRY_S = 10.0, 0.2
FETCH_WAIT_MS = 50
FETCH_BYTES = 1024 * 1024
OFFSET_OUT_OF_RANGE = 1
CONNECTION = "append-seek"
MIN_IN_SYNC = "min.insync.replicas"


class TooFewReplicas(ClusterUnreachable):
    """Too few replicas have the records that the leader appended, so they may still be lost."""


class OwnBatches(NamedTuple):
    """How far a log was searched for a producer's batches.

    Attributes:
        end: No other batch of the producer lies below it; -1: the log ends before the start.
        start: Where the search began; higher than requested when retention deleted the beginning.
        last: The stamp (epoch, next sequence) after the producer's last batch, from the leader's memory;
            None: the leader does not know it.
    """

    end: int
    start: int
    last: ProducerStamp | None


async def own(
    cluster: ClusterClient, topic: str, partition: int, producer_id: int, start_offset: int,
    known: ProducerStamp | None, take: Callable[[RecordBatch], None],
) -> OwnBatches:  # fmt: skip
    """Calls `take` with a producer's batches from `start_offset`, or from the log's start if that is higher.

    Args:
        known: The stamp after the producer's last batch below `start_offset`; None: not known.

    Raises:
        ClusterUnreachable: No leader answered, or (TooFewReplicas) its replicas did not follow, in time.
        KafkaError: An error that a retry does not heal, such as a missing right (Read and Describe on the
        topic).
    """
    log_end, last = await last_of(cluster, topic, partition, producer_id)
    if last is not None and last == known and log_end >= start_offset:
        return OwnBatches(log_end, start_offset, last)
    found_last = False

    def take_own(batch: RecordBatch) -> bool:
        nonlocal found_last
        header = batch.header
        if header.producer_id == producer_id:
            take(batch)
            first = ProducerStamp(producer_id, header.producer_epoch, header.base_sequence)
            found_last = first.behind(header.record_count) == last
        return found_last

    at, start = (topic, partition), start_offset
    end = await walk(cluster, *at, start, take_own)
    if end < 0:
        log_start = (await cluster.offsets([at], EARLIEST)).get(at, -1)
        if log_start > start:
            start = log_start
            end = await walk(cluster, *at, start, take_own)
    return OwnBatches(max(end, log_end) if found_last else end, start, last)


async def last_of(
    cluster: ClusterClient, topic: str, partition: int, producer_id: int
) -> tuple[int, ProducerStamp | None]:
    """The log's end, and the stamp after the producer's last batch; (-1, None) if no broker answers."""
    try:
        node = await cluster.leader(topic, partition)
        if node is not None:
            log_end = await _log_end(cluster, node, topic, partition)
            return log_end, await remembered(cluster, node, topic, partition, producer_id)
    except (KafkaError, OSError, TimeoutError, ClusterUnreachable):
        pass  # a caller that must know reads the log
    return -1, None


async def reaches(cluster: ClusterClient, topic: str, partition: int, offset: int) -> bool:
    """Whether the log has `offset`, or ends there. Raises as `own`."""
    return await walk(cluster, topic, partition, offset, lambda _: True) >= 0


async def walk(
    cluster: ClusterClient, topic: str, partition: int, start_offset: int, take: Callable[[RecordBatch], bool]
) -> int:
    """Calls `take` with every batch from `start_offset` to the present log end, in order, until it returns
    True.

    Batches of open and aborted transactions are included. It waits for records above the high watermark.

    Returns:
        The next offset that it would read; -1 when the log does not reach to `start_offset`, or not any more.

    Raises:
        As `own`.
    """
    next_offset, deadline_s = start_offset, time.monotonic() + WAIT_S
    log_end = -1  # the end at the first request to this leader; later batches are not needed
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
                _, code, high_watermark, *rest = only_partition(response)
                if code == OFFSET_OUT_OF_RANGE:
                    return -1
                if code == 0:
                    for batch in iter_batches(rest[-1]):
                        if batch.header.next_offset > next_offset:
                            next_offset = batch.header.next_offset
                            if take(batch):
                                return next_offset
                            deadline_s = time.monotonic() + WAIT_S
                    if next_offset >= (log_end if log_end >= 0 else high_watermark):
                        return next_offset
                    if next_offset < high_watermark:
                        continue
                    trouble = TooFewReplicas(
                        f"Nothing is appended, since records in [{high_watermark}, {log_end}) may still be "
                        f"lost: the leader's high watermark stays at {high_watermark} (NotEnoughReplicas)"
                    )
                else:
                    trouble = _error(code, cluster, topic, "Read")
        except (KafkaError, OSError, TimeoutError) as error:
            trouble = error
        log_end = -1
        if isinstance(trouble, KafkaError) and not trouble.retriable:
            raise trouble
        if time.monotonic() > deadline_s:
            at = f"{topic}-{partition} in {cluster.name}"
            if node is not None and isinstance(trouble, TooFewReplicas):
                raise TooFewReplicas(f"{at}: {await _in_sync(cluster, node, topic, partition)}. {trouble}")
            raise ClusterUnreachable(f"{at}: {trouble!r}") from trouble
        cluster.client.force_metadata_update()
        await asyncio.sleep(RETRY_S)


def _error(code: int, cluster: ClusterClient, topic: str, operation: str) -> KafkaError:
    words = [lacks(cluster.spec, "topic", topic, operation)] if code == NOT_AUTHORISED else []
    error: KafkaError = for_code(code)(*words)
    return error


async def _in_sync(cluster: ClusterClient, node: int, topic: str, partition: int) -> str:
    """How many replicas are in sync and how many are needed, as the leader knows; for people."""
    try:
        request = MetadataRequest([topic], allow_auto_topic_creation=False)
        (found,) = (await cluster.send(node, request, CONNECTION)).topics
        ((replicas, in_sync),) = [(one[3], one[4]) for one in found[3] if one[1] == partition]
        settings = (await describe(cluster, [topic], [MIN_IN_SYNC], node))[topic]
    except (KafkaError, OSError, TimeoutError, NotImplementedError, LookupError, ValueError) as error:
        return f"how many of its replicas are in sync is not known ({error!r})"
    least = (
        f"not known ({settings})" if isinstance(settings, KafkaError) else settings.config.get(MIN_IN_SYNC)
    )
    return f"{len(in_sync)} of {len(replicas)} replicas are in sync, {MIN_IN_SYNC} is {least}"


async def _log_end(cluster: ClusterClient, node: int, topic: str, partition: int) -> int:
    """The end of the leader's log. Above the high watermark may lie what nobody can read yet."""
    await cluster.topic_ids([topic], node)
    epoch, at = cluster.leader_epoch(topic, partition), (topic, partition)
    ends = await epoch_ends(cluster, node, {at: (epoch, epoch)})
    if at not in ends:
        raise ClusterUnreachable(f"broker {node} does not tell where the log ends")
    if ends[at].code:
        raise _error(ends[at].code, cluster, topic, "Describe")
    return ends[at].end_offset
