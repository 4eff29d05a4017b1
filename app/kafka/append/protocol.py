"""Requests of an appender: Produce, encoded with one copy of the batches.

Sources: Apache Kafka's protocol guide; KIP-467 (messages of errors, Produce 8).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.produce import (
    ProduceRequest_v3,
    ProduceRequest_v7,
    ProduceResponse_v3,
    ProduceResponse_v7,
    ProduceResponse_v8,
)

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


class AppendAnswer(NamedTuple):
    """What became of a batch: error code, base offset, what the broker says about it ("" before version 8),
    the time that the log gave its records, -1 where they keep their own, and which of them are refused."""

    code: int
    base_offset: int
    message: str
    log_time_ms: int = -1
    refused: tuple[int, ...] = ()


def answers_of(response: Any) -> dict[tuple[str, int], AppendAnswer]:
    """By topic and partition."""
    return {
        (topic, partition): _answer(*answer)
        for topic, partitions in response.topics
        for partition, *answer in partitions
    }


def _answer(code: int, base_offset: int, log_time_ms: int, *rest: Any) -> AppendAnswer:
    """`rest`: where the log begins, and from version 8 on the refused records and the error's words."""
    if len(rest) < 3:
        return AppendAnswer(code, base_offset, "", log_time_ms)
    _, refused, message = rest
    words = message or next((why for _, why in refused or () if why), "")
    return AppendAnswer(
        code, base_offset, words or "", log_time_ms, tuple(sorted(at for at, _ in refused or ()))
    )
