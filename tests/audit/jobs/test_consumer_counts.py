"""The dispatch jobs that are counted, where each count begins, and plans that come, change and go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.audit.counts.handover import AuditNote
from app.audit.counts.partition_counter import PartState
from app.audit.definition import AuditPlan
from app.audit.jobs.consumer_counts import MOST_REREAD, AuditConsumers, CountsFrom
from app.dispatch.pump.partition import DispatchPump
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.offsets.model.producer_progress import with_audit
from app.payload.schema_loader import SchemaLoader
from app.worker.jobs.start_position import StartPosition
from switchyard.audit.model.reports import PART_OFFSETS
from tests.audit.query.test_view import audit_plan
from tests.dispatch.pump.rig import DispatchRig, definition, dispatch_rig, numbers

LOG = LogId("c", "t")
JOB = JobId.parse("dispatch:billing/orders:orders:0")


class Region:
    """The plan, the log's start, and the reported incidents."""

    def __init__(self, plan: AuditPlan | None = None, first: int = 0) -> None:
        self.plan, self.first = plan, first
        self.pumps: dict[str, DispatchPump] = {}
        self.incidents: list[str] = []
        catalog: Any = self
        self.fetch, self.places = self, list[str]()
        self.consumers = AuditConsumers(
            catalog, self.pumps, lambda *incident: self.incidents.append(incident[2]), SchemaLoader(Path("/"))
        )

    def plan_of(self, place: str, _: str) -> AuditPlan | None:
        self.places.append(place)
        return self.plan

    async def offsets_at(self, *_: object) -> int:
        return self.first

    async def counts_from(
        self, base: int, note: bytes, job: JobId = JOB, **changed: Any
    ) -> CountsFrom | None:
        cluster: Any = self
        fields: Mapping[str, Any] = {"lineage": 0, "log": LOG, **changed}
        answer = TakeoverAnswer(
            job=str(job), epoch=2, worker="me", nonce="", granted=True, known_epoch=2, note=note, **fields
        )
        beginning = StartPosition(Snapshot(base), 0, LOG, known=True)
        return await self.consumers.counts_from(job, definition("h:1"), cluster, answer, beginning)


def left(upto: int, since: int = 0, plan: AuditPlan | None = None, *, is_cut: bool = False) -> bytes:
    """The note of a former owner that had come to `upto`."""
    state = (PartState(since // PART_OFFSETS, since, upto, False, ()),)
    return with_audit(b"", upto, AuditNote((plan or audit_plan()).counting, is_cut, state).to_bytes())


async def test_counts_continue_where_those_of_the_former_owner_end() -> None:
    region = Region(audit_plan())
    for base in (500, 900):
        found = await region.counts_from(base, left(500))
        assert found is not None
        assert (found.next_offset, found.former is not None, found.is_cut) == (500, True, False)
    assert set(region.places) == {"east:billing"}


@pytest.mark.parametrize(
    ("base", "note", "first", "expected"),
    [
        (0, b"", 0, (0, False, False)),  # from the log's first record on
        (700, b"", 0, (700, False, True)),
        (700, b"\x00nonsense", 0, (700, False, True)),
        (700, left(500), 600, (700, True, True)),  # the messages in between have expired
        (500 + MOST_REREAD + 1, left(500), 0, (500 + MOST_REREAD + 1, True, True)),  # that is far
        (700, left(900), 0, (700, False, True)),  # the audit had begun above the base
        (700, left(500, plan=audit_plan(window="2m")), 0, (700, False, True)),
    ],
)
async def test_uncounted_messages_mark_the_counts_as_cut(
    base: int, note: bytes, first: int, expected: object
) -> None:
    found = await Region(audit_plan(), first).counts_from(base, note)
    assert found is not None
    assert (found.next_offset, found.former is not None, found.is_cut) == expected


async def test_another_log_or_lineage_ignores_the_former_counts() -> None:
    region = Region(audit_plan())
    for changed in ({"log": LogId("c", "another")}, {"lineage": 3}):
        found = await region.counts_from(700, left(500), **changed)
        assert found == CountsFrom(700, None, is_cut=True)


async def test_retry_topics_and_jobs_without_a_plan_are_not_counted() -> None:
    assert await Region().counts_from(0, b"") is None
    retry = JobId.parse("dispatch:billing/orders:orders__billing__retry_1:0")
    assert await Region(audit_plan()).counts_from(0, b"", retry) is None


def flowing(rig: DispatchRig, region: Region) -> DispatchPump:
    """A pump that has begun without a plan."""
    pump = rig.pump()
    region.pumps[str(pump.job)] = pump
    region.consumers.attach(pump, StartPosition(Snapshot(0), 0, LOG, known=True), None)
    return pump


async def test_plans_come_change_and_go_while_a_job_flows() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        region = Region()
        pump = flowing(rig, region)
        region.consumers.reconcile()
        assert pump.audit is None

        rig.feed(pump, numbers(100))
        region.plan = audit_plan()
        region.consumers.reconcile()
        first = pump.audit
        assert first is not None
        assert first.next_offset == 100, "what is fetched next"
        region.plan = audit_plan(topics=["orders", "others"])
        region.consumers.reconcile()
        assert pump.audit is first, "it counts the same"
        region.plan = audit_plan(window="2m")
        region.consumers.reconcile()
        assert pump.audit not in (None, first)
        region.plan = None
        region.consumers.reconcile()
        assert pump.audit is None
        assert region.incidents == []


async def test_a_broken_audit_begins_again_and_an_unusable_plan_is_reported_once() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        region = Region(audit_plan())
        pump = flowing(rig, region)
        region.consumers.reconcile()
        broken = pump.audit
        assert broken is not None
        rig.feed_bytes(pump, bytes(100), 5)
        region.consumers.reconcile()
        assert pump.audit not in (None, broken)
        assert len(region.incidents) == 1

        timestamp = {"source": "avro", "field": "at", "schema": "/no/such/file.avsc"}
        region.plan = audit_plan(timestamp=timestamp)
        async with asyncio.timeout(60):
            while len(region.incidents) < 2:
                region.consumers.reconcile()
                await asyncio.sleep(0.01)
        region.consumers.reconcile()
        assert len(region.incidents) == 2
        assert not region.consumers.audits()
