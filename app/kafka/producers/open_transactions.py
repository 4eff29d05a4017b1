"""Finds the transaction that readers of committed records wait for in a partition, and its producer.

Source: KIP-664 (DescribeProducers, ListTransactions, DescribeTransactions; Kafka 3.0).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from aiokafka.errors import KafkaError
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
from app.kafka.producers.state import CONNECTION, producers_of

ONGOING = "Ongoing"  # a transaction's state while its producer may add to it

_TEXT, _TAGS = CompactString("utf-8"), ("tags", TaggedFields)
_TEXTS = CompactArray(_TEXT)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The first open transaction of a partition.

    Attributes:
        start_offset: Its first record.
        since_ms: When it began; if its coordinator does not know it, when its producer last wrote here.
        transactional_id, state: "" if no coordinator that answered knows the producer, or if it may not be
            described. A broker does not tell a missing permission from a producer that it does not know.
        timeout_ms: After this time its coordinator ends it; 0: not known.
    """

    producer_id: int
    start_offset: int
    since_ms: int
    transactional_id: str = ""
    state: str = ""
    timeout_ms: int = 0


async def first_open_transaction(
    client: ClusterClient, node: int, topic: str, partition: int
) -> OpenTransaction | None:
    """Asks `node`, the partition's leader, and all brokers; None: there is none, or the brokers are too old.

    Raises:
        KafkaError, OSError, TimeoutError: The leader does not answer.
    """
    found = [one for one in await producers_of(client, node, topic, partition) if one.start_offset >= 0]
    if not found:
        return None
    first = min(found, key=lambda one: one.start_offset)
    brokers = [broker.nodeId for broker in client.client.cluster.brokers()]
    answers = await asyncio.gather(*(_coordinated(client, int(n), first.producer_id) for n in brokers))
    transactional_id, state, timeout_ms, began_ms = next(filter(None, answers), ("", "", 0, 0))
    since_ms = began_ms if began_ms > 0 else first.written_ms
    return OpenTransaction(
        first.producer_id, first.start_offset, since_ms, transactional_id, state, timeout_ms
    )


async def _coordinated(
    client: ClusterClient, node: int, producer_id: int
) -> tuple[str, str, int, int] | None:
    """Transactional id, state, timeout and start of a producer's transaction, if `node` coordinates it."""
    with contextlib.suppress(KafkaError, OSError, TimeoutError, NotImplementedError):
        listed = await client.send(node, ListTransactionsRequest(producer_id), CONNECTION)
        for name in (listed_state[0] for listed_state in listed.states):
            described = await client.send(node, DescribeTransactionsRequest(name), CONNECTION)
            code, _, state, timeout_ms, began_ms, *_ = described.states[0]
            return (name, "", 0, 0) if code else (name, state, timeout_ms, began_ms)
    return None


class ListTransactionsResponse(Response):
    API_KEY = 66
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("unknown_state_filters", _TEXTS),
        ("states", CompactArray(("name", _TEXT), ("producer_id", Int64), ("state", _TEXT), _TAGS)),
        _TAGS,
    )


class ListTransactionsRequestV0(RequestStruct):
    API_KEY = 66
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ListTransactionsResponse
    SCHEMA = Schema(("states", _TEXTS), ("producer_ids", CompactArray(Int64)), _TAGS)


class ListTransactionsRequest(Request[ListTransactionsRequestV0]):
    """A coordinator's transactions of one producer."""

    API_KEY = 66

    def __init__(self, producer_id: int) -> None:
        self._producer_id = producer_id

    def build(self, request_struct_class: type[ListTransactionsRequestV0]) -> ListTransactionsRequestV0:
        return request_struct_class([], [self._producer_id], {})


class DescribeTransactionsResponse(Response):
    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "states",
            CompactArray(
                ("error_code", Int16),
                ("name", _TEXT),
                ("state", _TEXT),
                ("timeout_ms", Int32),
                ("began_ms", Int64),
                ("producer_id", Int64),
                ("epoch", Int16),
                ("topics", CompactArray(("name", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class DescribeTransactionsRequestV0(RequestStruct):
    API_KEY = 65
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = DescribeTransactionsResponse
    SCHEMA = Schema(("names", _TEXTS), _TAGS)


class DescribeTransactionsRequest(Request[DescribeTransactionsRequestV0]):
    """One transaction, at its coordinator."""

    API_KEY = 65

    def __init__(self, name: str) -> None:
        self._name = name

    def build(
        self, request_struct_class: type[DescribeTransactionsRequestV0]
    ) -> DescribeTransactionsRequestV0:
        return request_struct_class([self._name], {})
