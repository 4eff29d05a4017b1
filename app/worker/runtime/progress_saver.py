"""Saves the progress of this worker's jobs: snapshots to the tracker table, commits to Kafka.

Rules
1. Commits need the lease. Snapshots do not, because the order of the tracker topic fences older epochs. So
   a worker that dies while it waits for its lease has saved its finished offsets.
2. A changed job sends a snapshot at most every `SNAPSHOT_INTERVAL_S`, of at most `MAX_SNAPSHOT_BYTES`. A
   larger one omits the newest finished offsets, which may come twice after a crash. A job's snapshots stay
   in order in the topic, so its last one has everything. A partition of the topic that accepts nothing
   delays only its own jobs.
3. A commit follows a move of the base, and comes every `RECOMMIT_INTERVAL_S` anyway. It corrects a
   zombie's commit, and shows other regions that the group is alive (`app.offsets.model.group_sync`).
4. Copies of other regions' control topics are saved every `BOOKKEEPING_INTERVAL_S` while they flow. Each
   save here is a record to copy there, so regions that copy each other's would hardly come to rest.
5. Clusters are committed to in parallel, so an unreachable one delays only its own groups. `unanswered`
   says since when a cluster has answered no commit; a refusal is an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial

import structlog
from mode import Service

from app.kafka.data_clusters import DataClusters
from app.kernel.clock import now_ms
from app.kernel.fencing import LogId, SnapshotItem
from app.kernel.incidents import ReportIncident, until_closed
from app.kernel.lease import MAX_LATE_S, Lease
from app.kernel.ranges import Snapshot
from app.kernel.troubles import TroubleSource
from app.offsets.model.group_sync import stamped
from app.worker.jobs.pump import Pump
from app.worker.tracker.client import TrackerClient, tracker_partition

log = structlog.get_logger(__name__)

SNAPSHOT_INTERVAL_S = 0.1
BOOKKEEPING_INTERVAL_S = 15.0
SNAPSHOTS_PER_S = 1_000  # of all jobs together: the table's writers keep up with that
FEW_SNAPSHOTS = int(SNAPSHOT_INTERVAL_S * SNAPSHOTS_PER_S)
MAX_SNAPSHOT_BYTES = 512 * 1024  # in base64 it fits an event, an answer and a changelog record of 1 MB
COMMIT_INTERVAL_S = 0.5
COMMIT_TIMEOUT_S = 5.0
RECOMMIT_INTERVAL_S = 30.0


class ProgressSaver(Service):
    """Sends snapshots and commits of the pumps.

    Attributes:
        worker: The worker that the commits name.
        unanswered: Cluster -> (since when, one of its groups) while it answers no commit; monotonic seconds.
        round_at_s: When the last round of commits ended.
    """

    def __init__(
        self,
        pumps: Mapping[str, Pump],
        clusters: DataClusters,
        trackers: TrackerClient,
        lease: Lease,
        report_incident: ReportIncident,
        worker: str = "",
    ) -> None:
        super().__init__()
        self.worker = worker
        self.unanswered: dict[str, tuple[float, str]] = {}
        self.round_at_s = time.monotonic()
        self._pumps = pumps
        self._clusters = clusters
        self._trackers = trackers
        self._lease = lease
        self._report_incident = report_incident
        self._logs: dict[str, LogId] = {}
        self._committed: dict[str, tuple[int, float]] = {}
        self._cut: set[str] = set()
        self._saved_at_s: dict[str, float] = {}  # for the jobs of rule 4
        # By partition of the tracker topic; the rounds of `_snapshots`.
        self._in_order = defaultdict[int, asyncio.Lock](asyncio.Lock)
        self._rounds: dict[int, asyncio.Task[bool]] = {}

    def track(self, pump: Pump, log_id: LogId, *, known: bool) -> None:
        """A pump starts on this log; unless `known`, the table learns of it at once."""
        self._logs[str(pump.job)] = log_id
        if not known:
            pump.snapshot_version = -1

    def forget(self, job: str) -> None:
        self._logs.pop(job, None)
        self._committed.pop(job, None)
        self._saved_at_s.pop(job, None)
        self._cut.discard(job)

    def committed(self, job: str) -> int:
        """The offset that this worker committed last for the job; -1: none yet."""
        return self._committed.get(job, (-1, 0.0))[0]

    async def save(self, pumps: Iterable[Pump]) -> None:
        """Sends the last snapshot and commit of jobs that end here."""
        pumps = list(pumps)
        await self._snapshot(pumps)
        if pumps and self._lease.holds(time.monotonic()):
            await self._commit(pumps)

    async def try_save(self, pump: Pump) -> bool:
        """The same for one job; returns whether it succeeded."""
        try:
            await self.save([pump])
        except Exception as error:  # noqa: BLE001 - after any error its caller continues
            log.warning("a job's last snapshot was not saved", job=str(pump.job), error=repr(error))
            return False
        return True

    # -- snapshots -------------------------------------------------------------------------------

    @Service.task
    async def _snapshots(self) -> None:
        interval_s = SNAPSHOT_INTERVAL_S
        while not self.should_stop:
            await self.sleep(interval_s)
            began_s = time.monotonic()
            changed = self._changed()
            try:
                is_saved = not self.should_stop and await self._round(changed, began_s)
                # The wait follows what the next round sends: a burst that is saved delays nothing.
                next_count = len(self._changed()) if len(changed) > FEW_SNAPSHOTS else 0
                interval_s = max(SNAPSHOT_INTERVAL_S, next_count / SNAPSHOTS_PER_S)
                if is_saved:
                    self._lease.saved(began_s, interval_s)
            except Exception as error:  # noqa: BLE001 - the next round sends the same facts and more
                log.warning("a round of snapshots failed; the next one repeats it", error=repr(error))

    def _changed(self) -> list[Pump]:
        return [pump for pump in self._pumps.values() if pump.version != pump.snapshot_version]

    async def _round(self, changed: Iterable[Pump], now_s: float) -> bool:
        """Sends the due snapshots; returns whether all progress is saved. Late partitions delay no others."""
        is_late = bool(self._rounds)
        due: dict[int, list[Pump]] = defaultdict(list)
        for pump in changed:
            partition = tracker_partition(str(pump.job))
            if partition not in self._rounds and self._is_due(pump, now_s):
                due[partition].append(pump)
        for partition, pumps in due.items():
            self._rounds[partition] = asyncio.get_running_loop().create_task(self._try_send(partition, pumps))
        if self._rounds:
            await asyncio.wait(self._rounds.values(), timeout=MAX_LATE_S)
        ended = [partition for partition, task in self._rounds.items() if task.done()]
        saved = [self._rounds.pop(partition).result() for partition in ended]
        return all(saved) and not is_late and not self._rounds

    async def _try_send(self, partition: int, pumps: list[Pump]) -> bool:
        try:
            await self._send(partition, pumps)
        except Exception as error:  # noqa: BLE001 - the next round sends the same facts and more
            log.warning("snapshots were not saved; the next round repeats them", error=repr(error))
            return False
        return True

    async def on_stop(self) -> None:
        for task in self._rounds.values():
            task.cancel()

    def _is_due(self, pump: Pump, now_s: float) -> bool:
        """Rule 4, for a pump with unsaved progress."""
        job = str(pump.job)
        if not pump.may_save_seldom:
            return True
        if now_s - self._saved_at_s.get(job, float("-inf")) < BOOKKEEPING_INTERVAL_S:
            return False
        self._saved_at_s[job] = now_s
        return True

    async def _snapshot(self, pumps: Iterable[Pump]) -> None:
        """Sends all snapshots; then raises the first error."""
        found: dict[int, list[Pump]] = defaultdict(list)
        for pump in pumps:
            found[tracker_partition(str(pump.job))].append(pump)
        ended = await asyncio.gather(*(self._send(*one) for one in found.items()), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def _send(self, partition: int, pumps: Iterable[Pump]) -> None:
        items: list[SnapshotItem] = []
        sent: list[tuple[Pump, int]] = []
        async with self._in_order[partition]:
            for pump in pumps:
                version, job = pump.version, str(pump.job)
                if version != pump.snapshot_version and not pump.closed:
                    packed, log_id = self._packed(job, pump.snapshot()), self._logs.get(job, LogId())
                    items.append(SnapshotItem(job, pump.epoch, packed, pump.lineage, log_id, pump.note))
                    sent.append((pump, version))
            writes = await self._trackers.send_snapshots(items) if items else []
        await asyncio.gather(*writes)
        for pump, version in sent:
            pump.snapshot_version = max(version, pump.snapshot_version)

    def _packed(self, job: str, snapshot: Snapshot) -> bytes:
        packed, cut = limited(snapshot)
        if cut and job not in self._cut:
            self._cut.add(job)
            self._report_incident(
                "snapshot-cut", job,
                "a snapshot cannot hold all offsets that finished out of order; after a crash the newest "
                "ones are delivered again",
                "find out what blocks the partition, or lower the tracker's capacity",
            )  # fmt: skip
        return packed

    # -- commits ---------------------------------------------------------------------------------

    @Service.task
    async def _commits(self) -> None:
        while not self.should_stop:
            await self.sleep(COMMIT_INTERVAL_S)
            if not self._lease.holds(time.monotonic()):
                self.unanswered.clear()  # it sends no commit, so none is unanswered
                self.round_at_s = time.monotonic()
                continue
            try:
                await self._commit([p for p in self._pumps.values() if not p.closed])
                self.round_at_s = time.monotonic()
            except Exception as error:  # noqa: BLE001 - the next round commits the same and more
                log.warning("a round of commits failed; the next one repeats it", error=repr(error))

    async def _commit(self, pumps: list[Pump]) -> None:
        now_s = time.monotonic()
        rounds: dict[tuple[str, str], dict[tuple[str, int], int]] = defaultdict(dict)
        for pump in pumps:
            job, base = str(pump.job), pump.base
            last, at_s = self._committed.get(job, (-1, 0.0))
            if base != last or now_s - at_s > RECOMMIT_INTERVAL_S:
                rounds[pump.commits_to][pump.job.topic, pump.job.partition] = base
        commits = (self._commit_group(*at, offsets, pumps, now_s) for at, offsets in rounds.items())
        answered = await asyncio.gather(*commits)
        alive = {name for (name, _), has_answered in zip(rounds, answered, strict=True) if has_answered}
        self.unanswered = {
            name: self.unanswered.get(name, (now_s, group)) for name, group in rounds if name not in alive
        }

    async def _commit_group(
        self,
        cluster_name: str,
        group: str,
        offsets: dict[tuple[str, int], int],
        pumps: list[Pump],
        now_s: float,
    ) -> bool:
        """Commits, and updates the pumps; returns whether the cluster answered."""
        answered = True
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                cluster = await self._clusters.get(cluster_name)
                metadata = dict.fromkeys(offsets, stamped(self.worker, now_ms()))
                errors = await cluster.committer.commit(group, offsets, metadata)
        except Exception as error:  # noqa: BLE001 - the next round commits the same and more
            log.warning(
                "a cluster did not answer a commit; the next round repeats it",
                group=group,
                cluster=cluster_name,
                error=repr(error),
            )
            errors = dict.fromkeys(offsets, f"cluster {cluster_name} accepts no commit now")
            answered = False
        for pump in pumps:
            at = (pump.job.topic, pump.job.partition)
            if pump.commits_to != (cluster_name, group) or at not in offsets:
                continue
            if refused := errors.get(at):
                trouble = f"commit: {refused}"
                if pump.troubles.of(TroubleSource.COMMIT) != trouble:
                    pump.troubles.show(TroubleSource.COMMIT, trouble)
                    message, _, remedy = refused.partition("; ")
                    again = "the worker keeps trying"
                    remedy = f"{remedy}; {again}" if remedy else again
                    is_over = until_closed(pump, partial(_has_other_trouble, pump, trouble))
                    self._report_incident("commit-refused", str(pump.job), message, remedy, is_over)
            else:
                self._committed[str(pump.job)] = (offsets[at], now_s)
                pump.troubles.show(TroubleSource.COMMIT, "")
        return answered


def _has_other_trouble(pump: Pump, trouble: str) -> bool:
    return pump.troubles.of(TroubleSource.COMMIT) != trouble


def limited(snapshot: Snapshot, most_bytes: int = MAX_SNAPSHOT_BYTES) -> tuple[bytes, bool]:
    """The snapshot in at most `most_bytes`, and whether its newest offsets were omitted."""
    packed, cut = snapshot.to_bytes(), False
    while len(packed) > most_bytes:
        cut = True
        snapshot = Snapshot(snapshot.base, snapshot.finished[: len(snapshot.finished) // 2])
        packed = snapshot.to_bytes()
    return packed, cut
