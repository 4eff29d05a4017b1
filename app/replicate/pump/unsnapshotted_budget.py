"""How many records a worker's replicas have copied that no snapshot covers yet: what successors would have to
know again, by a print of each (`app.replicate.model.copied_index`), were the worker killed now.

Rules
1. All replicas of a worker together have at most `MAX_RECORDS` of them, and a batch each.
2. Each may have `LEAST_RECORDS` in any case: where a part of the tracker topic takes nothing, the jobs that
   are kept there stand still, and no others do.
"""

from __future__ import annotations

from collections import deque

MAX_RECORDS = 1_000_000  # a successor takes some 100 bytes for each
LEAST_RECORDS = 10_000


class UnsnapshottedBudget:
    """All of a worker. Attributes: `records`."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records = 0


class UnsnapshottedRecords:
    """See the module; of one replica, beside the others' of its worker. All counts are of records since it
    began.

    Attributes: `records` (how many there are).
    """

    __slots__ = ("_appended", "_budget", "_saved", "_taken", "records")

    def __init__(self, budget: UnsnapshottedBudget) -> None:
        self.records = 0
        self._budget = budget
        self._appended = self._saved = 0
        self._taken: deque[tuple[int, int]] = deque()  # snapshots that may be on their way

    @property
    def is_full(self) -> bool:
        """No batch may go before a snapshot was taken."""
        return self.records >= LEAST_RECORDS and self._budget.records >= MAX_RECORDS

    def appended(self, count: int) -> None:
        """So many were handed over."""
        self._appended = count
        self._count()

    def taken(self, version: int, count: int) -> None:
        """The snapshot of this version covers so many."""
        if not self._taken or self._taken[-1][0] != version:
            self._taken.append((version, count))

    def saved(self, version: int) -> int | None:
        """The table has the snapshot of this version. How many it covers; None when that is not known."""
        found = None
        while self._taken and self._taken[0][0] <= version:
            self._saved = found = self._taken.popleft()[1]
        self._count()
        return found

    def close(self) -> None:
        """They are the successor's from now on."""
        self._saved = self._appended
        self._taken.clear()  # one that is on its way may be taken yet
        self._count()

    def _count(self) -> None:
        records = self._appended - self._saved
        self._budget.records += records - self.records
        self.records = records
