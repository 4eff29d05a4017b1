"""What regions know of the offset map and of jobs: read when somebody needs it, kept on this worker's disk.

    region's changelog -> here (its copy, or itself) -> `RegionStore`, with the offsets it was read to

Of the control log, the definitions: which clusters routes lead from and to, as which groups workloads
consume. Of jobs, those of workloads: how far they are. Of the offset map and of jobs by the table, and by the
end of its events (`app.offsets.store.checkpoint_tail`, `app.offsets.store.tracker_tail`).

Rules
1. Another region's changelogs carry that region's name, and a route copies them, names unchanged: they are
   read in this region's control cluster. Where there is no copy they are read there, if that one answers;
   but for ends of events, which are read here only: they are of use beside a table.
2. They are read to the ends they have when somebody asks. Nobody who does not ask reads them. Of one kind
   one at a time is read; kinds do not wait for each other, but for an end that is to be begun (anew).
3. What was read stays when its region is lost: barriers stay true. A changelog that was made anew, or whose
   offsets are none of those that were read, is read anew from its start.
4. A region that never ran Switchyard knows nothing. One of which that cannot be known is `away`: there may be
   sources of a topic that nobody names here (`app.offsets.model.translation`, `incomplete`). So is one that
   is read anew, from before the first of its records is thrown away until its end.
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
from app.kafka.client.cluster import ClusterClient, ClusterSpec, ClusterUnreachable
from app.kafka.client.commits import OffsetCommitter
from app.kernel.clock import now_ms
from app.kernel.job import Kind
from app.offsets.model.translation import CopiedLine
from app.offsets.store.checkpoint_tail import add_to
from app.offsets.store.readers import READER_POLL_MS, READER_STOP_TIMEOUT_S, RegionReaders, TopicPlace
from app.offsets.store.records import (
    BARRIERS,
    CHECKPOINTS,
    ENDS,
    ROUTES,
    TRACKERS,
    ChangelogOrigin,
    RegionStore,
    StoreDamaged,
)
from app.offsets.store.tracker_tail import beginning, fold_in, goes_on, lies_far_behind, with_newest

log = structlog.get_logger(__name__)

TABLES = (CHECKPOINTS, BARRIERS, ROUTES)
TABLE_OF = {BARRIERS: CHECKPOINTS, ENDS: TRACKERS}  # of an end
CLUSTER_ERRORS = (KafkaError, ClusterUnreachable, OSError, TimeoutError)
REACH_TIMEOUT_S = 5.0  # a cluster that does not answer within this is away
UNREACHABLE_RETRY_INTERVAL_S = 10.0  # and is not asked again for so long
MAX_RECORDS = 500  # at once: of 30 kB each at most
# Which records are kept; of the control log see `app.controllog.events.compaction_key`.
KEPT_KEYS: dict[str, bytes | tuple[bytes, ...]] = {
    ROUTES: (b"route/", b"workload/", b"failover/"),
    TRACKERS: f"{Kind.DISPATCH.value}:".encode(),
}

T = TypeVar("T")
RegionState = Literal["own", "copied", "remote", "none", "away"]


class ReadableCluster(Protocol):
    """What is needed of a data cluster."""

    name: str
    client: ClusterClient
    committer: OffsetCommitter


class ReadableClusters(Protocol):
    """Those of switchyard.yaml."""

    specs: Mapping[str, ClusterSpec]

    async def get(self, name: str) -> Any:
        """A `ReadableCluster`. Raises KeyError, ClusterUnreachable."""


@dataclass(frozen=True, slots=True)
class RegionAtlas:
    """The regions: this one, the clusters with their control topics, and whose each cluster is."""

    region: str
    control: Mapping[str, str]
    region_of: Mapping[str, str]

    @property
    def regions(self) -> list[str]:
        return sorted({self.region, *self.control, *self.region_of.values()})


@dataclass(frozen=True, slots=True)
class RegionMap:
    """How well a region's tables are known. `why` is told of one that is away; `read_ms` is when they were
    read to their ends last, None: never."""

    region: str
    state: RegionState
    read_ms: int | None = None
    why: str = ""

    @property
    def is_known(self) -> bool:
        """Rule 4: also of a region that is away, if it was read before."""
        return self.state != "away" or self.read_ms is not None


class NotRead(RuntimeError):
    """The tables could not be read to their ends yet; ask again."""


class RegionTables:
    """See the module. `regions`: how well the offset map of each is known, as of the last reading."""

    def __init__(self, atlas: RegionAtlas, clusters: ReadableClusters, path: Path) -> None:
        self.atlas = atlas
        self.regions: dict[str, RegionMap] = {}
        self._forget("it was not read yet")
        self._clusters = clusters
        self._readers = RegionReaders(clusters.specs)
        self._store = RegionStore(path)
        self._is_open = False
        self._reading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by table
        self._made = 0  # how often the store was made anew
        self._one_at_a_time = threading.Lock()  # what is asked sees no half of what is written
        self._away_until_s: dict[str, float] = {}

    async def close(self) -> None:
        """Closes the database, and what it was read by."""
        await self._readers.close()
        with contextlib.suppress(TimeoutError):  # who reads for long is left behind: all is on the disk
            async with asyncio.timeout(READER_STOP_TIMEOUT_S), self._all(list(self._reading)):
                await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        with self._one_at_a_time:
            self._is_open = False
            self._store.close()

    # -- asking ------------------------------------------------------------------------------------

    async def into(self, cluster_id: str, topic: str) -> list[CopiedLine]:
        """Every line into a topic that is known. Raises NotRead, ValueError."""
        return await self.ask(lambda store: store.into(cluster_id, topic))

    async def of(self, cluster_id: str, topic: str) -> list[CopiedLine]:
        """Every line from a topic that is known. Raises NotRead, ValueError."""
        return await self.ask(lambda store: store.of(cluster_id, topic))

    async def record(self, table: str, region: str, key: str) -> bytes | None:
        """A region's record of a table that was read, as it stands there. Raises NotRead."""
        return await self.ask(lambda store: store.record(table, region, key))

    async def ask(self, question: Callable[[RegionStore], T]) -> T:
        """Asks the store, in a thread. Who is cancelled before its turn has asked nothing: late, it would
        undo what whoever reads next has written.

        Raises:
            NotRead: it was damaged, and is made anew.
        """
        is_asked = True

        def asked() -> T:
            with self._one_at_a_time:
                if not is_asked:
                    raise NotRead("who asked has gone")
                if not self._is_open:
                    self._store.open()
                    self._is_open = True
                return question(self._store)

        try:
            return await asyncio.to_thread(asked)
        except asyncio.CancelledError:
            is_asked = False
            raise
        except StoreDamaged as error:
            log.error("the store of regions is made anew", error=str(error))
            self._forget("its store was damaged, and is being made anew")
            await asyncio.to_thread(self._rebuild)
            raise NotRead(f"{error}; it is made anew: ask again") from error

    def _rebuild(self) -> None:
        with self._one_at_a_time:
            self._store.rebuild()
            self._made += 1

    def _forget(self, why: str) -> None:
        self.regions = {region: RegionMap(region, "away", None, why) for region in self.atlas.regions}

    # -- reading -----------------------------------------------------------------------------------

    async def read(
        self, timeout_s: float, tables: Sequence[str] = TABLES, regions: Collection[str] | None = None
    ) -> dict[str, RegionMap]:
        """Reads `tables` of all regions, or of these, to the ends they have now (rule 2); how well each
        region's are known.

        Raises:
            NotRead: it takes longer; what was read is kept, and it goes on there. Also for this region's own
                tables that cannot be read.
        """
        asked = self.atlas.regions if regions is None else sorted(regions)
        try:
            async with asyncio.timeout(timeout_s), self._all(tables):
                await self.ask(lambda _: None)
                readings = (self._read(region, tables) for region in asked)
                # One that fails waits for the others: nobody reads these beside them.
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
    async def _all(self, tables: Collection[str]) -> AsyncIterator[None]:
        """Nobody else reads these meanwhile."""
        async with contextlib.AsyncExitStack() as stack:
            for table in sorted(tables):
                await stack.enter_async_context(self._reading[table])
            yield

    async def _read(self, region: str, tables: Sequence[str]) -> RegionMap:
        state: RegionState = "own" if region == self.atlas.region else "copied"
        why, read = "", set[str]()
        begun = await self._started_tables(region, tables)
        # What was begun is read side by side; an end that is to be begun (anew), behind its table.
        for some in (begun, *([table] for table in tables)):
            now = [table for table in some if table not in read]
            readings = (self._read_one(region, table, waits=some is begun) for table in now)
            found = await asyncio.gather(*readings, return_exceptions=True)
            for table, where in zip(now, found, strict=True):
                if isinstance(where, (*CLUSTER_ERRORS, NotRead)):
                    state, why = "away", str(where) or repr(where)
                elif isinstance(where, BaseException):
                    raise where
                elif where is not None:
                    read.add(table)
                    state = where if table == tables[0] and not why else state
            if why:
                break
            if some is begun:  # an end is gone that its table has thrown away
                read -= set(begun) - set(await self._started_tables(region, begun))
        origin = await self.ask(lambda store: store.origin(tables[0], region))
        read_ms = origin.read_ms if origin is not None and origin.complete else None
        return RegionMap(region, state, read_ms, why)

    async def _started_tables(self, region: str, tables: Sequence[str]) -> list[str]:
        return await self.ask(lambda store: [one for one in tables if store.origin(one, region) is not None])

    async def _read_one(self, region: str, table: str, *, waits: bool) -> RegionState | None:
        """Where it is. None: it is an end that waits, as it is to be begun, for its table. Raises
        `CLUSTER_ERRORS`."""
        found, where = await self._find(region, table)
        if found is None:
            if table not in TABLE_OF:
                await self.ask(lambda store: _note_none(store, table, region))
            return where
        return where if await self._follow(region, table, *found, waits=waits and table in TABLE_OF) else None

    async def _find(
        self, region: str, table: str
    ) -> tuple[tuple[ReadableCluster, TopicPlace] | None, RegionState]:
        """The changelog to read (rule 1); None: the region has none."""
        own, topic = self.atlas.control[self.atlas.region], _topic(region, table)
        here = await self._locate(own, topic)
        if here is not None:
            return here, "own" if region == self.atlas.region else "copied"
        there = None if table in TABLE_OF else self.atlas.control.get(region)
        if there is None or there == own:
            return None, "none"
        found = await self._locate(there, topic)
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
        """A cluster, if it answers. Raises ClusterUnreachable."""
        if time.monotonic() < self._away_until_s.get(name, 0.0):
            raise ClusterUnreachable(f"cluster {name} did not answer a moment ago")
        try:
            async with asyncio.timeout(REACH_TIMEOUT_S):
                cluster: ReadableCluster = await self._clusters.get(name)
                cluster_id = await cluster.client.cluster_id()
        except (*CLUSTER_ERRORS, KeyError) as error:
            self._away_until_s[name] = time.monotonic() + UNREACHABLE_RETRY_INTERVAL_S
            raise ClusterUnreachable(f"cluster {name} does not answer: {error!r}") from error
        if await self.ask(lambda store: store.named(name)) != cluster_id:
            await self.ask(lambda store: store.name(name, cluster_id))
        return cluster

    # -- one changelog -----------------------------------------------------------------------------

    async def _follow(
        self, region: str, table: str, cluster: ReadableCluster, place: TopicPlace, *, waits: bool
    ) -> bool:
        """Reads it to the end it has now. False: it is to be begun, and `waits`."""
        made, origin = self._made, await self.ask(lambda store: store.origin(table, region))
        fresh, parts = ChangelogOrigin(cluster=cluster.name, topic_id=place.topic_id), place.parts
        async with self._readers.of(place) as consumer:
            starts, ends = await asyncio.gather(
                consumer.beginning_offsets(parts), consumer.end_offsets(parts)
            )
            is_old = origin is not None and table in TABLE_OF and lies_far_behind(origin, ends)
            if origin is None or is_old or not goes_on(origin, fresh, starts, ends):
                if waits:
                    return False
                if origin is not None and origin.cluster:
                    log.warning(
                        "a region's table is read anew", region=region, table=table, topic=place.topic
                    )
                if (its := TABLE_OF.get(table)) is not None:
                    known = await self.ask(lambda store: store.origin(its, region))
                    fresh = await beginning(fresh, consumer, starts, ends, known)
                origin = fresh
                if table == CHECKPOINTS:
                    self.regions[region] = RegionMap(region, "away", None, "it is being read anew")
                await self.ask(lambda store: store.reset(table, region, fresh))
            nexts = {at: origin.next_offsets.get(at.partition, starts[at]) for at in parts}
            for at, next_offset in nexts.items():
                consumer.seek(at, next_offset)
            while any(nexts[at] < ends[at] for at in parts):
                got = await consumer.getmany(*parts, timeout_ms=READER_POLL_MS, max_records=MAX_RECORDS)
                # Compaction may have taken the last records: the position tells.
                nexts = {at: await consumer.position(at) for at in parts}
                if table in TABLE_OF.values():
                    origin = with_newest(origin, got)
                origin = await self._write(table, region, got, origin, nexts, made)
            at_end = msgspec.structs.replace(origin, complete=True, read_ms=now_ms())
            await self._write(table, region, {}, at_end, nexts, made)
        return True

    async def _write(
        self,
        table: str,
        region: str,
        got: Mapping[TopicPartition, Sequence[Any]],
        origin: ChangelogOrigin,
        nexts: Mapping[TopicPartition, int],
        made: int,
    ) -> ChangelogOrigin:
        new = msgspec.structs.replace(origin, next_offsets={at.partition: n for at, n in nexts.items()})

        def write(store: RegionStore) -> None:
            if self._made != made:
                raise NotRead("the store was made anew meanwhile; ask again")
            if table in TABLE_OF and store.origin(table, region) is None:
                return  # thrown away with its table: it is read again, behind it
            if table == ENDS:
                fold_in(store, region, got, new)
            elif table == BARRIERS:
                add_to(store, region, got, new)
            else:
                store.write(table, region, _newest(got, KEPT_KEYS.get(table, b"")), new)

        await self.ask(write)
        return new


def _topic(region: str, table: str) -> str:
    topics = ControlTopics(region)
    if table == ROUTES:
        return topics.control.name
    if table == ENDS:
        return topics.trackers.name
    return topics.checkpoints.name if table == BARRIERS else topics.changelog(table, 0).name


def _newest(
    got: Mapping[TopicPartition, Sequence[Any]], kept: bytes | tuple[bytes, ...]
) -> dict[bytes, bytes | None]:
    """The newest record of each key that begins so."""
    return {
        record.key: record.value
        for records in got.values()
        for record in records
        if record.key is not None and record.key.startswith(kept)
    }


def _note_none(store: RegionStore, table: str, region: str) -> None:
    """That a region has none is known of it when it is away, too."""
    origin = store.origin(table, region)
    if origin is None or not origin.cluster:
        none = ChangelogOrigin(cluster="", topic_id="", complete=True, read_ms=now_ms())
        store.write(table, region, {}, none)  # an end that it has nevertheless stays
