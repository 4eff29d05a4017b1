"""Where the messages of a workload wait on their way: how long each stage takes, measured while a trace runs.

    append ─▶ fetched ─▶ ready ─▶ sent ─▶ answered ─▶ saved
                                              └─────────▶ committed

Rules
1. Only messages of the main topic that were decoded after the trace began count. A message that is sent again
   counts with its first answer.
2. Fetches are noted by chunk, and only while a trace runs.
3. Memory is bounded: a partition has at most `MAX_CHUNKS` chunks, and `MAX_WAITING` answers that are not
   saved or committed yet. Messages beyond either are left out. After the first such chunk, so are all later
   ones, because nothing would say where the next chunk begins.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from app.kafka.records.record import Record

MAX_TRACE_S = 60
GROWTH = 1.04  # each class of durations is so much wider than the one before
LEAST_S = 1e-5  # what is shorter belongs to the first class
MAX_CLASS = 1_000  # 34,000 years
MAX_CHUNKS = 10_000
MAX_WAITING = 50_000
_PER_CLASS = 1 / math.log(GROWTH)

FETCHED = "append to fetched"
READY = "fetched to ready"
SENT = "ready to sent"
ANSWERED = "sent to answered"
WHOLE = "append to answered"
SAVED = "answered to saved"
COMMITTED = "answered to committed"
LOOP = "event loop late"
STAGES = (FETCHED, READY, SENT, ANSWERED, WHOLE, SAVED, COMMITTED, LOOP)


class Durations(msgspec.Struct):
    """How often each duration came, in classes that are 4 % wide: {class: count}.

    Class n has the durations up to `LEAST_S * GROWTH ** n` seconds.
    """

    counts: dict[int, int] = {}
    longest_s: float = 0.0

    def note(self, seconds: float, count: int = 1) -> None:
        """Counts `count` durations; a negative one (two clocks differ) as zero."""
        if seconds > LEAST_S:
            index = min(math.ceil(math.log(seconds / LEAST_S) * _PER_CLASS), MAX_CLASS)
        else:
            index = 0
        self.counts[index] = self.counts.get(index, 0) + count
        self.longest_s = max(self.longest_s, seconds)

    @property
    def is_valid(self) -> bool:
        """Whether another worker can have counted this."""
        longest_s = LEAST_S * GROWTH**MAX_CLASS
        return 0 <= self.longest_s <= longest_s and all(
            0 <= index <= MAX_CLASS and 0 < count < 1 << 53 for index, count in self.counts.items()
        )

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def quantile_s(self, share: float) -> float:
        """The duration that `share` of them do not exceed, up to 4 % too long; 0.0 if there are none."""
        wanted, reached = share * self.total, 0
        for index in sorted(self.counts):
            reached += self.counts[index]
            if reached >= wanted:
                return min(LEAST_S * GROWTH**index, self.longest_s)
        return 0.0

    def add(self, other: Durations) -> None:
        """Counts all that `other` has."""
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count
        self.longest_s = max(self.longest_s, other.longest_s)


class _Chunk(NamedTuple):
    """When the offsets below `end`, from the chunk before on, were fetched and became ready; monotonic s."""

    end: int
    fetched_s: float
    ready_s: float


class _Answer(NamedTuple):
    """Acknowledged messages whose progress is not saved and committed yet."""

    version: int  # of the pump, with them
    end: int
    at_s: float
    messages: int


class PartitionTrace:
    """The trace of one partition.

    Args:
        stages: Where it notes durations, by the names of `STAGES`.
        wall_s: Wall-clock time less monotonic time, in seconds.
        from_offset: Everything below it was decoded before the trace began (rule 1).
    """

    def __init__(self, stages: Mapping[str, Durations], wall_s: float, from_offset: int) -> None:
        self._stages = stages
        self._wall_s = wall_s
        self._from_offset = from_offset
        self._is_full = False
        self._ends = [from_offset]
        self._chunks = [_Chunk(from_offset, 0.0, 0.0)]
        self._unsaved: deque[_Answer] = deque()
        self._uncommitted: deque[_Answer] = deque()

    def ready(self, end: int, fetched_s: float, now_s: float) -> None:
        """The messages up to `end`, from where the last chunk ended, were decoded."""
        self._is_full = self._is_full or len(self._chunks) >= MAX_CHUNKS
        if not self._is_full:
            self._ends.append(end)
            self._chunks.append(_Chunk(end, fetched_s, now_s))

    def forget(self, base: int) -> None:
        """Everything below `base` has its answer."""
        first = bisect_right(self._ends, base)
        if first > 1:  # the chunk before says where the next one begins
            del self._ends[: first - 1], self._chunks[: first - 1]

    def answered(self, records: Iterable[Record], sent_s: float, now_s: float) -> None:
        """These messages have their first answer; they were sent at `sent_s`."""
        fetched, ready, sent, answered, whole = (self._stages[name] for name in STAGES[:5])
        ends, chunks, wall_s = self._ends, self._chunks, self._wall_s
        for record in records:
            index = bisect_right(ends, record.offset)
            if not 0 < index < len(chunks):
                continue
            chunk = chunks[index]
            ready.note(chunk.ready_s - chunk.fetched_s)
            sent.note(sent_s - chunk.ready_s)
            answered.note(now_s - sent_s)
            if record.timestamp >= 0:  # else the record has no time
                appended_s = record.timestamp / 1000 - wall_s
                fetched.note(chunk.fetched_s - appended_s)
                whole.note(now_s - appended_s)

    def acknowledged(self, version: int, records: Sequence[Record], now_s: float) -> None:
        """These messages are finished; the pump's `version` includes them."""
        traced = sum(record.offset >= self._from_offset for record in records)
        answer = _Answer(version, records[-1].offset + 1, now_s, traced)
        for waiting in (self._unsaved, self._uncommitted):
            if len(waiting) < MAX_WAITING:
                waiting.append(answer)

    def saved(self, version: int, now_s: float) -> None:
        """The pump's progress up to `version` is in the tracker table."""
        while self._unsaved and self._unsaved[0].version <= version:
            answer = self._unsaved.popleft()
            self._stages[SAVED].note(now_s - answer.at_s, answer.messages)

    def committed(self, offset: int, now_s: float) -> None:
        """The group's committed offset is `offset`. Answers behind an unfinished one wait for it."""
        while self._uncommitted and self._uncommitted[0].end <= offset:
            answer = self._uncommitted.popleft()
            self._stages[COMMITTED].note(now_s - answer.at_s, answer.messages)
