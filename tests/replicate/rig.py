"""Replicas between real brokers, with a simulated tracker table that keeps what they save."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from app.controllog.seals import Seals
from app.kafka.append.appender import Appender
from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches, LogGap, PartitionFetch
from app.kafka.fetch.service import FetchService
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.record import Record
from app.kernel.fencing import LogId
from app.kernel.job import JobId, Kind
from app.kernel.lease import Lease
from app.kernel.ranges import Snapshot
from app.offsets.model.offset_map import Barrier
from app.replicate.definition import RouteDefinition
from app.replicate.destination.session import FormerCopies
from app.replicate.pump.partition import ReplicaPump
from app.replicate.pump.route_runtime import CopyBudgets, RouteDestination, RouteRuntime
from app.replicate.pump.status import job_status
from app.worker.jobs.start_position import StartPosition
from tests.kafka.conftest import ENOUGH_S, connected, pumping

ROUTE = "r"
SAVE_S = 0.02
Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def definition(source: str, target: str, topic: str, **spec: Any) -> RouteDefinition:
    """A route that copies the topic under its name."""
    return RouteDefinition.from_wire(
        {
            "apiVersion": "switchyard/v1",
            "kind": "Route",
            "metadata": {"name": ROUTE},
            "spec": {"from": source, "to": target, "topics": [topic], **spec},
        }
    )


def row(record: Record) -> Row:
    """All of a record except its offset."""
    return record.timestamp, record.key, record.value, tuple(record.headers)


class ReplicaRig:
    """Replicas of one route. `incidents` and `barriers` collect what they report and emit."""

    def __init__(self, source: ClusterClient, target: ClusterClient) -> None:
        self.source, self.target = source, target
        self.budget = ByteBudget(64 << 20)
        self.fetch = FetchService(source, self._deliver, self.budget)
        self.lease = Lease(1e9)
        self.lease.renewed(time.monotonic())
        self.appender = Appender(target, may_send=lambda: self.lease.holds(time.monotonic()))
        self.incidents: list[tuple[str, str]] = []
        self.remedies: list[str] = []  # of the incidents
        self.barriers: list[tuple[int, int, int]] = []  # partition, source's end, destination's end
        self.stamped: list[Barrier] = []  # the same
        self.pumps: dict[Any, ReplicaPump] = {}
        self.saved: dict[int, tuple[Snapshot, bytes]] = {}
        self.saves = True
        self.runtimes: list[RouteRuntime] = []
        self._epoch = 0
        self.budgets = CopyBudgets()

    async def _deliver(self, item: Any) -> None:
        pump = self.pumps.get(item.key)
        if pump is None:
            if isinstance(item, FetchedBatches):
                item.release()
        elif isinstance(item, FetchedBatches):
            pump.accept(item)
        elif isinstance(item, LogGap):
            pump.skip(item)

    async def save_for_ever(self) -> None:
        """Saves snapshots until it is cancelled."""
        while True:
            await asyncio.sleep(SAVE_S)
            for key, pump in self.pumps.items():
                pump.high_watermark = max(pump.high_watermark, self.fetch.high_watermark(key))
                if self.saves:
                    self.save(pump)

    def save(self, pump: ReplicaPump) -> None:
        """Saves the pump's snapshot in the table."""
        if pump.version != pump.snapshot_version and not pump.closed:
            self.saved[pump.job.partition] = pump.snapshot(), pump.note
            pump.snapshot_version = pump.version

    async def start_pump(
        self,
        topic: str,
        partition: int = 0,
        *,
        at: int = 0,
        lineage: int = 0,
        source_epoch: int | None = None,
        fetches: bool = True,
        seals: Callable[[], Seals | None] | None = None,
        **spec: Any,
    ) -> ReplicaPump:
        """Starts a new owner of the partition from the saved state."""
        self._epoch += 1
        snapshot, note = self.saved.get(partition, (None, b""))
        runtime = RouteRuntime(
            definition(self.source.name, self.target.name, topic, **spec),
            self.source,
            RouteDestination(self.target, self.appender),
            self.lease,
            self._report_incident,
            self.budgets,
        )
        self.runtimes.append(runtime)
        ids = await self.source.topic_ids([topic])
        start = StartPosition(
            snapshot or Snapshot(at),
            lineage,
            LogId("", ids[topic]),
            known=snapshot is not None,
            is_first=snapshot is None and not note,
        )
        pump = ReplicaPump(
            JobId(Kind.REPLICATE, ROUTE, topic, partition),
            self._epoch,
            runtime,
            start,
            FormerCopies(note, is_same_log=True, source_epoch=source_epoch),
            self._report_incident,
            self._on_barrier,
            seals,
        )
        self.pumps[self._epoch] = pump
        if fetches:
            self.fetch.add(
                self._epoch, topic, partition, pump.base, ids[topic], last_epoch=pump.ledger.read_epoch
            )
        return pump

    def put_base(self, base: int, partition: int = 0) -> None:
        """Replaces the table's position; the note stays."""
        self.saved[partition] = Snapshot(base), self.saved[partition][1]

    def feed(self, pump: ReplicaPump, data: bytes, start: int, end: int, *, damage: str = "") -> None:
        """Gives the pump these bytes for the offsets [start, end), as if they had been fetched."""
        part = PartitionFetch(self.fetch.budget, "by hand", pump.job.topic, pump.job.partition, start)
        part.unreleased_bytes += len(data)
        self.budget.used_bytes += len(data)
        pump.accept(FetchedBatches(part, len(data), data, end, [], end, damage))

    def freeze(self, pump: ReplicaPump) -> None:
        """Freezes the pump's process: it gets nothing and saves nothing, but is not closed."""
        for key, one in list(self.pumps.items()):
            if one is pump:
                self.fetch.remove(key)
                del self.pumps[key]

    def kill(self, pump: ReplicaPump) -> None:
        """Kills the pump's process; its batches in flight are lost."""
        self.freeze(pump)
        pump.close()

    def _on_barrier(
        self, pump: ReplicaPump, source_end: int, target_end: int, stamp: ProducerStamp | None
    ) -> None:
        self.barriers.append((pump.job.partition, source_end, target_end))
        self.stamped.append(Barrier(source_end, target_end, 0, stamp))

    def _report_incident(self, kind: str, _subject: str, message: str, remedy: str, *_: object) -> None:
        self.incidents.append((kind, message))
        self.remedies.append(remedy)

    def kinds(self) -> list[str]:
        """The kinds of the reported incidents."""
        return [kind for kind, _ in self.incidents]

    async def until(self, condition: Callable[[], Any], seconds: float = 2 * ENOUGH_S) -> None:
        """Waits until the condition holds."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():  # noqa: ASYNC110 - callbacks change it
                    await asyncio.sleep(0.01)
        except TimeoutError:
            states = [msg for pump in self.pumps.values() for msg in [job_status(pump)]]
            raise AssertionError(f"it never came: {states} {self.incidents}") from None

    async def copied(self, pumps: Iterable[ReplicaPump]) -> None:
        """Waits until the pumps have copied all records of the source."""
        at = {(pump.job.topic, pump.job.partition): pump for pump in pumps}
        ends = await self.source.end_offsets(at)
        await self.until(lambda: all(pump.base >= ends[where] for where, pump in at.items()))

    async def close(self) -> None:
        """Closes everything, and checks that the fetch budget is whole again."""
        for pump in self.pumps.values():
            pump.close()
        for runtime in self.runtimes:
            await runtime.close()


@asynccontextmanager
async def replica_rig(home: str, away: str) -> AsyncIterator[ReplicaRig]:
    """Replicas between two brokers."""
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(connected(home, "east-regional"))
        target = await stack.enter_async_context(connected(away, "east-aggregate"))
        rig = ReplicaRig(source, target)
        await rig.appender.start()
        await rig.fetch.start()
        saving = asyncio.create_task(rig.save_for_ever())
        try:
            yield rig
        finally:
            saving.cancel()
            await rig.close()
            await rig.fetch.stop()
            await rig.appender.stop()
            assert rig.budget.used_bytes == 0


async def rows(client: ClusterClient, topic: str, partition: int = 0) -> list[Row]:
    """All records of the topic."""
    end = (await client.end_offsets([(topic, partition)]))[topic, partition]
    async with pumping(client) as pump:
        pump.service.add(0, topic, partition, 0)
        await pump.until(lambda: pump.position.get(0, 0) >= end or not end)
        return [row(record) for record in pump.records.get(0, [])]
