"""Producer ids.

Sources: KIP-98 (ids, epochs, sequences), KIP-360 (an idempotent producer raises its epoch by itself and
begins again at sequence 0).

Taking a partition over: the successor reads what the predecessor's id wrote (`history.own`, from the
last acknowledged offset on), and appends under `producer.bumped()` from sequence 0 on. From its first
acknowledged batch on the broker refuses whatever the predecessor still sends (INVALID_PRODUCER_EPOCH). Before
that, and once the broker has forgotten both (see append_seek), the predecessor may still write: the fence is
a second one, behind the lease of the job.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.transaction import InitProducerIdRequest

from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.permissions import CLUSTER, CLUSTER_NOT_AUTHORISED, lacks

WAIT_S = 30.0
PRODUCER_ID_RETRY_INTERVAL_S = 0.2
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


async def new_producer(cluster: ClusterClient) -> ProducerId:
    """An id that nobody has had.

    Raises:
        ClusterUnreachable: no broker gave one in time. KafkaError: not authorised (IdempotentWrite).
    """
    deadline_s = time.monotonic() + WAIT_S
    while True:
        request = InitProducerIdRequest(None, _UNUSED_TIMEOUT_MS)  # type: ignore[arg-type]  # null is allowed
        try:
            response = await cluster.send(await cluster.any_node(), request)
            if response.error_code == 0:
                return ProducerId(response.producer_id, response.producer_epoch)
            words = []
            if response.error_code == CLUSTER_NOT_AUTHORISED:
                words = [lacks(cluster.spec, "cluster", CLUSTER, "IdempotentWrite")]
            trouble: Exception = for_code(response.error_code)(*words)
            if response.error_code not in LOADING:
                raise trouble
        except (KafkaError, OSError, TimeoutError, ClusterUnreachable) as error:
            if isinstance(error, KafkaError) and not error.retriable:
                raise
            trouble = error
        if time.monotonic() > deadline_s:
            raise ClusterUnreachable(f"cluster {cluster.name} gives no producer id: {trouble!r}") from trouble
        await asyncio.sleep(PRODUCER_ID_RETRY_INTERVAL_S)
