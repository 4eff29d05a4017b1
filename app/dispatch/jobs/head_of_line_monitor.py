"""Head-of-line blocking, looked for on a timer, so that a quiet topic is freed too; and failing messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog
from mode import Service

from app.dispatch.pump.line_head import free_head
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.push.answer_limits import REMEDY as ANSWER_REMEDY

if TYPE_CHECKING:
    from app.dispatch.scheduler.workload import WorkloadRuntime

log = structlog.get_logger(__name__)

HEAD_POLL_INTERVAL_S = 0.25
FAILING = (
    "mend the receiver, and they are delivered; spec.dlq.share and perMinute allow more dead letters;"
    " tracker stash moves one away"
)
UNDECODABLE_REMEDY = "see what wrote them; dlq list shows where they stood, dlq export has their bytes"
UNDECODABLE_WAITS = "enable spec.dlq, or all that is behind them waits, too; see what wrote them"
REMEDY = "it is in the dead letter queue or retry topic; look there for what is wrong with it"


class HeadOfLineMonitor(Service):
    """Has every pump move away a message that blocks the others, and tells it."""

    def __init__(
        self, pumps: Mapping[str, DispatchPump], report_incident: Callable[[str, str, str, str], None]
    ) -> None:
        super().__init__()
        self._pumps = pumps
        self._report_incident = report_incident

    @Service.task
    async def _poll(self) -> None:
        while not self.should_stop:
            await self.sleep(HEAD_POLL_INTERVAL_S)
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """One look at all pumps."""
        self._report_trouble(now_s)
        for job, pump in list(self._pumps.items()):
            try:
                verdict = free_head(pump, now_s)
            except Exception:  # of this job only
                log.exception("the head of a line could not be looked at", job=job)
                continue
            if verdict is not None:
                message = f"offset {verdict.offset}: {verdict.reason}"
                log.warning("a message blocked its partition and was moved away", job=job, why=message)
                self._report_incident("head-of-line", job, message, REMEDY)

    def _report_trouble(self, now_s: float) -> None:
        """Reports an incident for each workload whose failed messages may not be dead-lettered, or whose
        batches cannot be decoded, and for each receiver that answers more than is read."""
        reported: set[str] = set()
        for job, pump in list(self._pumps.items()):
            try:
                runtime = pump.runtime
                key = runtime.workload.key
                if key not in reported:
                    reported.add(key)
                    self._report_of(key, runtime, now_s)
            except Exception:  # of this job only
                log.exception("what a receiver fails could not be looked at", job=job)

    def _report_of(self, key: str, runtime: WorkloadRuntime, now_s: float) -> None:
        if message := runtime.withholding.incident_message(now_s):
            self._report_incident("withheld", key, message, FAILING)
        for link in runtime.links.values():
            if due := link.unread.due(now_s):
                message = f"{link.address} answered {due[0]} times more than is read: {due[1]}"
                self._report_incident("answer-too-large", key, message, ANSWER_REMEDY)
        if due := runtime.undecodable.due(now_s):
            has_queue = runtime.policy.dlq_enabled
            become = "go to the dead letter queue" if has_queue else "wait, as spec.dlq.enabled is false"
            message = f"{due[0]} records or batches cannot be decoded. They {become}. The last: {due[1]}"
            remedy = UNDECODABLE_REMEDY if has_queue else UNDECODABLE_WAITS
            self._report_incident("undecodable", key, message, remedy)
