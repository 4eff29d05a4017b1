"""The runtime: a worker's services beside Faust, such as control log, heartbeats, leadership and jobs.

It starts before Faust's tables have recovered and stops before Faust stops, so it waits for no consumer
group. Every step of its stop has a timeout.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from mode import Service

from app.alerts.delivery.monitor import AlertMonitor
from app.audit.jobs.books import AuditBooks
from app.audit.jobs.region_query import RegionQuery
from app.audit.jobs.replay_tail import Margin
from app.audit.jobs.report_sender import AuditSender
from app.audit.jobs.seal_key import SealKey
from app.controllog import codec
from app.controllog.codec import Heartbeat, IncidentRecord
from app.controllog.log import ControlLog
from app.controllog.seals import VERSION as SEALS
from app.controllog.seals import Seals
from app.controllog.topics import ControlTopics
from app.failover.plan.planner import FailoverPlanner
from app.failover.run.participant import FailoverParticipant
from app.failover.run.presence import Presence
from app.failover.topology import Layout
from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topic_tail import TAIL_STOP_TIMEOUT_S, TopicTail, bounded
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget
from app.kernel.clock import clock, now_ms
from app.kernel.lease import Lease
from app.offsets.store.tables import RegionAtlas
from app.offsets.sync.offset_sync_sender import BarrierSender
from app.offsets.sync.regions import Regions
from app.payload.interceptors import Interceptor
from app.payload.schema_loader import SchemaLoader
from app.payload.schema_registry import REGISTRY_POLL_INTERVAL_S
from app.placement.inputs import PlacementInputs
from app.placement.leader import Leader
from app.placement.limit_divider import LimitDivider
from app.replicate.jobs.orphaned_lines import OrphanedLines, own_lines
from app.replicate.jobs.pinned_offset_syncs import PinnedOffsetSyncs
from app.worker.catalog import Catalog
from app.worker.jobs.failures import JobFailures
from app.worker.jobs.kind import JobPorts
from app.worker.members.host_clock import HostClock
from app.worker.members.loopback_check import LoopbackCheck
from app.worker.members.membership import DRAINING, STOPPED, Heartbeats, Members
from app.worker.members.sentinel import Sentinel
from app.worker.runtime.heartbeat_status import workload_troubles
from app.worker.runtime.job_kinds import JobServices, make_job_kinds
from app.worker.runtime.job_manager import JobManager
from app.worker.runtime.loop_watch import LoopWatch
from app.worker.runtime.meter import Meter
from app.worker.runtime.open_files import OpenFilesWatch
from app.worker.runtime.region_services import make_regions
from app.worker.runtime.save_watch import SaveWatch
from app.worker.runtime.seal_keeper import SealKeeper
from app.worker.runtime.watchdog import Watchdog, answers
from app.worker.tracker.client import TrackerClient
from app.worker.tracker.follower import TrackerFollower

log = structlog.get_logger(__name__)

HEARTBEAT_S = 0.5
LEASE_S = 2.0
DEAD_AFTER_S = 3.0  # above LEASE_S + HEARTBEAT_S: a worker stops before its jobs are reassigned
MAX_KEPT_INCIDENTS = 500
GOODBYE_TIMEOUT_S = 2.0
INCIDENT_TIMEOUT_S = 10.0
CONTROL_READ_TIMEOUT_S = 5.0
# Batches, futures and answers come by the thousand and need no collector, so it runs seldom.
GC_THRESHOLDS = 50_000, 20, 20

assert DEAD_AFTER_S > LEASE_S + HEARTBEAT_S


class Runtime(Service):
    """Builds and runs a worker's services.

    Attributes:
        worker: This process's id, which is never used twice.
        incidents: The latest incidents, oldest first.
        regions: The services of other regions; None without an atlas and a directory.
    """

    _jumps = 0  # terms and epochs that were refused

    def __init__(
        self,
        *,
        name: str,
        url: Callable[[], str],
        topics: ControlTopics,
        seals: Seals | None = None,
        control_spec: ClusterSpec,
        clusters: Mapping[str, ClusterSpec],
        deliver: Callable[[Any], Awaitable[None]],
        memory_budget_bytes: int,
        grace_s: float,
        meter: Meter,
        schemas: SchemaLoader,
        group: str = "",
        place: str = "",
        interceptors: Sequence[tuple[str, Interceptor]] = (),
        atlas: RegionAtlas | None = None,
        directory: Path | None = None,
        layout: Layout | None = None,
        refuses_local_alerts: bool = False,
    ) -> None:
        super().__init__()
        self.meter, self.group, self.schemas = meter, group, schemas
        worker = self.worker = f"{name}-{os.getpid()}-{int(time.time()):x}"
        self._started_s = time.monotonic()
        self.url, self._place = url, place
        lease, members = self.lease, self.members = Lease(LEASE_S), Members(DEAD_AFTER_S)
        self.presence = Presence(worker, lambda: lease.expires_at_s - LEASE_S)
        self.incidents: deque[IncidentRecord] = deque(maxlen=MAX_KEPT_INCIDENTS)
        self.draining, self._state = False, "running"
        self._topics, self.region, self._grace_s = topics, topics.region, grace_s
        options, report = control_spec.aiokafka_options(), self.report_incident
        self._incident_producer = ReplaceableProducer("incidents", options, enable_idempotence=False)
        self._pending: set[asyncio.Task[Any]] = set()
        self._unreadable = UnreadableRecords("the incidents topic has records that are no incidents")
        control = self.control = ControlLog(topics.control.name, options, seals)
        self.clusters = DataClusters(
            clusters, deliver, ByteBudget(memory_budget_bytes), may_append=self._may_act
        )
        catalog = self.catalog = Catalog(control, self.clusters, report, layout)
        client = self._control_client = ClusterClient(control_spec)
        self.failover = FailoverParticipant(
            control,
            client,
            options,
            layout,
            catalog.workloads.workload,
            leads=lambda: self.leader.leads,
            on_news=lambda: self.leader.start_round(),  # noqa: PLW0108 - the leader is made later
            report_incident=report,
            presence=self.presence,
            live=self._present,
            arrived=lambda positions: FailoverPlanner(self).arrived(positions),
        )
        catalog.workloads.runs_here = self.failover.keeper.runs_here
        catalog.workloads.sender_role = self.failover.keeper.sender_role
        self.trackers = TrackerClient(worker, topics, options, seals)
        self.barriers = BarrierSender(topics, options, worker, seals)
        self.audit_sender = AuditSender(topics, options, SealKey(client, topics.control.name))
        self.regions: Regions | None = None
        self.ended: OrphanedLines | None = None
        if atlas is not None and directory is not None:
            self.regions = make_regions(
                atlas,
                directory,
                control,
                catalog,
                self.clusters,
                self._may_lead,
                report,
                self.failover.keeper.passive,
                self.failover.derived_routes.regions_of,
            )
            self.ended = OrphanedLines(
                control,
                clusters.keys(),
                self.regions.tables.reach,
                own_lines(self.regions.tables),
                self.barriers,
                partial(control.read_to_end, client, CONTROL_READ_TIMEOUT_S),
                self._may_lead,
            )
            remote_routes = self.regions.remote_routes
            catalog.routes.other_regions = lambda: remote_routes.other_regions
        services = JobServices(
            self.barriers,
            self.audit_sender,
            None if self.regions is None else self.regions.remote_progress,
            interceptors,
        )
        ports = JobPorts(worker, control, self.clusters, lease, report, schemas, JobFailures())
        self.jobs = JobManager(
            ports,
            self.trackers,
            lambda jobs: make_job_kinds(ports, jobs, catalog, services),
            grace_s=grace_s,
        )
        self.kinds = self.jobs.kinds
        self.audit_books = AuditBooks(
            topics.audit.name,
            client,
            self.audit_sender,
            Margin(topics.audit.name, options, client),
            catalog.audits.bounds_of,
            report,
            lambda: self.leader.leads,
            catalog.audits.oddity_of,
            self.audit_sender.key,
        )
        self.watchdog = Watchdog(
            self.jobs.progress_saver, lambda: not self.jobs.flowing or not self._may_act(), self._answers
        )
        self.save_watch = SaveWatch(
            self.trackers.topic,
            self.trackers.writes,
            self._may_act,
            self.trackers.probe,
            self._others_save,
            self._report_and_wait,
        )
        self.loop_watch = LoopWatch(worker, report)
        self.open_files = OpenFilesWatch(self._report_own)
        self.heartbeats = Heartbeats(
            topics.heartbeats.name,
            options,
            compose=self._compose,
            members=members,
            lease=lease,
            interval_s=HEARTBEAT_S,
            read_control=partial(control.read_to_end, client),
            host_clock=HostClock(clock, self._report_own),
            seal=seals,
        )
        self.follower = TrackerFollower(worker, topics, options, members, client, seals)
        self.leader = Leader(
            worker,
            control,
            members,
            lease,
            catalog.jobs,
            PlacementInputs(catalog.workloads.workload, report, catalog.vanished_topics.why_gone),
            lambda: catalog.workloads.hibernation.asleep,
            self.failover.step,
            LimitDivider(catalog.workloads.workload, catalog.routes.definition),
        )
        self.needed = PinnedOffsetSyncs(control, catalog.routes, self.clusters, self.barriers, self._may_lead)
        self.sentinel = Sentinel(worker, members, lambda: control.view.leader, self.leader.start_round)
        self.loopback_check = LoopbackCheck(self._place, url, members, report)
        self.seal_keeper = (
            None
            if seals is None
            else SealKeeper(seals, client, worker, members, self._may_lead, report, topics)
        )
        self.alerts = AlertMonitor(
            control,
            RegionQuery(worker, self.audit_books, catalog.audits, lambda: members.live(time.monotonic())),
            self._may_lead,
            report,
            topics.region,
            refuses_local=refuses_local_alerts,
        )
        self._incident_tail = TopicTail(topics.incidents.name, options, self._on_incidents, from_start=True)

    async def on_start(self) -> None:
        self.control.on_change(self._report_jumps)
        await self._control_client.start_patiently()
        await self._incident_producer.start_patiently()
        for service in (
            self.control,
            self.trackers,
            self.barriers,
            self.audit_sender,
            self.audit_books,
            self.heartbeats,
            self.follower,
            self._incident_tail,
            self.jobs,
            self.failover,
            self.leader,
            self.needed,
            self.alerts,
            self.sentinel,
            self.loopback_check,
            self.watchdog,
            self.save_watch,
            self.open_files,
            self.loop_watch,
            self.regions,
            self.ended,
            self.seal_keeper,
        ):
            if service is not None:
                await self.add_runtime_dependency(service)
        # Faust's stores collect the whole heap at every rebalance, in the loop; this exempts present objects.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        log.info("worker is up", worker=self.worker, host=socket.gethostname())

    @Service.task
    async def _refresh_schemas(self) -> None:
        while not self.should_stop:
            await self.sleep(REGISTRY_POLL_INTERVAL_S)
            self.schemas.start_refresh()

    async def drain(self) -> None:
        """SIGTERM: finishes the messages in flight, commits, releases the jobs, says goodbye."""
        if self.draining:
            return
        self.draining = True
        self._state = DRAINING
        log.info("draining", jobs=len(self.jobs.flowing), grace_s=self._grace_s)
        await bounded(self.heartbeats.beat(), GOODBYE_TIMEOUT_S, "heartbeat: draining")
        await bounded(self.jobs.drain_all(), self._grace_s * 2 + 5, "drain")
        self._state = STOPPED
        await bounded(self.heartbeats.beat(), GOODBYE_TIMEOUT_S, "heartbeat: goodbye")

    async def on_stop(self) -> None:
        await self.drain()
        await bounded(self.clusters.stop(), 10.0, "data clusters")

    async def on_shutdown(self) -> None:
        """Last, because heartbeats and followers use these clients until they have stopped."""
        self.schemas.close()
        await bounded(self._control_client.stop(), TAIL_STOP_TIMEOUT_S, "client of the control cluster")
        await self._incident_producer.stop()

    def _compose(self) -> Heartbeat:
        now_s = time.monotonic()
        self.meter.sample(self.jobs.flowing, self.jobs.status, now_s)
        self.presence.update(now_s)
        # Pauses and moves that other workers rely on apply before this heartbeat can renew the lease.
        self.kinds.dispatch.pause_controller.reconcile()
        self.jobs.share_limits()  # as of `read`: the leader then divides what this worker gave up
        return Heartbeat(
            worker=self.worker,
            at_ms=now_ms(),
            started_ms=now_ms() - round((now_s - self._started_s) * 1000),
            url=self.url(),
            state=self._state,
            term=self.leader.term,
            jobs=self.jobs.statuses(self.meter.loads, self.meter.rates),
            workloads=self.kinds.dispatch.workload_statuses(),
            group=self.group,
            capacity=self.meter.capacity,
            used=self.meter.used,
            presence=self.presence.name,
            place=self._place,
            read=self.control.view.next_offset,
            needs=self.jobs.needs(now_s),
            unsaved=self.save_watch.unsaved(now_s) is not None,
            clock_ahead_s=self.heartbeats.host_clock.ahead_s,
            seals=SEALS if self.seal_keeper is not None else 0,
            troubles=workload_troubles(self.catalog.workloads.troubles) if self.leader.leads else [],
        )

    # -- incidents -------------------------------------------------------------------------------

    def report_incident(self, kind: str, subject: str, message: str, remedy: str) -> None:
        """Logs an incident, and writes it to the incidents topic for every console."""
        log.warning(message, incident=kind, subject=subject, remedy=remedy)
        incident = IncidentRecord(
            at_ms=now_ms(), worker=self.worker, kind=kind, subject=subject, message=message, remedy=remedy
        )
        topic, event = self._topics.incidents.name, codec.encode(incident)
        sent = self._incident_producer.send_and_wait(topic, event, partition=0)
        task = asyncio.get_running_loop().create_task(bounded(sent, INCIDENT_TIMEOUT_S, "incident"))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    def _report_own(self, kind: str, message: str, remedy: str) -> None:
        self.report_incident(kind, self.worker, message, remedy)

    async def _report_and_wait(self, kind: str, message: str, remedy: str) -> None:
        """Waits until the incident is in the topic, or `INCIDENT_TIMEOUT_S`."""
        self.report_incident(kind, self.worker, message, remedy)
        await asyncio.wait(list(self._pending), timeout=INCIDENT_TIMEOUT_S)

    def _report_jumps(self) -> None:
        """The leader reports the first, second, fourth ... refused term or epoch."""
        if not (jump := self.control.take_jump()):
            return
        self._jumps += 1
        if self.leader.leads and self._jumps.bit_count() == 1:
            self.report_incident(
                "term-refused", self.control.topic,
                f"{jump} names an impossible term or epoch; it does not count",
                "find the program that writes to that topic, and withdraw its permission",
            )  # fmt: skip

    def _on_incidents(self, records: list[Any]) -> None:
        for record in records:
            try:
                self.incidents.append(codec.incident(record.value))
            except codec.BadEvent as error:
                self._unreadable.add_for_later(record.offset, error)

    # -- state -----------------------------------------------------------------------------------

    def _present(self) -> set[str]:
        """The live workers, by the names that count for the region's presence."""
        return {beat.presence for beat in self.members.live(time.monotonic()).values() if beat.presence}

    def _may_act(self) -> bool:
        return self.lease.holds(time.monotonic())

    def _may_lead(self) -> bool:
        return self.leader.leads and self._may_act()

    def _others_save(self) -> bool:
        others = self.members.live(time.monotonic()).values()
        return any(beat.jobs and not beat.unsaved for beat in others if beat.worker != self.worker)

    async def _answers(self, cluster: str, group: str) -> bool:
        return await answers(self.clusters.specs[cluster], group)
