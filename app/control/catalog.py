"""Which jobs there should be: every partition of every topic of every workload.

Read from the data clusters' metadata every `REFRESH_S` by the leader, which also creates the retry
topics and the DLQ of a workload when they are missing. What cannot be read now keeps its last known
size: not knowing is never a reason to stop a job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from pydantic import ValidationError

from app.config.definitions import Workload
from app.control.data_clusters import DataClusters
from app.control.log import ControlLog
from app.core.job import JobId, Kind
from app.kafka.topics import TopicSpec, ensure_topics

log = structlog.get_logger(__name__)

REFRESH_S = 2.0
PATIENCE_S = 1.0
MAX_RETRY_PARTITIONS = 8  # retry traffic is a small share of the topic's
RETRY_RETENTION_MS = 7 * 24 * 3_600_000
DLQ_RETENTION_MS = 30 * 24 * 3_600_000
COPY_MAX_BYTES = 16 * 1024 * 1024  # a copy is larger than its source by the headers; never refuse one


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
        for key in list(self._control.view.workloads):
            workload = self.workload(key)
            if workload is None:
                wanted.update(job for job in self._control.view.assignments if JobId.parse(job).name == key)
                continue
            cluster = workload.metadata.cluster
            for topic in (workload.metadata.topic, *workload.retry_topics()):
                count = self._partitions.get((cluster, topic))
                if count is None:
                    # Never seen (the cluster is away): what is assigned stays so.
                    prefix = str(JobId(Kind.DISPATCH, key, topic, 0)).rsplit(":", 1)[0]
                    wanted.update(job for job in held.get(prefix, []))
                    continue
                wanted.update(str(JobId(Kind.DISPATCH, key, topic, p)) for p in range(count))
        return wanted

    async def _refresh_all(self) -> None:
        """Reads what is old, side by side and not for long: a cluster that is away holds up nobody else."""
        for key in list(self._control.view.workloads):
            workload = self.workload(key)
            if workload is not None and key not in self._reading:
                self._reading[key] = asyncio.create_task(self._refresh(key, workload))
        if self._reading:
            await asyncio.wait(self._reading.values(), timeout=PATIENCE_S)
        self._reading = {key: task for key, task in self._reading.items() if not task.done()}

    async def _refresh(self, key: str, workload: Workload) -> None:
        now_s = time.monotonic()
        etag = workload.etag()
        fresh = now_s - self._read_at_s.get(key, float("-inf")) < REFRESH_S
        if fresh and self._prepared.get(key) == etag:
            return
        self._read_at_s[key] = now_s
        name = workload.metadata.cluster
        try:
            cluster = await self._clusters.get(name)
            topic = workload.metadata.topic
            count = await cluster.client.partitions(topic)
            if count is None:
                self._tell(
                    key,
                    f"topic {topic} does not exist in {name}",
                    "create it; the workload starts by itself then",
                )
                return
            self._told = {told for told in self._told if told[0] != key}
            self._partitions[name, topic] = max(count, self._partitions.get((name, topic), 0))
            if self._prepared.get(key) != etag:
                await self._prepare(cluster.client, workload, count)
                self._prepared[key] = etag
            for retry in workload.retry_topics():
                found = await cluster.client.partitions(retry)
                if found is not None:
                    self._partitions[name, retry] = max(found, self._partitions.get((name, retry), 0))
        except KeyError:
            self._tell(
                key,
                f"cluster {name!r} is not in this worker's configuration",
                "add it to clusters in switchyard.yaml",
            )
        except Exception as error:  # noqa: BLE001 - one cluster's trouble must not stop the others' jobs
            self._tell(key, f"cluster {name} cannot be read: {error}", "its jobs go on with what is known")

    async def _prepare(self, client: object, workload: Workload, partitions: int) -> None:
        retry = [
            TopicSpec(
                topic,
                partitions=min(partitions, MAX_RETRY_PARTITIONS),
                config={"retention.ms": str(RETRY_RETENTION_MS), "max.message.bytes": str(COPY_MAX_BYTES)},
            )
            for topic in workload.retry_topics()
        ]
        dlq = [
            TopicSpec(
                workload.dlq_topic(),
                partitions=min(partitions, MAX_RETRY_PARTITIONS),
                config={"retention.ms": str(DLQ_RETENTION_MS), "max.message.bytes": str(COPY_MAX_BYTES)},
            )
        ]
        created = await ensure_topics(client, retry + (dlq if workload.spec.dlq.enabled else []))  # type: ignore[arg-type]
        if created:
            log.info("created topics", workload=workload.key, topics=created)

    def _tell(self, key: str, message: str, remedy: str) -> None:
        if (key, message) not in self._told:
            self._told.add((key, message))
            self._on_trouble("workload-trouble", key, message, remedy)
