"""Chooses the dispatch jobs that are counted as the tier `consumer`, where each count begins, and by which
plan. `app.audit.pump.consumer_tap` counts them.

Rules
1. A workload's main topic is counted if a plan matches it in its cluster, and the plan's tiers contain
   `consumer` or are not given.
2. A job's counts continue where the former owner's end. This is below the job's base, so the messages in
   between are read again. If they are many, or expired, or counted by other settings, the counts begin at the
   base. Windows that may lack some are then not compared. A new or changed plan counts what is fetched next.
3. The audit never keeps a job from running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog
from aiokafka.errors import KafkaError

from app.audit.counts.handover import AuditNote, CountsFrom
from app.audit.definition import AuditPlan
from app.audit.folds.tier import CONSUMER
from app.audit.pump.consumer_tap import ConsumerTap
from app.audit.pump.counting_spec import how_of, needs_schema, open_times
from app.audit.topics.catalog import AuditsCatalog
from app.dispatch.definition import Workload
from app.dispatch.pump.partition import DispatchPump
from app.kafka.client.cluster import EARLIEST, ClusterUnreachable
from app.kafka.data_clusters import DataCluster
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.incidents import IsOver, ReportIncident, until_closed
from app.kernel.job import JobId
from app.offsets.model.producer_progress import audit_of
from app.payload.event_time.instant import UnusableField
from app.payload.event_time.source import EventTime
from app.payload.schema_files import DescriptorError
from app.payload.schema_loader import SchemaLoader
from app.worker.jobs.start_position import StartPosition
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.places import place_of
from switchyard.audit.model.reports import PART_OFFSETS, Scope

log = structlog.get_logger(__name__)

MOST_REREAD = 4 * PART_OFFSETS  # offsets that are read again because the former owner's counts lack them

# A workload's job waits no longer for a plan's schema; messages that come meanwhile are not counted.
SCHEMA_OPEN_TIMEOUT_S = 5.0


class AuditConsumers:
    """The audits of this worker's dispatch jobs. `pumps`: of these, by job."""

    def __init__(
        self, catalog: AuditsCatalog, pumps: Mapping[str, DispatchPump], report_incident: ReportIncident,
        schemas: SchemaLoader,
    ) -> None:  # fmt: skip
        self._catalog = catalog
        self._pumps = pumps
        self._report_incident = report_incident
        self._schemas = schemas
        self._opening: dict[str, tuple[AuditPlan, asyncio.Task[EventTime | None]]] = {}  # by plan's name
        self._logs: dict[str, tuple[int, LogId]] = {}  # job -> epoch, and the log that it reads
        self._reported: set[tuple[str, str]] = set()
        self._refused: dict[str, AuditPlan] = {}  # job -> the plan whose event time cannot be read here

    def audits(self) -> list[ConsumerTap]:
        return [pump.audit for pump in list(self._pumps.values()) if pump.audit is not None]

    def _plan(self, job: JobId, workload: Workload) -> AuditPlan | None:
        """The plan that counts the job (rule 1); None: none does."""
        if job.topic != workload.metadata.topic:
            return None
        return self._catalog.plan_of(place_of(workload.metadata.cluster, workload.metadata.group), job.topic)

    # -- beginning -------------------------------------------------------------------------------

    async def counts_from(
        self,
        job: JobId,
        workload: Workload,
        cluster: DataCluster,
        answer: TakeoverAnswer,
        start: StartPosition,
    ) -> CountsFrom | None:
        """Where a job's counts continue (rule 2); None: no plan counts it."""
        plan, base = self._plan(job, workload), start.snapshot.base
        if plan is None:
            return None
        if (opening := self._times(plan)) is not None:
            await asyncio.wait([opening], timeout=SCHEMA_OPEN_TIMEOUT_S)
        is_same_log = start.lineage == answer.lineage and not answer.log.is_another(start.log)
        former = AuditNote.from_bytes(audit_of(answer.note)) if is_same_log else None
        if former is None or former.counting != plan.counting:
            return CountsFrom(base, None, is_cut=base > 0)
        at = former.next_offset
        if at == base:
            return CountsFrom(base, former, former.is_cut)
        if base - MOST_REREAD <= at < base:
            try:
                if at >= await cluster.fetch.offsets_at(job.topic, job.partition, EARLIEST):
                    return CountsFrom(at, former, former.is_cut)
            except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
                log.warning("uncounted messages cannot be read again now", job=str(job), error=repr(error))
        return CountsFrom(base, former if at <= base else None, is_cut=True)

    def _times(self, plan: AuditPlan) -> asyncio.Task[EventTime | None] | None:
        """The opening of a plan's event time, one for all jobs; None: there are no files to read."""
        if not needs_schema(plan):
            return None
        known = self._opening.get(plan.name)
        if known is None or known[0] is not plan:
            opening = asyncio.get_running_loop().create_task(open_times(plan, self._schemas))
            opening.add_done_callback(_retrieve_error)
            known = self._opening[plan.name] = plan, opening
        return known[1]

    def attach(self, pump: DispatchPump, start: StartPosition, counts: CountsFrom | None) -> None:
        """Attaches an audit to a pump that was not fed yet."""
        self._logs[str(pump.job)] = pump.epoch, start.log
        if counts is not None:
            self._attach(pump, start.log, counts)

    def _attach(self, pump: DispatchPump, log_id: LogId, counts: CountsFrom) -> None:
        job, workload = pump.job, pump.runtime.settings.workload
        plan = self._plan(job, workload)
        if plan is None:
            return
        times = self._times(plan)
        if times is not None and not times.done():
            return  # `reconcile` attaches it later, and counts what is fetched then
        place = place_of(workload.metadata.cluster, workload.metadata.group)
        source = FingerprintSource(log_id.cluster_id, log_id.topic_id, job.partition)
        try:
            spec = how_of(plan, source, None if times is None else times.result())
        except (UnusableField, DescriptorError) as error:
            self._refused[str(job)] = plan
            self._report(job, f"messages of {job.topic} that {place} finishes are not counted here: {error}",
                       "check the plan's timestamp and schema; a changed plan is read again",
                       until_closed(pump, lambda: self._refused.get(str(job)) is not plan),
                       )  # fmt: skip
            return
        scope = Scope(job.topic, CONSUMER, place, plan.width_ms)
        pump.audit_by(ConsumerTap(pump, plan, scope, source, spec, counts, lineage=pump.lineage))

    # -- while it flows --------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Attaches, detaches and replaces audits for changed plans and broken audits."""
        self._logs = {job: log_id for job, log_id in self._logs.items() if job in self._pumps}
        self._refused = {
            job: plan
            for job, plan in self._refused.items()
            if (pump := self._pumps.get(job)) is not None
            and self._plan(pump.job, pump.runtime.settings.workload) is plan
        }
        if not self._pumps:
            self._opening.clear()
        for job, pump in list(self._pumps.items()):
            epoch, log_id = self._logs.get(job, (-1, LogId()))
            if epoch != pump.epoch or pump.closed or pump.draining:
                continue
            audit, plan = pump.audit, self._plan(pump.job, pump.runtime.settings.workload)
            if audit is not None and audit.broken:
                self._report(pump.job, f"finished messages cannot be counted: {audit.broken}",
                           "counting begins again; earlier windows may lack some")  # fmt: skip
                pump.audit_by(None)
            if pump.audit is not None and (plan is None or not pump.audit.adopts(plan)):
                pump.audit_by(None)
            if pump.audit is None and plan is not None and self._refused.get(job) is not plan:
                self._attach(pump, log_id, CountsFrom(pump.fetched_to, None, is_cut=True))

    def _report(self, job: JobId, message: str, remedy: str, is_over: IsOver | None = None) -> None:
        if is_over is not None or (str(job), message) not in self._reported:
            self._reported.add((str(job), message))
            self._report_incident("audit-trouble", str(job), message, remedy, is_over)


def _retrieve_error(opening: asyncio.Task[EventTime | None]) -> None:
    """Marks the task's error as seen, because each job that needs the result reports it."""
    if not opening.cancelled():
        opening.exception()
