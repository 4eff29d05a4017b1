"""Tables of all regions on this worker's disk: the offset map, definitions and job positions, read on demand.

    a region's changelog ─▶ its copy here, or the changelog itself ─▶ `RegionStore`, with next offsets

The control log provides definitions: routes with their clusters, workloads with their groups. The tracker
table provides the positions of workloads. The checkpoint table provides the offset map. The last two are
late while their writer is, so the tails of their event topics are read as well
(`app.offsets.store.checkpoint_tail`, `app.offsets.store.tracker_tail`).

Rules
1. Another region's changelogs carry its name, and a route copies them under that name. So they are read in
   this region's control cluster. Without a copy, they are read in the region's own cluster if that
   answers. Tails are read in this region only, because they need the table's copy.
2. Tables are read on demand, to the ends that they have at that time. One reading at a time reads a table.
   Different tables do not wait for each other, except that a new tail begins after its table.
3. Records stay when their region is lost, because offset syncs stay true. A changelog that was recreated,
   or does not continue the stored offsets, is read again from its start.
4. A region that never ran Switchyard has no tables, state `none`. If that cannot be known, the region is
   `away`, and a topic may have sources that are not known here (`app.offsets.model.translation`,
   `incomplete`). A region is also `away` while its offset map is read again, from the reset to the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from app.controllog.topics import ControlTopics
from app.dispatch.definition import DISPATCH_JOBS
from app.kafka.client.cluster import ClusterClient, ClusterSpec, ClusterUnreachable
from app.kafka.client.commits import OffsetCommitter
from app.kernel.clock import now_ms
from app.kernel.free_space import NEEDED_BYTES, shortage
from app.offsets.model.translation import CopiedLine
from app.offsets.store.checkpoint_tail import add_tail
from app.offsets.store.readers import READER_POLL_MS, READER_STOP_TIMEOUT_S, RegionReaders, TopicPlace
from app.offsets.store.records import (
    BARRIERS,
    CHECKPOINTS,
    ENDS,
    ROUTES,
    TRACKERS,
    ChangelogOrigin,
    ReadRecords,
    RegionStore,
    StoreDamaged,
    StoreFull,
)
from app.offsets.store.tracker_tail import continues, fold_tail, is_far_behind, tail_beginning, with_newest

log = structlog.get_logger(__name__)

TABLES = (CHECKPOINTS, BARRIERS, ROUTES)
TABLE_OF = {BARRIERS: CHECKPOINTS, ENDS: TRACKERS}  # of a tail
CLUSTER_ERRORS = (KafkaError, ClusterUnreachable, OSError, TimeoutError)
REACH_TIMEOUT_S = 5.0  # a cluster that does not answer within it is away
UNREACHABLE_RETRY_INTERVAL_S = 10.0  # between two attempts to reach it
MAX_RECORDS = 500  # per poll; a record has 30 kB at most
# Key prefixes of the kept records; `app.controllog.events.compaction_key` has those of the control log.
KEPT_KEYS: dict[str, bytes | tuple[bytes, ...]] = {
    ROUTES: (b"route/", b"workload/", b"failover/"),
    TRACKERS: DISPATCH_JOBS.encode(),
}

T = TypeVar("T")
RegionState = Literal["own", "copied", "remote", "none", "away"]


class ReadableCluster(Protocol):
    """A data cluster, as the tables need it."""

    name: str
    client: ClusterClient
    committer: OffsetCommitter


class ReadableClusters(Protocol):
    """The clusters of switchyard.yaml."""

    specs: Mapping[str, ClusterSpec]

    async def get(self, name: str) -> Any:
        """A `ReadableCluster`. Raises KeyError, ClusterUnreachable."""


@dataclass(frozen=True, slots=True)
class RegionAtlas:
    """This region's name, the control cluster of each region, and the region of each cluster."""

    region: str
    control: Mapping[str, str]
    region_of: Mapping[str, str]

    @property
    def regions(self) -> list[str]:
        return sorted({self.region, *self.control, *self.region_of.values()})


@dataclass(frozen=True, slots=True)
class RegionMap:
    """How current a region's tables are here: `read_ms` is when they were last read to their ends (None:
    never), `why` says why the region is away."""

    region: str
    state: RegionState
    read_ms: int | None = None
    why: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the tables were ever read, or the region is not away (rule 4)."""
        return self.state != "away" or self.read_ms is not None


class NotRead(RuntimeError):
    """The tables are not read to their ends yet; the caller tries again."""


class RegionTables:
    """Reads and queries the tables of all regions. `regions`: the state of each region's offset map."""

    def __init__(self, atlas: RegionAtlas, clusters: ReadableClusters, path: Path) -> None:
        self.atlas = atlas
        self.regions: dict[str, RegionMap] = {}
        self._forget("its tables were not read yet")
        self._clusters = clusters
        self._readers = RegionReaders(clusters.specs)
        self._store = RegionStore(path)
        self._is_open = False
        self._reading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by table
        self._generation = 0  # how often the store was rebuilt
        self._lock = threading.Lock()  # no question sees half of a write
        self._away_until_s: dict[str, float] = {}

    async def close(self) -> None:
        """Closes the consumers and the database; does not wait for long readings."""
        await self._readers.close()
        with contextlib.suppress(TimeoutError):  # a long reading may be cut off: its progress is on disk
            async with asyncio.timeout(READER_STOP_TIMEOUT_S), self._exclusive(list(self._reading)):
                await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        with self._lock:
            self._is_open = False
            self._store.close()

    # -- questions ---------------------------------------------------------------------------------

    async def lines_into(self, cluster_id: str, topic: str) -> list[CopiedLine]:
        """All known lines into a topic. Raises NotRead, ValueError."""
        return await self.ask(lambda store: store.lines_into(cluster_id, topic))

    async def lines_from(self, cluster_id: str, topic: str) -> list[CopiedLine]:
        """All known lines from a topic. Raises NotRead, ValueError."""
        return await self.ask(lambda store: store.lines_from(cluster_id, topic))

    async def record(self, table: str, region: str, key: str) -> bytes | None:
        """A record as in the region's changelog; None: there is none. Raises NotRead."""
        return await self.ask(lambda store: store.record(table, region, key))

    async def ask(self, question: Callable[[RegionStore], T]) -> T:
        """Runs `question` on the store, in a thread. Raises NotRead: the store was damaged and is rebuilt, or
        the disk is full. A question that is cancelled before its turn does not run: a late write would undo
        the next reader's."""
        is_wanted = True

        def run() -> T:
            with self._lock:
                if not is_wanted:
                    raise NotRead("the caller was cancelled")
                if not self._is_open:
                    self._store.open()
                    self._is_open = True
                return question(self._store)

        try:
            return await asyncio.to_thread(run)
        except asyncio.CancelledError:
            is_wanted = False
            raise
        except StoreFull as error:
            await asyncio.to_thread(self._reopen_if_there_is_room)
            raise NotRead(
                f"this worker's disk takes no more of other regions' tables: {error}; free space in "
                f"{self._store.path.parent}"
            ) from error
        except StoreDamaged as error:
            log.error("the regions store is damaged and is rebuilt", error=str(error))
            self._forget("the worker's regions store was damaged and is being rebuilt")
            await asyncio.to_thread(self._rebuild)
            raise NotRead(f"{error}; it is rebuilt: ask again") from error

    def _reopen_if_there_is_room(self) -> None:
        """A database writes nothing after a refused write until it is opened again; it can be read."""
        with self._lock:
            if not shortage(self._store.path.parent, NEEDED_BYTES):
                self._store.close()
                self._is_open = False

    def _rebuild(self) -> None:
        with self._lock:
            self._store.rebuild()
            self._generation += 1

    def _forget(self, why: str) -> None:
        self.regions = {region: RegionMap(region, "away", None, why) for region in self.atlas.regions}

    # -- reading -----------------------------------------------------------------------------------

    async def read(
        self, timeout_s: float, tables: Sequence[str] = TABLES, regions: Collection[str] | None = None
    ) -> dict[str, RegionMap]:
        """Reads `tables`, of all regions or of `regions`, to their present ends (rule 2), and returns their
        states. Raises NotRead at the timeout (the next call continues), or if this region's own tables cannot
        be read."""
        names = self.atlas.regions if regions is None else sorted(regions)
        try:
            async with asyncio.timeout(timeout_s), self._exclusive(tables):
                await self.ask(lambda _: None)
                readings = (self._read(region, tables) for region in names)
                # A failure waits for the other readings, which hold these tables.
                found = await asyncio.gather(*readings, return_exceptions=True)
        except TimeoutError:
            raise NotRead("the offset map is still being read; ask again in a moment") from None
        known: dict[str, RegionMap] = {}
        for one in found:
            if isinstance(one, BaseException):
                raise one
            known[one.region] = one
        if CHECKPOINTS in tables:
            self.regions = self.regions | known
        own = known.get(self.atlas.region)
        if own is not None and own.state == "away":
            raise NotRead(f"this region's own tables cannot be read: {own.why}")
        return known

    @contextlib.asynccontextmanager
    async def _exclusive(self, tables: Collection[str]) -> AsyncIterator[None]:
        """Keeps other readings of these tables waiting."""
        async with contextlib.AsyncExitStack() as stack:
            for table in sorted(tables):
                await stack.enter_async_context(self._reading[table])
            yield

    async def _read(self, region: str, tables: Sequence[str]) -> RegionMap:
        state: RegionState = "own" if region == self.atlas.region else "copied"
        why, read = "", set[str]()
        started = await self._started_tables(region, tables)
        # Started tables are read side by side; a tail that begins is read after its table.
        for group in (started, *([table] for table in tables)):
            waiting = [table for table in group if table not in read]
            readings = (self._read_one(region, table, waits=group is started) for table in waiting)
            found = await asyncio.gather(*readings, return_exceptions=True)
            for table, where in zip(waiting, found, strict=True):
                if isinstance(where, (*CLUSTER_ERRORS, NotRead)):
                    state, why = "away", str(where) or repr(where)
                elif isinstance(where, BaseException):
                    raise where
                elif where is not None:
                    read.add(table)
                    state = where if table == tables[0] and not why else state
            if why:
                break
            if group is started:  # a reset of CHECKPOINTS has removed its tail
                read -= set(started) - set(await self._started_tables(region, started))
        origin = await self.ask(lambda store: store.origin(tables[0], region))
        read_ms = origin.read_ms if origin is not None and origin.complete else None
        return RegionMap(region, state, read_ms, why)

    async def _started_tables(self, region: str, tables: Sequence[str]) -> list[str]:
        return await self.ask(lambda store: [one for one in tables if store.origin(one, region) is not None])

    async def _read_one(self, region: str, table: str, *, waits: bool) -> RegionState | None:
        """Returns the location; None: it is a new tail, and waits for its table. Raises `CLUSTER_ERRORS`."""
        found, where = await self._find(region, table)
        if found is None:
            if table not in TABLE_OF:
                await self.ask(lambda store: _mark_absent(store, table, region))
            return where
        return where if await self._follow(region, table, *found, waits=waits and table in TABLE_OF) else None

    async def _find(
        self, region: str, table: str
    ) -> tuple[tuple[ReadableCluster, TopicPlace] | None, RegionState]:
        """The changelog to read (rule 1), and where it is; None: the region has none."""
        own, topic = self.atlas.control[self.atlas.region], _topic(region, table)
        copy = await self._locate(own, topic)
        if copy is not None:
            return copy, "own" if region == self.atlas.region else "copied"
        remote = None if table in TABLE_OF else self.atlas.control.get(region)
        if remote is None or remote == own:
            return None, "none"
        found = await self._locate(remote, topic)
        return found, "none" if found is None else "remote"

    async def _locate(self, name: str, topic: str) -> tuple[ReadableCluster, TopicPlace] | None:
        cluster = await self.reach(name)
        count, ids = await asyncio.gather(cluster.client.partitions(topic), cluster.client.topic_ids([topic]))
        return (
            None
            if count is None or topic not in ids
            else (cluster, TopicPlace(name, topic, ids[topic], count))
        )

    async def reach(self, name: str) -> ReadableCluster:
        """The cluster, if it answers. Raises ClusterUnreachable."""
        if time.monotonic() < self._away_until_s.get(name, 0.0):
            raise ClusterUnreachable(f"cluster {name} did not answer a moment ago")
        try:
            async with asyncio.timeout(REACH_TIMEOUT_S):
                cluster: ReadableCluster = await self._clusters.get(name)
                cluster_id = await cluster.client.cluster_id()
        except (*CLUSTER_ERRORS, KeyError) as error:
            self._away_until_s[name] = time.monotonic() + UNREACHABLE_RETRY_INTERVAL_S
            raise ClusterUnreachable(f"cluster {name} does not answer: {error!r}") from error
        if await self.ask(lambda store: store.cluster_id(name)) != cluster_id:
            await self.ask(lambda store: store.put_cluster_id(name, cluster_id))
        return cluster

    # -- one changelog -----------------------------------------------------------------------------

    async def _follow(
        self, region: str, table: str, cluster: ReadableCluster, place: TopicPlace, *, waits: bool
    ) -> bool:
        """Reads a changelog to its present end. False: it would begin, and `waits`."""
        generation, origin = self._generation, await self.ask(lambda store: store.origin(table, region))
        fresh, parts = ChangelogOrigin(cluster=cluster.name, topic_id=place.topic_id), place.parts
        async with self._readers.consumer_of(place) as consumer:
            starts, ends = await asyncio.gather(
                consumer.beginning_offsets(parts), consumer.end_offsets(parts)
            )
            is_old = origin is not None and table in TABLE_OF and is_far_behind(origin, ends)
            if origin is None or is_old or not continues(origin, fresh, starts, ends):
                if waits:
                    return False
                if origin is not None and origin.cluster:
                    log.warning(
                        "a region's table is read again from its start",
                        region=region,
                        table=table,
                        topic=place.topic,
                    )
                if (base_table := TABLE_OF.get(table)) is not None:
                    known = await self.ask(lambda store: store.origin(base_table, region))
                    fresh = await tail_beginning(fresh, consumer, starts, ends, known)
                origin = fresh
                if table == CHECKPOINTS:
                    self.regions[region] = RegionMap(region, "away", None, "its map is being read again")
                await self.ask(lambda store: store.reset(table, region, fresh))
            nexts = {at: origin.next_offsets.get(at.partition, starts[at]) for at in parts}
            for at, next_offset in nexts.items():
                consumer.seek(at, next_offset)
            while any(nexts[at] < ends[at] for at in parts):
                records = await consumer.getmany(*parts, timeout_ms=READER_POLL_MS, max_records=MAX_RECORDS)
                # Compaction may have removed the last records, so the position counts.
                nexts = {at: await consumer.position(at) for at in parts}
                if table in TABLE_OF.values():
                    origin = with_newest(origin, records)
                origin = await self._write(table, region, records, origin, nexts, generation)
            at_end = msgspec.structs.replace(origin, complete=True, read_ms=now_ms())
            await self._write(table, region, {}, at_end, nexts, generation)
        return True

    async def _write(
        self,
        table: str,
        region: str,
        records: ReadRecords,
        origin: ChangelogOrigin,
        nexts: Mapping[TopicPartition, int],
        generation: int,
    ) -> ChangelogOrigin:
        new = msgspec.structs.replace(origin, next_offsets={at.partition: n for at, n in nexts.items()})

        def write(store: RegionStore) -> None:
            if self._generation != generation:
                raise NotRead("the regions store was rebuilt meanwhile; ask again")
            if table in TABLE_OF and store.origin(table, region) is None:
                return  # reset with its table: the tail is read again after it
            if table == ENDS:
                fold_tail(store, region, records, new)
            elif table == BARRIERS:
                add_tail(store, region, records, new)
            else:
                store.write(table, region, _newest(records, KEPT_KEYS.get(table, b"")), new)

        await self.ask(write)
        return new


def _topic(region: str, table: str) -> str:
    topics = ControlTopics(region)
    events = {ROUTES: topics.control, ENDS: topics.trackers, BARRIERS: topics.checkpoints}
    return (events.get(table) or topics.changelog(table, 0)).name


def _newest(records: ReadRecords, kept: bytes | tuple[bytes, ...]) -> dict[bytes, bytes | None]:
    """The newest record of each key with a prefix in `kept`."""
    return {
        record.key: record.value
        for batch in records.values()
        for record in batch
        if record.key is not None and record.key.startswith(kept)
    }


def _mark_absent(store: RegionStore, table: str, region: str) -> None:
    """Records that the region has no such table, for when it is away. Records of a former one stay."""
    origin = store.origin(table, region)
    if origin is None or not origin.cluster:
        none = ChangelogOrigin(cluster="", topic_id="", complete=True, read_ms=now_ms())
        store.write(table, region, {}, none)  # a tail stays
