"""A test rig for pumps: batches are fed by hand, and a real receiver handles the messages over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from app.dispatch.definition import Workload
from app.dispatch.model.delayed_delivery import LEVELS_MS
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.pump.retry_publisher import CopyProducer
from app.dispatch.push.endpoint import Endpoint
from app.dispatch.push.receiver import Receiver as ReceiverState
from app.dispatch.scheduler.clients import TargetClients
from app.dispatch.scheduler.receiver_queues import ReceiverQueues
from app.dispatch.scheduler.workload import WorkloadRuntime
from app.grpc_client.credentials import Credentials
from app.kafka.append.producer import RecordTooLarge
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches, PartitionFetch
from app.kernel.fencing import LogId
from app.kernel.job import JobId, Kind
from app.kernel.lease import Lease
from app.kernel.ranges import Snapshot
from app.payload.interceptors import InterceptorChain
from app.worker.jobs.start_position import StartPosition
from switchyard.receiver import Message, Receiver
from tests.kafka.records.batches import make_batch

GROUP, TOPIC = "billing", "orders"
ENOUGH_S = 150.0  # ends a test that would hang; nothing is measured with it
BATCH = 100

Handler = Callable[[Message], Any]
Row = tuple[bytes | None, bytes | None]


def definition(address: str, **spec: Any) -> Workload:
    """A workload whose receiver is at `address`."""
    target = {"address": address, **spec.pop("target", {})}
    return Workload.from_wire(
        {
            "apiVersion": "switchyard/v1",
            "kind": "Workload",
            "metadata": {"group": GROUP, "topic": TOPIC, "cluster": "east"},
            "spec": {"target": target, **spec},
        }
    )


def start_at(offset: int, snapshot: Snapshot | None = None) -> StartPosition:
    """The start at this offset, in the first lineage of a log."""
    return StartPosition(Snapshot(offset) if snapshot is None else snapshot, 0, LogId(), known=True)


async def all_levels() -> int:
    """Makes no topic of delayed messages, and returns how many partitions it would have."""
    return len(LEVELS_MS)


class CopyRecorder:
    """Takes copies like a producer; `refuse` makes every one fail."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes | None, bytes | None, dict[str, bytes | None]]] = []
        self.partitions: list[int | None] = []  # of each of `records`
        self.refuse = False
        self.most_bytes = 1 << 30
        self.refused: list[str] = []  # topics that refused a record
        self.codecs: list[int] = []  # of each of `records`
        self.keyless: dict[str, Exception] = {}  # topic -> its error for records without a key

    async def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]],
        partition: int | None = None, codec: int = 0,
    ) -> None:  # fmt: skip
        await asyncio.sleep(0)
        if self.refuse:
            raise OSError("the cluster is away")
        if key is None and topic in self.keyless:
            self.refused.append(topic)
            raise self.keyless[topic]
        content = (key, value, *(part for header in headers for part in header))
        if sum(len(part or b"") for part in content) > self.most_bytes:
            self.refused.append(topic)
            raise RecordTooLarge(f"more than {self.most_bytes} bytes")
        self.records.append((topic, key, value, dict(headers)))
        self.partitions.append(partition)
        self.codecs.append(codec)

    def values(self, suffix: str) -> list[bytes | None]:
        """The values of the copies in the topic with this suffix."""
        return [value for topic, _, value, _ in self.records if topic.endswith(suffix)]


class DispatchRig:
    """A receiver with its `limits`, a runtime, and the pumps of some partitions."""

    def __init__(
        self, handler: Handler, budget: int = 1 << 30, copies: CopyProducer | None = None, **limits: Any
    ) -> None:
        self.seen: list[Message] = []
        self.copied = CopyRecorder()
        self._copies = copies or self.copied
        self.budget = ByteBudget(budget)
        self.lease = Lease(1e9)
        self.lease.renewed(time.monotonic())
        self.lease.saved(time.monotonic(), 1e9)
        self.receiver = Receiver()
        self.pumps: list[DispatchPump] = []
        self._others: list[Receiver] = []
        self._handler, self._limits = handler, limits
        self._parts: dict[int, PartitionFetch] = {}
        self.port = 0
        self.credentials: Credentials | None = None
        self.runtime: WorkloadRuntime

    async def start_receiver(self) -> None:
        """Starts the receiver, on its former port if it had one."""
        self.receiver = self._receiver(self.seen, self._handler, self.port)
        self.port = await self.receiver.start()

    def limit(self, name: str, value: Any) -> None:
        """Changes a limit of the receiver, from its next start on."""
        self._limits[name] = value

    async def another_receiver(self, handler: Handler, port: int = 0) -> tuple[str, list[Message], Receiver]:
        """Another receiver's address, the messages that it gets, and the receiver. It stops with the rig."""
        seen: list[Message] = []
        receiver = self._receiver(seen, handler, port)
        port = await receiver.start()
        self._others.append(receiver)
        return f"127.0.0.1:{port}", seen, receiver

    def _receiver(self, seen: list[Message], handler: Handler, port: int) -> Receiver:
        receiver = Receiver(port=port, **self._limits)

        @receiver.on(topic=TOPIC, group=GROUP)
        async def handle(message: Message) -> Any:
            seen.append(message)
            answer = handler(message)
            return await answer if asyncio.iscoroutine(answer) else answer

        return receiver

    def run(self, chain: InterceptorChain | None = None, zone: str = "", **spec: Any) -> None:
        """Makes the runtime of a worker in this zone."""
        workload = definition(f"127.0.0.1:{self.port}", **spec)
        self.runtime = WorkloadRuntime(
            workload, TargetClients("w1", zone, self.credentials), self._copies, self.lease, all_levels,
            chain,
        )  # fmt: skip

    @property
    def queues(self) -> ReceiverQueues:
        """What waits for the main receiver."""
        return self.runtime.receivers.main

    @property
    def main(self) -> ReceiverState:
        """The main receiver, as the worker sees it."""
        return self.queues.receiver

    @property
    def endpoint(self) -> Endpoint:
        """The main receiver's only endpoint."""
        (endpoint,) = self.main.endpoints
        return endpoint

    @property
    def targets(self) -> dict[str, ReceiverQueues]:
        """What waits for each receiver, by address."""
        return self.runtime.receivers.by_address

    def pump(
        self,
        partition: int = 0,
        *,
        tier: int | None = None,
        delayed: bool = False,
        capacity: int | None = None,
    ) -> DispatchPump:
        """A pump of the partition, from offset 0; of the topic of delayed messages if `delayed`.

        `capacity` is its tracker's, else the definition's.
        """
        workload = self.runtime.workload
        topic = TOPIC if tier is None else workload.retry_topics()[tier]
        if delayed:
            topic = workload.delayed_topic()
        job = JobId(Kind.DISPATCH, workload.key, topic, partition)
        pump = DispatchPump(job, 1, self.runtime, start_at(0), tier=tier, merged=delayed)
        pump.tracker.capacity = capacity or pump.tracker.capacity
        self._parts[id(pump)] = PartitionFetch(self.budget, "k", topic, partition, 0)
        self.pumps.append(pump)
        return pump

    def keeps(self, pump: DispatchPump, retention_ms: int) -> None:
        """Reports that the pump's topic has this retention."""
        self._parts[id(pump)].retention.ms = retention_ms

    def split(self, pump: DispatchPump, at: int) -> DispatchPump:
        """Splits the pump at this offset, which becomes the backlog of the returned one."""
        main = pump.split(at)
        self._parts[id(main)] = PartitionFetch(self.budget, "k", TOPIC, pump.job.partition, at)
        self.pumps.append(main)
        return main

    def feed(
        self, pump: DispatchPump, rows: Sequence[Row], *, timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (), codec: int = 0,
    ) -> None:  # fmt: skip
        """Feeds rows in batches, behind everything fed before; all have these headers."""
        part = self._parts[id(pump)]
        now_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        for at in range(0, len(rows), BATCH):
            some = rows[at : at + BATCH]
            data = make_batch(part.next_offset, some, timestamp_ms=now_ms, headers=headers, codec=codec)
            self.feed_bytes(pump, data, len(some))

    def feed_bytes(self, pump: DispatchPump, data: bytes, count: int) -> None:
        """Feeds the bytes of a batch of `count` offsets, behind everything fed before."""
        part = self._parts[id(pump)]
        end = part.next_offset + count
        fetched = FetchedBatches(part, len(data), data, end, [], end)
        part.unreleased_bytes += len(data)
        self.budget.used_bytes += len(data)
        part.next_offset = end
        pump.accept(fetched)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition is true."""
        async with asyncio.timeout(ENOUGH_S):
            while not condition():  # noqa: ASYNC110 - callbacks change it
                await asyncio.sleep(0.005)

    async def idle(self) -> None:
        """Waits until every pump has finished everything."""
        await self.until(lambda: all(pump.tracker.base == self._fed(pump) for pump in self.pumps))

    def _fed(self, pump: DispatchPump) -> int:
        return self._parts[id(pump)].next_offset

    def values(self) -> Counter[bytes | None]:
        """How often each value was delivered."""
        return Counter(message.value for message in self.seen)

    async def close(self) -> None:
        """Closes the pumps, the runtime and the receivers."""
        for pump in self.pumps:
            pump.close()
        await self.runtime.close()
        for receiver in [self.receiver, *self._others]:
            await receiver.stop(0)


@contextlib.asynccontextmanager
async def dispatch_rig(
    handler: Handler,
    chain: InterceptorChain | None = None,
    limits: Mapping[str, Any] = MappingProxyType({}),
    copies: CopyProducer | None = None,
    credentials: Credentials | None = None,
    **spec: Any,
) -> AsyncIterator[DispatchRig]:
    """A rig whose receiver runs `handler` within its `limits`, with a workload of this spec.

    `copies` go to the rig's recorder unless another producer is given; `credentials` are the worker's.
    """
    rig = DispatchRig(handler, copies=copies, **limits)
    rig.credentials = credentials
    await rig.start_receiver()
    rig.run(chain, **spec)
    try:
        yield rig
    finally:
        await rig.close()


def numbers(count: int, start: int = 0, keys: int = 0) -> list[Row]:
    """Rows whose values are numbers; with `keys`, that many keys in turn."""
    return [
        (str(number % keys).encode() if keys else None, str(number).encode())
        for number in range(start, start + count)
    ]
