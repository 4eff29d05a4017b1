"""Assesses a failover for one workload: where partitions continue, what is read again, what is not copied.

`app.failover.plan.planner` chooses the workloads and makes the other checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import structlog

from app.controllog import codec
from app.controllog.codec import JobStatus
from app.controllog.events import WorkloadPut
from app.controllog.failover_run import COMING, Missing
from app.controllog.roles import ACTIVE_PASSIVE
from app.dispatch.definition import Workload
from app.failover.plan.cluster_queries import CLUSTER_ANSWER_TIMEOUT_S, ClusterQueries, FoundTopic
from app.failover.plan.document import Check, PlannedPartition, Unreplicated
from app.failover.plan.ports import PlanPorts
from app.failover.plan.positions import away, passed_by, row
from app.failover.plan.region_agreement import RegionDefinitions
from app.kafka.client.commits import CommittedPosition
from app.kernel.fencing import TrackerRecord
from app.kernel.job import JobId
from app.offsets.model.group_sync import is_own
from app.offsets.store.records import ROUTES
from app.offsets.sync.mapper import DestinationTopic, JoinedTopics, NotJoined
from app.offsets.sync.remote_progress import RemoteReader, plan_and_finished, reader_of
from app.replicate.definition import REPLICATE_JOBS
from app.replicate.model.route import Route

log = structlog.get_logger(__name__)

MAX_MISSING = 3  # partitions in one message
NO_TIME = "the time for the plan was over; plan fewer workloads at once"


class FormerPositions(NamedTuple):
    """The positions in the region that the workload leaves, by partition.

    `committed` are the commits of its group; None: its cluster did not answer.
    """

    next_offsets: dict[int, int]
    committed: dict[int, int] | None
    reader: RemoteReader | None


class CopyProgress(NamedTuple):
    """The last report of a copy into a partition, and its time; None: no worker reports the job."""

    route: Route
    status: JobStatus | None
    at_ms: int | None


class ImpactAssessor:
    """Assesses the workloads of one plan; every query is made once.

    `until_s` (monotonic): an answer that has not arrived by then is unknown.
    """

    def __init__(self, ports: PlanPorts, until_s: float) -> None:
        self._ports = ports
        self._queries = ClusterQueries(ports, until_s)
        self._definitions = RegionDefinitions(ports)
        self._copies: dict[tuple[str, str, int], list[CopyProgress]] | None = None
        self._names: Mapping[str, str] | None = None

    def start_queries(self, moving: Iterable[tuple[Workload, str]]) -> None:
        """Starts the queries about workloads, each with the region that it leaves."""
        for workload, region in moving:
            metadata = workload.metadata
            self._queries.expect(metadata.cluster, [metadata.topic], [metadata.group])
            with contextlib.suppress(LookupError):
                there = self.there(workload, region)
                is_left = workload.spec.mode == ACTIVE_PASSIVE
                self._queries.expect(there, _topics_left(workload), [metadata.group] * is_left)
        self._queries.start()

    def there(self, workload: Workload, region: str) -> str:
        """The cluster that the workload consumes in another region. Raises LookupError."""
        layout = self._ports.failover.derived_routes.layout
        assert layout is not None
        return layout.cluster(region, layout.sites[workload.metadata.cluster].tier)

    # -- assessment ---------------------------------------------------------------------------------

    async def assess(
        self, workload: Workload, region: str, failed: str
    ) -> tuple[list[PlannedPartition], list[Check], str]:
        """The partitions, the checks, and why the partitions are not known ("": they are).

        `failed`: why the offset map is unknown or old; "": it is current.
        """
        regions = await self._definitions.same_regions(workload, region)
        try:
            there = self.there(workload, region)
        except LookupError as error:
            check = Check(name="clusters", level="warn", detail=str(error), remedy="configure it")
            return [], [regions, check], str(error)
        topic, (rows, checks, why), more_checks = await asyncio.gather(
            self._topic(workload), self._mapped_partitions(workload, region, there, failed),
            asyncio.gather(self._definition(workload, region), self._left_behind(workload, there)),
        )  # fmt: skip
        checks += [*more_checks, regions]
        name, here = workload.metadata.topic, workload.metadata.cluster
        if isinstance(topic, str):
            level = "blocked" if "does not exist" in topic else "warn"
            remedy = "check its route (route list)" if level == "blocked" else "check its brokers"
            checks.append(Check(name="topic", level=level, detail=topic, remedy=remedy))  # type: ignore[arg-type]
            return [], checks, why or topic
        checks.append(
            Check(name="topic", level="ok", detail=f"{name} has {topic.count} partitions in {here}")
        )
        known = {row.partition: row for row in rows}
        ends = {partition: log.end for partition, log in topic.logs.items()}
        own = await self._own_positions(workload)
        made = [
            await self._planned_partition(workload, known.get(at, PlannedPartition(partition=at)), own, ends)
            for at in sorted(ends)
        ]
        if workload.spec.mode == ACTIVE_PASSIVE:
            checks += passed_by(made, workload.metadata.group, name)
        return made, checks + away(made), why

    async def _planned_partition(
        self,
        workload: Workload,
        row: PlannedPartition,
        own: Mapping[int, CommittedPosition],
        ends: Mapping[int, int],
    ) -> PlannedPartition:
        position, end = own.get(row.partition), ends[row.partition]
        mine = None if position is None else position.next_offset
        begins = max((at for at in (row.mapped, mine) if at is not None), default=None)
        routes = await self._unreplicated(workload, row.partition)
        again = row.again if workload.spec.mode == ACTIVE_PASSIVE else 0
        return PlannedPartition(
            partition=row.partition, mapped=row.mapped, own=mine, next_offset=begins, log_end=end,
            own_is_foreign=position is not None and not is_own(position.metadata),
            lag=None if begins is None else max(0, end - begins), again=again,
            passed_over=row.passed_over, least=row.least, why=row.why, sources=row.sources, routes=routes,
            not_replicated=_sum(one.records for one in routes) if routes else None,
            unreachable=_sum(one.records for one in routes if not one.reachable) if routes else None,
        )  # fmt: skip

    async def _topic(self, workload: Workload) -> FoundTopic | str:
        """The topic here with the logs of all partitions, or why it is not known."""
        topic, name = workload.metadata.topic, workload.metadata.cluster
        try:
            found = await self._queries.topic(name, topic)
            if found is None:
                return f"topic {topic} does not exist in {name}"
            found.all_logs()
        except Exception as error:  # noqa: BLE001 - a plan says what it does not know
            return f"{name} does not report where topic {topic} ends: {_error_words(error)}"
        return found

    async def _own_positions(self, workload: Workload) -> dict[int, CommittedPosition]:
        """The group's commits here."""
        try:
            return await self._committed(workload, workload.metadata.cluster)
        except Exception as error:  # noqa: BLE001
            log.info("cannot read the group's own positions", workload=workload.key, error=repr(error))
            return {}

    async def _committed(self, workload: Workload, name: str) -> dict[int, CommittedPosition]:
        positions = await self._queries.positions(name, workload.metadata.group)
        topic = workload.metadata.topic
        return {at[1]: position for at, position in positions.items() if at[0] == topic}

    # -- positions -----------------------------------------------------------------------------------

    async def _mapped_partitions(
        self, workload: Workload, region: str, there: str, failed: str
    ) -> tuple[list[PlannedPartition], list[Check], str]:
        if workload.spec.mode != ACTIVE_PASSIVE:
            return [], [], ""  # it runs here already, and keeps its positions
        regions = self._ports.regions
        if regions is None:
            return [], [_map_check("warn", failed)], failed
        try:
            if self._queries.is_over:
                raise TimeoutError(NO_TIME)
            former = await self._former_positions(workload, region, there)
            joined = await self._join(workload, there, former)
            names = await self._cluster_names()
        except NotJoined as error:
            return [], [_map_check("warn", str(error))], ""
        except Exception as error:  # noqa: BLE001 - a plan says what it does not know
            why = failed or _error_words(error)
            return [], [_map_check("warn", why)], why
        resumed, done = await asyncio.to_thread(plan_and_finished, joined, former.next_offsets, former.reader)
        own = {at: position.next_offset for at, position in (await self._own_positions(workload)).items()}
        rows = [row(answer, joined, done, names, own.get(at)) for at, answer in resumed.answers.items()]
        unknown = [one for one in rows if one.why]
        if unknown or failed:
            first = f"{len(unknown)} partitions begin at the log's start: {unknown[0].why}" if unknown else ""
            check = _map_check("warn", "; ".join(part for part in (first, failed) if part))
        else:
            check = Check(name="offset-map", level="ok", detail=f"complete for {len(rows)} partitions")
        where = "its cluster and the copy of its trackers" if former.committed is not None else (
            f"the copy of its trackers; {there} does not answer")  # fmt: skip
        at = Check(name="positions", level="ok", detail=f"region {region}'s positions are from {where}")
        if not former.next_offsets:
            detail = f"no position of region {region} is known here"
            remedy = (
                "check the routes (route list); else delivery begins at this region's own position, "
                "or at the log's start"
            )
            at = Check(name="positions", level="warn", detail=detail, remedy=remedy)
        return rows, [check, at], ""

    async def _former_positions(self, workload: Workload, region: str, there: str) -> FormerPositions:
        records = await self._records(workload, region)
        reader = reader_of(records.items())
        found = dict(reader.next_offsets) if reader is not None else {}
        committed: dict[int, int] | None = None
        try:
            at = await self._committed(workload, there)
            committed = {partition: position.next_offset for partition, position in at.items()}
        except Exception as error:  # noqa: BLE001 - for a lost region the copies are enough
            log.info("cannot read a group's positions; the copies count", cluster=there, error=repr(error))
        for partition, next_offset in (committed or {}).items():
            found[partition] = max(next_offset, found.get(partition, 0))
        return FormerPositions(found, committed, reader)

    async def _records(self, workload: Workload, region: str) -> dict[str, TrackerRecord]:
        regions = self._ports.regions
        return {} if regions is None else await regions.remote_progress.positions(workload, region)

    async def _join(self, workload: Workload, there: str, former: FormerPositions) -> JoinedTopics:
        """Raises NotJoined, and any error of a cluster that does not answer."""
        regions = self._ports.regions
        assert regions is not None
        topic, here = workload.metadata.topic, workload.metadata.cluster
        async with asyncio.timeout(self._queries.left_s(2 * CLUSTER_ANSWER_TIMEOUT_S)):
            if former.reader is None:
                return (await regions.mapper.join(there, topic, here, topic))[0]
            found = await self._queries.topic(here, topic)
            if found is None:
                raise NotJoined(f"topic {topic} does not exist in {here}")
            to = DestinationTopic(found.cluster_id, found.topic_id, found.all_logs())
            return (await regions.mapper.join_known(former.reader.topic(topic), here, topic, there, to))[0]

    async def _cluster_names(self) -> Mapping[str, str]:
        regions = self._ports.regions
        if self._names is None and regions is not None:
            self._names = await regions.mapper.names()
        return self._names or {}

    async def missing(self, workload: Workload, region: str, failed: str) -> Missing:
        """Which of the region's last positions have not arrived here."""
        try:
            committed = await self._committed(workload, self.there(workload, region))
            records = await self._records(workload, region)
        except Exception as error:  # noqa: BLE001 - the next round asks again
            return Missing(f"{COMING.words} ({failed or _error_words(error)})", None)
        bases = {JobId.parse(job).partition: record.base for job, record in records.items()}
        behind = sum(max(0, at.next_offset - max(0, bases.get(it, 0))) for it, at in committed.items())
        late = [
            f"partition {partition} at {bases.get(partition, 'none')} of {at.next_offset}"
            for partition, at in sorted(committed.items())
            if bases.get(partition, -1) < at.next_offset
        ]
        more = f" and {len(late) - MAX_MISSING} more" if len(late) > MAX_MISSING else ""
        if not late:
            return Missing()
        words = f"they are {behind:,} offsets behind: {', '.join(late[:MAX_MISSING])}{more}"
        return Missing(f"{COMING.words} ({words})", behind)

    # -- missing records ------------------------------------------------------------------------------

    async def _unreplicated(self, workload: Workload, partition: int) -> list[Unreplicated]:
        """The records that are not copied yet, by source cluster, as the routes' jobs report them.

        The counts are lower bounds: a job knows the end of its source as of its last fetch.
        """
        here, topic = workload.metadata.cluster, workload.metadata.topic
        layout = self._ports.failover.derived_routes.layout
        found = []
        for route, status, at_ms in self._copying().get((here, topic, partition), ()):
            site = None if layout is None else layout.sites.get(route.source)
            records = None
            if status is not None and status.high_watermark >= 0 and status.committed >= 0:
                records = max(0, status.high_watermark - status.committed)
            found.append(Unreplicated(
                route=route.name, cluster=route.source, region="" if site is None else site.region,
                records=records, reachable=await self._queries.answers(route.source),
                as_of_ms=None if records is None else at_ms,
            ))  # fmt: skip
        return found

    def _copying(self) -> Mapping[tuple[str, str, int], list[CopyProgress]]:
        """The copies into each partition of a cluster.

        A job without an owner, or with one that has just begun, has no report: its status is None.
        """
        if self._copies is None:
            self._copies = {}
            names: dict[tuple[str, str], str | None] = {}
            assigned = self._ports.control.view.assignments
            jobs: dict[str, tuple[JobStatus | None, int | None]] = {
                job: (None, None) for job in assigned if job.startswith(REPLICATE_JOBS)
            }
            for beat in self._ports.members.live(time.monotonic()).values():
                jobs |= {
                    one.job: (one, beat.at_ms) for one in beat.jobs if one.job.startswith(REPLICATE_JOBS)
                }
            for name, (status, at_ms) in jobs.items():
                job = JobId.parse(name)
                route = self._ports.catalog.routes.route(job.name)
                if route is None:
                    continue
                at = job.name, job.topic
                if at not in names:
                    names[at] = route.destination(job.topic)
                into = route.target, names[at] or "", job.partition
                self._copies.setdefault(into, []).append(CopyProgress(route, status, at_ms))
        return self._copies

    # -- checks ------------------------------------------------------------------------------------------

    async def _definition(self, workload: Workload, region: str) -> Check:
        regions, etag = self._ports.regions, workload.etag()
        theirs = None
        if regions is not None:
            try:
                record = await regions.tables.record(ROUTES, region, f"workload/{workload.key}")
                theirs = None if record is None else codec.control_event(record)
            except Exception as error:  # noqa: BLE001 - the check then says so
                log.info("cannot read another region's definition", workload=workload.key, error=repr(error))
        put = self._ports.control.view.workloads.get(workload.key)
        etag = etag if put is None else put.etag
        if not isinstance(theirs, WorkloadPut):
            return Check(
                name="definition", level="ok", detail=f"the definition in region {region} is not known here"
            )
        if theirs.etag == etag:
            return Check(name="definition", level="ok", detail=f"the same as in region {region}")
        return Check(
            name="definition", level="warn",
            detail=f"the definition in region {region} differs ({theirs.etag}, here {etag})",
            remedy="deploy the same file in both regions; this region's definition counts here",
        )  # fmt: skip

    async def _left_behind(self, workload: Workload, there: str) -> Check:
        """Counts the messages in retry topics and the DLQ, which stay in their region."""
        if workload.spec.mode != ACTIVE_PASSIVE:
            return Check(name="left-behind", level="ok", detail="each region has retry topics of its own")
        letters = workload.dlq_topic() if workload.spec.dlq.enabled else ""
        waiting = dead = 0
        try:
            committed = await self._queries.positions(there, workload.metadata.group)
            for topic in _topics_left(workload):
                found = await self._queries.topic(there, topic)
                for partition, logged in (found.all_logs() if found is not None else {}).items():
                    at = committed.get((topic, partition))
                    if topic == letters:
                        dead += max(0, logged.end - logged.start)
                    else:
                        waiting += max(0, logged.end - max(logged.start, 0 if at is None else at.next_offset))
        except Exception as error:  # noqa: BLE001
            detail = f"cannot count the messages that wait for retry in {there}: {_error_words(error)}"
            remedy = "they stay there, and are delivered once that region is active again"
            return Check(name="left-behind", level="warn", detail=detail, remedy=remedy)
        detail = f"{waiting} messages wait for retry in {there}, which also has {dead} dead letters"
        if not waiting and not dead:
            return Check(name="left-behind", level="ok", detail=detail)
        return Check(name="left-behind", level="warn", detail=detail,
                     remedy="they stay there until that region is active again")  # fmt: skip


def _topics_left(workload: Workload) -> list[str]:
    """The retry topics and the DLQ."""
    letters = [workload.dlq_topic()] if workload.spec.dlq.enabled else []
    return [*workload.retry_topics(), *letters]


def _sum(counts: Iterable[int | None]) -> int | None:
    """None when one count is not known."""
    found = list(counts)
    return None if None in found else sum(count or 0 for count in found)


def _map_check(level: Any, why: str) -> Check:
    return Check(
        name="offset-map", level=level, detail=why or "it is not known",
        remedy="more is read again, nothing is lost; see offsets map, and check the routes (route list)",
    )  # fmt: skip


def _error_words(error: Exception) -> str:
    return str(error) or repr(error)
