"""Progress of readers in other regions, imported into this region's copy of a workload's topic.

    another region's tracker table,  ─copied─▶ positions, notes ─┬─ model.translation ──────▶ all below
    and its topic's tail                                         │                            is finished
    offset maps of all regions       ─copied─▶ lines into both ──┴─ model.source_frontier ──▶ ranges above

Rules
1. Imported progress contains facts only. They stay true for every consumer and however old the copies are.
   A missing record or offset sync costs re-reads; nothing is concluded from its absence.
2. This region's copies suffice when another region is lost. A table without a copy is read in the region's
   own cluster, if that answers. Tracker records name the cluster's and the topic's id.
3. Only the workload's main topic is imported. Retry topics belong to a region, which delivers their
   messages itself.
4. With several regions, the furthest position counts, and all of their finished ranges above it.
5. A caller gets everything read since its call, and concurrent callers share one reading. Readings repeat
   while a workload that may come here is active in another region, so that they stay short.
6. A position comes from the table or the tail, whichever is further (`app.offsets.store.tracker_tail`). A
   failed reading is repeated until the caller's patience ends.

This requires topics that only routes write to. A record that an application writes into a copy has no
source, and may lie below a position finished in another region.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog.roles import ACTIVE_PASSIVE
from app.dispatch.definition import DISPATCH_JOBS, Workload
from app.kafka.client.cluster import ClusterUnreachable
from app.kernel.fencing import LogId, TrackerRecord
from app.kernel.job import JobId
from app.offsets.model.offset_map import LineSource
from app.offsets.model.producer_progress import CorruptProgress, FinishedOffsets
from app.offsets.model.source_frontier import ANY_LOG, PassOver, SourceFinished, finished, together
from app.offsets.model.translation import CopiedLine, ResumePlan, TopicIdentity
from app.offsets.store.records import BARRIERS, CHECKPOINTS, ENDS, TRACKERS
from app.offsets.store.tables import NotRead, RegionTables
from app.offsets.store.tracker_tail import positions
from app.offsets.sync.mapper import JoinedTopics, NotJoined, OffsetMapper

log = structlog.get_logger(__name__)

MAP_READ_TIMEOUT_S = 8.0  # for tables not read before; then a job begins without them and reads again
MAP_RETRY_INTERVAL_S = 0.25
WARM_S = 10.0
VIEW_TTL_S = 30.0  # of a workload's view without further calls
CLUSTER_ERRORS = (ClusterUnreachable, KafkaError, NotRead, OSError, TimeoutError)


class ImportedProgress(NamedTuple):
    """Progress of other regions, for a job that begins here.

    Attributes:
        next_offset: All below it is finished; None: not known. The log may no longer contain it.
        over: The records above that must not be delivered; None: none are known.
        why: The missing knowledge, and the remedy; "": all is known.
        was_read: A reader in another region has a position. Without a known one here, this job must not
            skip records which that reader has not read.
        log: The log of the offsets.
    """

    next_offset: int | None = None
    over: PassOver | None = None
    why: str = ""
    was_read: bool = False
    log: LogId = ANY_LOG


class RemoteReader(NamedTuple):
    """Another region's progress in its copy: the copy's log, and by partition next offsets and progress."""

    log: LogId
    next_offsets: dict[int, int]
    progress: dict[int, FinishedOffsets]

    def topic(self, name: str) -> TopicIdentity:
        """The identity of the topic that it reads, under this name."""
        return TopicIdentity(self.log.cluster_id, name, self.log.topic_id)


@dataclass(slots=True)
class _View:
    """A workload's imported progress, as of one reading."""

    reading: int
    used_s: float
    next_offsets: dict[int, int] = field(default_factory=dict)
    done: dict[Hashable, SourceFinished] = field(default_factory=dict)
    into: dict[int, list[LineSource]] = field(default_factory=dict)
    log: LogId = ANY_LOG
    why: list[str] = field(default_factory=list)  # for all partitions
    why_of: dict[int, str] = field(default_factory=dict)
    was_read: bool = False


class RemoteProgress(Service):
    """Imports progress from the copies of other regions' tables. `regions_of`: the regions between which a
    workload moves. `wanted`: whether a workload that may come here is active in another region."""

    def __init__(
        self,
        tables: RegionTables,
        mapper: OffsetMapper,
        regions_of: Callable[[Workload], Sequence[str]],
        wanted: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._tables = tables
        self._mapper = mapper
        self._regions_of = regions_of
        self._wanted = wanted
        self._reading_count = 0
        self._reading: asyncio.Task[None] | None = None
        self._next_reading: asyncio.Task[None] | None = None
        self._views: dict[str, _View] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    @Service.task
    async def _keep_warm(self) -> None:
        while not self.should_stop:
            await self.sleep(WARM_S)
            try:
                if self._wanted():
                    await self.read(WARM_S)
            except CLUSTER_ERRORS as error:
                log.warning("other regions' positions cannot be read; retrying", error=str(error))
            except Exception:
                log.exception("reading other regions' positions failed; retrying")

    async def on_stop(self) -> None:
        tasks = [task for task in (self._reading, self._next_reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def region(self) -> str:
        return self._tables.atlas.region

    def others(self, workload: Workload) -> list[str]:
        """The other regions between which the workload moves; []: it imports no progress."""
        if workload.spec.mode != ACTIVE_PASSIVE:
            return []
        return [one for one in self._regions_of(workload) if one != self.region]

    # -- reading -----------------------------------------------------------------------------------

    async def read(self, timeout_s: float = MAP_READ_TIMEOUT_S) -> None:
        """Reads positions and offset maps at least to their present ends. Raises NotRead at the timeout (the
        reading continues), ClusterUnreachable, KafkaError, OSError."""
        if self._next_reading is None:
            self._next_reading = asyncio.create_task(self._read_after(self._reading))
            self._next_reading.add_done_callback(retrieve_exception)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._next_reading)
        except TimeoutError:
            raise NotRead("other regions' positions are still being read") from None

    async def _read_after(self, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            await asyncio.wait([former])
        self._reading, self._next_reading = self._next_reading, None  # later callers start another reading
        results = await asyncio.gather(
            self._tables.read(MAP_READ_TIMEOUT_S, (CHECKPOINTS, BARRIERS)),
            self._tables.read(
                MAP_READ_TIMEOUT_S, (TRACKERS, ENDS), set(self._tables.atlas.regions) - {self.region}
            ),
            return_exceptions=True,
        )
        self._reading_count += 1
        for failed in results:
            if isinstance(failed, BaseException):
                raise failed

    async def read_positions(self, regions: Collection[str], timeout_s: float = MAP_READ_TIMEOUT_S) -> None:
        """Reads the positions of these regions only. Raises as `read`."""
        await self._tables.read(timeout_s, (TRACKERS, ENDS), regions)

    async def positions(self, workload: Workload, region: str) -> dict[str, TrackerRecord]:
        """A region's positions by job of the main topic; `read` or `read_positions` before. Raises
        NotRead."""
        prefix = f"{DISPATCH_JOBS}{workload.key}:{workload.metadata.topic}:"
        return await self._tables.ask(lambda store: positions(store, region, prefix))

    # -- carrying ----------------------------------------------------------------------------------

    async def imported_progress(
        self, job: JobId, workload: Workload, patience_s: float = MAP_READ_TIMEOUT_S
    ) -> ImportedProgress:
        """The progress of other regions in the job's partition. Raises nothing for an unavailable region:
        after `patience_s` the last known progress counts."""
        if job.topic != workload.metadata.topic or not self.others(workload):
            return ImportedProgress()
        why = []
        if failed := await self._read_patiently(patience_s):
            why.append(f"{failed}; check that the control cluster answers")
        async with self._locks.setdefault(workload.key, asyncio.Lock()):
            view = self._views.get(workload.key)
            if view is None or view.reading != self._reading_count or why:
                view = await self._new_view(workload)
                self._keep(workload.key, view)
        over = PassOver(view.done, view.into.get(job.partition, ()), job.partition, view.log)
        return ImportedProgress(
            view.next_offsets.get(job.partition), over if view.done else None,
            ". ".join([*why, *view.why, *filter(None, [view.why_of.get(job.partition)])]), view.was_read,
            view.log,
        )  # fmt: skip

    async def _read_patiently(self, patience_s: float) -> str:
        """Why the reading failed; "": it succeeded."""
        until_s = time.monotonic() + patience_s
        while True:
            try:
                await self.read(max(0.0, until_s - time.monotonic()))
            except CLUSTER_ERRORS as error:
                if time.monotonic() + MAP_RETRY_INTERVAL_S >= until_s:
                    return str(error) or repr(error)
                await asyncio.sleep(MAP_RETRY_INTERVAL_S)
            else:
                return ""

    def _keep(self, key: str, view: _View) -> None:
        expired_s = time.monotonic() - VIEW_TTL_S
        self._views = {key: one for key, one in self._views.items() if one.used_s > expired_s}
        self._views[key] = view

    async def _new_view(self, workload: Workload) -> _View:
        view = _View(self._reading_count, time.monotonic())
        readers: list[dict[Hashable, SourceFinished]] = []
        for region in self.others(workload):
            try:
                done = await self._add(region, workload, view)
            except (*CLUSTER_ERRORS, LookupError, ValueError) as error:
                view.why.append(f"the positions of region {region} are not known: {error}")
            else:
                readers += done
        lines = [source for sources in view.into.values() for source in sources]
        view.done = await asyncio.to_thread(together, readers, lines)
        return view

    async def _add(
        self, region: str, workload: Workload, view: _View
    ) -> list[dict[Hashable, SourceFinished]]:
        """Adds a region's progress to the view. Raises `CLUSTER_ERRORS`, LookupError, ValueError."""
        records = await self.positions(workload, region)
        origin = await self._tables.ask(lambda store: store.origin(TRACKERS, region))
        if origin is None or not origin.complete:
            view.why.append(
                f"the positions of region {region} were never read completely here; check that its "
                f"switchyard-{region}-trackers-changelog is copied into this region's control cluster"
            )
        reader = await asyncio.to_thread(reader_of, records.items())
        if reader is None:
            return []
        view.was_read = True
        try:
            read = reader.topic(workload.metadata.topic)
            found = await self._mapper.join_known(read, workload.metadata.cluster, workload.metadata.topic)
        except NotJoined as error:
            view.why.append(f"the position of region {region} in this copy is not known: {error}")
            return []
        (joined,) = found
        resumed, done = await asyncio.to_thread(plan_and_finished, joined, reader.next_offsets, reader)
        for partition, answer in resumed.answers.items():
            if answer.why:
                view.why_of[partition] = f"region {region}'s position is not known here: {answer.why}"
                continue
            below = min(source.x for source in answer.sources if source.x is not None)
            known = view.next_offsets.get(partition, 0)
            view.next_offsets[partition] = max(known, min(below, answer.log.end))
        view.log, view.into = joined.to.log, defaultdict(list)
        for source in _sources(joined.into_to):
            view.into[source.line.target_partition].append(source)
        return [done]


def reader_of(records: Iterable[tuple[str, TrackerRecord]]) -> RemoteReader | None:
    """The progress of jobs whose records are of the newest log; None: no job has a position."""
    at = [(JobId.parse(job).partition, record) for job, record in records if record.base >= 0]
    if not at:
        return None
    newest = max((record for _, record in at), key=lambda record: record.at_ms).log
    of_newest = {partition: record for partition, record in at if not newest.is_another(record.log)}
    return RemoteReader(
        newest,
        {partition: record.base for partition, record in of_newest.items()},
        {partition: _progress(record) for partition, record in of_newest.items()},
    )


def _progress(record: TrackerRecord) -> FinishedOffsets:
    """The progress in the record's note; without a readable note, all below its base."""
    if record.note:
        try:
            progress = FinishedOffsets.from_bytes(record.note)
        except CorruptProgress as error:
            log.error("a region's progress note cannot be read; only its base counts", error=str(error))
        else:
            if progress.base <= record.base:
                return progress
    return FinishedOffsets(record.base)


def plan_and_finished(
    joined: JoinedTopics, next_offsets: Mapping[int, int], reader: RemoteReader | None
) -> tuple[ResumePlan, dict[Hashable, SourceFinished]]:
    """Where a reader continues, and what it has finished of the sources. May take a while."""
    resumed = joined.resume(next_offsets)
    if reader is None:
        return resumed, {}
    return resumed, finished(reader.progress, _sources(joined.into_read), reader.log)


def _sources(lines: Iterable[CopiedLine]) -> list[LineSource]:
    return [LineSource(copying.source, copying.line) for copying in lines]


def retrieve_exception(task: asyncio.Task[object]) -> None:
    """Marks the task's exception as retrieved; its waiters get it."""
    if not task.cancelled():
        task.exception()
