"""Manages this worker's routes: starts pumps, applies changed definitions, and sends offset syncs.

Rules
1. A changed definition applies to everything that is fetched from then on: the route's replicas drain, save,
   and begin again. If only topics, limits or other `LIVE_FIELDS` changed, it applies at once, and only
   replicas without a destination or with another one begin again.
2. A runtime is known once it has a pump, and is closed with its last one.
3. Offset syncs are sent every `OFFSET_SYNC_SEND_INTERVAL_S` while the lease holds. A lost one costs precision
   only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec
import structlog
from mode import Service

from app.controllog.codec import JobStatus
from app.kafka.data_clusters import DataCluster
from app.kafka.fetch.deliveries import ALL_BYTES, FetchItem, FetchKey, LogGap
from app.kafka.records.producer_sequences import ProducerStamp
from app.kernel.broker_throttle import FETCH, PRODUCE, BrokerThrottle
from app.kernel.clock import now_ms
from app.kernel.fencing import TakeoverAnswer
from app.kernel.incidents import until_closed
from app.kernel.job import JobId
from app.kernel.limit_shares import NOTHING, LimitNeed, WorkerShare
from app.offsets.model.offset_map import Barrier, BarrierItem
from app.offsets.sync.offset_sync_sender import BarrierSender
from app.replicate.definition import RouteDefinition
from app.replicate.destination.session import FormerCopies
from app.replicate.jobs.sealed_sources import SealedSources
from app.replicate.jobs.start_position import find_replica_start, same_target
from app.replicate.pump.intake import to_skip
from app.replicate.pump.partition import ReplicaPump
from app.replicate.pump.route_runtime import CopyBudgets, RouteDestination, RouteRuntime, group_of
from app.replicate.pump.status import check_progress, copying_status, job_status
from app.replicate.topics.catalog import RoutesCatalog
from app.worker.jobs.deliveries import pass_to_pump
from app.worker.jobs.kind import JobPorts, JobRestarts
from app.worker.jobs.pump import StartedJob, StartPostponed
from app.worker.jobs.start_position import LineageReset

log = structlog.get_logger(__name__)

OFFSET_SYNC_SEND_INTERVAL_S = 0.5
PROGRESS_POLL_INTERVAL_S = 1.0
MAX_PENDING_BARRIERS = 1_000  # of a job, while the control cluster is unreachable
LOST_RESTART_DELAY_S = 2.0  # before the first restart; a job that fails at once must not fill the log


class ReplicaController(Service):
    """The kind `replicate` (`app.worker.jobs.kind`).

    Attributes:
        pumps: By job.
        routes: By route.
    """

    def __init__(
        self,
        ports: JobPorts,
        jobs: JobRestarts,
        catalog: RoutesCatalog,
        pumps: dict[str, ReplicaPump],
        sealed_sources: SealedSources,
        sender: BarrierSender | None,
    ) -> None:
        super().__init__()
        self.pumps = pumps
        self.routes: dict[str, RouteRuntime] = {}
        self._jobs = jobs
        self._control = ports.control
        self._catalog = catalog
        self._clusters = ports.clusters
        self._lease = ports.lease
        self._report_incident = ports.report_incident
        self._failures = ports.failures
        self._sender = sender
        self._sealed_sources = sealed_sources
        self._budgets = CopyBudgets()
        # Pumps to which a changed definition gives another destination, or none.
        self._redirected: set[ReplicaPump] = set()
        # By pump and the number of its destination's losses.
        self._barriers: dict[tuple[ReplicaPump, int], list[Barrier]] = {}

    async def on_start(self) -> None:
        await self.add_runtime_dependency(self._sealed_sources)

    # -- batches, through the agent `replicate` ----------------------------------------------------

    def accept(self, item: FetchItem) -> None:
        """Hands a fetched batch to the job's pump. Never raises."""
        pass_to_pump(self.pumps.get(item.key.job), item, self._jobs, self._report_incident, self.skip)

    # -- one job -----------------------------------------------------------------------------------

    async def check(self, job: JobId) -> tuple[RouteDefinition, DataCluster, DataCluster]:
        """A job's route, its source and its target.

        Raises:
            LookupError: The route or a cluster is unknown here.
            StartPostponed: The route does not copy the topic.
            ClusterUnreachable: A cluster does not answer.
        """
        found, route = self._catalog.definition(job.name), self._catalog.route(job.name)
        if found is None or route is None:
            raise LookupError(f"this worker has no readable definition of route {job.name}")
        if route.destination(job.topic) is None:
            raise StartPostponed(f"route {job.name} no longer copies {job.topic}, so this job ends")
        for cluster in (found.spec.source, found.spec.target):
            if cluster not in self._clusters.specs:
                raise LookupError(f"cluster {cluster!r} is not in this worker's configuration")
        source = await self._clusters.get(found.spec.source)
        return found, source, await self._clusters.get(found.spec.target)

    async def start_pump(
        self,
        identity: JobId,
        epoch: int,
        answer: TakeoverAnswer,
        reset: LineageReset | None,
        is_mine: Callable[[], bool],
    ) -> StartedJob | None:
        """The pump of a job that was taken over; None if the job is no longer this worker's.

        Raises:
            LookupError: The start position cannot be known yet.
            StartPostponed: The definition is changing.
            KafkaError, ClusterUnreachable: A cluster refuses or does not answer.
        """
        definition, source, target = await self.check(identity)
        view, at = self._control.view, (identity.name, identity.topic, identity.partition)
        recorded = partial(view.begins_at, *at) if view.start_parts_of(identity.name) else None
        continues = await same_target(identity, definition, target.client, answer)
        start = await find_replica_start(
            identity,
            definition,
            source,
            answer,
            recorded=recorded,
            reset=reset,
            report_incident=self._report_incident,
            continues=continues,
        )
        former = FormerCopies(
            answer.note if continues else b"",
            is_same_log=not answer.log.is_another(start.log),
            source_epoch=None if reset is None else reset.source_epoch,
        )
        ids = start.log.cluster_id, ""
        if definition.spec.headers.provenance:
            ids = ids[0], await target.client.cluster_id()
        seals = await self._sealed_sources.of(definition.spec.source, identity.topic)
        if not is_mine():
            return None
        if self._catalog.definition(identity.name) is not definition:
            raise StartPostponed(f"route {identity.name} has just changed")
        runtime = self.routes.get(identity.name)
        if runtime is not None and not runtime.takes(definition):
            raise StartPostponed(
                f"jobs of route {identity.name} still drain under its former definition here"
            )
        if runtime is not None and runtime.definition is not definition:
            self._change(runtime, definition)
        if runtime is None:
            destination = RouteDestination(target.client, target.appender, target.appended)
            runtime = RouteRuntime(
                definition,
                source.client,
                destination,
                self._lease,
                self._report_incident,
                self._budgets,
                ids,
            )
        try:
            pump = ReplicaPump(
                identity, epoch, runtime, start, former, self._report_incident, self._on_barrier, seals
            )
        except BaseException:
            if identity.name not in self.routes:
                await runtime.close()
            raise
        self.routes[identity.name] = runtime
        # A reset by an operator has no reason; it is not counted.
        pump.ledger.begun_anew += start.begun_anew or bool(reset is not None and reset.reason)
        if start.gap is not None:
            self.skip(pump, start.gap)
        self._pause(pump)
        self.pumps[str(identity)] = pump
        return StartedJob(pump, start, source, self._leaves(runtime), pump.ledger.read_epoch)

    def drop(self, job: str) -> None:
        pump = self.pumps.pop(job, None)
        if pump is not None and not any(other.job.name == pump.job.name for other in self.pumps.values()):
            runtime = self.routes.pop(pump.job.name, None)
            if runtime is not None:
                asyncio.get_running_loop().create_task(runtime.close())

    def status(self, job: str) -> JobStatus:
        pump = self.pumps[job]
        status, copy_status = job_status(pump), copying_status(pump)
        # A halted copy comes before any other trouble.
        trouble = copy_status.halted or status.trouble
        throttles: list[BrokerThrottle] = []
        if (route := self._catalog.definition(pump.job.name)) is not None:
            throttles = self._clusters.throttles((route.spec.source, FETCH), (route.spec.target, PRODUCE))
        return msgspec.structs.replace(status, trouble=trouble, copying=copy_status, throttles=throttles)

    def position_of(self, job: JobId) -> tuple[str, str]:
        route = self._catalog.definition(job.name)
        if route is None:
            raise LookupError(f"there is no route {job.name} that this worker can read")
        return route.spec.source, group_of(job.name)

    def _pause(self, pump: ReplicaPump) -> None:
        pump.pause(self._control.view.is_paused(pump.job.name, None))
        leaves_bytes = self._leaves(pump.runtime)
        for cluster in self._clusters.started():
            if cluster.client is pump.runtime.source:
                cluster.fetch.leave(FetchKey(str(pump.job), pump.epoch), leaves_bytes)

    def _leaves(self, runtime: RouteRuntime) -> int:
        """Bytes of memory that fetching leaves to others. A paused route is not fetched, so it takes none."""
        if self._control.view.is_paused(runtime.definition.key, None):
            return ALL_BYTES
        return runtime.leaves(self._clusters.budget.capacity_bytes)

    def skip(self, pump: ReplicaPump, gap: LogGap) -> None:
        """Reports a gap (lost offsets or another log), then halts or continues as the route says."""
        stops = pump.runtime.definition.spec.on_gap == "stop"
        kind, message = "offsets-lost", f"offsets [{gap.start}, {gap.end}) are gone and were not copied"
        if gap.is_truncation:
            kind, message = (
                "log-truncated",
                f"the source was truncated; [{gap.end}, {gap.start}) was copied before",
            )
        elif gap.begun_anew:
            kind, message = "log-begun-anew", f"the source has another log from offset {gap.start} on"
        message = f"{pump.where}: {message}: {gap.reason}"
        if stops:
            job, (first, before) = pump.job, to_skip(gap)
            skip = f"switchyard route skip {job.name} {job.topic} {job.partition} {first} {before}"
            message = f"{message}; this partition stops at gaps: run {skip}, or set onGap: continue"
            pump.halt(gap, message)
            for cluster in self._clusters.started():
                cluster.fetch.remove(FetchKey(str(pump.job), pump.epoch))
        else:
            message = f"{message}; copying continues at {gap.end}"
            pump.skip(gap)
        remedy = "lengthen the topic's retention, or find out why the route was this far behind"
        if gap.is_truncation:
            remedy = "an unclean leader was elected; the copy still has what the source has lost"
        elif gap.begun_anew:
            remedy = "find out who recreated the topic; the old topic was copied as far as the route had come"
        is_over = until_closed(pump, lambda: not pump.halted) if stops else None
        self._report_incident("route-halted" if stops else kind, str(pump.job), message, remedy, is_over)

    # -- called in every round of the job manager --------------------------------------------------

    def reconcile(self) -> None:
        """Applies changed definitions (rule 1), and restarts jobs that are lost or whose gap was skipped.
        Jobs with another log begin in a new lineage."""
        outdated: set[RouteRuntime] = set()
        self._redirected &= set(self.pumps.values())
        for name, runtime in self.routes.items():
            definition = self._catalog.definition(name)
            if definition is None or definition is runtime.definition:
                continue
            if runtime.takes(definition):
                self._change(runtime, definition)
            else:
                outdated.add(runtime)
        for job, pump in list(self.pumps.items()):
            self._pause(pump)
            if pump.reset is not None:
                epoch = pump.reset.truncated_in if pump.reset.is_truncation else None
                reset = LineageReset(pump.epoch, pump.lineage + 1, pump.reset.end, pump.reset.reason, epoch)
                self._jobs.restart_in_new_lineage(pump, reset)
            elif (
                pump.runtime in outdated
                or pump in self._redirected
                or pump.intake.wants_fetching(pump.base)
                or self._may_restart(job, pump)
            ):
                self._jobs.restart_soon(job, pump)

    def _may_restart(self, job: str, pump: ReplicaPump) -> bool:
        """Whether the pump is lost and has waited long enough."""
        if not pump.lost:
            return False
        self._failures.failed(job, pump.epoch, pump.base, pump.lost, pump.lost_at_s, LOST_RESTART_DELAY_S)
        return self._failures.may_begin(job, pump.epoch, time.monotonic())

    def _change(self, runtime: RouteRuntime, definition: RouteDefinition) -> None:
        runtime.change(definition)
        for pump in self.pumps.values():
            if pump.runtime is runtime and runtime.route.destination(pump.job.topic) != pump.target[0]:
                self._redirected.add(pump)
        log.info("a changed definition is in force", route=definition.key)

    def share(self, shares: Mapping[str, WorkerShare]) -> None:
        """Sets this worker's shares of the routes' limits, by route name."""
        for name, runtime in self.routes.items():
            runtime.shared(shares.get(name, NOTHING))

    def needs(self, now_s: float) -> list[LimitNeed]:
        found = [route.need(now_s) for route in self.routes.values()]
        return [need for need in found if need is not None]

    @Service.task
    async def _check_progress_for_ever(self) -> None:
        while not self.should_stop:
            await self.sleep(PROGRESS_POLL_INTERVAL_S)
            now_s = time.monotonic()
            for pump in list(self.pumps.values()):
                try:
                    check_progress(pump, now_s)
                except Exception as error:  # noqa: BLE001 - other jobs continue
                    log.debug("a replica's progress was not checked", job=str(pump.job), error=repr(error))

    # -- offset syncs ----------------------------------------------------------------------------

    def _on_barrier(
        self, pump: ReplicaPump, source_end: int, target_end: int, stamp: ProducerStamp | None
    ) -> None:
        waiting = self._barriers.setdefault((pump, pump.session.losses), [])
        at_ms = now_ms()
        waiting.append(Barrier(source_end, target_end, at_ms, stamp))
        pump.barrier = source_end, target_end, at_ms
        if len(waiting) > MAX_PENDING_BARRIERS:
            del waiting[1]  # the oldest one after the genesis

    @Service.task
    async def _send_barriers(self) -> None:
        while not self.should_stop:
            await self.sleep(OFFSET_SYNC_SEND_INTERVAL_S)
            if self._sender is None or not self._barriers or not self._lease.holds(time.monotonic()):
                continue
            waiting, self._barriers = self._barriers, {}
            try:
                await asyncio.gather(*await self._sender.send(_items(waiting.items())))
            except Exception as error:  # noqa: BLE001 - newer ones replace them, with less precision
                log.warning("offset syncs could not be saved and are dropped", error=repr(error))


def _items(waiting: Iterable[tuple[tuple[ReplicaPump, int], list[Barrier]]]) -> list[BarrierItem]:
    return [
        BarrierItem(
            route=pump.job.name, topic=pump.job.topic, partition=pump.job.partition, epoch=pump.epoch,
            lineage=pump.lineage, source=pump.source_log, target=pump.target_log,
            target_topic=pump.target[0], target_partition=pump.target[1], barriers=barriers,
            source_epoch=pump.session.source_epoch, losses=losses,
            epochs=pump.ledger.epochs,
        )
        for (pump, losses), barriers in waiting
        if not pump.closed
    ]  # fmt: skip
