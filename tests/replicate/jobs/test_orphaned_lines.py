"""The ends that the leader publishes for lines whose job has no owner. Logs and the control log are
simulated, because the cases lie between two requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from app.controllog.events import Assignment, Claim, Released
from app.controllog.state import ControlState
from app.kafka.client.cluster import LATEST, ClusterUnreachable
from app.kafka.client.commits import TopicAndPartition
from app.kafka.client.epoch_ends import FENCED_EPOCH, NOT_KNOWN, EpochEndRequest, EpochEndRequestV3
from app.kafka.records.leader_epochs import ENDLESS
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import Barrier, EndedItem, LineEnd, OffsetMapLine, at_end
from app.replicate.jobs.orphaned_lines import POLLS_BEFORE_REREAD, UNOWNED_AFTER_S, OrphanedLines

JOB, KEY = "replicate:old:orders:0", "old/orders/0"
SOURCE, TARGET = LogId("east-id", "s"), LogId("west-id", "t")
LINE = OffsetMapLine(
    target_topic="copy", target_partition=0, epoch=1, lineage=0, source=SOURCE, target=TARGET,
    barriers=[Barrier(0, 0), Barrier(100, 120)],
)  # fmt: skip


class PlayedCluster:
    """A client of a cluster with one broker and one log.

    It has a topic id, a leader, the leader's end, and a number of records above the high watermark."""

    def __init__(self, name: str, topic: str, topic_id: str, end: int) -> None:
        self.name, self.topic, self.topic_id, self.end = name, topic, topic_id, end
        self.node: int | None = 1
        self.hidden = 0
        self.epoch = self.reported_epoch = 5
        self.client = self

    async def cluster_id(self) -> str:
        return f"{self.name}-id"

    async def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {self.topic: self.topic_id} if self.topic in topics else {}

    async def leader(self, _topic: str, _partition: int) -> int | None:
        return self.node

    async def offsets(
        self, wanted: Iterable[TopicAndPartition], timestamp: int
    ) -> dict[TopicAndPartition, int]:
        assert timestamp == LATEST
        return {at: self.end - self.hidden for at in wanted if self.node is not None}

    def leader_epoch(self, _topic: str, _partition: int) -> int:
        return self.reported_epoch

    def force_metadata_update(self) -> None:
        self.reported_epoch = self.epoch

    async def send(self, node: int, request: EpochEndRequest) -> Any:
        assert node == self.node
        built: Any = request.build(EpochEndRequestV3)
        return SimpleNamespace(
            topics=[(topic, [self._ends(*one) for one in partitions]) for topic, partitions in built.topics]
        )

    def _ends(self, partition: int, current: int, epoch: int) -> tuple[int, int, int, int]:
        if current != self.epoch:
            return FENCED_EPOCH, partition, NOT_KNOWN, NOT_KNOWN
        assert epoch == current, "an older leader's end is not the log's end"
        return 0, partition, epoch, self.end


class Rig:
    """A leader, the control log's state, a line in the table, and the published ends."""

    def __init__(self) -> None:
        self.view, self.published = ControlState(), list[EndedItem]()
        self.east = PlayedCluster("east", "orders", "s", 130)
        self.west = PlayedCluster("west", "copy", "t", 200)
        self.away: set[str] = set()
        self.lines, self.leads = {KEY: LINE}, True
        self.meanwhile: Callable[[], object] = lambda: None  # while the control log is read
        sender: Any = self
        control: Any = self
        reach: Any = self._reach
        self.ended = OrphanedLines(
            control, ["east", "west"], reach, self._read, sender, self._read_control, lambda: self.leads
        )
        self.view.apply(Claim(at_ms=0, term=1, worker="w"))
        self.assign(1)

    async def _reach(self, name: str) -> PlayedCluster:
        if name in self.away:
            raise ClusterUnreachable(name)
        return {"east": self.east, "west": self.west}[name]

    async def _read(self, keys: Collection[str]) -> dict[str, OffsetMapLine]:
        return {key: line for key, line in self.lines.items() if key in keys}

    async def _read_control(self) -> None:
        self.meanwhile()

    async def end(self, items: Iterable[EndedItem]) -> list[Awaitable[Any]]:
        for item in items:
            self.published.append(item)
            new = at_end(self.lines[item.key], item)
            assert new is not None, "only new ends are published"
            self.lines[item.key] = new
        return []

    def assign(self, epoch: int, job: str = JOB) -> None:
        self.view.apply(Assignment(at_ms=0, job=job, worker="w", epoch=epoch, term=1, reason=""))

    def release(self, epoch: int, job: str = JOB) -> None:
        self.view.apply(Released(at_ms=0, job=job, worker="w", epoch=epoch, reason="the job is gone"))

    async def published_at(self, now_s: float) -> list[LineEnd]:
        self.published.clear()
        assert await self.ended.publish_new(now_s) == len(self.published) or not self.leads
        return [item.ended for item in self.published]


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_nothing_is_published_about_owned_jobs_nor_before_the_last_batches_have_arrived(
    rig: Rig,
) -> None:
    assert await rig.published_at(0) == []
    assert await rig.published_at(1_000) == []
    rig.release(1)
    assert await rig.published_at(2_000) == []
    assert await rig.published_at(2_000 + UNOWNED_AFTER_S - 1) == []
    assert await rig.published_at(2_000 + UNOWNED_AFTER_S) == [LineEnd(1, TARGET, 130, 200, 200)]


async def settled(rig: Rig) -> None:
    rig.release(1)
    await rig.published_at(0)


async def test_an_end_is_published_again_when_the_destination_grows_without_reading_the_source_again(
    rig: Rig,
) -> None:
    await settled(rig)
    await rig.published_at(UNOWNED_AFTER_S)
    assert await rig.published_at(100) == []
    rig.west.end, rig.east.end = 260, 900
    await rig.published_at(110)
    assert rig.lines[KEY].ended == LineEnd(1, TARGET, 130, 200, 260)
    rig.west.end = 300
    for look in range(POLLS_BEFORE_REREAD):
        await rig.published_at(120 + look)
    assert rig.lines[KEY].ended == LineEnd(1, TARGET, 130, 200, 300)


async def test_the_end_of_an_unreachable_or_recreated_source_is_not_published(rig: Rig) -> None:
    await settled(rig)
    rig.away = {"east"}
    assert await rig.published_at(UNOWNED_AFTER_S) == [LineEnd(1, TARGET, ENDLESS, 200, 200)]
    rig.away, rig.east.topic_id = set(), "anew"
    assert await rig.published_at(70) == []
    rig.east.topic_id, rig.east.end = "s", 90
    assert await rig.published_at(80) == [LineEnd(1, TARGET, 100, 200, 200)], "not below the copied offsets"


async def test_nothing_is_published_without_a_partition_leader_or_right_after_a_new_one(rig: Rig) -> None:
    await settled(rig)
    rig.west.node = None
    assert await rig.published_at(UNOWNED_AFTER_S) == []
    rig.west.node, rig.west.epoch = 1, 6
    assert await rig.published_at(70) == [], "the end came from the former leader"
    assert await rig.published_at(80) == [LineEnd(1, TARGET, 130, 200, 200)]


async def test_an_end_from_a_deposed_leader_is_read_again_from_the_new_one(rig: Rig) -> None:
    """A broker that does not know the new leader yet may have fewer records."""
    await settled(rig)
    rig.west.hidden = 20
    assert await rig.published_at(UNOWNED_AFTER_S) == []
    rig.west.end, rig.west.hidden, rig.west.epoch, rig.west.reported_epoch = 260, 30, 6, 6
    assert await rig.published_at(70) == []
    rig.west.hidden = 0
    assert await rig.published_at(80) == [LineEnd(1, TARGET, 130, 260, 260)]


async def test_no_end_is_published_above_the_high_watermark_because_it_may_be_lost(
    rig: Rig,
) -> None:
    await settled(rig)
    rig.west.hidden = 20
    assert await rig.published_at(UNOWNED_AFTER_S) == []
    rig.west.end, rig.west.hidden = 230, 40
    assert await rig.published_at(70) == [], "the owner's batches may lie below 200"
    rig.west.hidden = 25
    assert await rig.published_at(80) == [LineEnd(1, TARGET, 130, 200, 205)], (
        "although others always write to it"
    )
    rig.west.hidden = 0
    await rig.published_at(90)
    assert rig.lines[KEY].ended == LineEnd(1, TARGET, 130, 200, 230)


async def test_after_a_leader_with_fewer_records_the_next_owner_copies_behind_the_published_end(
    rig: Rig,
) -> None:
    await settled(rig)
    rig.west.hidden = 20
    await rig.published_at(UNOWNED_AFTER_S)
    rig.west.end, rig.west.hidden, rig.west.epoch, rig.west.reported_epoch = 180, 0, 6, 6
    (line_end,) = await rig.published_at(70)
    assert line_end == LineEnd(1, TARGET, 130, 180, 180), "the next owner would begin there"


async def test_nothing_is_written_again_about_a_destination_that_does_not_grow(rig: Rig) -> None:
    await settled(rig)
    assert await rig.published_at(UNOWNED_AFTER_S) == [LineEnd(1, TARGET, 130, 200, 200)]
    rig.east.end = 900
    for look in range(2 * POLLS_BEFORE_REREAD):  # also where lines are read again
        assert await rig.published_at(100 + look) == []


async def test_nothing_is_published_about_a_job_that_got_an_owner_meanwhile(rig: Rig) -> None:
    await settled(rig)
    rig.meanwhile = lambda: rig.assign(2)
    await rig.ended.publish_new(UNOWNED_AFTER_S)
    assert rig.published == []
    rig.meanwhile = lambda: None
    rig.release(2)
    assert await rig.published_at(UNOWNED_AFTER_S + 1) == [], "the new owner's batches have to arrive, too"
    rig.west.end = 500
    assert await rig.published_at(2 * UNOWNED_AFTER_S + 1) == [LineEnd(2, TARGET, 130, 500, 500)]


async def test_a_worker_that_was_deposed_meanwhile_publishes_nothing(rig: Rig) -> None:
    await settled(rig)
    rig.meanwhile = lambda: setattr(rig, "leads", False)
    assert await rig.published_at(UNOWNED_AFTER_S) == []


async def test_nothing_is_published_about_control_topics_deleted_topics_and_jobs_without_a_line(
    rig: Rig,
) -> None:
    for job in ("replicate:old:switchyard-east-control:0", "replicate:old:empty:0"):
        rig.assign(1, job)
        rig.release(1, job)
    rig.lines["old/switchyard-east-control/0"] = LINE
    await settled(rig)
    rig.west.topic = "another"
    assert await rig.published_at(UNOWNED_AFTER_S) == []
    rig.west.topic = "copy"
    await rig.published_at(UNOWNED_AFTER_S + 1)
    assert [item.key for item in rig.published] == [KEY]
