"""The decision which positions to commit for a consumer group in another cluster. Pure.

Each synced position carries a `SyncMark`: the group's positions in the cluster that it was mapped from.
One commit writes both, and any other client's commit removes the mark.

Rules
1. A mapped position that is further than the committed one is committed. The log's start, for lack of a
   better answer, is committed only where the group has no position.
2. A position moves back only after the group itself went back in its own cluster. The position must carry
   a mark of the same topic, and in one partition the group must be behind the mark.
3. An unchanged position is not written again.
4. Positions of an active client are left alone (`ForeignCommitWatch`). A client that commits without
   joining the group shows in nothing but its commits. So a position without a mark counts as active until
   it has not changed for `QUIET_GROUP_S`. Switchyard's workers repeat unchanged commits with a new
   `CommitStamp`, and so count as active.

A position at rest counts like any other: a mapped position that is further replaces it, and it never moves
back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from app.offsets.model.translation import ResumePosition, TopicIdentity

MAX_MARK_BYTES = 2_000  # Kafka's default limit is 4096 (offset.metadata.max.bytes)
BEYOND_MAPPED = "the position here is ahead of the mapped one and the group did not go back, so it stays"
# twice the workers' interval between commits (`app.worker.runtime.progress_saver.RECOMMIT_INTERVAL_S`)
QUIET_GROUP_S = 60.0
MAX_GROUPS = 100_000
NOT_KNOWN = "the position stays, because the offset map leads only to the log's start"

T = TypeVar("T")


class SyncMark(msgspec.Struct, frozen=True, array_like=True, tag="switchyard-offsets"):
    """The log that was read, and the group's next offsets in it by partition."""

    cluster_id: str
    topic: str
    topic_id: str
    read: dict[int, int]


class CommitStamp(msgspec.Struct, frozen=True, array_like=True, tag="switchyard-worker"):
    """Metadata of a worker's commit; no two of its commits have the same."""

    worker: str
    at_ms: int


class GroupPosition(NamedTuple):
    """A committed position."""

    next_offset: int
    metadata: str


class CommitDecision(NamedTuple):
    """The position to commit, with its mark; None: nothing is committed, with a reason if people need one."""

    next_offset: int | None
    mark: str = ""
    why: str = ""


_mark = msgspec.json.Decoder(SyncMark)
_stamp = msgspec.json.Decoder(CommitStamp)
_BARE = SyncMark("", "", "", {})  # if the mark would be too long: ours, but it shows no way back


def stamped(worker: str, at_ms: int) -> str:
    """A `CommitStamp` as metadata of a worker's commit."""
    return msgspec.json.encode(CommitStamp(worker, at_ms)).decode()


class _Seen(NamedTuple):
    """Positions without a mark as last seen, since when none has changed, and who changed the last one."""

    positions: frozenset[int]
    since_s: float
    committed: str


class ForeignCommitWatch:
    """Finds clients that commit without joining the group, by comparing positions over time (rule 4). Hashes
    of the positions of `MAX_GROUPS` groups are kept; the oldest are forgotten."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], _Seen] = OrderedDict()

    def observe(
        self, cluster: str, group: str, have: Mapping[tuple[str, int], GroupPosition], now_s: float
    ) -> str:
        """Why a client may be active in the group, for people; "": it has only marks, or is at rest."""
        unmarked = {hash((at, one)): at for at, one in have.items() if _decoded(_mark, one.metadata) is None}
        key = cluster, group
        before = self._seen.pop(key, None)
        new = [at for one, at in unmarked.items() if before is None or one not in before.positions]
        if not unmarked:
            return ""
        if before is None or new:  # without a former look all are new
            at = min(new)
            committed = f"{_committer(have[at])} committed {at[0]}-{at[1]} there"
            seen = _Seen(frozenset(unmarked), now_s, committed)
        else:
            seen = before._replace(positions=frozenset(unmarked))
        self._seen[key] = seen
        while len(self._seen) > MAX_GROUPS:
            self._seen.popitem(last=False)
        still_s = now_s - seen.since_s
        if still_s >= QUIET_GROUP_S:
            return ""
        return (
            f"{seen.committed}; the group is left alone until no position has changed for "
            f"{QUIET_GROUP_S:.0f} s ({still_s:.0f} s so far)"
        )


def is_own(metadata: str) -> bool:
    """Whether Switchyard committed the position with this metadata: a worker, or offset sync."""
    return _decoded(_mark, metadata) is not None or _decoded(_stamp, metadata) is not None


def _committer(have: GroupPosition) -> str:
    stamp = _decoded(_stamp, have.metadata)
    return (
        "a client that need not be a member" if stamp is None else f"Switchyard worker {stamp.worker[:100]}"
    )


def _decoded(decoder: msgspec.json.Decoder[T], metadata: str) -> T | None:
    try:
        return decoder.decode(metadata)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def decide(
    have: GroupPosition | None, answer: ResumePosition, read: TopicIdentity, next_offsets: dict[int, int]
) -> CommitDecision:
    """The decision for one partition; `next_offsets` are the group's in `read`."""
    mark = _marked(answer, read, next_offsets)
    if have is None:
        return CommitDecision(answer.next_offset, mark)
    if answer.next_offset == have.next_offset:
        return CommitDecision(None)
    if answer.why:
        return CommitDecision(None, why=f"{NOT_KNOWN}: {answer.why}")
    if answer.next_offset > have.next_offset or _went_back(have, read, next_offsets):
        return CommitDecision(answer.next_offset, mark)
    return CommitDecision(None, why=BEYOND_MAPPED)


def _marked(answer: ResumePosition, read: TopicIdentity, next_offsets: dict[int, int]) -> str:
    partitions = {reading.partition for source in answer.sources for reading in source.readings}
    at = {partition: next_offsets[partition] for partition in sorted(partitions & next_offsets.keys())}
    mark = msgspec.json.encode(SyncMark(read.cluster_id, read.topic, read.topic_id, at))
    return (mark if len(mark) <= MAX_MARK_BYTES else msgspec.json.encode(_BARE)).decode()


def _went_back(have: GroupPosition, read: TopicIdentity, next_offsets: dict[int, int]) -> bool:
    mark = _decoded(_mark, have.metadata)
    if mark is None or (mark.cluster_id, mark.topic, mark.topic_id) != read:
        return False
    return any(next_offsets.get(partition, at) < at for partition, at in mark.read.items())
