"""A group moves from one aggregate to another with differently interleaved sources. Brokers and replicas on
both sides are real, and every message is delivered once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from app.dev.yard import Yard
from app.dispatch.pump.partition import DispatchPump
from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches
from app.kafka.fetch.service import FetchService
from app.kernel.fencing import LogId
from app.kernel.job import JobId, Kind
from app.offsets.model.offset_map import BarrierItem, LineSource, OffsetMapLine, after
from app.offsets.model.producer_progress import FinishedOffsets
from app.offsets.model.source_frontier import PassOver, finished
from switchyard.receiver import Message
from tests.dispatch.pump import rig as pump_rig
from tests.kafka.append.test_appender import written
from tests.kafka.conftest import connected, create, producing
from tests.offsets.model.translation_rule import translate
from tests.replicate.rig import ReplicaRig, replica_rig

SOURCES = ("east-regional", "west-regional")
A, D = "east-aggregate", "west-aggregate"
PART = 300  # records that a source gets at once
FINISHED = 1_000  # in the first aggregate
ENOUGH_S = 150.0  # ends a test that would hang
CHECKPOINT = {"records": 150, "every": "1s"}


class Routes:
    """Replicas of both sources into both aggregates."""

    def __init__(self, topic: str, rigs: dict[tuple[str, str], ReplicaRig]) -> None:
        self.topic = topic
        self._rigs = rigs
        self._pumps: dict[tuple[str, str], Any] = {}

    async def begin(self, source: str, target: str) -> None:
        """Starts another owner of a replica, behind the former one."""
        rig = self._rigs[source, target]
        if (source, target) in self._pumps:
            rig.kill(self._pumps.pop((source, target)))
        self._pumps[source, target] = await rig.start_pump(self.topic, checkpoint=CHECKPOINT)

    async def copied(self) -> None:
        for at, pump in self._pumps.items():
            await self._rigs[at].copied([pump])

    async def settled(self, end: int) -> None:
        """Waits until each replica has emitted its idle offset sync."""
        for rig in self._rigs.values():
            await until(lambda barriers=rig.stamped: barriers[-1].source_end >= end)  # type: ignore[misc]

    async def check_stamps(self) -> None:
        """Checks each stamp against its producer's batches in the log below the offset sync."""
        for rig in self._rigs.values():
            stamps = [(barrier.target_end, barrier.stamp) for barrier in rig.stamped if barrier.stamp]
            assert stamps, "how many there are depends on how the source's batches come"
            for target_end, stamp in stamps:
                for header in (await written(rig.target, self.topic, stamp.producer_id, 0))[0]:
                    if header.producer_epoch == stamp.epoch:
                        is_below = header.base_sequence < stamp.sequence
                        assert is_below == (header.base_offset < target_end)
                        assert not is_below or header.next_offset <= target_end

    def lines(self, target: str) -> list[LineSource]:
        """The lines into an aggregate, as the table would have them."""
        found: list[LineSource] = []
        for source in SOURCES:
            line: OffsetMapLine | None = None
            for barrier in self._rigs[source, target].stamped:
                item = BarrierItem(
                    "r", self.topic, 0, 1, 0, LogId(source, "t"), LogId(target, "t"), self.topic, 0, [barrier]
                )
                line = after(line, item) or line
            assert line is not None
            found.append(LineSource(source, line))
        return found


async def until(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - callbacks change it
            await asyncio.sleep(0.01)


@asynccontextmanager
async def routes(yard: Yard, topic: str) -> AsyncIterator[Routes]:
    async with AsyncExitStack() as stack:
        rigs = {
            (source, target): await stack.enter_async_context(
                replica_rig(yard.bootstrap(source), yard.bootstrap(target))
            )
            for source in SOURCES
            for target in (A, D)
        }
        # Each cluster once.
        for client in (rigs[SOURCES[0], A].source, rigs[SOURCES[1], D].source):
            await create(client, topic, 1)
        for client in (rigs[SOURCES[0], A].target, rigs[SOURCES[1], D].target):
            await create(client, topic, 1)
        yield Routes(topic, rigs)


async def write(yard: Yard, topic: str, part: int) -> None:
    """Writes the next part of each source, in small batches."""
    for source in SOURCES:
        async with producing(yard.bootstrap(source), max_batch_size=1_000) as producer:
            numbers = range(part * PART, (part + 1) * PART)
            await asyncio.gather(
                *[await producer.send(topic, f"{source} {n}".encode(), partition=0) for n in numbers]
            )


@asynccontextmanager
async def reading(client: ClusterClient, topic: str, pump: DispatchPump) -> AsyncIterator[None]:
    """Feeds the pump the log's batches from its base on."""

    async def deliver(item: Any) -> None:
        if isinstance(item, FetchedBatches):
            pump.accept(item)

    service = FetchService(client, deliver, ByteBudget(8 << 20))
    await service.start()
    service.add("k", topic, 0, pump.base)
    try:
        yield
    finally:
        pump.close()
        await service.stop()


async def test_a_group_that_fails_over_gets_every_message_once_from_differently_interleaved_copies(
    yard2: Yard, topic_name: str
) -> None:
    answered: list[bytes] = []
    left = {f"east-regional {n}".encode() for n in (233, 410, 700)} | {b"west-regional 201"}

    async def in_a(message: Message) -> None:
        assert message.value is not None
        if message.value in left or len(answered) >= FINISHED:
            await asyncio.Event().wait()  # the region fails
        answered.append(message.value)

    async with AsyncExitStack() as stack:
        copying = await stack.enter_async_context(routes(yard2, topic_name))
        await write(yard2, topic_name, 0)
        # The first records come first in one aggregate, and last in the other.
        for source, target in ((SOURCES[0], A), (SOURCES[1], D), (SOURCES[1], A), (SOURCES[0], D)):
            await copying.begin(source, target)
            await copying.copied()
        await write(yard2, topic_name, 1)
        await copying.copied()
        await copying.begin(SOURCES[0], A)
        await copying.begin(SOURCES[1], D)
        await write(yard2, topic_name, 2)
        await copying.copied()
        await copying.settled(3 * PART)
        await copying.check_stamps()
        clients = [await stack.enter_async_context(connected(yard2.bootstrap(name))) for name in (A, D)]
        at_a = await stack.enter_async_context(
            pump_rig.dispatch_rig(in_a, target={"timeout": "10m"}, flow={"max_inflight": 500})
        )
        at_d = await stack.enter_async_context(pump_rig.dispatch_rig(lambda _: None))

        first = at_a.pump()
        first.remember(b"")
        async with reading(clients[0], topic_name, first):
            await until(lambda: len(answered) >= FINISHED and first.delivered == len(answered))
            base, note = first.base, first.note
        assert len(note) < 100
        assert first.tracker.snapshot().finished, "some is finished above the base"

        into_a, into_d = copying.lines(A), copying.lines(D)
        start = translate({0: base}, into_a, into_d, {0: 0})[0]
        workload = at_d.runtime.workload
        job = JobId(Kind.DISPATCH, workload.key, topic_name, 0)
        second = DispatchPump(job, 1, at_d.runtime, pump_rig.start_at(start), tier=None)
        second.pass_over(PassOver(finished({0: FinishedOffsets.from_bytes(note)}, into_a), into_d, 0))
        async with reading(clients[1], topic_name, second):
            end = (await clients[1].end_offsets([(topic_name, 0)]))[topic_name, 0]
            await until(lambda: second.base >= end)
        passed_over = second.status().passed_over
    delivered = Counter(answered) + at_d.values()
    everything = {f"{source} {n}".encode() for source in SOURCES for n in range(3 * PART)}
    assert delivered == dict.fromkeys(everything, 1)
    assert passed_over > PART / 2, "there was something to pass over"
