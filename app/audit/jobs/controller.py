"""Controls this worker's audits: starts pumps, restarts them for changed plans, and sends their reports. It
also controls the audits of dispatch jobs (`app.audit.jobs.consumer_counts`).

Rules
1. A changed plan applies to what is fetched afterwards: its pumps report, save, and start again. So does a
   pump whose note lacked needed counts (`AuditPump.is_lacking`).
2. One task at a time reports for a pump. Reports that the topic did not take are made again in the next
   round.
3. A worker with many audits reports less often (`REPORTS_PER_S`).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.audit.definition import AuditPlan, of_job_name
from app.audit.jobs.consumer_counts import AuditConsumers
from app.audit.jobs.report_sender import AuditSender
from app.audit.jobs.start_position import find_audit_start
from app.audit.pump.consumer_tap import ConsumerTap
from app.audit.pump.counting_spec import open_times
from app.audit.pump.partition import REPORT_INTERVAL_S, AuditPorts, AuditPump
from app.audit.topics.catalog import AuditsCatalog
from app.controllog.codec import JobStatus
from app.kafka.client.cluster import LATEST, READ_COMMITTED, ClusterUnreachable
from app.kafka.data_clusters import DataCluster
from app.kafka.fetch.deliveries import FetchItem
from app.kernel.clock import now_ms
from app.kernel.fencing import TakeoverAnswer
from app.kernel.job import JobId
from app.kernel.limit_shares import LimitNeed, WorkerShare
from app.kernel.troubles import TroubleSource
from app.worker.jobs.deliveries import pass_to_pump
from app.worker.jobs.kind import JobPorts, JobRestarts
from app.worker.jobs.pump import StartedJob, StartPostponed
from app.worker.jobs.start_position import LineageReset

log = structlog.get_logger(__name__)

AUDIT_POLL_INTERVAL_S = 0.25
LOG_ENDS_INTERVAL_S = 15.0  # between requests for the ends of logs
REPORTS_PER_S = 200  # of a worker
# Counting many small batches costs more than the batches; latencies lose this much precision.
COUNT_LINGER_S = 0.1
MEMORY_SHARE_LEFT = 0.5  # of the memory for fetched data, for deliveries and copies


class AuditController(Service):
    """The kind `audit` (`app.worker.jobs.kind`).

    Attributes:
        pumps: By job.
    """

    def __init__(
        self,
        ports: JobPorts,
        jobs: JobRestarts,
        catalog: AuditsCatalog,
        consumers: AuditConsumers,
        sender: AuditSender | None,
    ) -> None:
        super().__init__()
        self._consumers = consumers
        self.pumps: dict[str, AuditPump] = {}
        self._jobs = jobs
        self._sender = sender
        self._catalog = catalog
        self._clusters = ports.clusters
        self._schemas = ports.schemas
        self._report_incident = ports.report_incident
        self._pump_ports = AuditPorts(ports.report_incident, self.report)
        self._reporting: dict[AuditPump | ConsumerTap, asyncio.Task[None]] = {}

    # -- batches, through the agent `audit` --------------------------------------------------------

    def accept(self, item: FetchItem) -> None:
        """Hands a fetched batch to the job's pump. Never raises."""
        pass_to_pump(self.pumps.get(item.key.job), item, self._jobs, self._report_incident)

    # -- one job -----------------------------------------------------------------------------------

    async def check(self, job: JobId) -> tuple[AuditPlan, str, DataCluster]:
        """A job's plan, tier and cluster.

        Raises:
            LookupError: The plan or the cluster is not known here.
            StartPostponed: Another plan counts the topic, or none does.
            ClusterUnreachable: The cluster does not answer.
        """
        name, cluster = of_job_name(job.name)
        plan, tier = self._catalog.plan(name), self._catalog.tier(cluster)
        if plan is None:
            raise LookupError(f"this worker has no readable definition of audit plan {name}")
        if self._catalog.plan_of(cluster, job.topic) is not plan:
            raise StartPostponed(f"plan {name} no longer counts {job.topic} in {cluster}: this job ends")
        if tier is None or cluster not in self._clusters.specs:
            raise LookupError(f"cluster {cluster!r} is not in this worker's configuration")
        return plan, tier, await self._clusters.get(cluster)

    async def start_pump(
        self,
        job: JobId,
        epoch: int,
        answer: TakeoverAnswer,
        reset: LineageReset | None,
        is_mine: Callable[[], bool],
    ) -> StartedJob | None:
        """The pump of a job that was taken over; None if it is no longer this worker's.

        Raises:
            LookupError, KafkaError, ClusterUnreachable: Something that the pump needs is not known yet.
            UnusableField, DescriptorError: The plan's event time cannot be read here.
        """
        plan, tier, cluster = await self.check(job)
        times = await open_times(plan, self._schemas)
        start, counts = await find_audit_start(
            job, cluster, answer, counting=plan.counting, reset=reset, report_incident=self._report_incident
        )
        if not is_mine():
            return None
        pump = AuditPump(job, epoch, plan, tier, start, counts, self._pump_ports, times)
        leaves_bytes = int(MEMORY_SHARE_LEFT * self._clusters.budget.capacity_bytes)
        self.pumps[str(job)] = pump
        return StartedJob(
            pump, start, cluster, leaves_bytes, next_offset=counts.next_offset, lingers_s=COUNT_LINGER_S,
            counts=pump.reader.countable_from_headers, heads=pump.reader.heads_of,
        )  # fmt: skip

    def drop(self, job: str) -> None:
        self.pumps.pop(job, None)

    def status(self, job: str) -> JobStatus:
        return self.pumps[job].status()

    def position_of(self, job: JobId) -> tuple[str, str]:
        raise LookupError(f"{job} is an audit: it counts from where it is, and no reset moves it")

    # -- all jobs ----------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Restarts pumps by rule 1."""
        self._consumers.reconcile()
        for job, pump in list(self.pumps.items()):
            plan = self._catalog.plan(pump.plan.name)
            is_changed = plan is not None and plan is not pump.plan
            if (is_changed or pump.is_lacking) and not pump.draining:
                self._jobs.restart_soon(job, pump)

    def share(self, shares: Mapping[str, WorkerShare]) -> None:
        """Audits have no limits."""

    def needs(self, now_s: float) -> list[LimitNeed]:
        return []

    # -- reports ---------------------------------------------------------------------------------

    @Service.task
    async def _report_for_ever(self) -> None:
        while not self.should_stop:
            await self.sleep(AUDIT_POLL_INTERVAL_S)
            pumps = [pump for pump in self.pumps.values() if not pump.draining]
            audits: list[AuditPump | ConsumerTap] = [*pumps, *self._consumers.audits()]
            now_s, interval_s = time.monotonic(), max(REPORT_INTERVAL_S, len(audits) / REPORTS_PER_S)
            for audit in audits:
                if audit not in self._reporting and audit.is_due(now_s, interval_s):
                    self._start_report(audit)

    def _start_report(self, pump: AuditPump | ConsumerTap) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._report(pump))
        self._reporting[pump] = task
        task.add_done_callback(lambda _: self._reporting.pop(pump, None))
        return task

    async def report(self, pump: AuditPump) -> None:
        """Reports the latest counts; returns once the topic has taken or refused them."""
        before = self._reporting.get(pump)
        if before is not None:
            await asyncio.wait([before])
        await asyncio.wait([self._reporting.get(pump) or self._start_report(pump)])

    async def _report(self, pump: AuditPump | ConsumerTap) -> None:
        if self._sender is None:
            return
        try:
            made = pump.reports(now_ms(), time.monotonic())
            sent = [(report, await self._sender.send(report)) for report in made]
            for report, taken in sent:
                await taken
                pump.acknowledged(report)
            pump.troubles.show(TroubleSource.REPORT, "")
        except (KafkaError, OSError, TimeoutError) as error:
            words = f"report: the audit topic does not take reports: {error!r}"
            pump.troubles.show(TroubleSource.REPORT, words)
            log.warning(
                "the audit topic did not take reports; they are repeated",
                job=str(pump.job),
                error=repr(error),
            )
        except Exception as error:
            pump.troubles.show(TroubleSource.REPORT, f"report: {error!r}")
            log.exception("audit reports failed; they are repeated", job=str(pump.job))

    async def on_stop(self) -> None:
        for task in list(self._reporting.values()):
            task.cancel()

    # -- ends of logs -----------------------------------------------------------------------------

    @Service.task
    async def _fetch_log_ends_for_ever(self) -> None:
        while not self.should_stop:
            await self.sleep(LOG_ENDS_INTERVAL_S)
            by_cluster: defaultdict[str, list[AuditPump | ConsumerTap]] = defaultdict(list)
            audits: list[AuditPump | ConsumerTap] = [*self.pumps.values(), *self._consumers.audits()]
            for pump in audits:
                by_cluster[pump.cluster].append(pump)
            await asyncio.gather(*(self._fetch_log_ends(name, pumps) for name, pumps in by_cluster.items()))

    async def _fetch_log_ends(self, name: str, pumps: list[AuditPump | ConsumerTap]) -> None:
        try:
            client, at_ms = (await self._clusters.get(name)).client, now_ms()
            at = {(pump.job.topic, pump.job.partition) for pump in pumps}
            ends = await client.offsets(at, LATEST, READ_COMMITTED)
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
            log.debug("the ends of audited logs are unknown now", cluster=name, error=repr(error))
            return
        for pump in pumps:
            end = ends.get((pump.job.topic, pump.job.partition))
            if end is not None:
                pump.ended(end, at_ms)
