"""Changes to aiokafka for all clients of this process, Faust's among them.

`install` makes them; an import changes nothing. Every process calls it before it makes a `ClusterClient`,
which refuses to work without it.

A closed connection fails with a Kafka error:

1. uvloop refuses to write to it with RuntimeError until the connection learns of its end. aiokafka expects
   OSError. After any other error its metadata task ends, and its callers wait for metadata for ever.
   Upstream issue: aiokafka #1038.
2. If several requests time out at once (a suspended process, a hanging broker), the first closes the
   connection. Until a new one is made, the second does not find it. aiokafka then raises KeyError; this ends
   its tasks, and Faust ends the worker. No upstream issue is known; #1118 is about the same method.

A broker's refusal of a record gets its own error (INVALID_RECORD, KIP-467), which aiokafka does not know.
No upstream issue is known.

A metadata request never creates a topic. By default brokers create unknown topics, so a deleted topic
would come back with one partition and default settings. No upstream issue is known.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, RequestTimedOutError, UnknownError, kafka_errors
from aiokafka.protocol.api import Request
from aiokafka.protocol.metadata import MetadataRequest

from app.kafka.client.aiokafka_types import ResponseFields


class InvalidRecordError(UnknownError):
    """The broker refuses a record's content: it has no key in a compacted topic, or violates a schema."""

    errno = 87
    message = "INVALID_RECORD"
    description = "a record has failed the validation on the broker and is rejected"


_connection_send = AIOKafkaConnection.send
_client_send = AIOKafkaClient.send


def _connection_send_or_fail(
    self: AIOKafkaConnection, request: Request[Any], expect_response: bool = True
) -> Awaitable[ResponseFields]:
    if isinstance(request, MetadataRequest):
        request._allow_auto_topic_creation = False
    try:
        found: Awaitable[ResponseFields] = _connection_send(self, request, expect_response)  # type: ignore[no-untyped-call]
    except NotImplementedError:  # also a RuntimeError: the broker does not know the request
        raise
    except RuntimeError as error:
        self.close(reason=CloseReason.CONNECTION_BROKEN)
        raise KafkaConnectionError(f"Connection at {self.host}:{self.port} broken: {error}") from error
    return found


async def _client_send_or_fail(
    self: AIOKafkaClient, node_id: int, request: Request[Any], *, group: int = ConnectionGroup.DEFAULT
) -> ResponseFields:
    try:
        return await _client_send(self, node_id, request, group=group)  # type: ignore[no-untyped-call]
    except KeyError as error:
        if error.args != ((node_id, group),):
            raise
        raise RequestTimedOutError("its connection was closed by another request's timeout") from error


def install() -> None:
    """Makes the changes; a second call does nothing."""
    if is_installed():
        return
    kafka_errors[InvalidRecordError.errno] = InvalidRecordError
    AIOKafkaConnection.send = _connection_send_or_fail  # type: ignore[method-assign]
    AIOKafkaClient.send = _client_send_or_fail  # type: ignore[method-assign]


def is_installed() -> bool:
    """Whether `install` was called in this process."""
    return kafka_errors.get(InvalidRecordError.errno) is InvalidRecordError
