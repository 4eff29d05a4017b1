"""The end of a transaction that never began: a record that no consumer is shown, to move a high watermark.

A leader moves its high watermark when something is appended, when a replica has fetched more, or when other
replicas are in sync, and never while fewer of them are than `min.insync.replicas` (KIP-966). Lowering that
setting is none of these: what the leader had appended before stays hidden, and whoever must know what it is
before appending anything would wait for ever. A marker says nothing of anybody's records, so that anybody may
append one, with a lease or without; it is refused while too few replicas are in sync.

Sources: Apache Kafka's protocol guide, WriteTxnMarkers, as `kafka-transactions abort` sends it (KIP-664). It
takes ClusterAction on the cluster, or Alter (KIP-1037).
"""

from __future__ import annotations

from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.producers.ids import ProducerId, new_producer

CONNECTION = "append-marker"  # its answer may take as long as replicas do
PRODUCER_ID_TIMEOUT_S = 5.0
_ABORT = False
_COORDINATOR_EPOCH = 0


class MarkersResponse(Response):
    """WriteTxnMarkers response, version 1."""

    API_KEY = 27
    API_VERSION = 1
    SCHEMA = Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        (
                            "partitions",
                            CompactArray(("partition", Int32), ("error_code", Int16), ("tags", TaggedFields)),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class MarkersRequestV1(RequestStruct):
    """WriteTxnMarkers request, version 1."""

    FLEXIBLE_VERSION = True
    API_KEY = 27
    API_VERSION = 1
    RESPONSE_TYPE = MarkersResponse
    SCHEMA = Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("committed", Boolean),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("coordinator_epoch", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class MarkersRequest(Request[MarkersRequestV1]):
    """An aborted transaction's end in one partition, to be acknowledged by all in-sync replicas."""

    API_KEY = 27

    def __init__(self, topic: str, partition: int, producer: ProducerId) -> None:
        self._topic, self._partition, self._producer = topic, partition, producer

    def build(self, request_struct_class: type[MarkersRequestV1]) -> MarkersRequestV1:
        topics: list[tuple[str, list[int], dict[int, bytes]]] = [(self._topic, [self._partition], {})]
        return request_struct_class([(*self._producer, _ABORT, topics, _COORDINATOR_EPOCH, {})], {})


async def mark(cluster: ClusterClient, node: int, topic: str, partition: int) -> str:
    """Has the leader append a marker, under a producer id that nobody has used.

    Returns:
        Why it did not, for people; "": all in-sync replicas have it, and all that was before it.
    """
    try:
        producer = await new_producer(cluster, PRODUCER_ID_TIMEOUT_S)
        response: Any = await cluster.send(node, MarkersRequest(topic, partition, producer), CONNECTION)
    except (IncompatibleBrokerVersion, NotImplementedError):
        return "its version is too old"
    except (KafkaError, OSError, TimeoutError, ClusterUnreachable) as error:
        return repr(error)
    ((_, ((_, ((_, code, _),), _),), _),) = response.markers
    return for_code(code).__name__ if code else ""
