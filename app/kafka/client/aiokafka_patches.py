"""What all clients of this process do otherwise than aiokafka's, those of Faust and aiokafka's own too.

A connection that has closed fails as Kafka's errors do:

1. uvloop refuses to write to it by RuntimeError (asyncio says nothing), for the moment until the connection
   hears of the end. aiokafka expects OSError: by anything else its task that looks for metadata ends, and
   whoever waits for metadata of that client, to find a leader, say, waits for ever.
2. Of requests that time out at once (a process that lay still, a broker that hangs) the first closes the
   connection and may be sent again by a new one, before the second looks for the connection to close: it is
   not where aiokafka looks. By KeyError its tasks end for good, and Faust ends the worker.

A broker's refusal of a record has a name (INVALID_RECORD, KIP-467): to aiokafka it is an unknown error.

No client creates a topic by asking for it. aiokafka's lets the broker create what that does not know (Kafka's
default), so that a topic which somebody deleted came back with one partition and the broker's settings.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, RequestTimedOutError, UnknownError, kafka_errors
from aiokafka.protocol.metadata import MetadataRequest


class InvalidRecordError(UnknownError):
    """The broker refuses a record for what it is: one without a key in a compacted topic, or by a schema."""

    errno = 87
    message = "INVALID_RECORD"
    description = "a record has failed the validation on the broker and is rejected"


_send = AIOKafkaConnection.send
_ask = AIOKafkaClient.send


def _send_or_fail(self: AIOKafkaConnection, request: Any, expect_response: bool = True) -> Awaitable[Any]:
    if isinstance(request, MetadataRequest):
        request._allow_auto_topic_creation = False
    try:
        found: Awaitable[Any] = _send(self, request, expect_response)  # type: ignore[no-untyped-call]
    except NotImplementedError:  # a RuntimeError too: the broker does not know the request
        raise
    except RuntimeError as error:
        self.close(reason=CloseReason.CONNECTION_BROKEN)
        raise KafkaConnectionError(f"Connection at {self.host}:{self.port} broken: {error}") from error
    return found


async def _ask_or_fail(
    self: AIOKafkaClient, node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT
) -> Any:
    try:
        return await _ask(self, node_id, request, group=group)  # type: ignore[no-untyped-call]
    except KeyError as error:
        if error.args != ((node_id, group),):
            raise
        raise RequestTimedOutError("its connection was closed by another request's timeout") from error


def install() -> None:
    """From now on."""
    kafka_errors[InvalidRecordError.errno] = InvalidRecordError
    AIOKafkaConnection.send = _send_or_fail  # type: ignore[method-assign]
    AIOKafkaClient.send = _ask_or_fail  # type: ignore[method-assign]
