"""Handlers under test, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from switchyard.receiver.verdicts import Ack, Message, Retry, Verdict

if TYPE_CHECKING:
    from switchyard.receiver.server import Receiver


class TestClient:
    """Delivers messages to a receiver's handlers in memory, as either contract would."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def deliver(
        self, *, topic: str, group: str, value: bytes | None, retries: int = 0, **fields: Any
    ) -> Verdict:
        """What the handler says of the message in the end: a verdict (`Ack()` for None).

        Args:
            topic: where the message was produced.
            group: the consumer group.
            value: the message's body; None: a tombstone.
            retries: how often it is delivered again at most, when the handler raises or returns `Retry`;
                `attempt` and `retry_count` grow as they do in earnest.
            fields: other fields of `Message`.

        Raises:
            KeyError: there is no handler. Whatever the handler raises at last.
        """
        message = Message(topic=topic, group=group, value=b"", **fields)
        message = _with_value(message, value)
        for left in range(retries, -1, -1):
            retried = 1
            try:
                # A copy, as each delivery is: what interceptors change is not delivered again.
                verdict = await self._receiver.handle(replace(message)) or Ack()
            except Exception:
                if not left or not self._receiver.handles(topic, group):
                    raise
                retried = 0
            else:
                if not left or not isinstance(verdict, Retry):
                    return verdict
            message = replace(message, attempt=message.attempt + 1, retry_count=message.retry_count + retried)
        raise AssertionError("unreachable: the last delivery returns or raises")

    async def deliver_batch(
        self, *, topic: str, group: str, values: Sequence[bytes | None], **fields: Any
    ) -> list[Verdict]:
        """What the handler says of messages that come together, at consecutive offsets.

        Raises:
            KeyError: there is no handler. Whatever the handler raises.
        """
        first = Message(topic=topic, group=group, value=b"", **fields)
        messages = [
            replace(_with_value(first, value), offset=first.offset + index)
            for index, value in enumerate(values)
        ]
        return [verdict or Ack() for verdict in await self._receiver.handle_batch(messages)]


def _with_value(message: Message, value: bytes | None) -> Message:
    return replace(message, value=value or b"", tombstone=message.tombstone or value is None)
