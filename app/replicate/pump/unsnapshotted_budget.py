"""Bounds how many records a worker's replicas have copied since their last snapshots. If the worker is
killed, successors have to recognize these records, by a print of each (`app.replicate.model.copied_index`).

Rules
1. All replicas of a worker together have at most `MAX_RECORDS` of them, and one batch each.
2. Each replica may have `LEAST_RECORDS` in any case. If a partition of the tracker topic takes nothing, only
   the jobs that are kept there stand still.
"""

from __future__ import annotations

from collections import deque

MAX_RECORDS = 1_000_000  # a successor needs some 100 bytes for each
LEAST_RECORDS = 10_000


class UnsnapshottedBudget:
    """The `records` of all replicas of a worker."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records = 0


class UnsnapshottedRecords:
    """The `records` of one replica that no snapshot covers. All counts are of records since it began."""

    __slots__ = ("_appended", "_budget", "_saved", "_taken", "records")

    def __init__(self, budget: UnsnapshottedBudget) -> None:
        self.records = 0
        self._budget = budget
        self._appended = self._saved = 0
        self._taken: deque[tuple[int, int]] = (
            deque()
        )  # version and records of snapshots that are not saved yet

    @property
    def is_full(self) -> bool:
        """Whether a snapshot has to be saved before the next batch."""
        return self.records >= LEAST_RECORDS and self._budget.records >= MAX_RECORDS

    def appended(self, count: int) -> None:
        """Sets the number of records that were handed to the lane."""
        self._appended = count
        self._count()

    def taken(self, version: int, count: int) -> None:
        """Notes that the snapshot of this version covers `count` records."""
        if not self._taken or self._taken[-1][0] != version:
            self._taken.append((version, count))

    def saved(self, version: int) -> int | None:
        """Returns how many records the saved snapshot of this version covers; None: not known."""
        found = None
        while self._taken and self._taken[0][0] <= version:
            self._saved = found = self._taken.popleft()[1]
        self._count()
        return found

    def close(self) -> None:
        """Leaves the records to the successor."""
        self._saved = self._appended
        self._taken.clear()
        self._count()

    def _count(self) -> None:
        records = self._appended - self._saved
        self._budget.records += records - self.records
        self.records = records
