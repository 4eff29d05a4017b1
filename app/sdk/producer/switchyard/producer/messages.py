"""Messages on their way to a region, their outcomes, and the hooks that observe both.

ProducerError
├── Refused          the region that was asked will not take this message: it is nowhere
├── NotDelivered     nobody acknowledged it: it may be in the regions that were asked
└── ProducerClosed   the producer takes nothing any more
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from switchyard.producer.region_link import RegionLink

MESSAGE_ID = "switchyard-message-id"  # so that an audit recognises a message that was sent twice
Header = tuple[str, bytes | None]


class ProducerError(Exception):
    """See the module."""


class Refused(ProducerError):
    """It is nowhere, and sending it again does not help: too large, no such topic or partition, not allowed,
    not bytes."""


class NotDelivered(ProducerError):
    """No region acknowledged it: in time, or before another one would not take it. It may be in each that was
    asked."""


class ProducerClosed(ProducerError):
    """The producer is closed, or closing."""


class Delivered(NamedTuple):
    """Where all in-sync replicas have the message. `offset`: -1 where a broker that has had it for long does
    not know any more."""

    region: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Hooks:
    """Is told what happens, for metrics and logs; overwrite what you want. They are called in the event loop
    and must not block; what they raise is logged, once each."""

    def delivered(self, delivered: Delivered, waited_s: float) -> None:
        """A message is acknowledged, so long after it was taken."""

    def failed(self, topic: str, error: ProducerError) -> None:
        """A message's future fails."""

    def moved(self, left: str, to: str, why: str, again: int) -> None:
        """Messages go to another region from now on (or to the same through a new producer); so many are sent
        `again`."""


@dataclass(slots=True, eq=False)
class PendingMessage:
    """One that was taken.

    Attributes:
        taken_s: when, monotonic.
        link: who has it now.
        asked: who was given it and has not said that it is not there: its region may have it.
        goes_alone: in a batch of its own, as it may have been refused for its company.
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
    asked: set[RegionLink] = field(default_factory=set)
    goes_alone: bool = False

    @property
    def nbytes(self) -> int:
        """Of the key, the value and the headers, as far as they are what they should be."""
        parts: list[bytes | str | None] = [self.key, self.value]
        for header in self.headers:
            parts += header if isinstance(header, tuple) else ()
        return sum(len(part) for part in parts if isinstance(part, (bytes, bytearray, str)))
