"""Requests of an appender: Produce, encoded with one copy of the batches, and DescribeProducers.

Sources: Apache Kafka's protocol guide; KIP-467 (messages of errors, Produce 8), KIP-664 (DescribeProducers),
KIP-320 (OffsetForLeaderEpoch).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.produce import (
    ProduceRequest_v3,
    ProduceRequest_v7,
    ProduceResponse_v3,
    ProduceResponse_v7,
    ProduceResponse_v8,
)
from aiokafka.protocol.types import (
    Array,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)  # fmt: skip

ACKS_ALL = -1
_HEAD = struct.Struct(">hhii")  # no transactional id, acks, timeout, count of topics
_COUNT = struct.Struct(">i")
_LENGTH = struct.Struct(">h")
_PARTITION = struct.Struct(">ii")  # partition, bytes

Batches = Mapping[str, Sequence[tuple[int, bytearray]]]


class _Joined(RequestStruct):
    """The struct of ProduceRequest from version 3 on; aiokafka's own copies each batch five times."""

    API_KEY = 0
    API_VERSION = 3
    RESPONSE_TYPE: ClassVar[type[Response]] = ProduceResponse_v3
    SCHEMA = ProduceRequest_v3.SCHEMA

    def __init__(self, topics: Batches, timeout_ms: int) -> None:
        self._topics, self._timeout_ms = topics, timeout_ms

    def encode(self) -> bytes:
        topics = self._topics
        parts: list[bytes | bytearray] = [_HEAD.pack(-1, ACKS_ALL, self._timeout_ms, len(topics))]
        for topic, partitions in topics.items():
            name = topic.encode()
            parts += [_LENGTH.pack(len(name)), name, _COUNT.pack(len(partitions))]
            for partition, data in partitions:
                parts += [_PARTITION.pack(partition, len(data)), data]
        return b"".join(parts)

    def __repr__(self) -> str:
        return f"Produce({ {topic: len(found) for topic, found in self._topics.items()} })"


class AppendV3(_Joined):
    """Produce, version 3: the first with record batches."""


class AppendV7(_Joined):
    """Produce, version 7: the first that takes zstd."""

    API_VERSION = 7
    RESPONSE_TYPE = ProduceResponse_v7
    SCHEMA = ProduceRequest_v7.SCHEMA


class AppendV8(_Joined):
    """Produce, version 8: the first that tells why a batch is refused."""

    API_VERSION = 8
    RESPONSE_TYPE = ProduceResponse_v8
    SCHEMA = ProduceRequest_v7.SCHEMA


class AppendRequest(Request[AppendV3 | AppendV7 | AppendV8]):
    """Stamped batches, at most one a partition, to be acknowledged by all in-sync replicas."""

    API_KEY = 0

    def __init__(self, topics: Batches, timeout_ms: int) -> None:
        self._topics, self._timeout_ms = topics, timeout_ms

    def build(
        self, request_struct_class: type[AppendV3 | AppendV7 | AppendV8]
    ) -> AppendV3 | AppendV7 | AppendV8:
        return request_struct_class(self._topics, self._timeout_ms)


def answers_of(response: Any) -> dict[tuple[str, int], tuple[int, int, str]]:
    """(topic, partition) -> error code, base offset, what the broker says about it ("" before version 8)."""
    return {
        (topic, partition): (code, base_offset, str(rest[-1] or "") if len(rest) > 2 else "")
        for topic, partitions in response.topics
        for partition, code, base_offset, *rest in partitions
    }


class DescribeProducersResponse(Response):
    """DescribeProducers response, version 0."""

    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString()),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", CompactString()),
                        (
                            "producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("transaction_start_offset", Int64),
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
                ("name", CompactString()), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersRequest(Request[DescribeProducersRequestV0]):
    """Asks a partition's leader for the producers it knows. Before Kafka 2.8: IncompatibleBrokerVersion."""

    API_KEY = 61

    def __init__(self, topic: str, partition: int) -> None:
        self._topics: list[tuple[str, list[int], dict[int, bytes]]] = [(topic, [partition], {})]

    def build(self, request_struct_class: type[DescribeProducersRequestV0]) -> DescribeProducersRequestV0:
        return request_struct_class(self._topics, {})


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
    """Asks a leader where its current epoch ends: the log's end, not the high watermark."""

    API_KEY = 23

    def __init__(self, topic: str, partition: int, epoch: int) -> None:
        self._topics = [(topic, [(partition, epoch, epoch)])]

    def build(self, request_struct_class: type[EpochEndRequestV3]) -> EpochEndRequestV3:
        return request_struct_class(-1, self._topics)
