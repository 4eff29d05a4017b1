"""What a fetch service delivers (raw batches, gaps, trouble), and the memory it may hold meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from aiokafka.errors import for_code

from app.kafka.client.cluster import UNKNOWN_TOPIC
from app.kafka.client.epoch_ends import AHEAD, FENCED, EpochEnd
from app.kafka.client.permissions import NOT_AUTHORISED, ConfiguredCluster, grant, lacks
from app.kafka.records.header_arrays import heads_of

if TYPE_CHECKING:
    from app.kafka.fetch.service import FetchService
    from app.kafka.records.header_arrays import BatchHeaderArrays, Numbers

PARTITION_MAX_BYTES = 1024 * 1024
PARTITION_BUFFER_BYTES = 2 * 1024 * 1024
HEADED_BYTES = 72  # of a batch: nine numbers
DECODED_SHARE = 0.25  # of the budget: half of it is always left for what is fetched
ALL_BYTES = 1 << 62  # who leaves so much to others is not fetched
CORRUPT = 2
UNEXPECTED = -100  # no code of Kafka's
REMEDIES = {
    UNKNOWN_TOPIC: "create the topic, or correct its name in the workload",
    UNEXPECTED: "a fault of Switchyard's own, its traceback is in the log; it is tried again by itself",
    CORRUPT: (
        "there is a corrupt record, and nobody knows where it ends; check its disk, or go on behind it: "
        "switchyard route reset ROUTE --topic TOPIC --partition N --to-offset OFFSET, of a workload "
        "switchyard workload reset GROUP/TOPIC --offset N:OFFSET"
    ),
}


NAMES = {FENCED: "FencedLeaderEpoch", AHEAD: "UnknownLeaderEpoch"}  # which the client does not know


def name_of(code: int) -> str:
    """An error code's name."""
    return NAMES.get(code) or for_code(code).__name__


def refusal(code: int, cluster: ConfiguredCluster, topic: str, partition: int) -> str:
    """A refused fetch, in words."""
    if code == NOT_AUTHORISED:
        return f"{lacks(cluster, 'topic', topic, 'Read')} ({name_of(code)})"
    return f"{name_of(code)} for {topic}-{partition}"


def remedy_of(code: int, cluster: ConfiguredCluster, topic: str) -> str:
    """What an operator can do about an error code."""
    if code == NOT_AUTHORISED:
        return grant(cluster, "topic", topic, "Read", "Describe")
    return REMEDIES.get(code, "see whether the broker runs; it is tried again by itself")


class Droppable(Protocol):
    """Decompressed bytes that can be had again."""

    @property
    def kept_bytes(self) -> int: ...
    def drop(self) -> None: ...


class ByteBudget:
    """Bytes that all partitions of a worker may hold together.

    What comes out of fetched bytes counts, too, and leaves less to be fetched: batches that were decompressed
    and are not read to their end (`keep`), and records that are ready to be sent. Each may be `DECODED_SHARE`
    of the capacity. Beyond that the batch that was read the longest ago is dropped, so that one which nobody
    reads on stops no other; it is decompressed again when it is read on.

    Attributes:
        held_bytes: of decoded messages that wait for their time or their turn, counted beside `used_bytes`.
        ready_bytes: of decoded messages that may be sent (`app.dispatch.pump.intake`).
        kept_bytes: of batches that were decompressed.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = self.ready_bytes = self.kept_bytes = 0
        self._kept: dict[Droppable, int] = {}  # the one that was read last at the end
        self.asked_bytes = 0  # by requests that are under way: what their answers may bring
        self.held_bytes = 0
        self.waiters: list[Callable[[], None]] = []

    @property
    def free_bytes(self) -> int:
        """May be negative for a moment: a single batch is never refused."""
        return self.capacity_bytes - self.used_bytes - self.ready_bytes - self.kept_bytes

    @property
    def decoded_capacity_bytes(self) -> int:
        """For decompressed batches, and as much for messages that are ready."""
        return int(DECODED_SHARE * self.capacity_bytes)

    @property
    def readies_much(self) -> bool:
        """Messages that are ready take all that they may."""
        return self.ready_bytes >= self.decoded_capacity_bytes

    def keep(self, batch: Droppable) -> None:
        """It was read, and is to be read on."""
        self.forget(batch)
        size = batch.kept_bytes
        while self._kept and self.kept_bytes + size > self.decoded_capacity_bytes:
            oldest = next(iter(self._kept))
            oldest.drop()
            self.forget(oldest)
        if size > self.decoded_capacity_bytes:
            batch.drop()
            return
        self._kept[batch] = size
        self.kept_bytes += size

    def forget(self, batch: Droppable) -> None:
        """It is not read on; or again, after `keep`."""
        self.kept_bytes -= self._kept.pop(batch, 0)

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
class TopicRetention:
    """How long a topic keeps a record, in `ms`; -1: for ever, or it is not known (yet)."""

    ms: int = -1


class FetchedBatches:
    """Raw batches of one partition: offsets [start_offset, next_offset). `release` when done with them.

    `damage` says why the bytes cannot be read: they stand for these offsets, and for nothing else. Empty:
    the checksum of every batch in it matches. `retention` goes on telling how long the topic keeps a record.
    `leader_epoch`: in which its last batch was written (`app.kafka.client.epoch_ends`).
    """

    __slots__ = (
        "_owner", "aborted", "damage", "data", "high_watermark", "key", "leader_epoch", "nbytes",
        "next_offset", "partition", "retention", "start_offset", "topic",
    )  # fmt: skip

    def __init__(
        self, owner: PartitionFetch, budget_bytes: int, data: bytes, next_offset: int,
        aborted: list[tuple[int, int]], high_watermark: int, damage: str = "", leader_epoch: int = -1,
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
        self.leader_epoch = leader_epoch
        self.nbytes = budget_bytes

    @property
    def budget(self) -> ByteBudget | None:
        """What its bytes are counted in; None once it is released."""
        return None if self._owner is None else self._owner.service.budget

    @property
    def is_stale(self) -> bool:
        """Its partition is not fetched under this key any more, or anew."""
        return self._owner is not None and self._owner.removed

    def hand_over(self) -> None:
        """Another one stands for its bytes in the budget."""
        self._owner, self.data = None, b""

    def release(self) -> None:
        """Gives the bytes back to the budget; a second time does nothing."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self.data = b""
            owner.unreleased_bytes -= self.nbytes
            owner.service.budget.give_back(self.nbytes)


class FetchedHeaders(FetchedBatches):
    """Batches by their headers only: each is all that it says, and is shown.

    `seen_at_ms`: when each of them was there; negative: nobody knows.
    """

    __slots__ = ("headers", "seen_at_ms")

    def __init__(
        self, owner: PartitionFetch, headers: BatchHeaderArrays, seen_at_ms: Numbers, next_offset: int,
        high_watermark: int, leader_epoch: int,
    ) -> None:  # fmt: skip
        super().__init__(
            owner, HEADED_BYTES * len(seen_at_ms), b"", next_offset, [], high_watermark,
            leader_epoch=leader_epoch,
        )  # fmt: skip
        self.headers = headers
        self.seen_at_ms = seen_at_ms


class UncheckedHeaders(FetchedBatches):
    """Headers of batches that another reader has fetched, which nobody has looked at yet: what a
    `FetchedHeaders` is made of, if they tell all. `seen_at_ms`: when they all were there, as in
    `FetchedHeaders`."""

    __slots__ = ("heads", "seen_at_ms")

    def __init__(
        self, owner: PartitionFetch, start_offset: int, heads: list[bytes], seen_at_ms: int,
        next_offset: int, high_watermark: int, leader_epoch: int,
    ) -> None:  # fmt: skip
        super().__init__(
            owner, HEADED_BYTES * len(heads), b"", next_offset, [], high_watermark, leader_epoch=leader_epoch
        )
        self.start_offset = start_offset
        self.heads = heads
        self.seen_at_ms = seen_at_ms


@dataclass(frozen=True, slots=True)
class LogGap:
    """Offsets [start, end) are gone from the log.

    `begun_anew`: the log was truncated, or the topic deleted and made anew. Offsets mean something else now,
    and fetching goes on at `end`; that may be below, at or above `start`. Of a log that was truncated it is
    where it parts from what was read, if that is known (`app.kafka.client.epoch_ends`), else where the log
    begins; `truncated_in` is the epoch of the leader that has another log, -1 of a topic that was made anew.
    """

    key: Any
    topic: str
    partition: int
    start: int
    end: int
    reason: str
    begun_anew: bool = False
    truncated_in: int = -1

    @property
    def is_truncation(self) -> bool:
        """The same topic, with less in it."""
        return self.truncated_in >= 0

    def goes_on_at(self, base: int) -> int:
        """Where who has finished all below `base` goes on in a log that has `begun_anew`: what was before the
        log was cut off, and is not finished, must not be passed over."""
        return min(self.end, base) if self.is_truncation else self.end


@dataclass(frozen=True, slots=True)
class FetchIncident:
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
    leaves_bytes: int = 0  # of the budget, to others; `ALL_BYTES`: it is not fetched
    lingers_s: float = 0.0  # before it is asked for again, after an answer with little in it
    doubted: bool = False  # the topic may be another one now: nothing is believed until that is known
    epoch: int = -1  # of its leader; -1: not known (yet)
    last_epoch: int = -1  # in which the record before `next_offset`, or a later one, was written
    unsure: bool = False  # the leader's log may be another one: nothing is fetched until that is known
    polling: bool = False
    removed: bool = False
    idle: bool = False  # its last answer was empty
    unreleased_bytes: int = 0
    max_bytes: int = PARTITION_MAX_BYTES
    high_watermark: int = -1
    retention: TopicRetention = field(default_factory=TopicRetention)
    seen_at_s: float = 0.0
    retry_at_s: float = 0.0
    failures: int = 0
    failing_since_s: float = 0.0
    told: str = ""
    node: int | None = None
    # Of who follows others (`app.kafka.fetch.shared_read_service`): how many of the first headers tell it all
    # that it wants. `heads_of`: the headers of whole batches as it takes them; None: they do not tell all.
    counts: Callable[[BatchHeaderArrays], int] | None = None
    heads_of: Callable[[bytes], list[bytes] | None] = heads_of
    given: deque[FetchedBatches] = field(default_factory=deque)
    is_given: bool = False  # and so it is `polling`
    by_heads: bool = False  # headers told it all until now
    whole_until_s: float = 0.0  # they did not: until then it is given all
    waits: bool = False  # for what it is to be given
    # what was fetched ahead of it, of the log `trail_of`
    trail: deque[UncheckedHeaders] = field(default_factory=deque)
    trail_of: tuple[str, int] = ("", -1)
    trailing: int = 0  # headers in it

    @property
    def compared_epoch(self) -> int:
        """Where this epoch ends in the leader's log says whether that is the one that was read."""
        return self.last_epoch if self.last_epoch >= 0 else self.epoch

    def found_in(self, end: EpochEnd | None) -> None:
        """The leader's log is the one that was read, as far as anybody can tell. If it is not known in which
        epoch that was, it is one up to the leader's own: the next leader's log is compared by that."""
        self.unsure = False
        if end is not None and self.last_epoch < 0 and end.end_offset >= self.next_offset:
            self.last_epoch = end.epoch
