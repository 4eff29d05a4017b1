"""Producer ids: a new one, and what a partition's log knows of those that wrote to it.

Sources: KIP-98 (ids, epochs, sequences), KIP-360 (an idempotent producer raises its epoch by itself and
begins again at sequence 0), KIP-664 (DescribeProducers).

Taking a partition over: the successor reads what the predecessor's id wrote (`append_seek.written`, from the
last acknowledged offset on; `describe_producers` tells the sum), and appends under `producer.bumped()` from
sequence 0 on. From its first acknowledged batch on the broker refuses whatever the predecessor still sends
(INVALID_PRODUCER_EPOCH). Before that, and once the broker has forgotten both (see append_seek), the
predecessor may still write: the fence is a second one, behind the lease of the job.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.transaction import InitProducerIdRequest

from app.kafka.append_protocol import DescribeProducersRequest
from app.kafka.clusters import LEADER_TROUBLE, ClusterClient, ClusterUnreachable

WAIT_S = 30.0
RETRY_S = 0.2
MAX_EPOCH = (1 << 15) - 1
LOADING = {7, 14, 15, 16, 51}  # right after a broker's start
_UNUSED_TIMEOUT_MS = 60_000


class ProducerId(NamedTuple):
    """A producer's id and epoch. Who appends to a partition must be the only one that ever did so under both:
    a batch whose sequences were seen before is acknowledged as a duplicate, and not written."""

    id: int
    epoch: int = 0

    def bumped(self) -> ProducerId | None:
        """The same with the next epoch; None when there is none left."""
        return ProducerId(self.id, self.epoch + 1) if self.epoch < MAX_EPOCH else None


class ProducerState(NamedTuple):
    """What a partition's log knows of a producer.

    `last_sequence`: of the epoch's last record. With sequences from 0 on, last_sequence + 1 records of this
    epoch were written, modulo 2**31; -1: none (yet). `last_timestamp_ms`: of its last batch.
    """

    producer: ProducerId
    last_sequence: int
    last_timestamp_ms: int


async def new_producer(cluster: ClusterClient, timeout_s: float = WAIT_S) -> ProducerId:
    """An id that nobody has had.

    Raises:
        ClusterUnreachable: no broker gave one in time. KafkaError: not authorised (IdempotentWrite).
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        request = InitProducerIdRequest(None, _UNUSED_TIMEOUT_MS)  # type: ignore[arg-type]  # null is allowed
        try:
            response = await cluster.send(await cluster.any_node(), request)
            if response.error_code == 0:
                return ProducerId(response.producer_id, response.producer_epoch)
            trouble: Exception = for_code(response.error_code)()
            if response.error_code not in LOADING:
                raise trouble
        except (KafkaError, OSError, TimeoutError, ClusterUnreachable) as error:
            if isinstance(error, KafkaError) and not error.retriable:
                raise
            trouble = error
        if time.monotonic() > deadline_s:
            raise ClusterUnreachable(f"cluster {cluster.name} gives no producer id: {trouble!r}") from trouble
        await asyncio.sleep(RETRY_S)


async def describe_producers(
    cluster: ClusterClient, topic: str, partition: int, timeout_s: float = WAIT_S
) -> dict[int, ProducerState]:
    """Producer id -> its state, of those that the partition's leader remembers: surely not for longer than
    `producer.id.expiration.ms` (a day) after the newest record's own timestamp; see append_seek.

    Raises:
        ClusterUnreachable: no leader answered in time. KafkaError: not authorised (Read on the topic), or the
            brokers are older than Kafka 2.8.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        trouble: Exception = ClusterUnreachable(f"{topic}-{partition} has no leader")
        try:
            node = await cluster.leader(topic, partition)
            if node is not None:
                response = await cluster.send(node, DescribeProducersRequest(topic, partition))
                ((_, ((_, code, message, producers, _),), _),) = response.topics
                if code == 0:
                    return {
                        entry[0]: ProducerState(ProducerId(entry[0], entry[1]), entry[2], entry[3])
                        for entry in producers
                    }
                trouble = for_code(code)(message)
                if code not in LEADER_TROUBLE:
                    raise trouble
        except (KafkaError, OSError, TimeoutError) as error:
            if isinstance(error, KafkaError) and not error.retriable:
                raise
            trouble = error
        if time.monotonic() > deadline_s:
            raise ClusterUnreachable(f"cluster {cluster.name}: {trouble!r}") from trouble
        cluster.client.force_metadata_update()
        await asyncio.sleep(RETRY_S)
