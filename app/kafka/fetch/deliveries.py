"""The deliveries of a fetch service (raw batches, gaps, incidents), and the byte budget that it keeps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiokafka.errors import for_code

from app.kafka.client.cluster import UNKNOWN_TOPIC
from app.kafka.client.epoch_ends import FENCED_EPOCH, UNKNOWN_EPOCH, EpochEnd
from app.kafka.client.permissions import NOT_AUTHORISED, ConfiguredCluster, grant, lacks
from app.kafka.records.header_arrays import heads_of

if TYPE_CHECKING:
    from app.kafka.records.header_arrays import BatchHeaderArrays, Numbers

PARTITION_MAX_BYTES = 1024 * 1024
PARTITION_BUFFER_BYTES = 2 * 1024 * 1024
HEADED_BYTES = 72  # per batch: nine numbers
DECODED_SHARE = 0.25  # of the budget, used twice: half of it is left for fetched data
ALL_BYTES = 1 << 62  # a partition with this `leaves_bytes` is not fetched
CORRUPT = 2
UNEXPECTED = -100  # not a Kafka code
REMEDIES = {
    UNKNOWN_TOPIC: "create the topic, or correct its name in the workload",
    UNEXPECTED: "this is a bug in Switchyard; report the traceback in the log. The worker retries by itself",
    CORRUPT: (
        "a record is corrupt and its end is not known; check the broker's disk, or skip the record: "
        "switchyard route reset ROUTE --topic TOPIC --partition N --to-offset OFFSET, for a workload "
        "switchyard workload reset GROUP/TOPIC --offset N:OFFSET"
    ),
}


NAMES = {FENCED_EPOCH: "FencedLeaderEpoch", UNKNOWN_EPOCH: "UnknownLeaderEpoch"}  # unknown to aiokafka


def name_of(code: int) -> str:
    return NAMES.get(code) or for_code(code).__name__


def refusal(code: int, cluster: ConfiguredCluster, topic: str, partition: int) -> str:
    if code == NOT_AUTHORISED:
        return f"{lacks(cluster, 'topic', topic, 'Read')} ({name_of(code)})"
    return f"{name_of(code)} for {topic}-{partition}"


def remedy_of(code: int, cluster: ConfiguredCluster, topic: str) -> str:
    if code == NOT_AUTHORISED:
        return grant(cluster, "topic", topic, "Read", "Describe")
    return REMEDIES.get(code, "check that the broker runs; the worker retries by itself")


class FetchKey(NamedTuple):
    """Who fetches: a start of a job has its own epoch, so what an earlier start left in flight is not taken
    for its own. A job that catches up fetches its partition twice (`app.dispatch.pump.catch_up`)."""

    job: str
    epoch: int
    is_backlog: bool = False


class Droppable(Protocol):
    @property
    def kept_bytes(self) -> int: ...
    def drop(self) -> None: ...


class ByteBudget:
    """The bytes that all partitions of a worker may hold together.

    Decompressed batches with records left (`keep`) and records ready to be sent count too, and leave less
    to fetch. Each of both may use `DECODED_SHARE` of the capacity. Beyond that, the least recently read
    batch is dropped and later decompressed again, so an abandoned batch blocks no other.

    Attributes:
        held_bytes: Decoded messages that wait for their time or turn, counted beside `used_bytes`.
        ready_bytes: Decoded messages that may be sent (`app.dispatch.pump.intake`).
        kept_bytes: Decompressed batches.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = self.ready_bytes = self.kept_bytes = 0
        self._kept: dict[Droppable, int] = {}  # the last read batch is last
        self.requested_bytes = 0  # the most that requests under way may return
        self.held_bytes = 0
        self.waiters: list[Callable[[], None]] = []

    @property
    def free_bytes(self) -> int:
        """Negative for a moment at times, because a single batch is never refused."""
        return self.capacity_bytes - self.used_bytes - self.ready_bytes - self.kept_bytes

    @property
    def decoded_capacity_bytes(self) -> int:
        return int(DECODED_SHARE * self.capacity_bytes)

    @property
    def readies_much(self) -> bool:
        return self.ready_bytes >= self.decoded_capacity_bytes

    def keep(self, batch: Droppable) -> None:
        """Registers a batch that was read and has records left."""
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
        """Removes a batch that is not read further."""
        self.kept_bytes -= self._kept.pop(batch, 0)

    @property
    def holds_much(self) -> bool:
        """Whether waiting decoded messages use half as many bytes as fetched data may."""
        return self.held_bytes >= self.capacity_bytes // 2

    def room_for(self, most_bytes: int) -> int:
        """Half of the room that is not requested yet, at most `most_bytes`, at least one."""
        return max(1, min(most_bytes, (self.free_bytes - self.requested_bytes) // 2))

    def give_back(self, count: int) -> None:
        """Frees bytes and wakes the fetch services."""
        self.used_bytes -= count
        for wake in self.waiters:
            wake()


@dataclass(slots=True)
class TopicRetention:
    """A topic's retention time in ms; -1: for ever, or not known (yet)."""

    ms: int = -1


class FetchedBatches:
    """Raw batches of one partition, for the offsets [start_offset, next_offset). The reader calls `release`.

    Attributes:
        damage: Why the bytes cannot be read; "": the checksum of every batch matches.
        retention: The topic's retention, which stays up to date.
        leader_epoch: The epoch of the last batch (`app.kafka.client.epoch_ends`).
        fetched_s: When the bytes came, or were joined or copied from others; monotonic seconds.
    """

    __slots__ = (
        "_owner", "aborted", "damage", "data", "fetched_s", "high_watermark", "key", "leader_epoch",
        "nbytes", "next_offset", "partition", "retention", "start_offset", "topic",
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
        self.fetched_s = time.monotonic()

    @property
    def budget(self) -> ByteBudget | None:
        """The budget that counts the bytes; None once they are released."""
        return None if self._owner is None else self._owner.budget

    @property
    def is_stale(self) -> bool:
        """Whether the fetch under this key has ended or been replaced."""
        return self._owner is not None and self._owner.removed

    def hand_over(self) -> None:
        """Lets go of the bytes without freeing them: another object counts them in the budget."""
        self._owner, self.data = None, b""

    def release(self) -> None:
        """Gives the bytes back to the budget; a second call does nothing."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self.data = b""
            owner.unreleased_bytes -= self.nbytes
            owner.budget.give_back(self.nbytes)


class FetchedHeaders(FetchedBatches):
    """Batches of which only the headers are needed, all visible. `seen_at_ms`: when each batch was in the
    log; negative: not known."""

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
    """Headers of another reader's batches, not checked yet: they become `FetchedHeaders` if headers suffice.
    `seen_at_ms`: when all of them were in the log; negative: not known."""

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

    With `begun_anew`, the log was truncated or the topic recreated, so offsets have another meaning and
    `end` may be below, at or above `start`. Fetching continues at `end`. For a truncated log that is where
    it diverges from the data that was read, if known (`app.kafka.client.epoch_ends`), otherwise the log's
    start. `truncated_in` is the epoch of the leader with the other log; -1 for a recreated topic.
    """

    key: FetchKey
    topic: str
    partition: int
    start: int
    end: int
    reason: str
    begun_anew: bool = False
    truncated_in: int = -1

    @property
    def is_truncation(self) -> bool:
        return self.truncated_in >= 0

    def resume_offset(self, base: int) -> int:
        """Where a reader that has finished all below `base` continues in a log that has `begun_anew`. Offsets
        before the truncation that are not finished must not be skipped."""
        return min(self.end, base) if self.is_truncation else self.end


@dataclass(frozen=True, slots=True)
class FetchIncident:
    """A partition cannot be fetched now; the service keeps trying."""

    key: FetchKey
    topic: str
    partition: int
    message: str
    remedy: str


FetchItem = FetchedBatches | LogGap | FetchIncident


@dataclass(slots=True, eq=False)
class PartitionFetch:
    budget: ByteBudget
    key: FetchKey
    topic: str
    partition: int
    next_offset: int
    topic_id: str = ""  # "": not known yet
    leaves_bytes: int = 0  # see `FetchService.add`
    lingers_s: float = 0.0  # see `FetchService.add`
    doubted: bool = False  # the topic may be another one; its data does not count until that is known
    epoch: int = -1  # of its leader; -1: not known (yet)
    last_epoch: int = -1  # of the record before `next_offset`, or of a later one
    unsure: bool = False  # the leader's log may be another one; not fetched until that is known
    polling: bool = False
    removed: bool = False
    idle: bool = False  # its last answer was empty
    unreleased_bytes: int = 0
    max_bytes: int = PARTITION_MAX_BYTES
    high_watermark: int = -1
    held_at: int = -1  # an open transaction begins here, and nothing behind it may be read; -1: none does
    held_since_s: float = 0.0
    held_seen_s: float = 0.0  # when an answer of the leader last said so
    retention: TopicRetention = field(default_factory=TopicRetention)
    seen_at_s: float = 0.0
    retry_at_s: float = 0.0
    failures: int = 0
    failing_since_s: float = 0.0
    incident: str = ""  # the reported trouble
    node: int | None = None
    # State of a follower (`app.kafka.fetch.shared_read_service`). `counts`: how many of the first batches it
    # can count by their headers. `heads_of`: the headers of whole batches; None: headers do not suffice.
    counts: Callable[[BatchHeaderArrays], int] | None = None
    heads_of: Callable[[bytes], list[bytes] | None] = heads_of
    given: deque[FetchedBatches] = field(default_factory=deque)
    is_given: bool = False  # shared reads are being delivered; `polling` is true too
    by_heads: bool = False  # headers have sufficed so far
    whole_until_s: float = 0.0  # until then it gets whole batches, because headers did not suffice
    waits: bool = False  # for shared reads
    # headers that another reader fetched ahead of it, in the log `trail_of`
    trail: deque[UncheckedHeaders] = field(default_factory=deque)
    trail_of: tuple[str, int] = ("", -1)
    trail_headers: int = 0

    @property
    def compared_epoch(self) -> int:
        """The epoch whose end in the leader's log shows whether that is the log that was read."""
        return self.last_epoch if self.last_epoch >= 0 else self.epoch

    def note_stable(self, stable_offset: int, now_s: float) -> None:
        """`stable_offset`: where the partition's first open transaction begins, or its end."""
        held_at = stable_offset if 0 <= stable_offset <= self.next_offset < self.high_watermark else -1
        if held_at != self.held_at:
            self.held_at, self.held_since_s = held_at, now_s
        self.held_seen_s = now_s

    def is_held(self, since_s: float = float("inf")) -> bool:
        """Whether an open transaction has held it up since `since_s` or longer."""
        return self.held_at >= 0 and self.held_since_s <= since_s

    def found_in(self, end: EpochEnd | None) -> None:
        """The leader's log is the one that was read, as far as known. If the epoch of the last read record is
        unknown, it is taken from `end`, to compare with the next leader's log."""
        self.unsure = False
        if end is not None and self.last_epoch < 0 and end.end_offset >= self.next_offset:
            self.last_epoch = end.epoch
