"""The audit counts a route's appended copies at the destination without a fetch, with the same result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.audit.counts.handover import CountsFrom
from app.audit.pump.partition import AuditPorts, AuditPump
from app.dev.yard import Yard
from app.kafka.append import local_appends as appended_module
from app.kafka.append.local_appends import LocalAppends
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_configs import alter
from app.kafka.fetch import log_watch
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches, FetchedHeaders, LogGap
from app.kafka.fetch.service import FetchService
from app.kernel.fencing import LogId
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.replicate.pump import route_runtime as runtime_module
from app.replicate.pump.partition import ReplicaPump
from app.worker.jobs.start_position import StartPosition
from tests.audit.query.test_view import audit_plan
from tests.kafka.conftest import producing
from tests.replicate.pump.test_truncation import cut_off, until_led
from tests.replicate.rig import ReplicaRig, replica_rig
from tests.replicate.source_topics import create_on_both_sides, recreate, start_copying, write

HOME, AWAY = "east-regional", "east-aggregate"


class Counting:
    """An audit of the destination, beside the lanes to it. `reported`: the records that it counted by
    headers."""

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self.fetch = FetchService(client, self._deliver, ByteBudget(1 << 26))
        self.appended = LocalAppends(client, self.fetch.shared_reads)
        self.gaps: list[LogGap] = []
        self.reported = 0
        self.pumps: dict[Any, AuditPump] = {}

    async def begin(self, topic: str, *, follows: bool = True) -> AuditPump:
        """Counts the destination from its beginning."""
        topic_id = (await self.client.topic_ids([topic]))[topic]

        async def send(_: AuditPump) -> None:
            pass

        job = JobId.parse(f"audit:all//{self.client.name}:{topic}:0")
        start = StartPosition(Snapshot(0), 0, LogId("c", topic_id), known=False)
        from_start, ports = CountsFrom(0, None, is_cut=False), AuditPorts(lambda *_: None, send)
        pump = AuditPump(job, 1, audit_plan(), "aggregate", start, from_start, ports)
        key = len(self.pumps)
        self.pumps[key] = pump
        counts = pump.reader.countable_from_headers if follows else None
        self.fetch.add(key, topic, 0, 0, topic_id, counts=counts, heads=pump.reader.heads_of)
        return pump

    async def _deliver(self, item: Any) -> None:
        if isinstance(item, LogGap):
            self.gaps.append(item)
            return
        assert isinstance(item, FetchedBatches)
        pump = self.pumps[item.key]
        before = pump.reader.records
        is_headed = isinstance(item, FetchedHeaders)
        if self.gaps and self.gaps[-1].begun_anew:
            item.release()
            return
        pump.accept(item)
        if is_headed:
            self.reported += pump.reader.records - before


def figures(pump: AuditPump) -> list[Any]:
    """All counts except latencies."""
    return [
        (report.since, report.upto, window.start_ms, window.span, *found[:4], *found[5:7])
        for report in pump.reports(1 << 60, 0.0)
        for window in report.windows
        for totals in [window.totals]
        for found in [
            (
                totals.count, totals.nbytes, totals.first_ms, totals.last_ms, None, totals.offsets,
                totals.sourced,
            )
        ]
    ]  # fmt: skip


@asynccontextmanager
async def counting(rig: ReplicaRig) -> AsyncIterator[Counting]:
    made = Counting(rig.target)
    await made.fetch.start()
    await made.appended.start()
    try:
        yield made
    finally:
        await made.appended.stop()
        await made.fetch.stop()


@pytest.fixture
async def counts(rig: ReplicaRig) -> AsyncIterator[Counting]:
    """The audit of a destination on brokers that all tests share."""
    async with counting(rig) as made:
        yield made


async def replica(rig: ReplicaRig, counts: Counting, topic: str) -> ReplicaPump:
    """A replica whose lane reports its appends to the audit."""
    pump = await rig.start_pump(topic)
    pump.runtime.appended = counts.appended
    return pump


async def assert_counted(rig: ReplicaRig, counts: Counting, audit: AuditPump, topic: str) -> None:
    """Waits until the audit has counted everything; checks the counts against those of a fetching audit."""

    async def is_all() -> bool:
        ends = await rig.target.end_offsets([(topic, 0)])
        return audit.reader.next_offset == ends[topic, 0]

    while not await is_all():  # noqa: ASYNC110 - the broker's
        await asyncio.sleep(0.05)
    plain = await counts.begin(topic, follows=False)
    await rig.until(lambda: plain.reader.next_offset >= audit.reader.next_offset)
    assert figures(audit) == figures(plain)
    assert audit.reader.records == plain.reader.records


async def until_reported(rig: ReplicaRig, counts: Counting, topic: str, more: Callable[[int], Any]) -> None:
    """Writes until a large part is counted by headers."""
    before, number = counts.reported, 0
    while counts.reported < before + 500:
        await more(number)
        number += 1
        await asyncio.sleep(0.05)


async def test_copies_are_counted_by_their_headers_as_if_they_were_fetched(
    rig: ReplicaRig, counts: Counting, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 100)
    pump = await replica(rig, counts, topic_name)
    await rig.copied([pump])
    audit = await counts.begin(topic_name)
    await until_reported(rig, counts, topic_name, lambda _: write(rig, topic_name, 100))
    await rig.copied([pump])
    await assert_counted(rig, counts, audit, topic_name)


async def test_other_writers_to_the_copy_are_counted_too(
    rig: ReplicaRig, counts: Counting, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    pump = await replica(rig, counts, topic_name)
    audit = await counts.begin(topic_name)
    (bootstrap,) = rig.target.spec.bootstrap

    async def theirs() -> None:
        async with producing(bootstrap) as producer:
            await producer.send_and_wait(topic_name, b"theirs", partition=0, timestamp_ms=1_600_000_000_000)

    async def hidden() -> None:
        async with producing(bootstrap, transactional_id=topic_name) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic_name, b"never", partition=0)
            await write(rig, topic_name, 50)
            await producer.abort_transaction()

    for others in (theirs, hidden, theirs, hidden):
        # Without other writers, because otherwise the machine decides how many batches are consecutive.
        await until_reported(rig, counts, topic_name, lambda _: write(rig, topic_name, 100))
        for _ in range(2):
            await write(rig, topic_name, 100)
            await others()
    await rig.copied([pump])
    await assert_counted(rig, counts, audit, topic_name)


async def test_a_lane_that_is_followed_by_another_is_counted_once(
    rig: ReplicaRig, counts: Counting, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    audit = await counts.begin(topic_name)
    for _ in range(3):
        pump = await replica(rig, counts, topic_name)
        await until_reported(rig, counts, topic_name, lambda _: write(rig, topic_name, 100))
        await write(rig, topic_name, 300)
        rig.kill(pump)  # in the middle: its successor copies unsaved records again
    pump = await replica(rig, counts, topic_name)
    await rig.copied([pump])
    await assert_counted(rig, counts, audit, topic_name)


@pytest.mark.parametrize(
    "setting", [{"message.timestamp.type": "LogAppendTime"}, {"compression.type": "lz4"}]
)
async def test_a_log_that_changes_what_it_takes_is_fetched(
    rig: ReplicaRig, counts: Counting, topic_name: str, setting: dict[str, str]
) -> None:
    pump = await start_copying(rig, topic_name, 10)
    await recreate(rig.target, topic_name)
    rig.kill(pump)
    rig.saved.clear()
    assert not await alter(rig.target, {topic_name: setting})
    pump = await replica(rig, counts, topic_name)
    audit = await counts.begin(topic_name)
    appended = counts.appended
    while appended.rounds < 8:  # each with settings that are known, and something that was just written
        await write(rig, topic_name, 100)
        await rig.copied([pump])
        await asyncio.sleep(appended_module.LOCAL_APPEND_ROUND_S / 3)
    await assert_counted(rig, counts, audit, topic_name)
    assert not counts.reported


async def no_round(_: float, *, all_lanes: bool) -> None:
    """Replaces the round that asks the broker."""


@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_recreated_destination_is_reported(
    rig: ReplicaRig, counts: Counting, topic_name: str, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    await create_on_both_sides(rig, topic_name)
    pump = await replica(rig, counts, topic_name)
    audit = await counts.begin(topic_name)
    await until_reported(rig, counts, topic_name, lambda _: write(rig, topic_name, 100))
    await rig.copied([pump])
    await assert_counted(rig, counts, audit, topic_name)
    end = audit.reader.next_offset
    if not is_seen:  # at the next look the log is longer than before
        monkeypatch.setattr(counts.appended, "_round", no_round)
        for module in (runtime_module, log_watch):
            monkeypatch.setattr(module, "TOPIC_IDS_INTERVAL_S", 60.0)
    await recreate(rig.target, topic_name)
    await write(rig, topic_name, end + 500)
    if not is_seen:
        while not (await rig.target.end_offsets([(topic_name, 0)]))[topic_name, 0]:  # noqa: ASYNC110 - the lane
            await asyncio.sleep(0.01)
        async with producing(rig.target.spec.bootstrap[0]) as producer:
            sent = [await producer.send(topic_name, b"theirs", partition=0) for _ in range(end + 500)]
            await asyncio.gather(*sent)
    monkeypatch.undo()
    await rig.until(lambda: any(gap.key == 0 for gap in counts.gaps))
    gap = next(gap for gap in counts.gaps if gap.key == 0)
    assert (gap.begun_anew, gap.start, audit.reader.next_offset) == (True, end, end)


@pytest.mark.deep(minutes=0.2)
async def test_a_destination_that_lost_its_end_is_reported(killable_yard: Yard, topic_name: str) -> None:
    async with (
        replica_rig(killable_yard.bootstrap(HOME), killable_yard.bootstrap(AWAY)) as rig,
        counting(rig) as counts,
    ):
        await create_on_both_sides(rig, topic_name)
        pump = await replica(rig, counts, topic_name)
        audit = await counts.begin(topic_name)
        await until_reported(rig, counts, topic_name, lambda _: write(rig, topic_name, 100))
        await rig.copied([pump])
        await assert_counted(rig, counts, audit, topic_name)
        end = audit.reader.next_offset
        await asyncio.to_thread(killable_yard.kill, AWAY)
        diverges_at = cut_off(killable_yard, AWAY, topic_name, end - 50)
        await asyncio.to_thread(killable_yard.start, AWAY)
        await until_led(rig, topic_name)
        await write(rig, topic_name, 2_000)
        await rig.until(lambda: any(gap.key == 0 for gap in counts.gaps))
        gap = next(gap for gap in counts.gaps if gap.key == 0)
        assert (gap.is_truncation, gap.end) == (True, diverges_at)
        assert gap.start == audit.reader.next_offset, "nothing of the other log was counted"
