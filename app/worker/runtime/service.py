"""The runtime: a worker's services beside Faust, such as control log, heartbeats, leadership and jobs.

It starts before Faust's tables have recovered and stops before Faust stops, so it waits for no consumer
group. Every step of its stop has a timeout.
"""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from mode import Service

from app.alerts.delivery.monitor import AlertMonitor
from app.audit.jobs.books import AuditBooks, PlannedCounts
from app.audit.jobs.region_query import RegionQuery
from app.audit.jobs.replay_tail import Margin
from app.audit.jobs.report_sender import AuditSender
from app.audit.jobs.seal_key import SealKey
from app.controllog.codec import Heartbeat
from app.controllog.leader_reports import as_leader
from app.controllog.log import ControlLog
from app.controllog.seals import VERSION as SEALS
from app.controllog.seals import Seals
from app.failover.plan.planner import FailoverPlanner
from app.failover.run.participant import FailoverParticipant, FailoverPorts
from app.failover.run.presence import Presence
from app.grpc_client.credentials import Credentials
from app.grpc_client.tokens import Tokens
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_tail import TAIL_STOP_TIMEOUT_S, bounded
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget, FetchItem
from app.kernel.clock import clock, now_ms
from app.kernel.lease import Lease
from app.offsets.sync.offset_sync_sender import BarrierSender
from app.offsets.sync.regions import Regions
from app.payload.schema_loader import SchemaLoader
from app.payload.schema_registry import REGISTRY_POLL_INTERVAL_S
from app.placement.inputs import PlacementInputs
from app.placement.leader import Leader
from app.placement.limit_divider import LimitDivider
from app.replicate.jobs.orphaned_lines import OrphanedLines, own_lines
from app.replicate.jobs.pinned_offset_syncs import PinnedOffsetSyncs
from app.replicate.model.copy_graph import ALONE, OtherRegions
from app.worker.catalog import Catalog
from app.worker.jobs.failures import JobFailures
from app.worker.jobs.kind import JobPorts
from app.worker.members.host_clock import HostClock
from app.worker.members.leadership import Leadership
from app.worker.members.loopback_check import LoopbackCheck
from app.worker.members.membership import DRAINING, STOPPED, Heartbeats, LeaseRenewal, Members
from app.worker.members.sentinel import Sentinel
from app.worker.readable_definitions import ReadableDefinitions
from app.worker.runtime.credentials_watch import CredentialsWatch
from app.worker.runtime.disk_watch import DiskWatch
from app.worker.runtime.heartbeat_status import workload_troubles
from app.worker.runtime.incidents import Incidents
from app.worker.runtime.job_kinds import JobServices, make_job_kinds
from app.worker.runtime.job_manager import JobManager
from app.worker.runtime.loop_watch import LoopWatch
from app.worker.runtime.meter import Meter
from app.worker.runtime.open_files import OpenFilesWatch
from app.worker.runtime.options import WorkerOptions
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
GOODBYE_TIMEOUT_S = 2.0
CONTROL_READ_TIMEOUT_S = 5.0
PLACE_OF_CREDENTIALS = "receivers.credentials in switchyard.yaml, and restart the worker"
PLACE_OF_TOKENS = "receivers.tokens in switchyard.yaml, and restart the worker"
# Batches, futures and answers come by the thousand and need no collector, so it runs seldom.
GC_THRESHOLDS = 50_000, 20, 20

assert DEAD_AFTER_S > LEASE_S + HEARTBEAT_S


class Runtime(Service):
    """Builds and runs a worker's services.

    Attributes:
        worker: This process's id, which is never used twice.
        leadership: Whether this worker may act, and whether it leads.
        regions: The services of other regions; None without an atlas.
    """

    _jumps = 0  # terms and epochs that were refused

    def __init__(
        self, options: WorkerOptions, deliver: Callable[[FetchItem], Awaitable[None]], meter: Meter,
        seals: Seals | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._options = options
        self.meter, self.schemas = meter, SchemaLoader(options.schemas)
        worker = self.worker = f"{options.name}-{os.getpid()}-{int(time.time()):x}"
        self._started_s = time.monotonic()
        lease, members = self.lease, self.members = Lease(LEASE_S), Members(DEAD_AFTER_S)
        self.presence = Presence(worker, lambda: lease.expires_at_s - LEASE_S)
        self.draining, self._state = False, "running"
        topics, spec = options.topics, options.clusters[options.control_cluster]
        kafka = spec.aiokafka_options()
        self.region, self.receiver_rules = topics.region, options.receiver_rules
        self.incidents = Incidents(worker, topics.incidents.name, kafka)
        report = self.incidents.report
        control = self.control = ControlLog(topics.control.name, kafka, seals)
        control.worker = worker
        leadership = self.leadership = Leadership(worker, control, lease)
        self.clusters = DataClusters(
            options.clusters, deliver, ByteBudget(options.memory_budget_bytes), may_append=leadership.may_act
        )
        definitions = ReadableDefinitions(control, report, options.layout)
        client = self._control_client = ClusterClient(spec)
        self.failover = FailoverParticipant(
            control,
            client,
            kafka,
            options.layout,
            definitions.workloads.get,
            FailoverPorts(
                leads=leadership.leads,
                on_news=leadership.round_wanted.set,
                report_incident=report,
                arrived=lambda positions: FailoverPlanner(self).arrived(positions),
            ),
            presence=self.presence,
            live=self._present,
        )
        self.trackers = TrackerClient(worker, topics, kafka, seals)
        self.barriers = BarrierSender(topics, kafka, worker, seals)
        self.audit_sender = AuditSender(topics, kafka, SealKey(client, topics.control.name))
        self.regions: Regions | None = None
        self.ended: OrphanedLines | None = None
        if options.atlas is not None:
            self.regions = make_regions(
                options.atlas,
                options.directory,
                control,
                definitions,
                self.clusters,
                self.failover,
                leadership,
                report,
            )
            self.ended = OrphanedLines(
                control,
                options.clusters.keys(),
                self.regions.tables.reach,
                own_lines(self.regions.tables),
                self.barriers,
                partial(control.read_to_end, client, CONTROL_READ_TIMEOUT_S),
                leadership.may_lead,
            )
        catalog = self.catalog = Catalog(
            control, self.clusters, report, definitions, self.failover.keeper, self._other_regions
        )
        services = JobServices(
            self.barriers,
            self.audit_sender,
            None if self.regions is None else self.regions.remote_progress,
            options.interceptors,
        )
        self.credentials = _credentials(options)
        self.credentials_watch = CredentialsWatch(self.credentials, self.incidents.report_own)
        ports = JobPorts(
            worker, control, self.clusters, lease, report, self.schemas, JobFailures(), options.zone,
            self.credentials, self.receiver_rules,
        )  # fmt: skip
        self.jobs = JobManager(
            ports,
            self.trackers,
            lambda jobs: make_job_kinds(ports, jobs, catalog, services),
            grace_s=options.grace_s,
        )
        self.kinds = self.jobs.kinds
        self.audit_books = AuditBooks(
            topics.audit.name,
            client,
            self.audit_sender,
            Margin(topics.audit.name, kafka, client),
            PlannedCounts(catalog.audits.bounds_of, catalog.audits.oddity_of),
            report,
            leadership.leads,
            self.audit_sender.key,
        )
        self.watchdog = Watchdog(
            self.jobs.progress_saver,
            lambda: not self.jobs.flowing or not leadership.may_act(),
            self._answers,
        )
        self.save_watch = SaveWatch(
            self.trackers.topic,
            self.trackers.writes,
            leadership.may_act,
            self.trackers.probe,
            self._others_save,
            self.incidents.report_and_wait,
        )
        self.loop_watch = LoopWatch(worker, report)
        self.open_files = OpenFilesWatch(self.incidents.report_own)
        self.disk = DiskWatch(options.directory, options.unwritten, worker, report)
        self.container = meter.container
        self.heartbeats = Heartbeats(
            topics.heartbeats.name,
            kafka,
            compose=self._compose,
            members=members,
            renewal=LeaseRenewal(lease, partial(control.read_to_end, client)),
            interval_s=HEARTBEAT_S,
            host_clock=HostClock(clock, self.incidents.report_own),
            seals=seals,
        )
        self.follower = TrackerFollower(worker, topics, kafka, members, client, seals)
        self.leader = Leader(
            leadership,
            control,
            members,
            catalog.jobs,
            PlacementInputs(
                definitions.workloads.get, as_leader(control, report), catalog.vanished_topics.why_gone
            ),
            lambda: catalog.workloads.hibernation.asleep,
            self.failover.step,
            LimitDivider(definitions.workloads.get, catalog.routes.definition),
        )
        self.needed = PinnedOffsetSyncs(
            control, catalog.routes, self.clusters, self.barriers, leadership.may_lead
        )
        self.sentinel = Sentinel(worker, members, lambda: control.view.leader, leadership.round_wanted.set)
        self.loopback_check = LoopbackCheck(options.place, options.url, members, report)
        self.seal_keeper = (
            None
            if seals is None
            else SealKeeper(seals, client, worker, members, leadership.may_lead, report, topics)
        )
        self.alerts = AlertMonitor(
            control,
            RegionQuery(worker, self.audit_books, catalog.audits, lambda: members.live(time.monotonic())),
            leadership.may_lead,
            report,
            topics.region,
            refuses_local=options.refuses_local_alerts,
        )

    async def on_start(self) -> None:
        self.control.on_change(self._report_jumps)
        await self._control_client.start_patiently()
        for service in (
            self.incidents,
            self.credentials_watch,
            self.control,
            self.trackers,
            self.barriers,
            self.audit_sender,
            self.audit_books,
            self.heartbeats,
            self.follower,
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
            self.disk,
            self.loop_watch,
            self.container,
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
        log.info("draining", jobs=len(self.jobs.flowing), grace_s=self._options.grace_s)
        await bounded(self.heartbeats.beat(), GOODBYE_TIMEOUT_S, "heartbeat: draining")
        await bounded(self.jobs.drain_all(), self._options.grace_s * 2 + 5, "drain")
        self._state = STOPPED
        await bounded(self.heartbeats.beat(), GOODBYE_TIMEOUT_S, "heartbeat: goodbye")

    async def on_stop(self) -> None:
        await self.drain()
        await bounded(self.clusters.stop(), 10.0, "data clusters")

    async def on_shutdown(self) -> None:
        """Last, because the services use these until they have stopped."""
        self.schemas.close()
        await bounded(self._control_client.stop(), TAIL_STOP_TIMEOUT_S, "client of the control cluster")

    def _compose(self) -> Heartbeat:
        now_s = time.monotonic()
        self.presence.update(now_s)
        # Pauses and moves that other workers rely on apply before this heartbeat can renew the lease.
        self.kinds.dispatch.pause_controller.reconcile()
        self.jobs.share_limits()  # as of `read`: the leader then divides what this worker gave up
        running = self.jobs.running_statuses()
        self.meter.sample(self.jobs.flowing, running, now_s)
        return Heartbeat(
            worker=self.worker,
            at_ms=now_ms(),
            started_ms=now_ms() - round((now_s - self._started_s) * 1000),
            url=self._options.url,
            state=self._state,
            term=self.leader.term,
            jobs=self.jobs.statuses(running, self.meter.loads, self.meter.rates),
            workloads=self.kinds.dispatch.workload_statuses(self.container.cpu_throttled),
            group=self._options.group,
            capacity=self.meter.capacity,
            used=self.meter.used,
            cpu_throttled=self.container.cpu_throttled,
            presence=self.presence.name,
            place=self._options.place,
            read=self.control.view.next_offset,
            needs=self.jobs.needs(now_s),
            unsaved=self.save_watch.unsaved(now_s) is not None,
            clock_ahead_s=self.heartbeats.host_clock.ahead_s,
            seals=SEALS if self.seal_keeper is not None else 0,
            troubles=workload_troubles(self.catalog.workloads.troubles()) if self.leader.leads else [],
        )

    def _report_jumps(self) -> None:
        """The leader reports the first, second, fourth ... refused term or epoch."""
        if not (jump := self.control.take_jump()):
            return
        self._jumps += 1
        if self.leader.leads and self._jumps.bit_count() == 1:
            self.incidents.report(
                "term-refused", self.control.topic,
                f"{jump} names an impossible term or epoch; it does not count",
                "find the program that writes to that topic, and withdraw its permission",
            )  # fmt: skip

    # -- state -----------------------------------------------------------------------------------

    def _present(self) -> set[str]:
        """The live workers, by the names that count for the region's presence."""
        return {beat.presence for beat in self.members.live(time.monotonic()).values() if beat.presence}

    def _other_regions(self) -> OtherRegions:
        """Other regions' routes, as far as they are known here."""
        return ALONE if self.regions is None else self.regions.remote_routes.other_regions

    def _others_save(self) -> bool:
        others = self.members.live(time.monotonic()).values()
        return any(beat.jobs and not beat.unsaved for beat in others if beat.worker != self.worker)

    async def _answers(self, cluster: str, group: str) -> bool:
        return await answers(self.clusters.specs[cluster], group)


def _credentials(options: WorkerOptions) -> Credentials:
    tokens = Tokens(options.tokens, PLACE_OF_TOKENS)
    return Credentials(options.credentials, PLACE_OF_CREDENTIALS, tokens)
