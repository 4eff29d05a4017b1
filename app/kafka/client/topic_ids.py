"""The ids of topics: a recreated topic keeps its name but has another id.

Source: KIP-516; Metadata version 10 of Apache Kafka's protocol guide, which brokers know from 2.8 on and
aiokafka does not.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

UUID_BYTES = 16
UNKNOWN_ID = ""  # from a broker without topic ids
_ZERO = bytes(UUID_BYTES)


class KafkaUuid(AbstractType[bytes]):
    """Kafka's UUID, 16 bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(UUID_BYTES)


TEXT, TAGS = CompactString(), ("tags", TaggedFields)
NUMBERS = CompactArray(Int32)
_PARTITIONS = CompactArray(
    ("error_code", Int16),
    *((name, Int32) for name in ("partition", "leader", "leader_epoch")),
    *((name, NUMBERS) for name in ("replicas", "in_sync", "offline")),
    TAGS,
)


class TopicIdsResponse(Response):
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node_id", Int32), ("host", TEXT), ("port", Int32), ("rack", TEXT), TAGS)),
        ("cluster_id", TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", TEXT),
                ("topic_id", KafkaUuid),
                ("is_internal", Boolean),
                ("partitions", _PARTITIONS),
                ("authorized_operations", Int32),
                TAGS,
            ),
        ),
        ("cluster_authorized_operations", Int32),
        TAGS,
    )


class TopicIdsRequestV10(RequestStruct):
    """Metadata request, version 10."""

    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = TopicIdsResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", KafkaUuid), ("name", TEXT), TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        TAGS,
    )


class TopicIdsRequest(Request[TopicIdsRequestV10]):
    """Describes topics by name; creates none. Raises NotImplementedError at an older broker."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[TopicIdsRequestV10]) -> TopicIdsRequestV10:
        return request_struct_class([(_ZERO, topic, {}) for topic in self._topics], False, False, False, {})


def ids_of(response: TopicIdsResponse) -> dict[str, str]:
    """Topic name -> id as Kafka's tools show it; topics that do not exist are missing."""
    return {
        name: id_text(topic_id)
        for code, name, topic_id, *_ in response.topics  # type: ignore[attr-defined]  # set by the schema
        if code == 0
    }


def leader_epochs_of(response: TopicIdsResponse) -> dict[tuple[str, int], int]:
    """(topic, partition) -> leader epoch (`app.kafka.client.epoch_ends`)."""
    return {
        (name, entry[1]): entry[3]
        for code, name, _, _, partitions, *_ in response.topics  # type: ignore[attr-defined]  # set by the schema
        if code == 0
        for entry in partitions
    }


def id_text(topic_id: bytes) -> str:
    """The id as `kafka-topics --describe` shows it."""
    return UNKNOWN_ID if topic_id == _ZERO else base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
