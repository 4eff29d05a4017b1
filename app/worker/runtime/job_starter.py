"""Starts a job on this worker: takeover, start position, pump.

A job that cannot start is tried again every `START_RETRY_S`, and `troubles` says why it cannot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

import structlog

from app.controllog.events import Assignment, Released
from app.controllog.log import ControlLog
from app.kernel.clock import now_ms
from app.kernel.counters import highest
from app.kernel.incidents import ReportIncident
from app.kernel.job import JobId
from app.payload.event_time.instant import UnusableField
from app.payload.schema_files import DescriptorError
from app.worker.jobs.pump import StartedJob, StartPostponed
from app.worker.jobs.start_position import LineageReset
from app.worker.runtime.job_kinds import JobKinds
from app.worker.tracker.client import TrackerClient

log = structlog.get_logger(__name__)

START_RETRY_S = 1.0
START_TROUBLE_S = 5.0  # a start that succeeds sooner is no incident, such as of a topic without a leader yet


@dataclass
class JobStarter:
    """Takes jobs over, and has their kinds start pumps.

    Attributes:
        troubles: Job -> why it cannot start yet.
        resets: Job -> where its next pump starts, in another lineage.
    """

    worker: str
    control: ControlLog
    trackers: TrackerClient
    report_incident: ReportIncident
    kinds: JobKinds
    troubles: dict[str, str] = field(default_factory=dict)
    resets: dict[str, LineageReset] = field(default_factory=dict)

    def keep(self, jobs: Collection[str]) -> None:
        self.resets = {job: reset for job, reset in self.resets.items() if job in jobs}
        self.troubles = {job: trouble for job, trouble in self.troubles.items() if job in jobs}

    async def start(self, job: str, held: Assignment) -> StartedJob | None:
        """Tries until the job can flow; None when this worker no longer owns it under that epoch.

        The result is valid only until the caller's next await.
        """
        identity = JobId.parse(job)
        began_s, reported = time.monotonic(), ""
        while True:
            try:
                started = await self._take_over(identity, held)
            except Exception as error:  # noqa: BLE001 - any error is reported, and the start tried again
                message = str(error) or repr(error)
                self.troubles[job] = message
                stays = isinstance(error, UnusableField | DescriptorError)
                if isinstance(error, StartPostponed):
                    reported = ""
                is_due = stays or time.monotonic() - began_s >= START_TROUBLE_S
                if is_due and message != reported and not isinstance(error, StartPostponed):
                    reported = message
                    log.warning("a job cannot start yet; the worker tries again", job=job, error=message)
                    remedy = "the worker tries again every second"
                    if stays:
                        remedy = "deploy the definition with a field or schema that this worker can read"
                    is_over = partial(self._has_other_trouble, job, message)
                    self.report_incident("job-cannot-start", job, message, remedy, is_over)
                await asyncio.sleep(START_RETRY_S)
            else:
                self.troubles.pop(job, None)
                return started

    def _has_other_trouble(self, job: str, trouble: str) -> bool:
        """Whether the job has started, has left this worker, or cannot start for another reason now."""
        return self.troubles.get(job) != trouble

    async def _take_over(self, identity: JobId, held: Assignment) -> StartedJob | None:
        job = str(identity)
        # A wrong definition or an unreachable cluster is found before the takeover fences the former owner.
        kind = self.kinds.of(job)
        await kind.check(identity)
        answer = await self.trackers.takeover(job, held.epoch)
        if not answer.granted and answer.known_epoch > highest(self.control.view.next_offset):
            self.report_incident(
                "epoch-refused", job,
                f"the tracker topic has epoch {answer.known_epoch}, above every possible one; it is ignored",
                "find the program that writes to that topic, and withdraw its permission",
            )  # fmt: skip
            answer = await self.trackers.takeover(job, held.epoch, over=answer.known_epoch)
        if not answer.granted:
            await self._refused(job, held, answer.known_epoch)
            return None
        reset = self.resets.get(job)
        reset = reset if reset is not None and reset.epoch == held.epoch else None

        def is_mine() -> bool:
            current = self.control.view.assignments.get(job)
            return current is not None and current.epoch == held.epoch and current.worker == self.worker

        started = await kind.start_pump(identity, held.epoch, answer, reset, is_mine)
        if started is not None:
            self.resets.pop(job, None)
        return started

    async def _refused(self, job: str, held: Assignment, known_epoch: int) -> None:
        """The tracker table outlived the control log: the leader must assign a higher epoch."""
        reason = "the tracker table has a later epoch"
        log.warning("a takeover was refused", job=job, epoch=held.epoch, known_epoch=known_epoch, why=reason)
        await self.control.append(
            Released(at_ms=now_ms(), job=job, worker=self.worker, epoch=held.epoch,
                     known_epoch=known_epoch, reason=reason)
        )  # fmt: skip
