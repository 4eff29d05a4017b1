"""Progress of other regions is imported from copies alone, and missing knowledge is never concluded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.controllog import codec
from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from app.dispatch.definition import Workload
from app.kafka.records.producer_sequences import ProducerStamp
from app.kernel.fencing import LogId, TrackerRecord
from app.kernel.job import JobId, Kind
from app.kernel.ranges import Snapshot
from app.offsets.model.offset_map import Barrier, OffsetMapLine
from app.offsets.model.producer_progress import FinishedOffsets, ProducerProgress
from app.offsets.store import tables as tables_module
from app.offsets.store.records import TRACKERS
from app.offsets.store.tables import RegionAtlas
from app.offsets.sync.mapper import OffsetMapper
from app.offsets.sync.remote_progress import ImportedProgress, RemoteProgress, reader_of
from tests.offsets.clusters import COMPACTED, HERE, NOWHERE, Regions, regions

SOURCE = "s1"  # the cluster that all copies are of
LOST = LogId("lost-cluster", "lost-topic")
PID, OTHER = 7, 9  # of the lane into the lost copy, and into ours
At = tuple[int, int, int]  # source end, target end, sequence


def a_note(base: int, *finished: tuple[int, int], pid: int = PID) -> bytes:
    """The note of a reader of offsets [100, 165) from one lane, with markers at 120 to 124."""
    trail = ProducerProgress(0)
    for start, end, sequence in ((100, 120, 0), (125, 165, 20)):
        trail.seen(start, end, pid, 0, sequence, base)
    return trail.note(Snapshot(base, finished), 1_000)


def a_record(base: int, log: LogId = LOST, **of: Any) -> TrackerRecord:
    return TrackerRecord(
        epoch=3, worker="w", base=base, snapshot=Snapshot(base).to_bytes(), cluster_id=log.cluster_id,
        topic_id=log.topic_id, **of,
    )  # fmt: skip


def stamped(topic: str, log: LogId, pid: int, *barriers: At, partition: int = 0) -> bytes:
    """A line from `SOURCE`, as the table holds it."""
    return codec.encode(OffsetMapLine(
        target_topic=topic, target_partition=partition, epoch=1, lineage=0, source=LogId(SOURCE, "t"),
        target=log, barriers=[Barrier(s, t, 0, ProducerStamp(pid, 0, n)) for s, t, n in barriers],
    ))  # fmt: skip


class Carrying:
    """A region with copies of other regions' control topics; no other region answers."""

    def __init__(self, rig: Regions, topic: str) -> None:
        self.regions, self.topic = rig, topic
        self.other, self.third = rig.other, f"{rig.own}c"
        control = {rig.own: HERE, self.other: NOWHERE, self.third: NOWHERE}
        rig.tables = rig.opened(RegionAtlas(rig.own, control, {}))
        mapper = OffsetMapper(rig.tables, rig.clusters, dict, list)
        self.shared = [rig.own, self.other]
        self.carrier = RemoteProgress(rig.tables, mapper, lambda _: self.shared, lambda: True)
        self.workload = Workload.from_wire({
            "apiVersion": "switchyard/v1", "kind": "Workload",
            "metadata": {"group": "billing", "topic": topic, "cluster": HERE},
            "spec": {"target": {"address": "h:1"}, "mode": "active-passive"},
        })  # fmt: skip

    def job(self, partition: int = 0, topic: str = "") -> JobId:
        return JobId(Kind.DISPATCH, self.workload.key, topic or self.topic, partition)

    async def carried(self, partition: int = 0) -> ImportedProgress:
        return await self.carrier.imported_progress(self.job(partition), self.workload)

    async def trackers(self, region: str, *records: TrackerRecord | None) -> None:
        """Writes the copy of the region's tracker table, by partition."""
        topic = ControlTopics(region).changelog(TRACKERS, 0).name
        rows = {
            str(self.job(at)).encode(): codec.encode(record)
            for at, record in enumerate(records)
            if record is not None
        }
        await self.regions.send(HERE, topic, rows | {b"replicate:r:t:0": b"{}"})

    async def line(self, region: str, name: str, line: bytes, partition: int = 0) -> None:
        key = f"{name}/{self.topic}/{partition}".encode()
        await self.regions.send(HERE, self.regions.topic(region), {key: line})


@asynccontextmanager
async def carrying(yard: Yard, path: Path, topic: str) -> AsyncIterator[Carrying]:
    async with regions(yard, path) as rig:
        made = Carrying(rig, topic)
        for region in (made.other, made.third):
            await rig.make(HERE, rig.topic(region), **COMPACTED)
            await rig.make(HERE, ControlTopics(region).changelog(TRACKERS, 0).name, **COMPACTED)
        await rig.make(HERE, topic, 2)
        await rig.values(HERE, topic, 0, *[b"m"] * 90)
        ours = await rig.log_id(HERE, topic)
        await made.line(rig.own, "in", stamped(topic, ours, OTHER, (1_000, 20, 0), (1_040, 60, 40)))
        await made.line(made.other, "in", stamped(topic, LOST, PID, (1_000, 100, 0), (1_060, 165, 60)))
        yield made


async def test_the_copies_of_a_lost_region_say_where_to_continue_and_which_records_to_pass_over(
    yard: Yard, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "REACH_TIMEOUT_S", 1.0)
    async with carrying(yard, tmp_path, topic_name) as rig:
        unread = await rig.carried()
        assert (unread, unread.was_read) == (ImportedProgress(), False), "no other region has read it"
        await rig.trackers(rig.other, a_record(130, note=a_note(130, (150, 160))))
        assert list(await rig.carrier.positions(rig.workload, rig.other)) == []
        found = await rig.carried()
        assert (found.next_offset, found.was_read, found.why) == (20, True, "")
        assert found.log == await rig.regions.log_id(HERE, topic_name)
        assert found.over is not None
        assert found.over.ranges(20, 60, OTHER, 0, 0) == [(20, 45)]
        assert found.over.lags, "1,045 to 1,055 are finished, but have no barrier here yet"
        assert found.over.may_grow(60, 80, OTHER, 0)
        # The next look, once they have one.
        ours = await rig.regions.log_id(HERE, topic_name)
        line = stamped(topic_name, ours, OTHER, (1_000, 20, 0), (1_040, 60, 40), (1_060, 85, 60))
        await rig.line(rig.regions.own, "in", line)
        found = await rig.carried()
        assert found.over is not None
        assert not found.over.lags
        assert found.over.ranges(60, 85, OTHER, 0, 40) == []
        assert found.over.ranges(65, 85, OTHER, 0, 40) == [(70, 80)]
        # No progress is imported for retry topics, nor for a workload of one region.
        retry = rig.job(topic=rig.workload.merge_topic())
        assert await rig.carrier.imported_progress(retry, rig.workload) == ImportedProgress()
        rig.shared = [rig.regions.own]
        assert await rig.carried() == ImportedProgress()
        # Records of other kinds were not kept.
        kept = await rig.regions.tables.ask(lambda store: list(store.records(TRACKERS, rig.other)))
        assert [job for job, _ in kept] == [str(rig.job())]
        none = await rig.regions.tables.ask(lambda store: store.origin(TRACKERS, rig.regions.own))
        assert none is None, "the own region's table is not read"


async def test_the_furthest_region_counts_and_the_finished_ranges_of_each(
    yard: Yard, tmp_path: Path, topic_name: str
) -> None:
    async with carrying(yard, tmp_path, topic_name) as rig:
        rig.shared.append(rig.third)
        third = LogId("third", "t")
        await rig.line(rig.third, "in", stamped(topic_name, third, 5, (1_000, 100, 0), (1_060, 165, 60)))
        await rig.trackers(rig.other, a_record(100, note=a_note(100, (105, 110))))
        await rig.trackers(rig.third, a_record(100, third, note=a_note(100, (115, 120), pid=5)))
        found = await rig.carried()
        assert (found.next_offset, found.why) == (20, "")
        assert found.over is not None
        assert found.over.ranges(20, 60, OTHER, 0, 0) == [(25, 30), (35, 40)]
        await rig.trackers(rig.third, a_record(165, third))
        ours = await rig.regions.log_id(HERE, topic_name)
        line = stamped(topic_name, ours, OTHER, (1_000, 20, 0), (1_060, 80, 60))
        await rig.line(rig.regions.own, "in", line)
        found = await rig.carried()
        assert found.next_offset == 80
        assert found.over is not None
        assert found.over.ranges(20, 80, OTHER, 0, 0) == [(20, 80)], "the base alone counts, without a note"


async def test_missing_knowledge_is_named_and_never_counts_as_finished(
    yard: Yard, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "REACH_TIMEOUT_S", 1.0)
    async with carrying(yard, tmp_path, topic_name) as rig:
        unheard = f"{rig.regions.own}z"
        rig.shared.append(unheard)
        control = {**rig.regions.tables.atlas.control, unheard: NOWHERE}
        rig.regions.tables.atlas = RegionAtlas(rig.regions.own, control, {})
        found = await rig.carried()
        assert f"switchyard-{unheard}-trackers-changelog is copied" in found.why
        assert (found.next_offset, found.over, found.was_read) == (None, None, False)
        rig.shared.pop()
        del control[unheard]
        rig.regions.tables.regions.pop(unheard)
        # A partition without a known line, and a copy that no offset sync relates to ours.
        await rig.trackers(rig.other, a_record(130), a_record(5))
        of_one = await rig.carried(1)
        assert (of_one.next_offset, of_one.was_read) == (None, True)
        assert "position is not known here: the offset map has no line into this partition" in of_one.why
        assert (await rig.carried()).why == ""
        await rig.trackers(rig.other, a_record(130, LogId("another", "log"), at_ms=9), a_record(5))
        found = await rig.carried()
        assert (found.next_offset, found.over, found.was_read) == (None, None, True)
        assert "no offset sync relates topic" in found.why


async def test_jobs_that_begin_together_share_readings(
    yard: Yard, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(yard, tmp_path, topic_name) as rig:
        await rig.trackers(rig.other, a_record(130), a_record(5))
        tables, joined, reads, joins = rig.regions.tables, rig.carrier._mapper.join_known, 0, 0
        read = tables.read

        async def counted(*words: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*words)

        async def counted_joins(*words: Any) -> Any:
            nonlocal joins
            joins += 1
            return await joined(*words)

        monkeypatch.setattr(tables, "read", counted)
        monkeypatch.setattr(rig.carrier._mapper, "join_known", counted_joins)
        first = asyncio.create_task(rig.carried())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = await asyncio.gather(first, *(rig.carried(at % 2) for at in range(20)))
        assert {one.next_offset for one in found} == {20, None}
        assert reads == 4, "two readings of two tables: the first job's, and one for all later jobs"
        assert joins <= 2


def test_a_reader_has_the_positions_of_records_of_the_newest_log() -> None:
    jobs = [str(JobId(Kind.DISPATCH, "g/t", "t", at)) for at in range(4)]
    recreated = LogId("lost-cluster", "anew")
    records = [
        a_record(10, recreated, at_ms=5, note=FinishedOffsets(8, 8).to_bytes()),
        a_record(99, LOST, at_ms=4),
        a_record(20, LogId("lost-cluster", ""), at_ms=1, note=b"\x00 no note"),
        TrackerRecord(epoch=1, worker="w", cluster_id="lost-cluster"),
    ]
    found = reader_of(zip(jobs, records, strict=True))
    assert found is not None
    assert found.log == recreated
    assert found.next_offsets == {0: 10, 2: 20}
    assert found.progress == {0: FinishedOffsets(8, 8), 2: FinishedOffsets(20)}
    beyond = a_record(10, note=FinishedOffsets(11).to_bytes())
    assert (reader_of([(jobs[0], beyond)]) or found).progress == {0: FinishedOffsets(10)}
    assert reader_of([(jobs[3], records[3])]) is None
