"""Watches the disk of this worker's tables: its free space, and rows that it did not take.

Deliveries, copies and counts need no disk, so a worker with a full one goes on and stays ready. Its tables
fall behind only in memory (`app.faust_store`), until that is full, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from mode import Service

from app.kernel.free_space import free_bytes, in_mib
from app.kernel.incidents import ReportIncident

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 2.0
CALM_S = 30.0  # without such rows, until they are over: a disk may be full again at once
LOW_BYTES, ENOUGH_BYTES = 256 << 20, 512 << 20  # reported below the first, until above the second
REMEDY = "free space there, check the disk, or set data_dir to another one and start the worker again"


@dataclass(frozen=True, slots=True)
class UnwrittenRows:
    """Rows of a table that are only in memory, and the disk's error."""

    table: str
    rows: int
    error: str


class DiskWatch(Service):
    """Follows one folder's disk.

    Attributes:
        free_bytes: What the worker may still write; None: not known.
        unwritten: The rows that the disk did not take, at the last look.
        trouble: Says that rows are not written or that space is low; "" for neither.
    """

    def __init__(
        self,
        directory: Path,
        unwritten: Callable[[], Sequence[UnwrittenRows]],
        worker: str,
        report_incident: ReportIncident,
    ) -> None:
        super().__init__()
        self.free_bytes: int | None = None
        self.unwritten: Sequence[UnwrittenRows] = ()
        self._directory = directory
        self._look = unwritten
        self._worker = worker
        self._report_incident = report_incident
        self.trouble = ""
        self._is_low = self._is_refused = False
        self._calm_s = 0.0

    @Service.task
    async def _watch(self) -> None:
        was_blind = False
        while not self.should_stop:
            try:
                self.see(await asyncio.to_thread(free_bytes, self._directory), self._look())
                was_blind = False
            except OSError as error:
                if not was_blind:
                    log.warning("this worker cannot read the free space of its disk", why=str(error))
                was_blind = True
            await self.sleep(LOOK_INTERVAL_S)

    def see(self, free: int, unwritten: Sequence[UnwrittenRows]) -> None:
        """Takes what is free, and the rows that are not written."""
        was_low = self._is_low
        self.free_bytes, self.unwritten = free, unwritten
        self._is_low = free < (ENOUGH_BYTES if was_low else LOW_BYTES)
        place = self._directory
        self.trouble = ""
        if self._is_low:
            words = f"{in_mib(free)} are free on the disk of this worker's tables, {place}"
            self.trouble = words
            if not was_low:
                self._report_incident("disk-low", self._worker, words, REMEDY, lambda: not self._is_low)
        if unwritten:
            self._calm_s = 0.0
            rows, error = sum(one.rows for one in unwritten), unwritten[0].error
            names = ", ".join(sorted({one.table for one in unwritten}))
            words = f"{place} does not take rows of tables, which are in memory only ({names}): {error}"
            self.trouble = f"{words}; rows: {rows}"
            if not self._is_refused:
                self._is_refused = True
                remedy = f"{REMEDY}; it writes these rows itself once the disk takes them, and none is lost"
                self._report_incident(
                    "tables-unwritten", self._worker, words, remedy, lambda: not self._is_refused
                )
        elif self._is_refused:
            self._calm_s += LOOK_INTERVAL_S
            self._is_refused = self._calm_s < CALM_S
