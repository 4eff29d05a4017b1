"""What the leader tells of lines whose job has no owner. Logs and the control log are played by hand: what
happens between two questions is the point."""

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
    """A client of a cluster, its only broker, and a log: one topic, its id, who leads it, the leader's end,
    and how much of that is not shown."""

    def __init__(self, name: str, topic: str, topic_id: str, end: int) -> None:
        self.name, self.topic, self.topic_id, self.end = name, topic, topic_id, end
        self.node: int | None = 1
        self.hidden = 0
        self.epoch = self.told_epoch = 5
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
        return self.told_epoch

    def force_metadata_update(self) -> None:
        self.told_epoch = self.epoch

    async def send(self, node: int, request: EpochEndRequest) -> Any:
        assert node == self.node
        built: Any = request.build(EpochEndRequestV3)
        return SimpleNamespace(
            topics=[(topic, [self._ends(*one) for one in partitions]) for topic, partitions in built.topics]
        )

    def _ends(self, partition: int, current: int, epoch: int) -> tuple[int, int, int, int]:
        if current != self.epoch:
            return FENCED_EPOCH, partition, NOT_KNOWN, NOT_KNOWN
        assert epoch == current, "where an older one ends says nothing of the log's end"
        return 0, partition, epoch, self.end


class Stand:
    """A leader, the control log's fold, a line in the table, and what was told."""

    def __init__(self) -> None:
        self.view, self.told = ControlState(), list[EndedItem]()
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
            self.told.append(item)
            new = at_end(self.lines[item.key], item)
            assert new is not None, "it says something new"
            self.lines[item.key] = new
        return []

    def assign(self, epoch: int, job: str = JOB) -> None:
        self.view.apply(Assignment(at_ms=0, job=job, worker="w", epoch=epoch, term=1, reason=""))

    def release(self, epoch: int, job: str = JOB) -> None:
        self.view.apply(Released(at_ms=0, job=job, worker="w", epoch=epoch, reason="the job is gone"))

    async def looked(self, now_s: float) -> list[LineEnd]:
        self.told.clear()
        assert await self.ended.publish_new(now_s) == len(self.told) or not self.leads
        return [item.ended for item in self.told]


@pytest.fixture
def stand() -> Stand:
    return Stand()


async def test_nothing_is_told_of_who_copies_nor_before_what_he_sent_has_landed(stand: Stand) -> None:
    assert await stand.looked(0) == []
    assert await stand.looked(1_000) == []
    stand.release(1)
    assert await stand.looked(2_000) == []
    assert await stand.looked(2_000 + UNOWNED_AFTER_S - 1) == []
    assert await stand.looked(2_000 + UNOWNED_AFTER_S) == [LineEnd(1, TARGET, 130, 200, 200)]


async def settled(stand: Stand) -> None:
    stand.release(1)
    await stand.looked(0)


async def test_it_is_told_again_when_the_destination_goes_on_and_the_source_is_not_asked_again(
    stand: Stand,
) -> None:
    await settled(stand)
    await stand.looked(UNOWNED_AFTER_S)
    assert await stand.looked(100) == []
    stand.west.end, stand.east.end = 260, 900
    await stand.looked(110)
    assert stand.lines[KEY].ended == LineEnd(1, TARGET, 130, 200, 260)
    stand.west.end = 300
    for look in range(POLLS_BEFORE_REREAD):
        await stand.looked(120 + look)
    assert stand.lines[KEY].ended == LineEnd(1, TARGET, 130, 200, 300)


async def test_a_source_that_is_away_or_another_one_is_not_passed_over_until_it_answers(stand: Stand) -> None:
    await settled(stand)
    stand.away = {"east"}
    assert await stand.looked(UNOWNED_AFTER_S) == [LineEnd(1, TARGET, ENDLESS, 200, 200)]
    stand.away, stand.east.topic_id = set(), "anew"
    assert await stand.looked(70) == []
    stand.east.topic_id, stand.east.end = "s", 90
    assert await stand.looked(80) == [LineEnd(1, TARGET, 100, 200, 200)], "no less than what was copied"


async def test_while_nobody_leads_or_somebody_else_since_nothing_is_told(stand: Stand) -> None:
    await settled(stand)
    stand.west.node = None
    assert await stand.looked(UNOWNED_AFTER_S) == []
    stand.west.node, stand.west.epoch = 1, 6
    assert await stand.looked(70) == [], "it was asked as the leader that it was"
    assert await stand.looked(80) == [LineEnd(1, TARGET, 130, 200, 200)]


async def test_the_end_of_who_leads_no_more_is_asked_again_of_who_does(stand: Stand) -> None:
    """Who does not know yet that another one leads may have less than was written there."""
    await settled(stand)
    stand.west.hidden = 20
    assert await stand.looked(UNOWNED_AFTER_S) == []
    stand.west.end, stand.west.hidden, stand.west.epoch, stand.west.told_epoch = 260, 30, 6, 6
    assert await stand.looked(70) == []
    stand.west.hidden = 0
    assert await stand.looked(80) == [LineEnd(1, TARGET, 130, 260, 260)]


async def test_what_is_not_shown_yet_may_be_its_own_and_may_be_lost_so_nothing_is_told_of_it(
    stand: Stand,
) -> None:
    await settled(stand)
    stand.west.hidden = 20
    assert await stand.looked(UNOWNED_AFTER_S) == []
    stand.west.end, stand.west.hidden = 230, 40
    assert await stand.looked(70) == [], "its own may lie below 200"
    stand.west.hidden = 25
    assert await stand.looked(80) == [LineEnd(1, TARGET, 130, 200, 205)], "as somebody always writes there"
    stand.west.hidden = 0
    await stand.looked(90)
    assert stand.lines[KEY].ended == LineEnd(1, TARGET, 130, 200, 230)


async def test_where_another_leader_has_less_the_next_one_copies_behind_what_is_told(stand: Stand) -> None:
    await settled(stand)
    stand.west.hidden = 20
    await stand.looked(UNOWNED_AFTER_S)
    stand.west.end, stand.west.hidden, stand.west.epoch, stand.west.told_epoch = 180, 0, 6, 6
    (told,) = await stand.looked(70)
    assert told == LineEnd(1, TARGET, 130, 180, 180), "there he would begin"


async def test_of_a_destination_that_does_not_go_on_nothing_is_written_again(stand: Stand) -> None:
    await settled(stand)
    assert await stand.looked(UNOWNED_AFTER_S) == [LineEnd(1, TARGET, 130, 200, 200)]
    stand.east.end = 900
    for look in range(2 * POLLS_BEFORE_REREAD):  # also where lines are read again
        assert await stand.looked(100 + look) == []


async def test_who_was_given_the_job_meanwhile_copies_behind_nothing_that_is_told(stand: Stand) -> None:
    await settled(stand)
    stand.meanwhile = lambda: stand.assign(2)
    await stand.ended.publish_new(UNOWNED_AFTER_S)
    assert stand.told == []
    stand.meanwhile = lambda: None
    stand.release(2)
    assert await stand.looked(UNOWNED_AFTER_S + 1) == [], "that one's copies have to land, too"
    stand.west.end = 500
    assert await stand.looked(2 * UNOWNED_AFTER_S + 1) == [LineEnd(2, TARGET, 130, 500, 500)]


async def test_who_was_deposed_meanwhile_tells_nothing(stand: Stand) -> None:
    await settled(stand)
    stand.meanwhile = lambda: setattr(stand, "leads", False)
    assert await stand.looked(UNOWNED_AFTER_S) == []


async def test_of_bookkeeping_of_what_is_gone_and_of_jobs_without_a_line_nothing_is_told(
    stand: Stand,
) -> None:
    for job in ("replicate:old:switchyard-east-control:0", "replicate:old:empty:0"):
        stand.assign(1, job)
        stand.release(1, job)
    stand.lines["old/switchyard-east-control/0"] = LINE
    await settled(stand)
    stand.west.topic = "another"
    assert await stand.looked(UNOWNED_AFTER_S) == []
    stand.west.topic = "copy"
    await stand.looked(UNOWNED_AFTER_S + 1)
    assert [item.key for item in stand.told] == [KEY]
