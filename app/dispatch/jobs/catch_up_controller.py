"""Starts and ends catch-up: a pump with too much lag gets a second pump for its backlog
(`app.dispatch.pump.catch_up`)."""

from __future__ import annotations

from collections.abc import MutableMapping

import structlog
from mode import Service

from app.dispatch.pump.partition import DispatchPump
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import FetchKey
from app.kafka.fetch.service import FetchService
from app.kernel.incidents import ReportIncident, until_closed

log = structlog.get_logger(__name__)

CATCH_UP_POLL_INTERVAL_S = 0.25


class CatchUpController(Service):
    def __init__(
        self,
        pumps: MutableMapping[str, DispatchPump],
        clusters: DataClusters,
        report_incident: ReportIncident,
    ) -> None:
        super().__init__()
        self._pumps = pumps
        self._clusters = clusters
        self._report_incident = report_incident

    @Service.task
    async def _poll(self) -> None:
        while not self.should_stop:
            await self.sleep(CATCH_UP_POLL_INTERVAL_S)
            for job, pump in list(self._pumps.items()):
                workload = pump.runtime.settings.workload
                fetch = next(
                    (c.fetch for c in self._clusters.started() if c.name == workload.metadata.cluster), None
                )
                if fetch is None or pump.closed or pump.draining:
                    continue
                if pump.backlog is not None:
                    self._end(job, pump, fetch)
                elif workload.spec.catch_up is not None and pump.is_main and not pump.paused:
                    lag = pump.high_watermark - pump.tracker.base
                    if lag > workload.spec.catch_up.lag:
                        self._split(job, pump, fetch, lag)

    def _split(self, job: str, pump: DispatchPump, fetch: FetchService, lag: int) -> None:
        at = pump.high_watermark
        main = pump.split(at)
        self._pumps[job] = main
        topic, partition = pump.job.topic, pump.job.partition
        fetch.add(FetchKey(job, pump.epoch), topic, partition, main.tracker.end)
        fetch.add(FetchKey(job, pump.epoch, is_backlog=True), topic, partition, pump.tracker.end)
        message = f"{lag} messages behind: new messages flow from offset {at} on, and the backlog beside them"
        log.warning("a job catches up beside new messages", job=job, why=message)
        self._report_incident(
            "catching-up",
            job,
            message,
            "find out why it fell behind; spec.catchUp.rate sets the backlog's pace",
            until_closed(main, lambda: main.backlog is None),
        )

    def _end(self, job: str, pump: DispatchPump, fetch: FetchService) -> None:
        assert pump.backlog is not None
        if pump.backlog.pump.has_ended:
            fetch.remove(FetchKey(job, pump.epoch, is_backlog=True))
        if pump.backlog.is_done:
            pump.retire()
            log.info("a job has finished its backlog", job=job)
