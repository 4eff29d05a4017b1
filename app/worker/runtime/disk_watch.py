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
from app.worker.jobs.start_position import ReportIncident

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 2.0
LOW_BYTES, ENOUGH_BYTES = 256 << 20, 512 << 20  # reported below the first, until above the second
REMEDY = "free space in {}, or set data_dir to a larger disk and start the worker again"


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
        self._is_low = self._is_reported = False

    @property
    def trouble(self) -> str:
        return self._refusal or self._shortage

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
        self.free_bytes, self.unwritten = free, unwritten
        remedy = REMEDY.format(self._directory)
        was_low, was_refused = self._is_low, self._is_reported
        self._is_low = free < (ENOUGH_BYTES if was_low else LOW_BYTES)
        self._is_reported = bool(unwritten)
        if self._is_low and not was_low:
            self._report_incident("disk-low", self._worker, self._shortage, remedy)
        if unwritten and not was_refused:
            self._report_incident(
                "tables-unwritten", self._worker, self._refusal,
                f"{remedy}; the worker then writes these rows itself, and none is lost",
            )  # fmt: skip

    @property
    def _shortage(self) -> str:
        if not self._is_low:
            return ""
        return (
            f"{in_mib(self.free_bytes or 0)} are free on the disk of this worker's tables, {self._directory}"
        )

    @property
    def _refusal(self) -> str:
        if not self.unwritten:
            return ""
        rows, first = sum(one.rows for one in self.unwritten), self.unwritten[0]
        names = ", ".join(sorted({one.table for one in self.unwritten}))
        return f"{rows} rows of tables ({names}) are in memory only: {first.error}"
