"""Messages that a pump finishes are counted beside it: deliveries, dead letters, backlogs. The pump never
waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.audit.counts.counter import CountingSpec
from app.audit.counts.handover import AuditNote, CountsFrom
from app.audit.pump.consumer_tap import ConsumerTap
from app.dispatch.pump.partition import DispatchPump
from app.kafka.fetch.decoder import records_of
from app.kafka.fetch.deliveries import LogGap
from app.kernel.limit_shares import ALL
from app.offsets.model.producer_progress import FinishedOffsets, audit_of
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.places import place_of
from switchyard.audit.model.reports import Scope
from switchyard.receiver import Message, Stash
from tests.audit.query.test_view import audit_plan
from tests.dispatch.pump.rig import DispatchRig, dispatch_rig, numbers

WIDTH_MS = 60_000
SOURCE = FingerprintSource("c", "t", 0)
SCOPE = Scope("orders", "consumer", place_of("east", "billing"), WIDTH_MS)


def audited(pump: DispatchPump, next_offset: int = 0) -> ConsumerTap:
    """Audits the pump from this offset on."""
    audit = ConsumerTap(
        pump,
        audit_plan(),
        SCOPE,
        SOURCE,
        CountingSpec(records_of, SOURCE),
        CountsFrom(next_offset, None, is_cut=next_offset > 0),
        lineage=0,
    )
    pump.audit_by(audit)
    return audit


def reported_counts(pump: DispatchPump) -> dict[int, int]:
    """Records by window, from reports that all arrive, once the table has the pump's note."""
    assert pump.audit is not None
    for _ in range(2):
        assert pump.note, "as a snapshot has it"
        pump.snapshot_version = pump.version
    counts: dict[int, int] = {}
    if pump.audit.is_due(1e9, 0.0):
        for report in pump.audit.reports(1, 1.0):
            for window in report.windows:
                counts[window.start_ms] = window.totals.count
            pump.audit.acknowledged(report)
    return counts


@pytest.mark.parametrize("contract", ["unary", "stream"])
async def test_acknowledged_messages_and_dead_letters_count_once(contract: str) -> None:
    def handle(message: Message) -> Any:
        return Stash("no") if int(message.value) % 50 == 7 else None

    async with dispatch_rig(handle, target={"contract": contract}) as rig:
        pump = rig.pump()
        audited(pump)
        rig.feed(pump, numbers(300), timestamp_ms=1_000)
        rig.feed(pump, numbers(100, 300), timestamp_ms=WIDTH_MS)
        await rig.idle()
        assert reported_counts(pump) == {0: 300, WIDTH_MS: 100}
        assert pump.dead_lettered == 8
        note = AuditNote.from_bytes(audit_of(pump.note))
        assert note is not None
        assert (note.next_offset, FinishedOffsets.from_bytes(pump.note).base) == (400, 400)


async def test_an_unfinished_message_holds_back_only_its_chunk() -> None:
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        if int(message.value) == 150:
            await gate.wait()

    async with dispatch_rig(handle) as rig:
        pump = rig.pump()
        audited(pump)
        rig.feed(pump, numbers(400), timestamp_ms=1_000)
        await rig.until(lambda: pump.tracker.unfinished == 1)
        assert reported_counts(pump) == {0: 100}, "of chunks of 100"
        gate.set()
        await rig.idle()
        assert reported_counts(pump) == {0: 400}


async def test_backlog_and_new_messages_are_counted_in_the_order_of_the_log() -> None:
    async with dispatch_rig(lambda _: None, catchUp={"lag": 100, "rate": 1e6}) as rig:
        rig.runtime.apply_share(ALL)
        backlog = rig.pump()
        audited(backlog)
        rig.feed(backlog, numbers(300), timestamp_ms=1_000)
        main = rig.split(backlog, 600)
        rig.feed(main, numbers(200, 600), timestamp_ms=1_000)
        await rig.until(lambda: main.tracker.base == 800 and backlog.tracker.base == 300)
        assert reported_counts(main) == {0: 300}
        rig.feed(backlog, numbers(400, 300), timestamp_ms=1_000)  # beyond the split, which are the main one's
        await rig.until(lambda: main.base == 800)
        assert reported_counts(main) == {0: 800}
        version = main.version
        main.retire()
        assert main.version >= version


async def test_a_new_plan_counts_what_a_running_job_fetches_next() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(200), timestamp_ms=1_000)
        version = pump.version
        audited(pump, pump.fetched_to)
        assert pump.version > version, "the table is to know it"
        rig.feed(pump, numbers(100, 200), timestamp_ms=2_000)
        await rig.idle()
        assert reported_counts(pump) == {0: 100}
        assert pump.audit is not None
        version = pump.version
        pump.audit_by(None)
        assert (pump.version > version, pump.note) == (True, b"")


async def test_lost_offsets_are_not_counted_and_later_ones_are() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        audited(pump)
        rig.feed(pump, numbers(100), timestamp_ms=1_000)
        pump.skip(LogGap("k", "orders", 0, 100, 250, "retention"))
        _move(rig, pump, 250)
        rig.feed(pump, numbers(100, 250), timestamp_ms=1_000)
        await rig.idle()
        assert reported_counts(pump) == {0: 200}


async def test_uncountable_batches_end_the_audit_and_delivery_continues() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        audit = audited(pump)
        rig.feed_bytes(pump, bytes(100), 5)
        rig.feed(pump, numbers(100), timestamp_ms=1_000)
        await rig.idle()
        assert (len(rig.seen), pump.dead_lettered) == (100, 1)
        assert "CorruptBatch" in audit.broken
        assert (reported_counts(pump), audit_of(pump.note)) == ({}, b"")


def _move(rig: DispatchRig, pump: DispatchPump, offset: int) -> None:
    rig._parts[id(pump)].next_offset = offset
