"""What the leader of a partition remembers of its producers, such as the number of the last record written.

    remembered -> Stamp(id, epoch, number of the next record)
               -> None: the leader remembers nothing, or cannot tell

With it a log is read no further than to a producer's last batch, whatever others write there. A leader may
forget a producer (`app.kafka.producers.history`) and then takes any number from it. So None proves nothing,
and a number proves that the batch which ends there was taken, but none before it.

Source: KIP-664, DescribeProducers, which brokers know from 2.8 on. It takes Read on the topic.
"""

from __future__ import annotations

from typing import NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from app.kafka.client.cluster import ClusterClient
from app.kafka.records.producer_sequences import ProducerStamp

CONNECTION = "append-seek"


class DescribeProducersResponse(Response):
    """DescribeProducers response, version 0."""

    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", CompactString("utf-8")),
                        (
                            "producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("transaction_start", Int64),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersRequestV0(RequestStruct):
    """DescribeProducers request, version 0."""

    FLEXIBLE_VERSION = True
    API_KEY = 61
    API_VERSION = 0
    RESPONSE_TYPE = DescribeProducersResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersRequest(Request[DescribeProducersRequestV0]):
    """The producers of one partition. An older broker's connection raises."""

    API_KEY = 61

    def __init__(self, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition

    def build(self, request_struct_class: type[DescribeProducersRequestV0]) -> DescribeProducersRequestV0:
        return request_struct_class([(self._topic, [self._partition], {})], {})


class ProducerState(NamedTuple):
    """A producer that a partition's leader remembers. `written_ms`: its newest record's timestamp;
    `start_offset`: where its open transaction begins, -1: it has none."""

    producer_id: int
    epoch: int
    last_sequence: int
    written_ms: int
    start_offset: int


async def producers_of(cluster: ClusterClient, node: int, topic: str, partition: int) -> list[ProducerState]:
    """The producers that `node`, the leader, remembers; []: none, or the broker is too old. Raises
    KafkaError."""
    try:
        response = await cluster.send(node, DescribeProducersRequest(topic, partition), CONNECTION)
    except (IncompatibleBrokerVersion, NotImplementedError):
        return []
    return [
        ProducerState(producer_id, epoch, last_sequence, written_ms, start_offset)
        for _, partitions, _ in response.topics
        for _, code, _, producers, _ in partitions
        for producer_id, epoch, last_sequence, written_ms, _, start_offset, *_ in ([] if code else producers)
    ]


async def remembered(
    cluster: ClusterClient, node: int, topic: str, partition: int, producer_id: int
) -> ProducerStamp | None:
    """See the module.

    Raises:
        KafkaError: the broker does not answer.
    """
    for found in await producers_of(cluster, node, topic, partition):
        if found.producer_id == producer_id and found.last_sequence >= 0:
            return ProducerStamp(producer_id, found.epoch, found.last_sequence).behind(1)
    return None
