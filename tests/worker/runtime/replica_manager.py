"""A job manager with one replica between real brokers; control log and tracker table are fakes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from app.controllog.events import Assignment, RoutePut
from app.dev.yard import Yard
from app.failover.topology import Layout
from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget
from app.kernel.clock import now_ms
from app.kernel.fencing import SnapshotItem, Snapshots, Takeover, TakeoverAnswer
from app.kernel.lease import Lease
from app.offsets.model.offset_map import BarrierItem
from app.payload.schema_loader import SchemaLoader
from app.replicate.pump.partition import ReplicaPump
from app.worker.catalog import Catalog
from app.worker.jobs.failures import JobFailures
from app.worker.jobs.kind import JobPorts
from app.worker.readable_definitions import ReadableDefinitions
from app.worker.runtime.job_kinds import JobServices, make_job_kinds
from app.worker.runtime.job_manager import JobManager
from app.worker.tracker.fold import TrackerFold
from tests.replicate.rig import definition
from tests.web.runtime_fake import Alone
from tests.worker.runtime.test_job_manager import Log

ENOUGH_S = 150.0
HOME, AWAY = "east-regional", "east-aggregate"


class FakeTrackers:
    """The tracker topic and its follower in one."""

    def __init__(self) -> None:
        self._fold = TrackerFold()
        self._offset = 0

    def _apply(self, event: Any) -> TakeoverAnswer | None:
        self._offset += 1
        return self._fold.apply(event, self._offset)

    async def takeover(self, job: str, epoch: int) -> TakeoverAnswer:
        answer = self._apply(Takeover(job=job, epoch=epoch, worker="me", nonce="n", at_ms=0))
        assert answer is not None
        return answer

    async def send_snapshots(self, items: Iterable[SnapshotItem]) -> list[asyncio.Future[Any]]:
        self._apply(Snapshots(worker="me", at_ms=0, items=list(items)))
        return []


class BarrierRecorder:
    """A sender that keeps the barriers."""

    def __init__(self) -> None:
        self.items: list[BarrierItem] = []

    async def send(self, items: Iterable[BarrierItem]) -> list[asyncio.Future[Any]]:
        self.items += items
        return []


class ReplicaManagerRig:
    """A job manager with one job: to copy partition 0 of a topic."""

    def __init__(
        self, jobs: JobManager, log: Log, topic: str, incidents: list[tuple[str, str]],
        sender: BarrierRecorder, remedies: list[str],
    ) -> None:  # fmt: skip
        self.remedies = remedies  # of the incidents
        self.jobs, self.log, self.topic, self.incidents, self.sender = jobs, log, topic, incidents, sender
        self.job = f"replicate:r:{topic}:0"
        self._epoch = 0

    @property
    def pump(self) -> ReplicaPump | None:
        return self.jobs.kinds.replicate.pumps.get(self.job)

    def put(self, **spec: Any) -> None:
        """Deploys the route."""
        route = definition(HOME, AWAY, self.topic, **spec)
        self.log.apply(
            RoutePut(at_ms=now_ms(), key="r", definition=route.to_wire(), etag=route.etag(), actor="test")
        )

    def assign(self, *, release: bool = False) -> None:
        self._epoch += not release
        event = Assignment(at_ms=0, job=self.job, worker="me", epoch=self._epoch, term=1, reason="")
        self.log.apply(msgspec.structs.replace(event, release=release))

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(ENOUGH_S):
            while not condition():  # noqa: ASYNC110 - callbacks change it
                await asyncio.sleep(0.02)

    async def halted(self) -> ReplicaPump:
        await self.until(lambda: self.pump is not None and self.pump.halted)
        assert self.pump is not None
        return self.pump

    async def copied(self, end: int) -> ReplicaPump:
        await self.until(lambda: self.pump is not None and self.pump.base >= end)
        assert self.pump is not None
        return self.pump


@asynccontextmanager
async def replica_manager_rig(
    yard: Yard, topic: str, specs: Mapping[str, ClusterSpec] | None = None, layout: Layout | None = None
) -> AsyncIterator[ReplicaManagerRig]:
    """A job manager, with the topic on both sides. `specs`, if given, are the clusters `HOME` and `AWAY`,
    which must have the topic."""
    budget, holder = ByteBudget(64 << 20), list[JobManager]()

    async def deliver(item: Any) -> None:
        kinds: Any = holder[0].kinds
        kinds.of(item.key.job).accept(item)

    lease = Lease(1e9)
    lease.renewed(time.monotonic())
    lease.saved(time.monotonic(), 1e9)
    given = specs or {name: ClusterSpec(name, (yard.bootstrap(name),)) for name in (HOME, AWAY)}
    clusters = DataClusters(given, deliver, budget)
    for name in given if specs is None else ():
        await ensure_topics((await clusters.get(name)).client, [TopicSpec(topic, 1, 1)])
    incidents: list[tuple[str, str]] = []
    remedies: list[str] = []

    def report(kind: str, _subject: str, message: str, remedy: str, *_: object) -> None:
        incidents.append((kind, message))
        remedies.append(remedy)

    log, sender = Log(), BarrierRecorder()
    fake_log: Any = log
    trackers: Any = FakeTrackers()
    barriers: Any = sender
    definitions = ReadableDefinitions(fake_log, report, layout)
    catalog = Catalog(fake_log, clusters, report, definitions, Alone())
    ports = JobPorts("me", fake_log, clusters, lease, report, SchemaLoader(Path("schemas")), JobFailures())
    jobs = JobManager(
        ports,
        trackers,
        lambda jobs: make_job_kinds(ports, jobs, catalog, JobServices(barriers)),
        grace_s=10.0,
    )
    holder.append(jobs)
    await jobs.start()
    try:
        yield ReplicaManagerRig(jobs, log, topic, incidents, sender, remedies)
    finally:
        async with asyncio.timeout(ENOUGH_S):
            await jobs.drain_all()
            await jobs.stop()
            await clusters.stop()
        assert budget.used_bytes == 0
