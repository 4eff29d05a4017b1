"""What a failover would mean for one workload's partitions: where they go on, what is read again, what is not
here yet. See `app.control.failover_plan`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from app import wire
from app.config.definitions import Workload
from app.control.backlog import read_backlog
from app.control.failover_rows import away, row
from app.control.failover_told import Check, PlannedPartition, Unreplicated
from app.core.control_events import WorkloadPut
from app.core.fencing import TrackerRecord
from app.core.job import JobId, Kind
from app.core.roles import ACTIVE_PASSIVE
from app.core.route import Route
from app.kafka.clusters import EARLIEST, LATEST, ClusterUnreachable
from app.regions.carry import Reader, reader_of, seen, worked_out
from app.regions.mapping import Joined, NoRoad
from app.regions.store import ROUTES
from app.wire import JobStatus

if TYPE_CHECKING:
    from app.control.data_clusters import DataCluster
    from app.control.runtime import Runtime

log = structlog.get_logger(__name__)

CLUSTER_S = 5.5  # a cluster's time to answer: above `tables.REACH_S`, which remembers who is away
MAX_MISSING = 3  # partitions that are named


class Stood(NamedTuple):
    """Where the region that is left was: by partition, and the group's commits if its cluster told them."""

    next_offsets: dict[int, int]
    committed: dict[int, int] | None
    reader: Reader | None


class Looker:
    """Of one plan: clusters are asked once. `until_s`: what is not known by then, by the monotonic clock, is
    not known."""

    def __init__(self, runtime: Runtime, until_s: float) -> None:
        self._runtime = runtime
        self._until_s = until_s
        self._reached: dict[str, asyncio.Task[DataCluster]] = {}
        self._copies: dict[tuple[str, str, int], list[tuple[Route, JobStatus]]] | None = None
        self._names: Mapping[str, str] | None = None
        self._owned: dict[str, dict[int, int]] = {}

    def _left_s(self, most_s: float = CLUSTER_S) -> float:
        return max(0.01, min(most_s, self._until_s - time.monotonic()))

    async def _cluster(self, name: str) -> DataCluster:
        """Raises whatever says that it does not answer in time."""
        self.begin(name)
        return await asyncio.shield(self._reached[name])

    def begin(self, name: str) -> None:
        """Begins to ask a cluster, if it was not asked yet."""
        if name not in self._reached:
            self._reached[name] = asyncio.create_task(self._reach(name))
            self._reached[name].add_done_callback(seen)

    async def _reach(self, name: str) -> DataCluster:
        try:
            async with asyncio.timeout(self._left_s()):
                regions = self._runtime.regions
                if regions is not None:
                    await regions.tables.reach(name)
                return await self._runtime.clusters.get(name)
        except TimeoutError as error:
            raise ClusterUnreachable(f"cluster {name} does not answer") from error

    async def _answers(self, name: str) -> bool:
        try:
            await self._cluster(name)
        except Exception:  # noqa: BLE001 - that is what is asked
            return False
        return True

    def there(self, workload: Workload, region: str) -> str:
        """The cluster that the workload consumes in another region. Raises LookupError."""
        layout = self._runtime.failover.failovers.layout
        assert layout is not None
        return layout.cluster(region, layout.sites[workload.metadata.cluster].tier)

    # -- all of it -----------------------------------------------------------------------------------

    async def look(
        self, workload: Workload, region: str, failed: str
    ) -> tuple[list[PlannedPartition], list[Check], str]:
        """Partitions, what there is to say beforehand, and why the partitions are not known.

        `failed`: why the offset map is not known, or only as it was.
        """
        try:
            there = self.there(workload, region)
        except LookupError as error:
            return (
                [],
                [Check(name="clusters", level="warn", detail=str(error), remedy="configure it")],
                str(error),
            )
        counts, (rows, checks, why), more = await asyncio.gather(
            self._ends(workload), self._rows(workload, region, there, failed),
            asyncio.gather(self._definition(workload, region), self._left_behind(workload, there)),
        )  # fmt: skip
        checks += more
        topic, here = workload.metadata.topic, workload.metadata.cluster
        if isinstance(counts, str):
            level = "blocked" if "does not exist" in counts else "warn"
            remedy = (
                "see that its route has made it (route list)" if level == "blocked" else "see its brokers"
            )
            checks.append(Check(name="topic", level=level, detail=counts, remedy=remedy))  # type: ignore[arg-type]
            return [], checks, why or counts
        checks.append(
            Check(name="topic", level="ok", detail=f"{topic} has {len(counts)} partitions in {here}")
        )
        known = {row.partition: row for row in rows}
        found = [known.get(partition, PlannedPartition(partition=partition)) for partition in sorted(counts)]
        own = await self._own(workload)
        made = [await self._joined(workload, row, own, counts) for row in found]
        return made, checks + away(made), why

    async def _joined(
        self, workload: Workload, row: PlannedPartition, own: Mapping[int, int], ends: Mapping[int, int]
    ) -> PlannedPartition:
        mine, end = own.get(row.partition), ends[row.partition]
        begins = max((at for at in (row.mapped, mine) if at is not None), default=None)
        routes = await self._unreplicated(workload, row.partition)
        counts = [one.records for one in routes]
        known = bool(counts) and None not in counts
        again = row.again if workload.spec.mode == ACTIVE_PASSIVE else 0
        return PlannedPartition(
            partition=row.partition, mapped=row.mapped, own=mine, next_offset=begins, log_end=end,
            lag=None if begins is None else max(0, end - begins), again=again,
            passed_over=row.passed_over, least=row.least, why=row.why, sources=row.sources, routes=routes,
            not_replicated=sum(count or 0 for count in counts) if known else None,
            unreachable=sum(one.records or 0 for one in routes if not one.reachable),
        )  # fmt: skip

    async def _ends(self, workload: Workload) -> dict[int, int] | str:
        """Of the log here, by partition; or why not."""
        topic, name = workload.metadata.topic, workload.metadata.cluster
        try:
            client = (await self._cluster(name)).client
            async with asyncio.timeout(self._left_s()):
                count = await client.partitions(topic)
                if count is None:
                    return f"topic {topic} does not exist in {name}"
                ends = await client.offsets([(topic, p) for p in range(count)], LATEST)
        except Exception as error:  # noqa: BLE001 - a plan says what it does not know
            return f"{name} does not say where topic {topic} ends: {_words(error)}"
        if len(ends) < count:
            return f"{name} does not say where {count - len(ends)} partitions of {topic} end"
        return {partition: end for (_, partition), end in ends.items()}

    async def _own(self, workload: Workload) -> dict[int, int]:
        """What the group has committed here; asked once."""
        key = workload.key
        try:
            if key not in self._owned:
                self._owned[key] = await self._committed(workload, workload.metadata.cluster)
            return self._owned[key]
        except Exception as error:  # noqa: BLE001
            log.info("where the group is here is not known", workload=workload.key, error=repr(error))
            return {}

    async def _committed(self, workload: Workload, name: str) -> dict[int, int]:
        committer = (await self._cluster(name)).committer
        async with asyncio.timeout(self._left_s()):
            positions = await committer.positions(workload.metadata.group)
        topic = workload.metadata.topic
        return {at[1]: position.next_offset for at, position in positions.items() if at[0] == topic}

    # -- positions -----------------------------------------------------------------------------------

    async def _rows(
        self, workload: Workload, region: str, there: str, failed: str
    ) -> tuple[list[PlannedPartition], list[Check], str]:
        if workload.spec.mode != ACTIVE_PASSIVE:
            return [], [], ""  # it runs here: it goes on where it is
        regions = self._runtime.regions
        if regions is None:
            return [], [_map_check("warn", failed)], failed
        try:
            stood = await self._stood(workload, region, there)
            joined = await self._join(workload, there, stood)
            names = await self._cluster_names()
        except NoRoad as error:
            return [], [_map_check("warn", str(error))], ""
        except Exception as error:  # noqa: BLE001 - a plan says what it does not know
            why = failed or _words(error)
            return [], [_map_check("warn", why)], why
        resumed, done = await asyncio.to_thread(worked_out, joined, stood.next_offsets, stood.reader)
        own = await self._own(workload)
        rows = [row(answer, joined, done, names, own.get(at)) for at, answer in resumed.answers.items()]
        unknown = [one for one in rows if one.why]
        if unknown or failed:
            first = f"{len(unknown)} partitions begin at the log's start: {unknown[0].why}" if unknown else ""
            check = _map_check("warn", "; ".join(part for part in (first, failed) if part))
        else:
            check = Check(name="offset-map", level="ok", detail=f"complete for {len(rows)} partitions")
        where = "its cluster and the copy of its trackers" if stood.committed is not None else (
            f"the copy of its trackers; {there} does not answer")  # fmt: skip
        at = Check(name="positions", level="ok", detail=f"region {region}'s positions are from {where}")
        if not stood.next_offsets:
            detail = f"no position of region {region} is known here"
            remedy = "all of the log is read, or from this region's own position on"
            at = Check(name="positions", level="warn", detail=detail, remedy=remedy)
        return rows, [check, at], ""

    async def _stood(self, workload: Workload, region: str, there: str) -> Stood:
        records = await self._records(workload, region)
        reader = reader_of(records.items())
        found = dict(reader.next_offsets) if reader is not None else {}
        committed: dict[int, int] | None = None
        try:
            committed = await self._committed(workload, there)
        except Exception as error:  # noqa: BLE001 - of a region that is lost the copies are enough
            log.info(
                "a group's positions elsewhere are those that were copied", cluster=there, error=repr(error)
            )
        for partition, at in (committed or {}).items():
            found[partition] = max(at, found.get(partition, 0))
        return Stood(found, committed, reader)

    async def _records(self, workload: Workload, region: str) -> dict[str, TrackerRecord]:
        regions = self._runtime.regions
        return {} if regions is None else await regions.carrier.positions(workload, region)

    async def _join(self, workload: Workload, there: str, stood: Stood) -> Joined:
        """Raises NoRoad, and whatever says that the cluster here does not answer."""
        regions = self._runtime.regions
        assert regions is not None
        topic, here = workload.metadata.topic, workload.metadata.cluster
        async with asyncio.timeout(self._left_s(2 * CLUSTER_S)):
            if stood.reader is not None:
                return (await regions.mapper.joined(stood.reader.topic(topic), here, topic, there))[0]
            return (await regions.mapper.join(there, topic, here, topic))[0]

    async def _cluster_names(self) -> Mapping[str, str]:
        regions = self._runtime.regions
        if self._names is None and regions is not None:
            self._names = await regions.mapper.names()
        return self._names or {}

    async def missing(self, workload: Workload, region: str, failed: str) -> str:
        """Which of the region's positions have not come here, in words; "": all have."""
        try:
            committed = await self._committed(workload, self.there(workload, region))
            records = await self._records(workload, region)
        except Exception as error:  # noqa: BLE001 - it is asked again
            return f"its last positions to come here ({failed or _words(error)})"
        bases = {JobId.parse(job).partition: record.base for job, record in records.items()}
        late = [
            f"partition {partition} at {bases.get(partition, 'none')} of {at}"
            for partition, at in sorted(committed.items())
            if bases.get(partition, -1) < at
        ]
        more = f" and {len(late) - MAX_MISSING} more" if len(late) > MAX_MISSING else ""
        return f"its last positions to come here ({', '.join(late[:MAX_MISSING])}{more})" if late else ""

    # -- what is not here yet --------------------------------------------------------------------------

    async def _unreplicated(self, workload: Workload, partition: int) -> list[Unreplicated]:
        """By source cluster, as the jobs of the routes into the cluster here say it."""
        here, topic = workload.metadata.cluster, workload.metadata.topic
        layout = self._runtime.failover.failovers.layout
        found = []
        for route, status in self._copying().get((here, topic, partition), ()):
            site = None if layout is None else layout.sites.get(route.source)
            known = status.high_watermark >= 0 and status.committed >= 0
            found.append(Unreplicated(
                route=route.name, cluster=route.source, region="" if site is None else site.region,
                records=max(0, status.high_watermark - status.committed) if known else None,
                reachable=await self._answers(route.source),
            ))  # fmt: skip
        return found

    def _copying(self) -> Mapping[tuple[str, str, int], list[tuple[Route, JobStatus]]]:
        """What is copied into each partition of a cluster."""
        if self._copies is None:
            self._copies = {}
            prefix, names = f"{Kind.REPLICATE.value}:", {}
            live = self._runtime.members.live(time.monotonic())
            for status in (one for beat in live.values() for one in beat.jobs if one.job.startswith(prefix)):
                job = JobId.parse(status.job)
                route = self._runtime.catalog.routes.route(job.name)
                if route is None:
                    continue
                at = job.name, job.topic
                if at not in names:
                    names[at] = route.destination(job.topic)
                into = route.target, names[at] or "", job.partition
                self._copies.setdefault(into, []).append((route, status))
        return self._copies

    # -- beforehand --------------------------------------------------------------------------------------

    async def _definition(self, workload: Workload, region: str) -> Check:
        regions, etag = self._runtime.regions, workload.etag()
        theirs = None
        if regions is not None:
            try:
                record = await regions.tables.record(ROUTES, region, f"workload/{workload.key}")
                theirs = None if record is None else wire.control_event(record)
            except Exception as error:  # noqa: BLE001 - then it is not known
                log.info(
                    "another region's definition cannot be read", workload=workload.key, error=repr(error)
                )
        put = self._runtime.control.view.workloads.get(workload.key)
        etag = etag if put is None else put.etag
        if not isinstance(theirs, WorkloadPut):
            return Check(name="definition", level="ok", detail=f"region {region}'s is not known here")
        if theirs.etag == etag:
            return Check(name="definition", level="ok", detail=f"the same as in region {region}")
        return Check(
            name="definition", level="warn",
            detail=f"region {region} has another one ({theirs.etag}, here {etag})",
            remedy="deploy the same file in both; this region's counts here",
        )  # fmt: skip

    async def _left_behind(self, workload: Workload, there: str) -> Check:
        """Retry topics and dead letters are the region's own."""
        if workload.spec.mode != ACTIVE_PASSIVE:
            return Check(name="left-behind", level="ok", detail="each region has retry topics of its own")
        retry = list(workload.retry_topics())
        letters = workload.dlq_topic() if workload.spec.dlq.enabled else ""
        try:
            cluster = await self._cluster(there)
            async with asyncio.timeout(self._left_s()):
                waiting = await _waiting(cluster, workload.metadata.group, retry)
                dead = await _size(cluster, letters) if letters else 0
        except Exception as error:  # noqa: BLE001
            detail = f"what waits for retry in {there} cannot be counted: {_words(error)}"
            remedy = "it stays there, and is delivered once that region is active again"
            return Check(name="left-behind", level="warn", detail=detail, remedy=remedy)
        detail = f"{waiting} messages wait for retry in {there}, {dead} dead letters lie there"
        if not waiting and not dead:
            return Check(name="left-behind", level="ok", detail=detail)
        return Check(name="left-behind", level="warn", detail=detail,
                     remedy="they stay there until that region is active again")  # fmt: skip


async def _partitions(cluster: DataCluster, *topics: str) -> list[tuple[str, int]]:
    return [(topic, at) for topic in topics for at in range(await cluster.client.partitions(topic) or 0)]


async def _waiting(cluster: DataCluster, group: str, topics: Sequence[str]) -> int:
    wanted = await _partitions(cluster, *topics)
    backlog = await read_backlog(cluster, group, wanted)
    return sum(max(0, backlog.waiting(at) or 0) for at in wanted)


async def _size(cluster: DataCluster, topic: str) -> int:
    wanted = await _partitions(cluster, topic)
    starts, ends = (
        await cluster.client.offsets(wanted, EARLIEST),
        await cluster.client.offsets(wanted, LATEST),
    )
    return sum(max(0, ends.get(at, 0) - starts.get(at, 0)) for at in wanted)


def _map_check(level: Any, why: str) -> Check:
    return Check(
        name="offset-map", level=level, detail=why or "it is not known",
        remedy="more is read again, nothing is lost; see offsets map, and that the routes run (route list)",
    )  # fmt: skip


def _words(error: Exception) -> str:
    return str(error) or repr(error)
