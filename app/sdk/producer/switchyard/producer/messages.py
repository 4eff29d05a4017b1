"""Messages that wait for a region, their outcomes, and the hooks that observe both.

ProducerError
├── Refused          a region refuses this message, and no region has it
├── NotDelivered     no region acknowledged it: regions that got it may have it
└── ProducerClosed   the producer accepts no messages any more
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from switchyard.producer.region_link import RegionLink

MESSAGE_ID = "switchyard-message-id"  # an audit recognises duplicates by it
Header = tuple[str, bytes | None]


class ProducerError(Exception):
    """The base of the producer's errors."""


class Refused(ProducerError):
    """No region has the message, and a retry does not help.

    The message is too large or no bytes, its topic or partition does not exist, or the client may not write
    to it.
    """


class NotDelivered(ProducerError):
    """No region acknowledged the message in time, or before another region refused it.

    Each region that got it may have it.
    """


class ProducerClosed(ProducerError):
    """The producer is closed, or closing."""


class Delivered(NamedTuple):
    """The position at which all in-sync replicas of a region have the message.

    `offset` is -1 if the broker has had the batch for so long that it no longer knows where.
    """

    region: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Hooks:
    """Callbacks for metrics and logs; override the ones you need.

    They run in the event loop and must not block. The error of a hook is logged once.
    """

    def delivered(self, delivered: Delivered, waited_s: float) -> None:
        """A message was acknowledged, `waited_s` after the producer accepted it."""

    def failed(self, topic: str, error: ProducerError) -> None:
        """A message's future failed."""

    def moved(self, left: str, to: str, why: str, again: int) -> None:
        """The producer changed regions, or continued in the same region with a new producer.

        `again` messages were sent again.
        """


@dataclass(slots=True, eq=False)
class PendingMessage:
    """A message that the producer has accepted.

    Attributes:
        taken_s: When it was accepted, monotonic.
        link: The link that has it now.
        given_to: The links that got it and have not denied having it: their regions may have it.
        goes_alone: It is sent in a batch of its own, because another message may have caused its refusal.
    """

    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[Header]
    partition: int | None
    timestamp_ms: int | None
    future: asyncio.Future[Delivered]
    taken_s: float = 0.0
    link: RegionLink | None = None
    given_to: set[RegionLink] = field(default_factory=set)
    goes_alone: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of the key, the value and the headers; parts of a wrong type do not count."""
        parts: list[bytes | str | None] = [self.key, self.value]
        for header in self.headers:
            parts += header if isinstance(header, tuple) else ()
        return sum(len(part) for part in parts if isinstance(part, (bytes, bytearray, str)))
