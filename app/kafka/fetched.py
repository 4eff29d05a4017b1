"""What a fetch service delivers (raw batches, gaps, trouble), and the memory it may hold meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.kafka.fetch import FetchService

PARTITION_MAX_BYTES = 1024 * 1024


class ByteBudget:
    """Bytes that all partitions of a worker may hold together.

    Attributes:
        held_bytes: of decoded messages that wait for their time or their turn, counted beside `used_bytes`.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.asked_bytes = 0  # by requests that are under way: what their answers may bring
        self.held_bytes = 0
        self.waiters: list[Callable[[], None]] = []

    @property
    def free_bytes(self) -> int:
        """May be negative for a moment: a single batch is never refused."""
        return self.capacity_bytes - self.used_bytes

    @property
    def holds_much(self) -> bool:
        """Decoded messages that wait are as much as half of what fetched bytes may be."""
        return self.held_bytes >= self.capacity_bytes // 2

    def room_for(self, most_bytes: int) -> int:
        """Half of the room that nobody has asked for yet, at most `most_bytes`, at least one."""
        return max(1, min(most_bytes, (self.free_bytes - self.asked_bytes) // 2))

    def give_back(self, count: int) -> None:
        """Frees bytes and wakes the fetch services."""
        self.used_bytes -= count
        for wake in self.waiters:
            wake()


@dataclass(slots=True)
class Retention:
    """How long a topic keeps a record, in `ms`; -1: for ever, or it is not known (yet)."""

    ms: int = -1


class Fetched:
    """Raw batches of one partition: offsets [start_offset, next_offset). `release` when done with them.

    `damage` says why the bytes cannot be read: they stand for these offsets, and for nothing else. Empty:
    the checksum of every batch in it matches. `retention` goes on telling how long the topic keeps a record.
    """

    __slots__ = (
        "_owner", "aborted", "damage", "data", "high_watermark", "key", "nbytes", "next_offset", "partition",
        "retention", "start_offset", "topic",
    )  # fmt: skip

    def __init__(
        self, owner: PartitionFetch, budget_bytes: int, data: bytes, next_offset: int,
        aborted: list[tuple[int, int]], high_watermark: int, damage: str = "",
    ) -> None:  # fmt: skip
        self._owner: PartitionFetch | None = owner
        self.key = owner.key
        self.topic = owner.topic
        self.partition = owner.partition
        self.retention = owner.retention
        self.start_offset = owner.next_offset
        self.next_offset = next_offset
        self.data = data
        self.aborted = aborted
        self.damage = damage
        self.high_watermark = high_watermark
        self.nbytes = budget_bytes

    @property
    def budget(self) -> ByteBudget | None:
        """What its bytes are counted in; None once it is released."""
        return None if self._owner is None else self._owner.service.budget

    @property
    def is_stale(self) -> bool:
        """Its partition is not fetched under this key any more, or anew."""
        return self._owner is not None and self._owner.removed

    def release(self) -> None:
        """Gives the bytes back to the budget; a second time does nothing."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self.data = b""
            owner.unreleased_bytes -= self.nbytes
            owner.service.budget.give_back(self.nbytes)


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [start, end) are gone from the log.

    `begun_anew`: the log was truncated, or the topic deleted and made anew. Every offset means something
    else now, and fetching goes on at `end`, where the log begins; `end` may be below, at or above `start`.
    """

    key: Any
    topic: str
    partition: int
    start: int
    end: int
    reason: str
    begun_anew: bool = False


@dataclass(frozen=True, slots=True)
class FetchTrouble:
    """A partition cannot be fetched; it is tried again."""

    key: Any
    topic: str
    partition: int
    message: str
    remedy: str


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """Where the fetching of one partition stands; the fetch service's own."""

    service: FetchService
    key: Any
    topic: str
    partition: int
    next_offset: int
    topic_id: str = ""  # "": not known yet
    leaves_bytes: int = 0  # of the budget, to others
    doubted: bool = False  # the topic may be another one now: nothing is believed until that is known
    polling: bool = False
    removed: bool = False
    idle: bool = False  # its last answer was empty
    unreleased_bytes: int = 0
    max_bytes: int = PARTITION_MAX_BYTES
    high_watermark: int = -1
    retention: Retention = field(default_factory=Retention)
    seen_at_s: float = 0.0
    retry_at_s: float = 0.0
    failures: int = 0
    failing_since_s: float = 0.0
    told: str = ""
    node: int | None = None
