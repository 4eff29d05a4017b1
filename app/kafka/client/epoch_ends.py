"""Leader epochs: which history of a partition an offset is of (KIP-320).

Every election gives a partition's leader a higher epoch, and its batches say in which they were written. A
leader that has fewer records than the one before it (an unclean election) begins its epoch below offsets that
were read: they are other records now. So
1. a fetch names the epoch that the position was compared in: another leader refuses it (FENCED);
2. before anything is fetched in a new epoch, its leader is asked where the epoch of the last record that was
   read ends in its own log (OffsetForLeaderEpoch): if below the position, the logs part there.

The epoch of a later record of the same history does as well: with it a leader has all that was before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v9, FetchRequest_v11, FetchRequestStruct
from aiokafka.protocol.types import Array, Int16, Int32, Int64, Schema, String

from app.kafka.client.cluster import READ_COMMITTED, ClusterClient

NOT_KNOWN = -1  # an epoch, or an end
FENCED, AHEAD = 74, 75  # FENCED_LEADER_EPOCH; UNKNOWN_LEADER_EPOCH: the broker does not know of it yet
_CONSUMER, _NO_SESSION, _FINAL_EPOCH = -1, 0, -1

Partition = tuple[str, int]


class EpochEndResponse(Response):
    """OffsetForLeaderEpoch response, version 3."""

    API_KEY = 23
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16), ("partition", Int32), ("epoch", Int32), ("end_offset", Int64)
                    ),
                ),
            ),
        ),
    )


class EpochEndRequestV3(RequestStruct):
    """OffsetForLeaderEpoch request, version 3."""

    API_KEY = 23
    API_VERSION = 3
    RESPONSE_TYPE = EpochEndResponse
    SCHEMA = Schema(
        ("replica_id", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                ("partitions", Array(("partition", Int32), ("current_epoch", Int32), ("epoch", Int32))),
            ),
        ),
    )


class EpochEndRequest(Request[EpochEndRequestV3]):
    """Asks a leader where epochs end in its log (not: its high watermark): topic, (partition, the epoch that
    the leader is thought to lead in, the epoch)."""

    API_KEY = 23

    def __init__(self, topics: Sequence[tuple[str, Sequence[tuple[int, int, int]]]]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[EpochEndRequestV3]) -> EpochEndRequestV3:
        return request_struct_class(_CONSUMER, self._topics)


class EpochEnd(NamedTuple):
    """The latest epoch of a leader's log that is not above the one asked for, and where it ends there; either
    may be `NOT_KNOWN`. `code`: Kafka's."""

    code: int
    epoch: int
    end_offset: int

    def parts_at(self, next_offset: int) -> bool:
        """Whether the leader's log parts from the one that was read up to `next_offset`."""
        return 0 <= self.end_offset < next_offset


async def epoch_ends(
    client: ClusterClient, node: int, asked: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, EpochEnd]:
    """For (current epoch, epoch) of partitions that `node` leads. {}: the broker is too old to tell.

    Raises:
        KafkaError, OSError, TimeoutError.
    """
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, partition), (current, epoch) in asked.items():
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


class EpochFetchRequest(Request[FetchRequestStruct]):
    """A fetch that names the leader's epoch, where the broker is new enough (version 9, Kafka 2.1);
    aiokafka's own never does.

    Args:
        topics: topic, (partition, next offset, bytes).
        epochs: of the leaders, `NOT_KNOWN` for any.
    """

    API_KEY = 1

    def __init__(
        self, wait_ms: int, min_bytes: int, max_bytes: int,
        topics: list[tuple[str, list[tuple[int, int, int]]]], epochs: Mapping[Partition, int],
    ) -> None:  # fmt: skip
        self._limits = wait_ms, min_bytes, max_bytes
        self._topics = topics
        self._epochs = epochs

    def build(self, request_struct_class: type[FetchRequestStruct]) -> FetchRequestStruct:
        version = request_struct_class.API_VERSION
        if version < FetchRequest_v9.API_VERSION:
            plain = FetchRequest(*self._limits, READ_COMMITTED, self._topics)
            return plain.build(request_struct_class)
        topics = [
            (
                topic,
                [
                    (partition, self._epochs.get((topic, partition), NOT_KNOWN), next_offset, -1, size)
                    for partition, next_offset, size in partitions
                ],
            )
            for topic, partitions in self._topics
        ]
        rack = [""] if version >= FetchRequest_v11.API_VERSION else []
        return request_struct_class(
            _CONSUMER, *self._limits, READ_COMMITTED, _NO_SESSION, _FINAL_EPOCH, topics, [], *rack
        )
