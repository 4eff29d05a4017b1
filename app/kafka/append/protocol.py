"""Produce requests of an appender, encoded with a single copy of the batches.

Sources: Apache Kafka's protocol guide; KIP-467 (error messages, Produce 8).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.produce import (
    ProduceRequest_v3,
    ProduceRequest_v7,
    ProduceResponse_v3,
    ProduceResponse_v7,
    ProduceResponse_v8,
)

from app.kafka.client.aiokafka_types import ResponseFields

ACKS_ALL = -1
_HEAD = struct.Struct(">hhii")  # no transactional id, acks, timeout, topic count
_COUNT = struct.Struct(">i")
_LENGTH = struct.Struct(">h")
_PARTITION = struct.Struct(">ii")  # partition, size in bytes

Batches = Mapping[str, Sequence[tuple[int, bytearray]]]


class AppendV3(RequestStruct):
    """Produce, version 3, the first with record batches. aiokafka's own struct copies each batch five
    times."""

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


class AppendV7(AppendV3):
    """Produce, version 7: the first that takes zstd."""

    API_VERSION = 7
    RESPONSE_TYPE = ProduceResponse_v7
    SCHEMA = ProduceRequest_v7.SCHEMA


class AppendV8(AppendV3):
    """Produce, version 8: the first that explains why a batch is refused."""

    API_VERSION = 8
    RESPONSE_TYPE = ProduceResponse_v8
    SCHEMA = ProduceRequest_v7.SCHEMA


class AppendRequest(Request[AppendV3 | AppendV7 | AppendV8]):
    """Stamped batches, at most one per partition, to be acknowledged by all in-sync replicas."""

    API_KEY = 0

    def __init__(self, topics: Batches, timeout_ms: int) -> None:
        self._topics, self._timeout_ms = topics, timeout_ms

    def build(
        self, request_struct_class: type[AppendV3 | AppendV7 | AppendV8]
    ) -> AppendV3 | AppendV7 | AppendV8:
        return request_struct_class(self._topics, self._timeout_ms)


class AppendAnswer(NamedTuple):
    """The answer to one batch.

    Attributes:
        message: The broker's explanation; "" before version 8.
        log_time_ms: The timestamp that the log set for the records; -1: they keep their own.
        refused: The records that were refused, counted from 0.
    """

    code: int
    base_offset: int
    message: str
    log_time_ms: int = -1
    refused: tuple[int, ...] = ()


def answers_of(response: ResponseFields) -> dict[tuple[str, int], AppendAnswer]:
    return {
        (topic, partition): _answer(*answer)
        for topic, partitions in response.topics
        for partition, *answer in partitions
    }


def _answer(code: int, base_offset: int, log_time_ms: int, *rest: ResponseFields) -> AppendAnswer:
    """`rest`: the log's start, and from version 8 on the refused records and the error message."""
    if len(rest) < 3:
        return AppendAnswer(code, base_offset, "", log_time_ms)
    _, refused, message = rest
    refused = refused or ()
    message = message or next((why for _, why in refused if why), "")
    return AppendAnswer(code, base_offset, message, log_time_ms, tuple(sorted(at for at, _ in refused)))
