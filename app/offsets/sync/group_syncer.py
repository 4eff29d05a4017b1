"""Brings a group's positions in step between two clusters; again and again:
`app.offsets.sync.group_sync_schedule`.

Rules
1. A group is committed for in one request, or not at all. One that has members at the destination, that a
   workload of any region consumes there, or whose position there somebody moves
   (`app.offsets.model.group_sync`, rule 4), is left alone. Beside members that come meanwhile a broker takes
   no commit; what somebody else committed meanwhile is seen by reading once more, right before the commit. A
   role that came here meanwhile is seen right before it, too, and before each try, which ends after
   `COMMIT_TIMEOUT_S`.
2. What is committed where there is a position already: `app.offsets.model.group_sync`.
3. Asked for one topic of a group (a workload's), nothing else that the group has there counts: a group may
   have workloads that are active in different regions. Members count always.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.commits import LIVE, TopicAndPartition
from app.kernel.clock import now_ms
from app.offsets.model.group_sync import CommitDecision, ForeignCommitWatch, GroupPosition, decide, is_own
from app.offsets.model.translation import ResumePosition
from app.offsets.store.tables import ReadableCluster, ReadableClusters
from app.offsets.sync.group_owners import GroupOwners, IsActive
from app.offsets.sync.mapper import JoinedTopics, NoRoad, OffsetMapper

CACHED_LINES = 512  # of the map in memory, for the groups of a round: of a few kilobytes to 30 kB each
COMMIT_TRIES = 10
COMMIT_TIMEOUT_S = 2.0
COMMIT_RETRY_INTERVAL_S = 0.5
CHANGED_MEANWHILE = "its positions there changed while it was looked at; it is looked at again"

GroupState = Literal["synced", "unchanged", "live", "refused", "failed", "nothing"]
Busy = Callable[[str, str, str | None], str]
Wanted = Callable[[str], Collection[str] | None]


@dataclass(frozen=True, slots=True)
class PartitionSync:
    """What becomes of one partition. `have` is the group's position there; `is_foreign`: nothing of
    Switchyard committed it."""

    topic: str
    to_topic: str
    answer: ResumePosition
    have: int | None
    decision: CommitDecision
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What became of a group, or would: `state`, `why` of those that were not synced, and its partitions.

    `unmapped`: its topics that nothing joins with the destination, and why.
    """

    group: str
    state: GroupState
    at_ms: int
    why: str = ""
    rows: tuple[PartitionSync, ...] = ()
    unmapped: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.state in {"synced", "unchanged"}


class OffsetMapViews:
    """The joined topics of a round, as many as `CACHED_LINES` allows."""

    def __init__(self, mapper: OffsetMapper, source: str, target: str) -> None:
        self._mapper = mapper
        self._source = source
        self._target = target
        self._held: OrderedDict[tuple[str, str | None], list[JoinedTopics]] = OrderedDict()

    async def join(self, topic: str, to_topic: str | None) -> list[JoinedTopics]:
        """See `OffsetMapper.join`."""
        key = topic, to_topic
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        found = await self._mapper.join(self._source, topic, self._target, to_topic)
        self._held[key] = found
        while (
            len(self._held) > 1
            and sum(one.lines for many in self._held.values() for one in many) > CACHED_LINES
        ):
            self._held.popitem(last=False)
        return found


class GroupSyncer:
    """Maps and commits one group. `busy(group, cluster, topic)` says which workload of this region (that of a
    topic, or any) consumes it there, or ""; `is_active` see `GroupOwners`; `clock` has monotonic seconds."""

    def __init__(
        self,
        mapper: OffsetMapper,
        clusters: ReadableClusters,
        busy: Busy,
        is_active: IsActive = lambda *_: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mapper = mapper
        self._clusters = clusters
        self._busy = busy
        self._owners = GroupOwners(mapper.tables, is_active)
        self._clock = clock
        self._watch = ForeignCommitWatch()

    def views(self, source: str, target: str) -> OffsetMapViews:
        """For several groups; `OffsetMapper.read` before."""
        return OffsetMapViews(self.mapper, source, target)

    async def sync(
        self, group: str, source: str, target: str, views: OffsetMapViews, *, wanted: Wanted = lambda _: None,
        only: str | None = None, execute: bool = True,
    ) -> GroupOutcome:  # fmt: skip
        """Brings a group in step at `target`; without `execute` says what it would do.

        `wanted` says which topics of the destination count for a topic of the source: None all, () none.
        `only`: a topic that has one name in both; no other counts, nor who consumes another (rule 3).

        Raises:
            KeyError: no such cluster. ClusterUnreachable, KafkaError, NotRead, NoRoad.
        """
        if only is not None:
            wanted = _only(only)
        from_, to = await self._clusters.get(source), await self._clusters.get(target)
        at: dict[str, dict[int, int]] = {}
        for (topic, partition), position in (await from_.committer.positions(group)).items():
            at.setdefault(topic, {})[partition] = position.next_offset
        have = await self._there(to, group, only)
        alive = self._observe(target, group, only, have)
        rows: list[PartitionSync] = []
        unmapped: dict[str, str] = {}
        for topic, next_offsets in sorted(at.items()):
            names = wanted(topic)
            for to_topic in [None] if names is None else sorted(names):
                try:
                    joined = await views.join(topic, to_topic)
                except NoRoad as error:
                    unmapped[topic] = str(error)
                    continue
                for one in joined:
                    rows += _rows(one, next_offsets, have)
        made = await self._outcome(group, only, to, rows, unmapped, alive)
        if execute and made.state == "synced":
            made = await self._carried_out(made, to, only, have)
        return made

    async def _carried_out(
        self,
        made: GroupOutcome,
        to: ReadableCluster,
        only: str | None,
        have: Mapping[TopicAndPartition, GroupPosition],
    ) -> GroupOutcome:
        for left in reversed(range(COMMIT_TRIES)):
            if (now := await self._there(to, made.group, only)) != have:
                why = self._observe(to.name, made.group, only, now) or CHANGED_MEANWHILE
                return replace(made, state="live", why=why)
            if why := self._busy(made.group, to.name, only):
                return replace(made, state="live", why=why)  # it has become active here meanwhile
            try:
                async with asyncio.timeout(COMMIT_TIMEOUT_S):
                    return await self._commit(made, to)
            except (ClusterUnreachable, TimeoutError):
                if not left:
                    raise
            await asyncio.sleep(COMMIT_RETRY_INTERVAL_S)
        raise AssertionError("the last try returns or raises")

    async def _there(
        self, to: ReadableCluster, group: str, only: str | None
    ) -> dict[TopicAndPartition, GroupPosition]:
        found = await to.committer.positions(group)
        return {at: GroupPosition(*position) for at, position in found.items() if only in {None, at[0]}}

    def _observe(
        self, target: str, group: str, only: str | None, have: Mapping[TopicAndPartition, GroupPosition]
    ) -> str:
        return self._watch.observe(target, group if only is None else f"{group}/{only}", have, self._clock())

    async def _outcome(
        self,
        group: str,
        only: str | None,
        to: ReadableCluster,
        rows: list[PartitionSync],
        unmapped: dict[str, str],
        alive: str,
    ) -> GroupOutcome:
        state: GroupState = "nothing"
        why = "" if rows else "it has no position in a topic that is joined with one there"
        refused = next((row.decision.why for row in rows if row.decision.why), "")
        if rows:
            if any(row.decision.next_offset is not None for row in rows):
                state = "synced"
            else:
                state = "refused" if refused else "unchanged"
            why = refused
            members = await to.committer.members(group)
            live = self._busy(group, to.name, only)
            live = live or await self._owners.describe_owners(group, to.name, only)
            if live := live or (members.words and f"the group {members.words} there"):
                state, why = "live", live
            elif alive and state == "synced":
                state, why = "live", alive
        return GroupOutcome(group, state, now_ms(), why, tuple(rows), unmapped)

    async def _commit(self, made: GroupOutcome, to: ReadableCluster) -> GroupOutcome:
        offsets: dict[TopicAndPartition, int] = {}
        marks: dict[TopicAndPartition, str] = {}
        for row in made.rows:
            if row.decision.next_offset is not None:
                at = row.to_topic, row.answer.partition
                offsets[at], marks[at] = row.decision.next_offset, row.decision.mark
        refused = await to.committer.commit(made.group, offsets, marks, tries=1)
        if not refused:
            return made
        at, why = next(iter(sorted(refused.items())))
        state: GroupState = "live" if LIVE in why else "failed"
        return replace(made, state=state, why=f"{at[0]}-{at[1]}: {why}")


def _only(topic: str) -> Wanted:
    return lambda name: (topic,) if name == topic else ()


def _rows(
    one: JoinedTopics, next_offsets: dict[int, int], have: Mapping[TopicAndPartition, GroupPosition]
) -> Iterable[PartitionSync]:
    for partition, answer in one.resume(next_offsets).answers.items():
        known = have.get((one.to.topic, partition))
        decision = decide(known, answer, one.read, next_offsets)
        there = None if known is None else known.next_offset
        is_foreign = known is not None and not is_own(known.metadata)
        yield PartitionSync(one.read.topic, one.to.topic, answer, there, decision, is_foreign)


def outcome_fields(made: GroupOutcome) -> dict[str, Any]:
    """For people."""
    return {
        "group": made.group, "state": made.state, "why": made.why, "at_ms": made.at_ms,
        "partitions": [
            {
                "topic": row.topic, "to_topic": row.to_topic, "partition": row.answer.partition,
                "have": row.have, "mapped": row.answer.next_offset, "commit": row.decision.next_offset,
                "again": row.answer.reread_messages, "why": row.decision.why or row.answer.why,
            }
            for row in made.rows
        ],
        "unmapped": dict(made.unmapped),
    }  # fmt: skip
