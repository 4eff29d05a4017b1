"""What streams share: limits, the gate before asynchronous handlers, and how messages are read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from app.push.proto.switchyard.v1.receiver_pb2 import Batch, Open
from app.push.receiver.verdicts import Message


@dataclass(frozen=True, slots=True)
class Window:
    """What a stream may have in flight, and how large a request may be."""

    deliveries: int
    size: int
    max_request_bytes: int


class Gate:
    """As many tasks at once as `limit`, over all streams; the others wait in order."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self, start: Callable[[], None]) -> None:
        """Calls `start`, now or when one `leave`s."""
        if self.running < self.limit:
            self.running += 1
            start()
        else:
            self._waiting.append(start)

    def leave(self) -> None:
        """One place is free."""
        if self._waiting:
            # Not from here: those that wait and are not wanted any more leave at once, one in the other.
            asyncio.get_running_loop().call_soon(self._waiting.popleft())
        else:
            self.running -= 1


class Violation(Exception):
    """The sender does not keep to the contract."""


def read_batch(batch: Batch, opened: Open) -> list[Message]:
    """Its messages."""
    topic, group = batch.topic or opened.topic, opened.group
    partition, offset, timestamp_ms = batch.partition, batch.base_offset, batch.base_timestamp_ms
    retry_count, attempt, traceparent = batch.retry_count, batch.attempt or 1, batch.traceparent
    messages = []
    for sent in batch.messages:
        key: bytes | None = sent.key
        if not key and not sent.HasField("key"):
            key = None
        value, headers, own = sent.value, [], traceparent
        if len(sent.headers):
            headers = [(header.name.lower(), header.value) for header in sent.headers]
            own = _traceparent(headers) or traceparent
        messages.append(
            Message(
                topic, group, value, partition, offset + sent.offset_delta, key, headers,
                timestamp_ms + sent.timestamp_delta_ms, retry_count, attempt, own,
                not value and not sent.HasField("value"),
            )
        )  # fmt: skip
    return messages


def _traceparent(headers: list[tuple[str, bytes]]) -> str:
    for name, value in headers:
        if name == "traceparent":
            return value.decode(errors="replace")
    return ""
