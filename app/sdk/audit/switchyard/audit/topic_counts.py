"""The counts of one topic in a client: records are noted as they come, and counted many at a time.

    noted (a flat list, four entries a record) --fold--> `ClientAudit` --report--> pending, one at most

Rules
1. Noting a record is one `list.extend`, which the interpreter never interrupts, so it needs no lock in any
   thread. The call that notes the `MOST_NOTED`th record folds them in about 0.1 ms, so memory is bounded.
2. A record that cannot be counted is left out and logged, here or in `Counting`; the client gets no error.
3. While a report waits no other report is made, and new counts add up in the tally.
4. Positions move together with the counts, under the book's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from switchyard.audit.logger import EpisodeLogger
from switchyard.audit.model.client_counter import ClientAudit, ClientState
from switchyard.audit.model.fingerprint import ids_of
from switchyard.audit.model.reports import Report
from switchyard.audit.model.tally import RecordArrays
from switchyard.audit.recovery import Position, moved

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Ids = Sequence[bytes | str | None] | Words  # words as `fingerprint.ids_of` makes them

FIELDS = 4  # timestamp, bytes, id, seen at (s)
MOST_NOTED = 1024
# bounds the windows of a report, to less than 1 MB
RECORDS_PER_PIECE = 2_048
FEW_RECORDS = 32  # fewer records are cheaper one by one
MOST_MS = 1 << 62
UNCOUNTED = "records that cannot be counted"
UNTIMED = "records of too many windows at once, counted as without a timestamp"


class TopicCounts:
    """The book of one topic.

    Attributes:
        noted: Records that are not folded yet (rule 1); `sent` extends it.
        pending: The report that waits for its acknowledgement; several only at the end.
        changed: The log does not have the current state.
        redelivered: Records that were counted before.
        uncounted: Records that rule 2 left out.
    """

    __slots__ = ("_client", "_moved", "_problems", "changed", "lock", "noted", "pending", "positions",
                 "redelivered", "topic", "uncounted")  # fmt: skip

    def __init__(
        self, client: ClientAudit, topic: str, positions: dict[int, Position], problems: EpisodeLogger
    ) -> None:
        self._client = client
        self._problems = problems
        self._moved: set[int] = set()
        self.topic = topic
        self.positions = positions
        self.noted: list[Any] = []
        self.pending: list[Report] = []
        self.lock = threading.Lock()
        self.changed = True
        self.redelivered = self.uncounted = 0

    def begin_as(self, source: str) -> None:
        """Sets the incarnation, before the first report."""
        with self.lock:
            self._client.begin_as(source)

    def fold(self) -> None:
        """Counts the noted records."""
        with self.lock:
            self._fold()

    def handled(
        self, partition: int, offset: int, timestamp_ms: int, nbytes: int, name: Any, at_s: float
    ) -> bool:
        """Notes a record, unless it was counted before. Raises TypeError, ValueError."""
        if not type(partition) is type(offset) is type(timestamp_ms) is int:
            partition, offset, timestamp_ms = index(partition), index(offset), index(timestamp_ms)
        if not (0 <= partition <= MOST_MS and 0 <= offset <= MOST_MS and abs(timestamp_ms) <= MOST_MS):
            raise ValueError("it is out of range")
        with self.lock:
            position = moved(self.positions.get(partition), offset, timestamp_ms)
            if position is None:
                self.redelivered += 1
                return False
            self.positions[partition] = position
            self._moved.add(partition)
            self.noted.extend((timestamp_ms, nbytes, name, at_s))
            if len(self.noted) >= MOST_NOTED * FIELDS:
                self._fold()
        return True

    def add(self, timestamps_ms: Any, nbytes: Any, names: Ids | None, at_ms: int) -> None:
        """Counts many records. Raises TypeError, ValueError or OverflowError, and then counts none."""
        rows = _many(timestamps_ms, nbytes, names)
        with self.lock:
            self._add(rows, at_ms)

    def _add(self, rows: RecordArrays, at_ms: int) -> None:
        for at in range(0, len(rows.timestamps_ms), RECORDS_PER_PIECE):
            piece = slice(at, at + RECORDS_PER_PIECE)
            ids = None if rows.ids is None else rows.ids[piece]
            self._client.add(RecordArrays(rows.timestamps_ms[piece], rows.nbytes[piece], ids=ids), at_ms)
        self._read_times()
        self.changed = True

    def handled_many(
        self,
        partition: int,
        offsets: Sequence[int],
        timestamps_ms: Any,
        nbytes: Any,
        names: Sequence[Any] | None,
        at_s: float,
    ) -> None:
        """Counts those records of a partition that were not counted before. Raises as `add`."""
        known = self.positions.get(partition)
        if len(offsets) >= FEW_RECORDS and (known is None or offsets[0] >= known[0]):
            words = None if names is None or None in names else _id_words(names)
            if words is not None or names is None or names.count(None) == len(names):
                self._handled_array(
                    partition, int(offsets[-1]), timestamps_ms, nbytes, words, int(at_s * 1000)
                )
                return
        for offset, time, size, name in zip(
            offsets, timestamps_ms, nbytes, names or [None] * len(offsets), strict=True
        ):
            self.handled(partition, offset, time, size, name, at_s)

    def _handled_array(
        self,
        partition: int,
        last_offset: int,
        timestamps_ms: Any,
        nbytes: Any,
        words: Words | None,
        at_ms: int,
    ) -> None:
        rows = _many(timestamps_ms, nbytes, words)
        if not (0 <= index(partition) <= MOST_MS and 0 <= last_offset <= MOST_MS):
            raise ValueError("it is out of range")
        with self.lock:
            _, newest_ms = self.positions.get(partition, (0, -1))
            newest_ms = max(newest_ms, int(rows.timestamps_ms.max()))
            self.positions[partition] = last_offset + 1, newest_ms
            self._moved.add(partition)
            self._add(rows, at_ms)

    def report(self, at_ms: int, *, leaves: bool = False) -> None:
        """Makes the report of the counts, unless one waits (rule 3)."""
        with self.lock:
            self._fold()
            if leaves or not self.pending:
                self.pending = self._client.reports(at_ms, leaves=leaves)
                self.changed = True

    def acknowledged(self, report: Report) -> None:
        with self.lock:
            self._client.acknowledged(report)
            self.pending = [one for one in self.pending if one.id != report.id]
            self.changed = True

    def all(self) -> tuple[ClientState, dict[int, Position]]:
        """The whole state for the log."""
        with self.lock:
            self._fold()
            self._moved, self.changed = set(), False
            return self._client.state(), dict(self.positions)

    def change(self) -> tuple[ClientState, dict[int, Position]] | None:
        """The state that changed since the last call of this or `all`; None: nothing changed."""
        if not self.changed and not self.noted:
            return None
        with self.lock:
            self._fold()
            partitions, self._moved, self.changed = self._moved, set(), False
            return self._client.state(), {partition: self.positions[partition] for partition in partitions}

    def _fold(self) -> None:
        size = len(self.noted)
        if not size:
            return
        chunk = self.noted[:size]
        self.changed = True  # first: `change` reads both without the lock, and must see one of them
        del self.noted[:size]
        try:
            self._count(chunk)
            self._read_times()
        except (TypeError, ValueError, OverflowError):
            for at in range(0, size, FIELDS):
                self._count_one(chunk[at : at + FIELDS])

    def _read_times(self) -> None:
        if self._client.untimed:
            self._problems.wrong(UNTIMED, f"topic {self.topic}: {self._client.untimed} records so far")

    def _count(self, chunk: list[Any]) -> None:
        times, sizes = np.array(chunk[0::FIELDS], dtype=np.int64), np.array(chunk[1::FIELDS], dtype=np.int64)
        if not times.ndim == sizes.ndim == 1:  # lists instead of numbers; then nothing is counted
            raise ValueError(f"timestamps of shape {times.shape}, sizes of {sizes.shape}")
        seen_ms = (np.array(chunk[3::FIELDS]) * 1000).astype(np.int64)
        names, rows = chunk[2::FIELDS], _rows(times, sizes)
        unnamed = names.count(None)
        if unnamed == len(names):
            self._client.add(rows, seen_ms)
            return
        words = _id_words(names)
        if not unnamed:
            self._client.add(rows._replace(ids=words), seen_ms)
            return
        named = np.array([name is not None for name in names])
        for mask, ids in ((named, words[named]), (~named, None)):
            self._client.add(
                RecordArrays(rows.timestamps_ms[mask], rows.nbytes[mask], ids=ids), seen_ms[mask]
            )

    def _count_one(self, entry: list[Any]) -> None:
        time, size, name, at_s = entry
        try:
            self._count([-1 if time is None else int(time), int(size), name, at_s])
        except (TypeError, ValueError, OverflowError) as error:
            self.uncounted += 1
            self._problems.wrong(
                UNCOUNTED, f"topic {self.topic}, timestamp {time!r}, {size!r} bytes: {error}"
            )


def _rows(times: Numbers, sizes: Numbers) -> RecordArrays:
    return RecordArrays(np.clip(times, -1, MOST_MS), np.maximum(sizes, 0))


def _many(timestamps_ms: Any, nbytes: Any, names: Ids | None) -> RecordArrays:
    """The arguments as arrays of one length. Raises TypeError, ValueError, OverflowError."""
    times = np.asarray(timestamps_ms, dtype=np.int64)
    sizes = np.broadcast_to(np.asarray(nbytes, dtype=np.int64), times.shape)
    words = names if names is None or isinstance(names, np.ndarray) else _id_words(names)
    if times.ndim != 1 or (words is not None and words.shape != (len(times), 2)):
        raise ValueError(
            f"timestamps of shape {times.shape}, ids of {None if words is None else words.shape}"
        )
    return _rows(times, sizes)._replace(ids=words)


def _id_words(names: Sequence[Any]) -> Words:
    """The ids as words; None becomes zeros. Raises TypeError."""
    return ids_of([_bytes(name) for name in names])


def _bytes(name: Any) -> bytes:
    if isinstance(name, bytes):
        return name
    if name is None:
        return bytes(16)
    if isinstance(name, str):
        return name.encode()
    raise TypeError(f"an id of type {type(name).__name__}; bytes or str")
