"""Looks for head-of-line blocking on a timer, because a quiet topic has no other event that would trigger it.

It also reports receivers that fail messages or answer too much, endpoints that are outliers, and batches that
cannot be decoded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog
from mode import Service

from app.dispatch.pump.partition import DispatchPump
from app.dispatch.push.answer_limits import REMEDY as ANSWER_REMEDY
from app.kernel.incidents import ReportIncident

if TYPE_CHECKING:
    from app.dispatch.push.endpoint import Endpoint
    from app.dispatch.scheduler.workload import WorkloadRuntime

log = structlog.get_logger(__name__)

HEAD_POLL_INTERVAL_S = 0.25
WITHHELD_REMEDY = (
    "repair the receiver, and it gets the messages; spec.dlq.share and perMinute allow more dead letters;"
    " tracker stash moves a single message away"
)
UNDECODABLE_REMEDY = "find their producer; dlq list shows their offsets, dlq export has their bytes"
UNDECODABLE_WAITS = "enable spec.dlq, or everything behind them waits too; find their producer"
OUTLIER_REMEDY = "look at this instance of the receiver, or stop it: the others take its messages"
REMEDY = "the message is in the dead letter queue or a retry topic now; find its fault there"


class HeadOfLineMonitor(Service):
    """Lets every pump move a message away that blocks its partition, and reports it."""

    def __init__(
        self,
        pumps: Mapping[str, DispatchPump],
        runtimes: Mapping[str, WorkloadRuntime],
        report_incident: ReportIncident,
    ) -> None:
        super().__init__()
        self._pumps = pumps
        self._runtimes = runtimes
        self._report_incident = report_incident

    @Service.task
    async def _poll(self) -> None:
        while not self.should_stop:
            await self.sleep(HEAD_POLL_INTERVAL_S)
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        self._report_trouble(now_s)
        for job, pump in list(self._pumps.items()):
            try:
                verdict = pump.free_head(now_s)
            except Exception:  # other jobs continue
                log.exception("a job could not be checked for head-of-line blocking", job=job)
                continue
            if verdict is not None:
                message = f"offset {verdict.offset}: {verdict.reason}"
                log.warning("a message blocked its partition and was moved away", job=job, why=message)
                self._report_incident("head-of-line", job, message, REMEDY)

    def _report_trouble(self, now_s: float) -> None:
        """Reports failed messages that may not be dead-lettered, receivers whose answers are too large to
        read, and batches that cannot be decoded."""
        for key, runtime in list(self._runtimes.items()):
            try:
                self._report_workload(key, runtime, now_s)
            except Exception:  # other workloads continue
                log.exception("a workload could not be checked for failed messages", workload=key)

    def _report_workload(self, key: str, runtime: WorkloadRuntime, now_s: float) -> None:
        if message := runtime.withheld.incident_message(now_s):
            self._report_incident("withheld", key, message, WITHHELD_REMEDY)
        for address, queues in runtime.receivers.by_address.items():
            if due := queues.receiver.unread.due(now_s):
                message = f"{due[0]} answers of {address} were too large to read: {due[1]}"
                self._report_incident("answer-too-large", key, message, ANSWER_REMEDY)
            for endpoint in queues.receiver.endpoints:
                self._report_outlier(key, endpoint, now_s)
        if due := runtime.undecodable.due(now_s):
            has_queue = runtime.settings.policy.dlq_enabled
            become = "go to the dead letter queue" if has_queue else "wait, because spec.dlq.enabled is false"
            message = f"{due[0]} records or batches cannot be decoded. They {become}. The last: {due[1]}"
            remedy = UNDECODABLE_REMEDY if has_queue else UNDECODABLE_WAITS
            self._report_incident("undecodable", key, message, remedy)

    def _report_outlier(self, key: str, endpoint: Endpoint, now_s: float) -> None:
        standing = endpoint.standing
        why = standing.outlier(now_s)
        if why and not standing.is_reported:
            gets = "no messages for now" if standing.is_ejected else "fewer messages"
            self._report_incident(
                "endpoint-outlier", key, f"endpoint {endpoint.name} gets {gets}: {why}", OUTLIER_REMEDY,
                lambda: endpoint.is_leaving or not standing.outlier(time.monotonic()),
            )  # fmt: skip
        standing.is_reported = bool(why)
