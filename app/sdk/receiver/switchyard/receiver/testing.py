"""Tests handlers without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from switchyard.receiver.delivery_time import DeliveryTime
from switchyard.receiver.verdicts import Ack, Message, Renew, Retry, Verdict

if TYPE_CHECKING:
    from switchyard.receiver.server import Receiver


class TestClient:
    """Delivers messages to a receiver's handlers in memory, as either contract does. With `renews`,
    `message.renew` works as over streams, otherwise as for unary calls."""

    __test__ = False  # pytest would collect a class of this name

    def __init__(self, receiver: Receiver, *, renews: bool = False) -> None:
        self._receiver = receiver
        self._time = _TestTime(renews=renews)

    async def deliver(
        self, *, topic: str, group: str, value: bytes | None, retries: int = 0, **fields: Any
    ) -> Verdict:
        """The handler's last verdict on the message (`Ack()` for None).

        Args:
            topic: The topic to which the message was produced.
            group: The consumer group.
            value: The message's body; None: a tombstone.
            retries: How often to deliver it again when the handler raises or returns `Retry` or `Renew`.
                `attempt` and `retry_count` grow as in a real delivery, so not after `Renew`.
            fields: Other fields of `Message`.

        Raises:
            KeyError: There is no handler. The last exception of the handler passes through.
        """
        message = Message(topic=topic, group=group, value=b"", _time=self._time, **fields)
        message = _with_value(message, value)
        for left in range(retries, -1, -1):
            retried = 1
            try:
                # Each delivery is a copy, so changes by interceptors are not delivered again.
                verdict = await self._receiver.handle(replace(message)) or Ack()
            except Exception:
                if not left or not self._receiver.handles(topic, group):
                    raise
                retried = 0
            else:
                if not left or not isinstance(verdict, Retry | Renew):
                    return verdict
                if isinstance(verdict, Renew):
                    continue
            message = replace(message, attempt=message.attempt + 1, retry_count=message.retry_count + retried)
        raise AssertionError("unreachable: the last delivery returns or raises")

    async def deliver_batch(
        self, *, topic: str, group: str, values: Sequence[bytes | None], **fields: Any
    ) -> list[Verdict]:
        """The handler's verdicts on messages that arrive together, at consecutive offsets.

        Raises:
            KeyError: There is no handler. Exceptions of the handler pass through.
        """
        first = Message(topic=topic, group=group, value=b"", _time=self._time, **fields)
        messages = [
            replace(_with_value(first, value), offset=first.offset + index)
            for index, value in enumerate(values)
        ]
        return [verdict or Ack() for verdict in await self._receiver.handle_batch(messages)]


class _TestTime(DeliveryTime):
    __slots__ = ("_renews",)

    def __init__(self, *, renews: bool) -> None:
        self._renews = renews

    def renew(self, _number: int, _seconds: float) -> bool:
        return self._renews


def _with_value(message: Message, value: bytes | None) -> Message:
    return replace(message, value=value or b"", tombstone=message.tombstone or value is None)
