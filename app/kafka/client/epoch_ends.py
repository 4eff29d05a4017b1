"""Leader epochs show which history of a partition an offset belongs to (KIP-320).

Every election gives a partition's leader a higher epoch, and every batch has the epoch in which it was
written. A leader with fewer records than its predecessor (an unclean election) begins its epoch below
offsets that were read, so those offsets become other records. Therefore:
1. A fetch names the epoch in which the position was compared; another leader refuses it (FENCED_EPOCH).
2. Before the first fetch in a new epoch, its leader reports where the epoch of the last read record ends
   in its log (OffsetForLeaderEpoch). If that is below the position, the logs diverge there.

The epoch of a later record also works, because a leader that has the record has everything before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int16, Int32, Int64, Schema, String

from app.kafka.client.cluster import ClusterClient

NOT_KNOWN = -1  # an epoch, or an end
FENCED_EPOCH, UNKNOWN_EPOCH = 74, 75  # FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH (the broker is behind)
_CONSUMER = -1

Partition = tuple[str, int]


UTF8 = String("utf-8")
_ENDS = Array(("error_code", Int16), ("partition", Int32), ("epoch", Int32), ("end_offset", Int64))
_EPOCHS = Array(("partition", Int32), ("current_epoch", Int32), ("epoch", Int32))


class EpochEndResponse(Response):
    """OffsetForLeaderEpoch response, version 3."""

    API_KEY = 23
    API_VERSION = 3
    SCHEMA = Schema(("throttle_time_ms", Int32), ("topics", Array(("topic", UTF8), ("partitions", _ENDS))))


class EpochEndRequestV3(RequestStruct):
    """OffsetForLeaderEpoch request, version 3."""

    API_KEY = 23
    API_VERSION = 3
    RESPONSE_TYPE = EpochEndResponse
    SCHEMA = Schema(("replica_id", Int32), ("topics", Array(("topic", UTF8), ("partitions", _EPOCHS))))


class EpochEndRequest(Request[EpochEndRequestV3]):
    """Asks a leader where epochs end in its log, which may be above its high watermark. `topics`: topic,
    (partition, the epoch in which the leader should lead, the epoch in question)."""

    API_KEY = 23

    def __init__(self, topics: Sequence[tuple[str, Sequence[tuple[int, int, int]]]]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[EpochEndRequestV3]) -> EpochEndRequestV3:
        return request_struct_class(_CONSUMER, self._topics)


class EpochEnd(NamedTuple):
    """The latest epoch in a leader's log up to the requested one, and its end; each may be `NOT_KNOWN`."""

    code: int
    epoch: int
    end_offset: int

    def diverges_at(self, next_offset: int) -> bool:
        """Whether the leader's log diverges below `next_offset` from the one that was read."""
        return 0 <= self.end_offset < next_offset


async def epoch_ends(
    client: ClusterClient, node: int, epochs: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, EpochEnd]:
    """The ends of epochs of partitions that `node` leads; {} if the broker is too old. `epochs`: (current
    epoch, requested epoch) by partition. Raises KafkaError, OSError, TimeoutError."""
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, partition), (current, epoch) in epochs.items():
        topics.setdefault(topic, []).append((partition, current, epoch))
    try:
        response = await client.send(node, EpochEndRequest(list(topics.items())))
    except (NotImplementedError, IncompatibleBrokerVersion):
        return {}
    return {
        (topic, partition): EpochEnd(code, epoch, end_offset)
        for topic, partitions in response.topics
        for code, partition, epoch, end_offset in partitions
    }
