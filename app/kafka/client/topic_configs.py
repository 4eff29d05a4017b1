"""Reads, alters and creates many topics at once: settings, sizes.

An error for one topic affects no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Schema, String

from app.kafka.client.aiokafka_types import ResponseFields
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.permissions import CLUSTER_NOT_AUTHORISED, NOT_AUTHORISED, lacks
from app.kafka.client.topics import ALREADY_EXISTS, TopicRefused, TopicSpec, creation_error

TOPIC, SET, DELETE = 2, 0, 1  # resource type; operations
OWN = 1  # DYNAMIC_TOPIC_CONFIG: the setting was set for the topic itself
TOPICS_PER_REQUEST = 200  # an answer has some 50 settings per topic
CHANGE_MS = 10_000


class TopicSettings(NamedTuple):
    """A topic's known settings, broker defaults included, and the names of those set for the topic itself."""

    config: Mapping[str, str]
    own: Collection[str]


UTF8 = String("utf-8")
_CHANGES = Array(("name", UTF8), ("operation", Int8), ("value", UTF8))


class _AlterResponse(Response):
    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "resources",
            Array(("error_code", Int16), ("error_message", UTF8), ("resource_type", Int8), ("name", UTF8)),
        ),
    )


class _AlterStruct(RequestStruct):
    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = _AlterResponse
    SCHEMA = Schema(
        ("resources", Array(("resource_type", Int8), ("resource_name", UTF8), ("configs", _CHANGES))),
        ("validate_only", Boolean),
    )


class _Alter(Request[_AlterStruct]):
    """IncrementalAlterConfigs (Kafka 2.3): sets the named settings and leaves the others."""

    API_KEY = 44

    def __init__(self, settings: Mapping[str, Mapping[str, str | None]]) -> None:
        self._settings = settings

    def build(self, request_struct_class: type[_AlterStruct]) -> _AlterStruct:
        resources = [
            (
                TOPIC,
                topic,
                [(name, DELETE if value is None else SET, value) for name, value in changes.items()],
            )
            for topic, changes in self._settings.items()
        ]
        return request_struct_class(resources, False)


async def describe(
    client: ClusterClient,
    topics: Iterable[str],
    names: Collection[str] | None = None,
    node: int | None = None,
) -> dict[str, TopicSettings | KafkaError]:
    """Topic -> its settings, or why they cannot be read. `names` selects settings; None: all. `node` is the
    broker to ask; None: any. Raises KafkaError, ClusterUnreachable, NotImplementedError: nothing could be
    read."""
    found: dict[str, TopicSettings | KafkaError] = {}
    rest = iter(sorted(set(topics)))
    while batch := list(islice(rest, TOPICS_PER_REQUEST)):
        wanted = [(TOPIC, topic, None if names is None else sorted(names)) for topic in batch]
        broker = await client.any_node() if node is None else node
        answer = await client.send(broker, DescribeConfigsRequest(wanted))
        for code, message, _, topic, entries in answer.resources:
            if code:
                found[topic] = _error(client, code, topic, "settings", "DescribeConfigs", message)
                continue
            known = [(entry[0], entry[1], entry[3]) for entry in entries if entry[1] is not None]
            found[topic] = TopicSettings(
                {name: value for name, value, _ in known},
                frozenset(name for name, _, origin in known if origin == OWN),
            )
    return found


async def alter(
    client: ClusterClient, settings: Mapping[str, Mapping[str, str | None]]
) -> dict[str, KafkaError]:
    """Sets topic settings, or resets them (None); returns the topics that refuse, and why. Raises KafkaError,
    ClusterUnreachable, NotImplementedError: nothing could be set."""
    if not settings:
        return {}
    answer = await client.send(await client.any_node(), _Alter(settings))
    return {
        topic: _error(client, code, topic, "settings", "AlterConfigs", message)
        for code, message, _, topic in answer.resources
        if code
    }


async def expand(client: ClusterClient, partitions: Mapping[str, int]) -> dict[str, KafkaError]:
    """Increases partition counts to these; returns the topics that refuse, and why. Raises like `alter`."""
    if not partitions:
        return {}
    wanted: list[Any] = [(topic, (count, None)) for topic, count in partitions.items()]
    answer = await _send_to_controller(client, CreatePartitionsRequest(wanted, CHANGE_MS, False))
    return {
        topic: _error(client, code, topic, "partitions", "Alter", message)
        for topic, code, message in answer.topic_errors
        if code
    }


async def create(
    client: ClusterClient, wanted: Iterable[TopicSpec], *, validate_only: bool = False
) -> tuple[set[str], dict[str, KafkaError]]:
    """Creates missing topics with their own `replication`; returns the created ones, and the refused with
    reasons. New topics may not have leaders yet. With `validate_only`, nothing is created. Raises like
    `alter`."""
    specs: list[Any] = [
        (spec.name, spec.partitions, spec.replication, [], [*spec.config.items()]) for spec in wanted
    ]
    answer = await _send_to_controller(client, CreateTopicsRequest(specs, CHANGE_MS, validate_only))
    made = {topic for topic, code, *_ in answer.topic_errors if not code}
    return made, {
        topic: _creation_failed(client, code, topic, rest[0] if rest else "")
        for topic, code, *rest in answer.topic_errors
        if code not in (0, ALREADY_EXISTS)
    }


async def refused(client: ClusterClient, wanted: Iterable[TopicSpec]) -> list[TopicRefused]:
    """The topics that the cluster would refuse to create, and why; creates nothing. Raises like `alter`."""
    found: list[TopicRefused] = []
    rest = iter(wanted)
    while batch := list(islice(rest, TOPICS_PER_REQUEST)):
        _, answers = await create(client, batch, validate_only=True)
        found += [error for error in answers.values() if isinstance(error, TopicRefused)]
    return found


def _creation_failed(client: ClusterClient, code: int, topic: str, message: str | None) -> KafkaError:
    if code in {NOT_AUTHORISED, CLUSTER_NOT_AUTHORISED}:
        return _error(client, code, topic, "", "Create", message)
    return creation_error(topic, client.name, code, message)


def _error(
    client: ClusterClient, code: int, topic: str, what: str, operation: str, message: str | None
) -> KafkaError:
    reason = f"{what} of topic {topic}" if what else f"topic {topic}"
    reason = f"{reason} in {client.name}: {message}"
    if code in {NOT_AUTHORISED, CLUSTER_NOT_AUTHORISED}:
        reason = lacks(client.spec, "topic", topic, operation)
    error: KafkaError = for_code(code)(reason)
    return error


async def _send_to_controller(client: ClusterClient, request: Request[Any]) -> ResponseFields:
    return await client.send((await client.metadata([])).controller_id, request)
