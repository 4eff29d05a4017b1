"""Offset sync of one group: maps its positions from one cluster and commits them in another.

`app.offsets.sync.group_sync_schedule` repeats this for the groups of routes and of passive workloads.

Rules
1. All positions of a group go in one request; the broker may still refuse some. A group is left alone while
   it has members at the destination, or a workload of any region consumes it there. So is a group whose
   positions a client moves there (`app.offsets.model.group_sync`, rule 4). Brokers refuse the commit if a
   member joins in between. Right before the commit, positions are read again to see other clients' commits.
   The region's role is checked before each try; a try ends after `COMMIT_TIMEOUT_S`.
2. `app.offsets.model.group_sync` decides for each partition whether the mapped position is committed.
3. A sync of one topic (a workload's) ignores the group's other topics, because their workloads may be
   active in other regions. Members of the group always stop it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.commits import LIVE, TopicAndPartition
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonObject
from app.offsets.model.group_sync import CommitDecision, ForeignCommitWatch, GroupPosition, decide, is_own
from app.offsets.model.translation import ResumePosition
from app.offsets.store.tables import ReadableCluster, ReadableClusters
from app.offsets.sync.group_owners import IsActive, describe_owner
from app.offsets.sync.mapper import JoinedTopics, NotJoined, OffsetMapper

CACHED_LINES = 512  # of the offset map, in memory for a round; a line has up to 30 kB
COMMIT_TRIES = 10
COMMIT_TIMEOUT_S = 2.0
COMMIT_RETRY_INTERVAL_S = 0.5
CHANGED_POSITIONS = "its positions there changed during the sync, so the next round tries again"

GroupState = Literal["synced", "unchanged", "live", "refused", "failed", "nothing"]
Busy = Callable[[str, str, str | None], str]
Wanted = Callable[[str], Collection[str] | None]


@dataclass(frozen=True, slots=True)
class PartitionSync:
    """A partition's result. `have`: the committed position; `is_foreign`: Switchyard did not commit it."""

    topic: str
    to_topic: str
    answer: ResumePosition
    have: int | None
    decision: CommitDecision
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The result for a group, planned or done: its state, the reason if it was not synced, and its
    partitions. `unmapped`: by topic, why the destination has no related topic."""

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
    """The joined topics of one round, cached up to `CACHED_LINES` lines."""

    def __init__(self, mapper: OffsetMapper, source: str, target: str) -> None:
        self._mapper = mapper
        self._source = source
        self._target = target
        self._cached: OrderedDict[tuple[str, str | None], list[JoinedTopics]] = OrderedDict()

    async def join(self, topic: str, to_topic: str | None) -> list[JoinedTopics]:
        key = topic, to_topic
        if key in self._cached:
            self._cached.move_to_end(key)
            return self._cached[key]
        found = await self._mapper.join(self._source, topic, self._target, to_topic)
        self._cached[key] = found
        while (
            len(self._cached) > 1
            and sum(one.lines for many in self._cached.values() for one in many) > CACHED_LINES
        ):
            self._cached.popitem(last=False)
        return found


class GroupSyncer:
    """Maps and commits the positions of one group. `busy(group, cluster, topic)` is the workload of this
    region that consumes it there, or ""; `is_active` as in `group_owners`; `clock` returns monotonic
    seconds."""

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
        self._is_active = is_active
        self._clock = clock
        self._watch = ForeignCommitWatch()

    def views(self, source: str, target: str) -> OffsetMapViews:
        """A cache for several groups; call `OffsetMapper.read` before."""
        return OffsetMapViews(self.mapper, source, target)

    async def sync(
        self, group: str, source: str, target: str, views: OffsetMapViews, *, wanted: Wanted = lambda _: None,
        only: str | None = None, execute: bool = True,
    ) -> GroupOutcome:  # fmt: skip
        """Syncs a group to `target`; without `execute` returns the planned result.

        Args:
            wanted: For a source topic, the destination topics that count; None: all, (): none.
            only: The single topic that counts, with the same name in both clusters (rule 3).

        Raises KeyError (no such cluster), ClusterUnreachable, KafkaError, NotRead, NotJoined.
        """
        if only is not None:
            wanted = _only(only)
        from_, to = await self._clusters.get(source), await self._clusters.get(target)
        at: dict[str, dict[int, int]] = {}
        for (topic, partition), position in (await from_.committer.positions(group)).items():
            at.setdefault(topic, {})[partition] = position.next_offset
        have = await self._positions(to, group, only)
        active_client = self._observe(target, group, only, have)
        rows: list[PartitionSync] = []
        unmapped: dict[str, str] = {}
        for topic, next_offsets in sorted(at.items()):
            names = wanted(topic)
            for to_topic in [None] if names is None else sorted(names):
                try:
                    joined = await views.join(topic, to_topic)
                except NotJoined as error:
                    unmapped[topic] = str(error)
                    continue
                for one in joined:
                    rows += _rows(one, next_offsets, have)
        outcome = await self._outcome(group, only, to, rows, unmapped, active_client)
        if execute and outcome.state == "synced":
            outcome = await self._commit_if_unchanged(outcome, to, only, have)
        return outcome

    async def _commit_if_unchanged(
        self,
        outcome: GroupOutcome,
        to: ReadableCluster,
        only: str | None,
        have: Mapping[TopicAndPartition, GroupPosition],
    ) -> GroupOutcome:
        for tries_left in reversed(range(COMMIT_TRIES)):
            if (present := await self._positions(to, outcome.group, only)) != have:
                why = self._observe(to.name, outcome.group, only, present) or CHANGED_POSITIONS
                return replace(outcome, state="live", why=why)
            if why := self._busy(outcome.group, to.name, only):
                return replace(outcome, state="live", why=why)  # the workload became active here meanwhile
            try:
                async with asyncio.timeout(COMMIT_TIMEOUT_S):
                    return await self._commit(outcome, to)
            except (ClusterUnreachable, TimeoutError):
                if not tries_left:
                    raise
            await asyncio.sleep(COMMIT_RETRY_INTERVAL_S)
        raise AssertionError("the last try returns or raises")

    async def _positions(
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
        active_client: str,
    ) -> GroupOutcome:
        state: GroupState = "nothing"
        why = "" if rows else "the group has no position in a topic that is related to one there"
        refused = next((row.decision.why for row in rows if row.decision.why), "")
        if rows:
            if any(row.decision.next_offset is not None for row in rows):
                state = "synced"
            else:
                state = "refused" if refused else "unchanged"
            why = refused
            members = await to.committer.members(group)
            consumer = self._busy(group, to.name, only)
            consumer = consumer or await describe_owner(
                self.mapper.tables, self._is_active, group, to.name, only
            )
            if consumer := consumer or (members.words and f"the group {members.words} there"):
                state, why = "live", consumer
            elif active_client and state == "synced":
                state, why = "live", active_client
        return GroupOutcome(group, state, now_ms(), why, tuple(rows), unmapped)

    async def _commit(self, outcome: GroupOutcome, to: ReadableCluster) -> GroupOutcome:
        offsets: dict[TopicAndPartition, int] = {}
        marks: dict[TopicAndPartition, str] = {}
        for row in outcome.rows:
            if row.decision.next_offset is not None:
                at = row.to_topic, row.answer.partition
                offsets[at], marks[at] = row.decision.next_offset, row.decision.mark
        refused = await to.committer.commit(outcome.group, offsets, marks, tries=1)
        if not refused:
            return outcome
        at, why = next(iter(sorted(refused.items())))
        state: GroupState = "live" if LIVE in why else "failed"
        return replace(outcome, state=state, why=f"{at[0]}-{at[1]}: {why}")


def _only(topic: str) -> Wanted:
    return lambda name: (topic,) if name == topic else ()


def _rows(
    one: JoinedTopics, next_offsets: dict[int, int], have: Mapping[TopicAndPartition, GroupPosition]
) -> Iterable[PartitionSync]:
    for partition, answer in one.resume(next_offsets).answers.items():
        known = have.get((one.to.topic, partition))
        decision = decide(known, answer, one.read, next_offsets)
        committed = None if known is None else known.next_offset
        is_foreign = known is not None and not is_own(known.metadata)
        yield PartitionSync(one.read.topic, one.to.topic, answer, committed, decision, is_foreign)


def outcome_fields(outcome: GroupOutcome) -> JsonObject:
    return {
        "group": outcome.group, "state": outcome.state, "why": outcome.why, "at_ms": outcome.at_ms,
        "partitions": [
            {
                "topic": row.topic, "to_topic": row.to_topic, "partition": row.answer.partition,
                "have": row.have, "mapped": row.answer.next_offset, "commit": row.decision.next_offset,
                "again": row.answer.reread_messages, "why": row.decision.why or row.answer.why,
            }
            for row in outcome.rows
        ],
        "unmapped": dict(outcome.unmapped),
    }  # fmt: skip
