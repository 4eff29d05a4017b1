"""This worker's jobs: started when assigned, fenced when taken away, drained when asked for.

    assigned -> takeover -> join(table's snapshot, Kafka's commit) -> fetch from there -> flow
    released by the leader -> drain -> last snapshot -> commit -> `Released`
    assigned to somebody else -> closed at once: nothing of it counts any more

Rules
1. A pump exists only under the epoch that the control log names for this worker.
2. Where to start is the join of what the tracker table says and what Kafka's group says: both are
   facts, so the higher base is true.
3. Snapshots, commits and copies are made only while the lease holds.
4. A job's failure is that job's: it is tried again with backoff, the others flow on.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog
from mode import Service

from app.config.definitions import Workload
from app.control.catalog import Catalog
from app.control.data_clusters import DataClusters
from app.control.leader import now_ms
from app.control.log import ControlLog
from app.control.takeover import TrackerClient
from app.core.control import Assignment, Released
from app.core.fencing import SnapshotItem
from app.core.job import JobId
from app.core.lease import Lease
from app.core.tracker import CorruptSnapshot, Snapshot
from app.kafka.fetched import Fetched, FetchTrouble, Gap
from app.payload.interceptors import Interceptor
from app.pump.chains import make_chain
from app.pump.dispatch import DispatchPump
from app.pump.targets import GrpcTargets
from app.pump.workload import WorkloadRuntime
from app.wire import JobStatus, WorkloadStatus

log = structlog.get_logger(__name__)

SNAPSHOT_S = 0.1  # at most this often a job, when something changed
SNAPSHOTS_PER_S = 1_000  # of all jobs together: what the table's writers take without falling behind
COMMIT_S = 0.5
COMMIT_PATIENCE_S = 5.0
RECOMMIT_S = 30.0  # also when nothing changed: heals what a zombie may have set back
START_RETRY_S = 1.0
HEADS_S = 0.25
EARLIEST, LATEST = -2, -1

Trouble = Callable[[str, str, str, str], None]


class Jobs(Service):
    """Reconciles the pumps of this worker with the control log."""

    def __init__(
        self,
        worker: str,
        control: ControlLog,
        catalog: Catalog,
        clusters: DataClusters,
        trackers: TrackerClient,
        lease: Lease,
        on_trouble: Trouble,
        *,
        grace_s: float,
        interceptors: Sequence[tuple[str, Interceptor]] = (),
    ) -> None:
        super().__init__()
        self.worker = worker
        self.pumps: dict[str, DispatchPump] = {}
        self.runtimes: dict[str, WorkloadRuntime] = {}
        self.draining = False
        self.committed_at_s = time.monotonic()
        self._control = control
        self._catalog = catalog
        self._clusters = clusters
        self._trackers = trackers
        self._lease = lease
        self._on_trouble = on_trouble
        self._grace_s = grace_s
        self._changed = asyncio.Event()
        self._work: dict[str, asyncio.Task[None]] = {}
        self._troubles: dict[str, str] = {}
        self._changing: dict[str, asyncio.Task[None]] = {}
        self._interceptors = interceptors
        self._anew: dict[str, tuple[int, int]] = {}  # job -> lineage and next offset to begin with
        self._committed: dict[str, tuple[int, float]] = {}

    async def on_start(self) -> None:
        self._control.on_change(self._changed.set)
        self._changed.set()

    # -- what the fetch services deliver, through the dispatch agent -------------------------------

    def take(self, item: Fetched | Gap | FetchTrouble) -> None:
        """Hands a fetched batch (or what was told instead) to its pump. Never raises."""
        key: tuple[str, int] = item.key
        job, epoch = key
        pump = self.pumps.get(job)
        if pump is None or pump.epoch != epoch:
            if isinstance(item, Fetched):
                item.release()
            return
        try:
            match item:
                case Fetched():
                    pump.accept(item)
                    if not pump.closed and pump.trouble.startswith("fetch: "):
                        pump.trouble = ""
                case Gap() if item.end < item.start:
                    self._begin_anew(pump, item)
                case Gap():
                    pump.skip(item)
                    self._on_trouble(
                        "offsets-lost", job,
                        f"offsets [{item.start}, {item.end}) of {item.topic}-{item.partition} "
                        f"are gone from the log before they were delivered: {item.reason}",
                        "lengthen the topic's retention, or look at why the consumer was that far behind",
                    )  # fmt: skip
                case FetchTrouble():
                    pump.trouble = f"fetch: {item.message}"
                    self._on_trouble("fetch-trouble", job, item.message, item.remedy)
        except Exception:
            # A programming error stops this job loudly, and only this job.
            log.exception("a pump failed; its job stops here and starts again", job=job)
            pump.close()
            self._drop(job)
            if isinstance(item, Fetched):
                item.release()
            self._changed.set()

    def _begin_anew(self, pump: DispatchPump, gap: Gap) -> None:
        """The log ends before the position: its offsets mean something else now. Delivering again what is
        there is the lesser evil; the job starts over in a new lineage."""
        job = str(pump.job)
        self._on_trouble(
            "log-begun-anew",
            job,
            f"{gap.topic}-{gap.partition}: {gap.reason}; delivery begins again at {gap.end}",
            "expect duplicates if the log was truncated; look at why it was",
        )  # fmt: skip
        self._anew[job] = (pump.lineage + 1, gap.end)
        pump.close()
        self._drop(job)
        self._changed.set()

    # -- reconciling -----------------------------------------------------------------------------

    @Service.task
    async def _reconcile_for_ever(self) -> None:
        while not self.should_stop:
            try:
                async with asyncio.timeout(1.0):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                self._reconcile()
            except Exception:
                log.exception("reconciling the jobs failed and is tried again")
                await self.sleep(START_RETRY_S)

    def _reconcile(self) -> None:
        mine = self._control.view.owned_by(self.worker)
        for job, pump in list(self.pumps.items()):
            held = mine.get(job)
            if held is None or held.epoch != pump.epoch:
                log.warning("job was moved away; it is closed here", job=job, epoch=pump.epoch)
                self._end_task(job)
                pump.close()
                self._drop(job)
        for job in [job for job in self._work if job not in mine]:
            self._end_task(job)
        if self.draining:
            return
        for job, held in mine.items():
            if job in self._work:
                continue
            if held.release:
                self._spawn(job, self._release(job, held))
            elif job not in self.pumps:
                self._spawn(job, self._start_job(job, held))
        for pump in self.pumps.values():
            partition = pump.job.partition if pump.tier is None else None
            pump.pause(self._control.view.is_paused(pump.job.name, partition))
        self._apply_definitions()
        self._share_limits()

    def _spawn(self, job: str, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work[job] = task

        def done(ended: asyncio.Task[None]) -> None:
            if self._work.get(job) is ended:
                del self._work[job]
            if not ended.cancelled() and (error := ended.exception()) is not None:
                log.error("work on a job failed", job=job, error=repr(error))
            self._changed.set()

        task.add_done_callback(done)

    def _end_task(self, job: str) -> None:
        task = self._work.pop(job, None)
        if task is not None:
            task.cancel()

    def _drop(self, job: str) -> None:
        """Forgets a pump that was closed or released; its runtime goes with the last one."""
        pump = self.pumps.pop(job, None)
        self._committed.pop(job, None)
        if pump is None:
            return
        for cluster in self._clusters.started():
            cluster.fetch.remove((job, pump.epoch))
        key = pump.job.name
        if not any(other.job.name == key for other in self.pumps.values()):
            runtime = self.runtimes.pop(key, None)
            if runtime is not None:
                asyncio.get_running_loop().create_task(runtime.close())

    def _apply_definitions(self) -> None:
        for key, runtime in self.runtimes.items():
            workload = self._catalog.workload(key)
            if workload is not None and workload is not runtime.workload and key not in self._changing:
                self._changing[key] = asyncio.get_running_loop().create_task(self._change(runtime, workload))

    async def _change(self, runtime: WorkloadRuntime, workload: Workload) -> None:
        """Takes a changed definition into force; one that cannot be leaves the former in force."""
        key = workload.key
        try:
            chain = await make_chain(workload, self._interceptors)
        except ValueError as error:
            if self._troubles.get(key) != str(error):
                self._troubles[key] = str(error)
                self._on_trouble("definition-not-in-force", key, str(error), "the former one stays in force")
            await asyncio.sleep(START_RETRY_S)
        else:
            self._troubles.pop(key, None)
            reordered = runtime.workload.spec.ordering != workload.spec.ordering
            runtime.change(workload, chain)
            for job, pump in list(self.pumps.items()):
                if pump.job.name != key:
                    continue
                pump.tracker.capacity = workload.spec.tracker.capacity
                if reordered and job not in self._work:
                    self._spawn(job, self._restart(pump))
            log.info("a changed definition is in force", workload=key)
        finally:
            del self._changing[key]
            self._changed.set()

    async def _restart(self, pump: DispatchPump) -> None:
        """Begins the job again from what it has finished: another order is not for what is under way."""
        await pump.drain(self._grace_s)
        await self._save([pump])
        pump.close()
        self._drop(str(pump.job))

    def _share_limits(self) -> None:
        """A worker's share of a workload's calls in flight is its share of the workload's jobs."""
        total: dict[str, int] = defaultdict(int)
        here: dict[str, int] = defaultdict(int)
        for job, held in self._control.view.assignments.items():
            if held.worker:
                key = JobId.parse(job).name
                total[key] += 1
                here[key] += held.worker == self.worker
        for key, runtime in self.runtimes.items():
            runtime.shared(here[key] / max(1, total[key]))

    # -- one job ---------------------------------------------------------------------------------

    async def _start_job(self, job: str, held: Assignment) -> None:
        identity = JobId.parse(job)
        while True:
            try:
                await self._take_over(identity, held)
                self._troubles.pop(job, None)
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever stands in the way, try again and say so
                message = str(error) or repr(error)
                if self._troubles.get(job) != message:
                    self._troubles[job] = message
                    log.warning("a job cannot start yet and is tried again", job=job, error=message)
                    self._on_trouble("job-cannot-start", job, message, "it is tried again every second")
                await asyncio.sleep(START_RETRY_S)

    async def _take_over(self, identity: JobId, held: Assignment) -> None:
        job = str(identity)
        workload = self._catalog.workload(identity.name)
        if workload is None:
            return  # deleted meanwhile: the leader releases the job next
        cluster = await self._clusters.get(workload.metadata.cluster)
        answer = await self._trackers.takeover(job, held.epoch)
        if not answer.granted:
            log.warning("takeover refused: the table knows a later epoch", job=job, epoch=held.epoch,
                        known_epoch=answer.known_epoch)  # fmt: skip
            await self._control.append(
                Released(
                    at_ms=now_ms(),
                    job=job,
                    worker=self.worker,
                    epoch=held.epoch,
                    known_epoch=answer.known_epoch,
                    reason="the tracker table knows a later epoch",
                )
            )
            return
        snapshot = self._read_snapshot(job, answer.snapshot)
        group, at = workload.metadata.group, (identity.topic, identity.partition)
        committed = (await cluster.committer.committed(group, [at])).get(at)
        lineage, begin = self._anew.pop(job, (answer.lineage, None))
        if begin is not None:
            snapshot = Snapshot(begin)
        elif committed is not None and committed >= 0 and not (snapshot and lineage):
            # In a later lineage the commit may still be of the one before.
            snapshot = snapshot.merge(Snapshot(committed)) if snapshot else Snapshot(committed)
        if snapshot is None:
            # Retry topics are the workload's own: nothing in them may be skipped, ever.
            start = workload.spec.start if identity.topic == workload.metadata.topic else "earliest"
            where = EARLIEST if start == "earliest" else LATEST
            offset = await cluster.fetch.offsets_at(identity.topic, identity.partition, where)
            snapshot = Snapshot(offset)
        chain = await make_chain(workload, self._interceptors)
        current = self._control.view.assignments.get(job)
        if current is None or current.epoch != held.epoch or current.worker != self.worker:
            return
        runtime = self.runtimes.get(identity.name)
        if runtime is None:
            targets = GrpcTargets(self.worker)
            runtime = WorkloadRuntime(workload, targets, cluster.producer, self._lease, chain)
            self.runtimes[identity.name] = runtime
        retry_topics = workload.retry_topics()
        pump = DispatchPump(
            identity,
            held.epoch,
            runtime,
            tier=retry_topics.index(identity.topic) if identity.topic in retry_topics else None,
            next_offset=snapshot.base,
            snapshot=snapshot,
            capacity=workload.spec.tracker.capacity,
            group=group,
            lineage=lineage,
        )
        if begin is not None:
            pump.snapshot_version = -1  # the table learns of the new lineage at once
        self.pumps[job] = pump
        self._share_limits()
        log.info("job flows", job=job, epoch=held.epoch, next_offset=snapshot.base,
                 already_finished_above=sum(end - start for start, end in snapshot.finished))  # fmt: skip
        cluster.fetch.add((job, held.epoch), identity.topic, identity.partition, pump.tracker.end)

    def _read_snapshot(self, job: str, data: bytes) -> Snapshot | None:
        if not data:
            return None
        try:
            return Snapshot.from_bytes(data)
        except CorruptSnapshot as error:
            self._on_trouble(
                "snapshot-corrupt", job, f"{error}", "the job starts from Kafka's commit; expect duplicates"
            )
            return None

    async def _release(self, job: str, held: Assignment) -> None:
        pump = self.pumps.get(job)
        if pump is not None:
            ended = await pump.drain(self._grace_s)
            await self._save([pump])
            if not ended:
                log.warning(
                    "calls were cut off at the end of the grace time; they are delivered again", job=job
                )
            pump.close()
            self._drop(job)
        await self._control.append(
            Released(at_ms=now_ms(), job=job, worker=self.worker, epoch=held.epoch, reason=held.reason)
        )
        log.info("job released", job=job, epoch=held.epoch)

    async def drain_all(self) -> None:
        """SIGTERM: every job finishes what is in flight within the grace time, saves and lets go."""
        self.draining = True
        for job in list(self._work):
            if job not in self.pumps:
                self._end_task(job)
        mine = self._control.view.owned_by(self.worker)
        pumps = [pump for job, pump in self.pumps.items() if job not in self._work]
        for pump in pumps:
            pump.stop_intake()
        await asyncio.gather(*(pump.drain(self._grace_s) for pump in pumps))
        if pumps:
            await self._save(pumps)
        releases = list(self._work.values())
        for pump in pumps:
            pump.close()
            self._drop(str(pump.job))
        events = [
            Released(
                at_ms=now_ms(), job=job, worker=self.worker, epoch=held.epoch, reason="its worker stopped"
            )
            for job, held in mine.items()
            if job not in self._work
        ]
        if events:
            await self._control.append(*events)
        if releases:
            await asyncio.wait(releases, timeout=self._grace_s)

    # -- checkpoints -----------------------------------------------------------------------------

    async def _save(self, pumps: Iterable[DispatchPump]) -> None:
        """The last snapshot and commit of jobs that are let go."""
        pumps = list(pumps)
        if not self._lease.holds(time.monotonic()):
            return
        await self._snapshot(pumps)
        await self._commit(pumps)

    @Service.task
    async def _snapshots(self) -> None:
        while not self.should_stop:
            pumps = [p for p in self.pumps.values() if p.tracker.version != p.snapshot_version]
            interval_s = max(SNAPSHOT_S, len(pumps) / SNAPSHOTS_PER_S)
            await self.sleep(interval_s)
            began_s = time.monotonic()
            if not self._lease.holds(began_s):
                continue
            try:
                await self._snapshot(self.pumps.values())
                self._lease.saved(began_s, interval_s)
            except Exception as error:  # noqa: BLE001 - the next round sends the same facts and more
                log.warning("snapshots were not taken and are sent again", error=repr(error))

    async def _snapshot(self, pumps: Iterable[DispatchPump]) -> None:
        items: list[SnapshotItem] = []
        sent: list[tuple[DispatchPump, int]] = []
        for pump in pumps:
            version = pump.tracker.version
            if version != pump.snapshot_version and not pump.closed:
                packed = pump.tracker.snapshot().to_bytes()
                items.append(SnapshotItem(str(pump.job), pump.epoch, packed, pump.lineage))
                sent.append((pump, version))
        if items:
            await self._trackers.send_snapshots(items)
            for pump, version in sent:
                pump.snapshot_version = version

    @Service.task
    async def _commits(self) -> None:
        while not self.should_stop:
            await self.sleep(COMMIT_S)
            if not self._lease.holds(time.monotonic()):
                continue
            try:
                await self._commit([p for p in self.pumps.values() if not p.closed])
            except Exception as error:  # noqa: BLE001 - the next round commits the same and more
                log.warning("offsets were not committed and are committed again", error=repr(error))

    async def _commit(self, pumps: list[DispatchPump]) -> None:
        now_s = time.monotonic()
        rounds: dict[tuple[str, str], dict[tuple[str, int], int]] = defaultdict(dict)
        for pump in pumps:
            job, base = str(pump.job), pump.tracker.base
            last, at_s = self._committed.get(job, (-1, 0.0))
            if base != last or now_s - at_s > RECOMMIT_S:
                metadata = pump.runtime.workload.metadata
                rounds[metadata.cluster, metadata.group][pump.job.topic, pump.job.partition] = base
        # Side by side: a cluster that is away holds up its own groups only.
        await asyncio.gather(
            *(self._commit_group(*at, offsets, pumps, now_s) for at, offsets in rounds.items())
        )
        self.committed_at_s = time.monotonic()

    async def _commit_group(
        self,
        cluster_name: str,
        group: str,
        offsets: dict[tuple[str, int], int],
        pumps: list[DispatchPump],
        now_s: float,
    ) -> None:
        try:
            async with asyncio.timeout(COMMIT_PATIENCE_S):
                cluster = await self._clusters.get(cluster_name)
                errors = await cluster.committer.commit(group, offsets)
        except Exception as error:  # noqa: BLE001 - the next round commits the same and more
            log.warning("a group's offsets were not committed and are committed again", group=group,
                        cluster=cluster_name, error=repr(error))  # fmt: skip
            errors = dict.fromkeys(offsets, f"cluster {cluster_name} takes no commit now")
        for pump in pumps:
            at = (pump.job.topic, pump.job.partition)
            metadata = pump.runtime.workload.metadata
            if (metadata.cluster, metadata.group) != (cluster_name, group) or at not in offsets:
                continue
            if refused := errors.get(at):
                trouble = f"commit: {refused}"
                if pump.trouble != trouble:
                    pump.trouble = trouble
                    self._on_trouble(
                        "commit-refused", str(pump.job), refused, "it is tried again every second"
                    )
            else:
                self._committed[str(pump.job)] = (offsets[at], now_s)
                if pump.trouble.startswith("commit: "):
                    pump.trouble = ""

    # -- head-of-line blocking -------------------------------------------------------------------

    @Service.task
    async def _heads(self) -> None:
        """On a timer, so that a quiet topic is freed too."""
        while not self.should_stop:
            await self.sleep(HEADS_S)
            now_s = time.monotonic()
            for job, pump in list(self.pumps.items()):
                verdict = pump.free_head(now_s)
                if verdict is not None:
                    message = f"offset {verdict.offset}: {verdict.reason}"
                    log.warning("a message blocked its partition and was moved away", job=job, why=message)
                    self._on_trouble(
                        "head-of-line", job, message,
                        "it is in the dead letter queue or retry topic; look there for what is wrong with it",
                    )  # fmt: skip

    # -- state -----------------------------------------------------------------------------------

    def statuses(self) -> list[JobStatus]:
        """What the heartbeat says of this worker's jobs."""
        for pump in self.pumps.values():
            for cluster in self._clusters.started():
                seen = cluster.fetch.high_watermark((str(pump.job), pump.epoch))
                pump.high_watermark = max(pump.high_watermark, seen)
        statuses = [pump.status() for pump in self.pumps.values()]
        for job, held in self._control.view.owned_by(self.worker).items():
            if job not in self.pumps:
                statuses.append(
                    JobStatus(
                        job=job, epoch=held.epoch, state="starting", trouble=self._troubles.get(job, "")
                    )
                )
        return statuses

    def workload_statuses(self) -> list[WorkloadStatus]:
        """What the heartbeat says of the receivers as seen from here."""
        return [
            WorkloadStatus(
                key=key,
                breaker=str(runtime.link.breaker.state),
                in_flight=runtime.in_flight,
                limit=runtime.link.limit,
                held=len(runtime.link.held),
            )
            for key, runtime in self.runtimes.items()
        ]
