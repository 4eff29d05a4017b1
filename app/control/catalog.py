"""Which jobs there should be: every partition of every topic of every workload.

Read from the data clusters' metadata every `REFRESH_S` by the leader, which also creates the retry
topics and the DLQ of a workload when they are missing (`app.control.topic_settings`), records where `start:
latest` begins (and again, behind every change, where a move did), and looks for what waits in topics that are
pumped only then (`app.control.leftovers`). What cannot be read now keeps its last known size: not knowing is
never a reason to stop a job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec
import structlog
from aiokafka.errors import KafkaError, for_code
from pydantic import ValidationError

from app.clock import now_ms
from app.config.definitions import Workload
from app.control.data_clusters import DataClusters
from app.control.hibernation import Sleepers
from app.control.leftovers import Leftovers, candidates, is_left
from app.control.log import ControlLog
from app.control.topic_settings import create_topics, raise_settings, retry_retention_ms
from app.core.control import Begun
from app.core.job import JobId, Kind
from app.core.placement import name_of
from app.kafka.clusters import LATEST, READ_COMMITTED, TOPIC_UNKNOWN, ClusterClient, ClusterUnreachable

log = structlog.get_logger(__name__)

REFRESH_S = 2.0
PATIENCE_S = 1.0
LEADER_TRIES, LEADER_RETRY_S = 20, 0.25


class Catalog:
    """Caches partition counts and derives jobs from them."""

    def __init__(
        self,
        control: ControlLog,
        clusters: DataClusters,
        on_trouble: Callable[[str, str, str, str], None],
    ) -> None:
        self._control = control
        self._clusters = clusters
        self._on_trouble = on_trouble
        self._partitions: dict[tuple[str, str], int] = {}
        self._read_at_s: dict[str, float] = {}
        self._prepared: dict[str, str] = {}
        self._workloads: dict[str, tuple[str, Workload]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._told: set[tuple[str, str]] = set()
        self._leftovers = Leftovers()
        self.sleepers = Sleepers()
        self._told_left: set[tuple[str, str]] = set()

    def workload(self, key: str) -> Workload | None:
        """The definition of `key` as it stands in the control log, parsed once a change."""
        put = self._control.view.workloads.get(key)
        if put is None:
            self._workloads.pop(key, None)
            return None
        cached = self._workloads.get(key)
        if cached is None or cached[0] != put.etag:
            try:
                cached = (put.etag, Workload.from_wire(put.definition))
            except ValidationError as error:
                # Written past the API, or by a version that means something else: it stays as it was.
                self._tell(key, f"its definition cannot be read: {error}", "deploy it again")
                return cached[1] if cached is not None else None
            self._workloads[key] = cached
        return cached[1]

    def partitions(self, cluster: str, topic: str) -> int | None:
        """Last known number of partitions."""
        return self._partitions.get((cluster, topic))

    async def jobs(self) -> set[str]:
        """Every job there should be now."""
        wanted: set[str] = set()
        held: dict[str, list[str]] = {}
        for job in self._control.view.assignments:
            held.setdefault(job.rsplit(":", 1)[0], []).append(job)
        await self._refresh_all()
        self._leftovers.keep(self._control.view.workloads)
        self.sleepers.keep(self._control.view.workloads)
        for key in list(self._control.view.workloads):
            workload = self.workload(key)
            if workload is None:
                wanted.update(job for job in self._control.view.assignments if JobId.parse(job).name == key)
                continue
            cluster, topics = workload.metadata.cluster, [*workload.retry_topics()]
            if workload.spec.start == "earliest" or key in self._control.view.begun:
                topics.insert(0, workload.metadata.topic)
            else:
                wanted.update(held.get(_prefix(key, workload.metadata.topic), []))  # until it is recorded
            for topic in topics:
                count = self._partitions.get((cluster, topic))
                if count is None:
                    # Never seen (the cluster is away): what is assigned stays so.
                    wanted.update(held.get(_prefix(key, topic), []))
                    continue
                wanted.update(str(JobId(Kind.DISPATCH, key, topic, p)) for p in range(count))
            left = self._leftovers.of(key)
            if left is not None:
                wanted.update(str(JobId(Kind.DISPATCH, key, *at)) for at in left)
            else:
                for topic in candidates(workload):
                    wanted.update(held.get(_prefix(key, topic), []))
        return wanted

    async def _refresh_all(self) -> None:
        """Reads what is old, side by side and not for long: a cluster that is away holds up nobody else."""
        claimed = self._claimed()
        for key in list(self._control.view.workloads):
            workload = self.workload(key)
            if workload is not None and key not in self._reading:
                self._reading[key] = asyncio.create_task(self._refresh(key, workload, claimed))
        if self._reading:
            await asyncio.wait(self._reading.values(), timeout=PATIENCE_S)
        self._reading = {key: task for key, task in self._reading.items() if not task.done()}

    async def _refresh(self, key: str, workload: Workload, claimed: set[tuple[str, str]]) -> None:
        now_s = time.monotonic()
        etag = workload.etag()
        fresh = now_s - self._read_at_s.get(key, float("-inf")) < REFRESH_S
        if fresh and self._prepared.get(key) == etag and not self._lacks_beginning(key, workload):
            return
        self._read_at_s[key] = now_s
        name = workload.metadata.cluster
        if name not in self._clusters.specs:
            self._tell(
                key,
                f"cluster {name!r} is not in this worker's configuration",
                "add it to clusters in switchyard.yaml",
            )
            return
        try:
            cluster = await self._clusters.get(name)
            topic = workload.metadata.topic
            own = [topic, *workload.retry_topics()]
            passing = [other for other in candidates(workload) if (name, other) not in claimed]
            sizes = await _sizes(cluster.client, own, passing)
            count = sizes.get(topic)
            if count is None:
                self._tell(
                    key,
                    f"topic {topic} does not exist in {name}",
                    "create it; the workload starts by itself then",
                )
                return
            if self._lacks_beginning(key, workload):
                await self._record_beginning(key, cluster.client, topic, count)
            if self._prepared.get(key) != etag:
                await self._prepare(cluster.client, workload, count)
                sizes |= await _sizes(cluster.client, own)
                self._prepared[key] = etag
            for one in own:
                if one in sizes:
                    self._partitions[name, one] = max(sizes[one], self._partitions.get((name, one), 0))
            await self._leftovers.read(
                cluster, workload, {other: sizes[other] for other in passing if other in sizes}, now_s
            )
            self._tell_leftovers(key, workload)
            delayed = [*own, workload.delayed_topic()]
            waiting = [(one, partition) for one in delayed for partition in range(sizes.get(one, 0))]
            await self.sleepers.read(cluster, workload, waiting, now_s, lambda: self._is_owned(key))
            self._told = {told for told in self._told if told[0] != key}
        except Exception as error:  # noqa: BLE001 - one cluster's trouble must not stop the others' jobs
            self._tell(key, f"cluster {name} cannot be read: {error}", "its jobs go on with what is known")

    async def _prepare(self, client: ClusterClient, workload: Workload, partitions: int) -> None:
        created = await create_topics(client, workload, partitions)
        if created:
            log.info("created topics", workload=workload.key, topics=created)
        try:
            await raise_settings(client, workload, [t for t in workload.retry_topics() if t not in created])
        except (KafkaError, ClusterUnreachable, OSError, TimeoutError, NotImplementedError) as error:
            self._on_trouble(
                "topic-settings",
                workload.key,
                f"settings of its retry topics in {client.name} could not be checked: {error!r}",
                f"see that each has retention.ms of at least {retry_retention_ms(workload)}, or allow "
                "Switchyard's principal to describe and alter configs of its own topics",
            )

    def _is_owned(self, key: str) -> bool:
        """Whether anybody owns a job of this workload."""
        assignments = self._control.view.assignments
        return any(held.worker and name_of(job) == key for job, held in assignments.items())

    def _claimed(self) -> set[tuple[str, str]]:
        """(cluster, topic) of all that workloads are defined to read: nobody's leftovers."""
        workloads = [self.workload(key) for key in list(self._control.view.workloads)]
        return {
            (workload.metadata.cluster, topic)
            for workload in workloads
            if workload is not None
            for topic in (workload.metadata.topic, *workload.retry_topics())
        }

    def _lacks_beginning(self, key: str, workload: Workload) -> bool:
        """Whether it has to be recorded where the workload begins; again, behind a changed definition."""
        view = self._control.view
        put, begun = view.workloads.get(key), view.begun.get(key)
        if put is None:
            return False
        return workload.spec.start == "latest" if begun is None else begun.etag != put.etag

    async def _record_beginning(self, key: str, client: ClusterClient, topic: str, count: int) -> None:
        view = self._control.view
        put, begun = view.workloads[key], view.begun.get(key)
        if begun is None:
            topic_id = (await client.topic_ids([topic])).get(topic, "")
            at = [(topic, partition) for partition in range(count)]
            ends: dict[tuple[str, int], int] = {}
            for _ in range(LEADER_TRIES):
                ends |= await client.offsets([one for one in at if one not in ends], LATEST, READ_COMMITTED)
                if len(ends) == count:
                    break
                await asyncio.sleep(LEADER_RETRY_S)  # a partition in the making has no leader yet
            else:
                raise LookupError(f"{count - len(ends)} partitions of {topic} have no leader that answers")
            begun = Begun(at_ms=now_ms(), key=key, etag="", ends=[ends[one] for one in at], topic_id=topic_id)
        await self._control.append(msgspec.structs.replace(begun, etag=put.etag))

    def _tell_leftovers(self, key: str, workload: Workload) -> None:
        left = {topic for topic, _ in self._leftovers.of(key) or () if is_left(workload, topic)}
        self._told_left = {told for told in self._told_left if told[0] != key or told[1] in left}
        for topic in sorted(left):
            if (key, topic) not in self._told_left:
                self._told_left.add((key, topic))
                self._on_trouble(
                    "retry-tier-removed",
                    key,
                    f"messages still wait in {topic}, whose retry tier is no longer defined",
                    "nothing to do: they are delivered without delay, and its jobs end when it is empty",
                )

    def _tell(self, key: str, message: str, remedy: str) -> None:
        if (key, message) not in self._told:
            self._told.add((key, message))
            self._on_trouble("workload-trouble", key, message, remedy)


def _prefix(key: str, topic: str) -> str:
    return str(JobId(Kind.DISPATCH, key, topic, 0)).rsplit(":", 1)[0]


async def _sizes(client: ClusterClient, own: Sequence[str], others: Sequence[str] = ()) -> dict[str, int]:
    """Partition counts of those topics that exist, in one request.

    Raises:
        ClusterUnreachable; KafkaError: one of `own` may not be described, or the like.
    """
    found: dict[str, int] = {}
    for code, topic, _, partitions in (await client.metadata([*own, *others])).topics:
        if code and code not in TOPIC_UNKNOWN and not partitions and topic in own:
            raise for_code(code)(topic)
        if partitions:
            found[topic] = len(partitions)
    return found
