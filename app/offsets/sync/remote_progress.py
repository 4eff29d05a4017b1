"""What other regions' readers have finished of a workload's topic, carried over into this region's copy.

    another region's tracker table,
    and the end of its events      ─copied─▶ positions, notes ─┬─ app.offsets.model.translation ──▶ all below
    is finished offset maps of all regions     ─copied─▶ lines into both ──┴─
    app.offsets.model.source_frontier ▶ what above it is, too

Rules
1. All of it are facts: they stay true, whoever consumes now, and however old the copies are. What is not
   known (a record that has not come, a barrier that was lost) is read again; nothing is concluded from its
   absence.
2. Nobody is asked but this region: of one that is lost its copies are enough. What it was, the cluster's and
   the topic's id, its records say themselves.
3. Of the workload's main topic only. Retry topics are each region's own: what waits in one is delivered
   there.
4. Of several regions the furthest counts below, and each of them above.
5. Who asks gets what was read since; all who ask meanwhile share one reading. It is kept warm while a
   workload that may come here is consumed elsewhere.
6. Positions are those of the table, or of the end of its events, whichever is further
   (`app.offsets.store.tracker_tail`). What cannot be read is tried again while who asks has patience.

It holds for topics that only routes write to: what somebody writes into one of the copies himself has no
source, and may lie below what was finished elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog.roles import ACTIVE_PASSIVE
from app.dispatch.definition import Workload
from app.kafka.client.cluster import ClusterUnreachable
from app.kernel.fencing import LogId, TrackerRecord
from app.kernel.job import JobId, Kind
from app.offsets.model.offset_map import LineSource
from app.offsets.model.producer_progress import CorruptProgress, FinishedOffsets
from app.offsets.model.source_frontier import ANY_LOG, PassOver, SourceFinished, finished, together
from app.offsets.model.translation import CopiedLine, ResumePlan, TopicIdentity
from app.offsets.store.records import BARRIERS, CHECKPOINTS, ENDS, TRACKERS
from app.offsets.store.tables import NotRead, RegionTables
from app.offsets.store.tracker_tail import positions
from app.offsets.sync.mapper import JoinedTopics, NoRoad, OffsetMapper

log = structlog.get_logger(__name__)

MAP_READ_TIMEOUT_S = 8.0  # patience with what was not read before; then a job begins without, and reads again
MAP_RETRY_INTERVAL_S = 0.25
WARM_S = 10.0
VIEW_TTL_S = 30.0  # what was worked out of a workload's lines, once nobody asks for it
CLUSTER_ERRORS = (ClusterUnreachable, KafkaError, NotRead, OSError, TimeoutError)


class ImportedProgress(NamedTuple):
    """What is finished elsewhere of a job that begins here.

    Attributes:
        next_offset: all below it is finished; None: that is not known. It need not be in the log any more.
        over: what else is not to be delivered; None: nothing is known to be finished.
        why: what is not known, and what to do; "": all is known.
        was_read: somebody has a position elsewhere. Who has none here must not pass over what that one has
            not read.
        log: that the offsets are of.
    """

    next_offset: int | None = None
    over: PassOver | None = None
    why: str = ""
    was_read: bool = False
    log: LogId = ANY_LOG


class RemoteReader(NamedTuple):
    """How far another region's jobs have come in their copy: the log, and by partition. See `reader_of`."""

    log: LogId
    next_offsets: dict[int, int]
    progress: dict[int, FinishedOffsets]

    def topic(self, name: str) -> TopicIdentity:
        """The topic of that name that it reads."""
        return TopicIdentity(self.log.cluster_id, name, self.log.topic_id)


@dataclass(slots=True)
class _View:
    """Of a workload, as of a reading."""

    reading: int
    asked_s: float
    next_offsets: dict[int, int] = field(default_factory=dict)
    done: dict[Hashable, SourceFinished] = field(default_factory=dict)
    into: dict[int, list[LineSource]] = field(default_factory=dict)
    log: LogId = ANY_LOG
    why: list[str] = field(default_factory=list)  # of all partitions
    why_of: dict[int, str] = field(default_factory=dict)
    was_read: bool = False


class RemoteProgress(Service):
    """See the module.

    Args:
        regions_of: the regions that a workload moves between.
        wanted: whether some workload that may come here is consumed elsewhere.
    """

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
        self._readings = 0
        self._now: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
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
                log.warning("other regions' positions cannot be read, and are read again", error=str(error))
            except Exception:
                log.exception("other regions' positions could not be read, and are read again")

    async def on_stop(self) -> None:
        tasks = [task for task in (self._now, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def region(self) -> str:
        """This one."""
        return self._tables.atlas.region

    def others(self, workload: Workload) -> list[str]:
        """The other regions that the workload moves between; [] of one that carries nothing over."""
        if workload.spec.mode != ACTIVE_PASSIVE:
            return []
        return [one for one in self._regions_of(workload) if one != self.region]

    # -- reading -----------------------------------------------------------------------------------

    async def read(self, timeout_s: float = MAP_READ_TIMEOUT_S) -> None:
        """Reads positions and offset maps to the ends that they have now, or a moment later.

        Raises:
            NotRead: it takes longer; it goes on there. ClusterUnreachable, KafkaError, OSError.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read_behind(self._now))
            self._next.add_done_callback(seen)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._next)
        except TimeoutError:
            raise NotRead("other regions' positions are still being read") from None

    async def _read_behind(self, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            await asyncio.wait([former])
        self._now, self._next = self._next, None  # who asks from here on, waits for another one
        found = await asyncio.gather(
            self._tables.read(MAP_READ_TIMEOUT_S, (CHECKPOINTS, BARRIERS)),
            self._tables.read(
                MAP_READ_TIMEOUT_S, (TRACKERS, ENDS), set(self._tables.atlas.regions) - {self.region}
            ),
            return_exceptions=True,
        )
        self._readings += 1
        for failed in found:
            if isinstance(failed, BaseException):
                raise failed

    async def read_positions(self, regions: Collection[str], timeout_s: float = MAP_READ_TIMEOUT_S) -> None:
        """Reads positions of these regions alone, likewise. Raises as `read`."""
        await self._tables.read(timeout_s, (TRACKERS, ENDS), regions)

    async def positions(self, workload: Workload, region: str) -> dict[str, TrackerRecord]:
        """How far the jobs of the workload's main topic are in a region, by job. Call one of the two before.
        Raises NotRead."""
        prefix = f"{Kind.DISPATCH.value}:{workload.key}:{workload.metadata.topic}:"
        return await self._tables.ask(lambda store: positions(store, region, prefix))

    # -- carrying ----------------------------------------------------------------------------------

    async def imported_progress(
        self, job: JobId, workload: Workload, patience_s: float = MAP_READ_TIMEOUT_S
    ) -> ImportedProgress:
        """What other regions' readers have finished of the job's partition. Never raises for what is away:
        after `patience_s` it is what was read before."""
        if job.topic != workload.metadata.topic or not self.others(workload):
            return ImportedProgress()
        why = []
        if failed := await self._read_patiently(patience_s):
            why.append(f"{failed}; see that the control cluster answers")
        async with self._locks.setdefault(workload.key, asyncio.Lock()):
            view = self._views.get(workload.key)
            if view is None or view.reading != self._readings or why:
                view = await self._viewed(workload)
                self._keep(workload.key, view)
        over = PassOver(view.done, view.into.get(job.partition, ()), job.partition, view.log)
        return ImportedProgress(
            view.next_offsets.get(job.partition), over if view.done else None,
            ". ".join([*why, *view.why, *filter(None, [view.why_of.get(job.partition)])]), view.was_read,
            view.log,
        )  # fmt: skip

    async def _read_patiently(self, patience_s: float) -> str:
        """Why it could not be read; "" when it was."""
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
        oldest_s = time.monotonic() - VIEW_TTL_S
        self._views = {key: one for key, one in self._views.items() if one.asked_s > oldest_s}
        self._views[key] = view

    async def _viewed(self, workload: Workload) -> _View:
        view = _View(self._readings, time.monotonic())
        readers: list[dict[Hashable, SourceFinished]] = []
        for region in self.others(workload):
            try:
                done = await self._of(region, workload, view)
            except (*CLUSTER_ERRORS, LookupError, ValueError) as error:
                view.why.append(f"how far region {region} has come is not known: {error}")
            else:
                readers += done
        lines = [source for sources in view.into.values() for source in sources]
        view.done = await asyncio.to_thread(together, readers, lines)
        return view

    async def _of(self, region: str, workload: Workload, view: _View) -> list[dict[Hashable, SourceFinished]]:
        """Adds to the view what is known of one region's reader. Raises `CLUSTER_ERRORS`, LookupError,
        ValueError."""
        records = await self.positions(workload, region)
        origin = await self._tables.ask(lambda store: store.origin(TRACKERS, region))
        if origin is None or not origin.complete:
            view.why.append(
                f"how far region {region} has come was never read here to its end; see that its "
                f"switchyard-{region}-trackers-changelog is copied into this region's control cluster"
            )
        reader = await asyncio.to_thread(reader_of, records.items())
        if reader is None:
            return []
        view.was_read = True
        try:
            read = reader.topic(workload.metadata.topic)
            found = await self._mapper.joined(read, workload.metadata.cluster, workload.metadata.topic)
        except NoRoad as error:
            view.why.append(f"where region {region} stands in this copy is not known: {error}")
            return []
        (joined,) = found
        resumed, done = await asyncio.to_thread(worked_out, joined, reader.next_offsets, reader)
        for partition, answer in resumed.answers.items():
            if answer.why:
                view.why_of[partition] = f"region {region}'s position is not known here: {answer.why}"
                continue
            below = min(told.x for told in answer.sources if told.x is not None)
            known = view.next_offsets.get(partition, 0)
            view.next_offsets[partition] = max(known, min(below, answer.log.end))
        view.log, view.into = joined.to.log, defaultdict(list)
        for source in _sources(joined.into_to):
            view.into[source.line.target_partition].append(source)
        return [done]


def reader_of(records: Iterable[tuple[str, TrackerRecord]]) -> RemoteReader | None:
    """How far jobs have come, whose records are of the log that changed last; None: none has a position."""
    at = [(JobId.parse(job).partition, record) for job, record in records if record.base >= 0]
    if not at:
        return None
    newest = max((record for _, record in at), key=lambda record: record.at_ms).log
    mine = {partition: record for partition, record in at if not newest.is_another(record.log)}
    return RemoteReader(
        newest,
        {partition: record.base for partition, record in mine.items()},
        {partition: _progress(record) for partition, record in mine.items()},
    )


def _progress(record: TrackerRecord) -> FinishedOffsets:
    """The record's note; where it has none that can be, its base."""
    if record.note:
        try:
            progress = FinishedOffsets.from_bytes(record.note)
        except CorruptProgress as error:
            log.error("a region's note of its progress cannot be read", error=str(error))
        else:
            if progress.base <= record.base:
                return progress
    return FinishedOffsets(record.base)


def worked_out(
    joined: JoinedTopics, next_offsets: Mapping[int, int], reader: RemoteReader | None
) -> tuple[ResumePlan, dict[Hashable, SourceFinished]]:
    """Where one goes on who stands there, and what a reader has finished of the sources; takes a moment."""
    resumed = joined.resume(next_offsets)
    if reader is None:
        return resumed, {}
    return resumed, finished(reader.progress, _sources(joined.into_read), reader.log)


def _sources(lines: Iterable[CopiedLine]) -> list[LineSource]:
    return [LineSource(copying.source, copying.line) for copying in lines]


def seen(task: asyncio.Task[Any]) -> None:
    """What it ended by was told to who waited for it."""
    if not task.cancelled():
        task.exception()  # if anybody did
