"""A connection whose transport has closed fails as Kafka's errors do.

uvloop refuses to write to it by RuntimeError (asyncio says nothing), for the moment until the connection
hears of the end. aiokafka expects OSError: by anything else its task that looks for metadata ends for good,
and whoever waits for metadata of that client, to find a leader, say, waits for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError

_send = AIOKafkaConnection.send


def _send_or_fail(self: AIOKafkaConnection, request: Any, expect_response: bool = True) -> Awaitable[Any]:
    try:
        found: Awaitable[Any] = _send(self, request, expect_response)  # type: ignore[no-untyped-call]
    except NotImplementedError:  # a RuntimeError too: the broker does not know the request
        raise
    except RuntimeError as error:
        self.close(reason=CloseReason.CONNECTION_BROKEN)
        raise KafkaConnectionError(f"Connection at {self.host}:{self.port} broken: {error}") from error
    return found


def install() -> None:
    """All connections of this process, those of Faust and aiokafka's own clients too."""
    AIOKafkaConnection.send = _send_or_fail  # type: ignore[method-assign]
