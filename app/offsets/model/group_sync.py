"""A group's position in another cluster, kept in step: what is committed there, and what is not.

Beside each position that is committed there stands a `SyncMark`: where the group was in the cluster that it
was mapped from. It is in the same record as the position: both are there or none, and whoever else commits
takes it away.

Rules
1. What is mapped further is committed. The log's start, where the map does not know better, only where there
   is no position yet.
2. Never backwards, but where the group itself went back in its own cluster: the position there is ours (it
   has a mark), of the same topic, and the group stands before where it stood then in one of its partitions.
3. What is as it was is not written again.

4. Nobody's position is moved under him (`ForeignCommitWatch`): who commits without being a member of the
   group is seen by nothing but his commits. A position that is not ours counts as moved by somebody alive
   until it was seen to lie still for `QUIET_GROUP_S`; Switchyard's workers commit what stands still again,
   with a new `CommitStamp`.

A position that somebody left there, and nobody moves, counts like any other: it may be passed, as the group
read further, and is never moved back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from app.offsets.model.translation import ResumePosition, TopicIdentity

MAX_MARK_BYTES = 2_000  # Kafka takes 4096 unless told otherwise
AHEAD_OF_MAP = (
    "the position here is further than what was mapped, and the group did not go back: left as it is"
)
# twice what a worker lets pass between two commits (`app.worker.runtime.progress_saver`,
# `RECOMMIT_INTERVAL_S`)
QUIET_GROUP_S = 60.0
MAX_GROUPS = 100_000
NOT_KNOWN = "left as it is: the map leads to the log's start only"

T = TypeVar("T")


class SyncMark(msgspec.Struct, frozen=True, array_like=True, tag="switchyard-offsets"):
    """Which log was read, and up to where (next offsets by partition)."""

    cluster_id: str
    topic: str
    topic_id: str
    read: dict[int, int]


class CommitStamp(msgspec.Struct, frozen=True, array_like=True, tag="switchyard-worker"):
    """Beside a position that a worker commits: no two of its commits look the same."""

    worker: str
    at_ms: int


class GroupPosition(NamedTuple):
    """What the group has committed there."""

    next_offset: int
    metadata: str


class CommitDecision(NamedTuple):
    """What is committed, with its mark; None: nothing, and `why` not, if that is worth telling."""

    next_offset: int | None
    mark: str = ""
    why: str = ""


_mark = msgspec.json.Decoder(SyncMark)
_stamp = msgspec.json.Decoder(CommitStamp)
_BARE = SyncMark("", "", "", {})  # of what is ours, where more would be too long: it tells of no way back


def stamped(worker: str, at_ms: int) -> str:
    """What a worker writes beside the positions that it commits."""
    return msgspec.json.encode(CommitStamp(worker, at_ms)).decode()


class _Seen(NamedTuple):
    """Positions of others when somebody looked last; since when none is new, and the last that was."""

    positions: frozenset[int]
    since_s: float
    who: str


class ForeignCommitWatch:
    """Who moves positions without being a member (rule 4), as seen by looking again and again.

    Remembers hashes of `MAX_GROUPS` groups' positions; of one that it forgot it knows as little as at first.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], _Seen] = OrderedDict()

    def observe(
        self, cluster: str, group: str, have: Mapping[tuple[str, int], GroupPosition], now_s: float
    ) -> str:
        """Who may be alive there, in words; "" when every position is ours, or lies still."""
        others = {hash((at, one)): at for at, one in have.items() if _decoded(_mark, one.metadata) is None}
        key = cluster, group
        before = self._seen.pop(key, None)
        new = [at for one, at in others.items() if before is None or one not in before.positions]
        if not others:
            return ""
        if before is None or new:  # at first all are
            at = min(new)
            seen = _Seen(
                frozenset(others), now_s, f"{at[0]}-{at[1]} was committed there by {_committer(have[at])}"
            )
        else:
            seen = before._replace(positions=frozenset(others))
        self._seen[key] = seen
        while len(self._seen) > MAX_GROUPS:
            self._seen.popitem(last=False)
        still_s = now_s - seen.since_s
        if still_s >= QUIET_GROUP_S:
            return ""
        return (
            f"{seen.who}; it is left alone until nobody has moved it for {QUIET_GROUP_S:.0f} s, "
            f"of which {still_s:.0f} s are over"
        )


def is_own(metadata: str) -> bool:
    """Whether Switchyard wrote the position that this stands beside: a worker, or who keeps it in step."""
    return _decoded(_mark, metadata) is not None or _decoded(_stamp, metadata) is not None


def _committer(have: GroupPosition) -> str:
    stamp = _decoded(_stamp, have.metadata)
    return "somebody who need not be a member" if stamp is None else f"Switchyard worker {stamp.worker[:100]}"


def _decoded(decoder: msgspec.json.Decoder[T], metadata: str) -> T | None:
    try:
        return decoder.decode(metadata)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def decide(
    have: GroupPosition | None, answer: ResumePosition, read: TopicIdentity, next_offsets: dict[int, int]
) -> CommitDecision:
    """What becomes of a partition; `next_offsets` are the group's in `read`."""
    mark = _marked(answer, read, next_offsets)
    if have is None:
        return CommitDecision(answer.next_offset, mark)
    if answer.next_offset == have.next_offset:
        return CommitDecision(None)
    if answer.why:
        return CommitDecision(None, why=f"{NOT_KNOWN}: {answer.why}")
    if answer.next_offset > have.next_offset or _went_back(have, read, next_offsets):
        return CommitDecision(answer.next_offset, mark)
    return CommitDecision(None, why=AHEAD_OF_MAP)


def _marked(answer: ResumePosition, read: TopicIdentity, next_offsets: dict[int, int]) -> str:
    partitions = {reading.partition for told in answer.sources for reading in told.readings}
    at = {partition: next_offsets[partition] for partition in sorted(partitions & next_offsets.keys())}
    mark = msgspec.json.encode(SyncMark(read.cluster_id, read.topic, read.topic_id, at))
    return (mark if len(mark) <= MAX_MARK_BYTES else msgspec.json.encode(_BARE)).decode()


def _went_back(have: GroupPosition, read: TopicIdentity, next_offsets: dict[int, int]) -> bool:
    mark = _decoded(_mark, have.metadata)
    if mark is None or (mark.cluster_id, mark.topic, mark.topic_id) != read:
        return False
    return any(next_offsets.get(partition, at) < at for partition, at in mark.read.items())
