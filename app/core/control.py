"""The control log's events and their fold: who leads, which workloads exist, who owns which job.

The control log is one Kafka partition, read by every worker from its beginning (it is compacted).
Kafka gives it a total order, so every worker that has read up to the same offset holds the same
`ControlState`; nobody needs to ask anybody. What is decided here is decided by position in the log,
never by a clock.

Rules
1. A `Claim` makes its worker the leader when its term is above the current one; of two claims for
   one term the first in the log wins.
2. Only an assignment that carries the current term counts, and names a job: a leader that was deposed
   while it slept cannot move anything, whatever it still writes.
3. A job's epoch only grows. The new owner of a job has a higher epoch than any before it; the same
   epoch may be written again only by its leader to ask for a release.
4. A `Released` counts for the epoch it names and no other.
5. Refused events change nothing and are counted; the leader that sees one writes the valid record
   again, so that compaction (which keeps the last record a key) cannot keep the refused one.
6. A `Begun` counts while its workload exists, and the first one of a deployment stays: the leader writes
   it again behind every change of the definition, so that compaction never puts it before the deployment.

Invariants: `term` and every job's epoch never decrease; a job has at most one owner.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.core.job import JobId


class ControlEvent(msgspec.Struct, frozen=True, tag_field="event", kw_only=True):
    """Base of everything that stands in the control log. `at_ms` is for people only."""

    at_ms: int


class WorkloadPut(ControlEvent, frozen=True, tag="workload-put"):
    """A workload is defined or changed: `definition` is the validated document (wire form)."""

    key: str
    definition: dict[str, Any]
    etag: str
    actor: str


class WorkloadDeleted(ControlEvent, frozen=True, tag="workload-deleted"):
    """A workload is gone; its jobs finish what is in flight and stop."""

    key: str
    actor: str


class Claim(ControlEvent, frozen=True, tag="claim"):
    """`worker` wants to lead `term`."""

    term: int
    worker: str


class Assignment(ControlEvent, frozen=True, tag="assignment"):
    """Job `job` belongs to `worker` under `epoch` ("" = nobody), by the leader of `term`.

    `release` asks the owner to finish what is in flight and let go (it answers `Released`).
    """

    job: str
    worker: str
    epoch: int
    term: int
    reason: str
    release: bool = False


class Released(ControlEvent, frozen=True, tag="released"):
    """The owner under `epoch` has let go. `known_epoch` is the highest epoch it was told of.

    A tracker table that outlived the control log knows higher epochs than the log: the next
    assignment must be above them.
    """

    job: str
    worker: str
    epoch: int
    known_epoch: int = 0
    reason: str = "released"


class Paused(ControlEvent, frozen=True, tag="paused"):
    """A partition of a workload's main topic is paused, or resumed; `ALL` stands for all, retry topics too.

    Resuming all ends every pause of the workload.
    """

    key: str
    partition: int
    paused: bool
    actor: str


class OperatorAct(ControlEvent, frozen=True, tag="operator-act"):
    """Somebody skipped, stashed or reset what `subject` names; told here for the record, done elsewhere."""

    subject: str
    action: str
    detail: str
    actor: str


class Begun(ControlEvent, frozen=True, tag="begun"):
    """Where a workload with `start: latest` begins: the ends of its topic's partitions when it was deployed.

    Resolved once for all, so that no takeover skips what came meanwhile, and partitions that are added later
    begin at their beginning. `etag` is that of the definition it stands behind; `topic_id` the topic's.
    """

    key: str
    etag: str
    ends: list[int]
    topic_id: str = ""


AnyControlEvent = WorkloadPut | WorkloadDeleted | Claim | Assignment | Released | Paused | OperatorAct | Begun
ALL = -1


def compaction_key(event: AnyControlEvent) -> str:
    """The record key under which compaction may drop all but the last event.

    Claims have a key each: dropping an accepted claim in favour of a later, refused one of the same
    term would let a fresh reader believe in another leader than everyone else.
    """
    match event:
        case WorkloadPut() | WorkloadDeleted():
            return f"workload/{event.key}"
        case Claim():
            return f"claim/{event.term}/{event.worker}"
        case Assignment():
            return f"assignment/{event.job}"
        case Released():
            return f"released/{event.job}"
        case Paused():
            return f"paused/{event.key}/{event.partition}"
        case OperatorAct():
            return f"act/{event.subject}"
        case Begun():
            return f"begun/{event.key}"


class ControlState:
    """The fold of the control log up to `next_offset`.

    Attributes:
        term: the current leader's term, 0 before the first claim.
        leader: the current leader's worker id, "" before the first claim.
        workloads: key ("group/topic") -> `WorkloadPut`.
        assignments: job -> the valid `Assignment`; one whose worker is "" has no owner.
        floor: job -> the highest epoch ever named for it.
        begun: key -> its `Begun`, when its leader wrote one.
        paused: key -> the partitions that are paused, `ALL` among them when the whole workload is.
        refused: events that did not count (rule 5).
    """

    __slots__ = (
        "assignments", "begun", "floor", "leader", "next_offset", "paused", "refused", "term", "workloads",
    )  # fmt: skip

    def __init__(self) -> None:
        self.term = 0
        self.leader = ""
        self.workloads: dict[str, WorkloadPut] = {}
        self.assignments: dict[str, Assignment] = {}
        self.floor: dict[str, int] = {}
        self.begun: dict[str, Begun] = {}
        self.paused: dict[str, set[int]] = {}
        self.refused = 0
        self.next_offset = 0

    def apply(self, event: AnyControlEvent) -> bool:
        """Folds one event in; returns whether it counted."""
        counted = self._apply(event)
        if not counted:
            self.refused += 1
        return counted

    def _apply(self, event: AnyControlEvent) -> bool:
        match event:
            case WorkloadPut():
                self.workloads[event.key] = event
                return True
            case WorkloadDeleted():
                self.paused.pop(event.key, None)
                self.begun.pop(event.key, None)
                return self.workloads.pop(event.key, None) is not None
            case Claim():
                if event.term <= self.term:
                    return False
                self.term, self.leader = event.term, event.worker
                return True
            case Assignment():
                return self._assign(event)
            case Released():
                if not names_a_job(event.job):
                    return False
                current = self.assignments.get(event.job)
                self.floor[event.job] = max(
                    self.floor.get(event.job, 0), event.epoch, min(event.known_epoch, MAX_EPOCH)
                )
                if current is None or current.epoch != event.epoch or not current.worker:
                    return False
                self.assignments[event.job] = msgspec.structs.replace(
                    current, worker="", release=False, reason=event.reason, at_ms=event.at_ms
                )
                return True
            case Paused():
                self._pause(event)
                return True
            case OperatorAct():
                return True
            case Begun():
                return self._begin(event)

    def _begin(self, event: Begun) -> bool:
        if event.key not in self.workloads:
            return False
        first = self.begun.get(event.key, event)
        self.begun[event.key] = msgspec.structs.replace(
            event, ends=first.ends, topic_id=first.topic_id, at_ms=first.at_ms
        )
        return True

    def _pause(self, event: Paused) -> None:
        found = self.paused.setdefault(event.key, set())
        if event.paused:
            found.add(event.partition)
        elif event.partition == ALL:
            found.clear()
        else:
            found.discard(event.partition)
        if not found:
            del self.paused[event.key]

    def is_paused(self, key: str, partition: int | None) -> bool:
        """Whether a partition of the main topic is paused; None asks for the workload's retry topics."""
        found = self.paused.get(key, ())
        return ALL in found or partition in found

    def _assign(self, event: Assignment) -> bool:
        if event.term != self.term or not names_a_job(event.job):
            return False
        current = self.assignments.get(event.job)
        floor = self.floor.get(event.job, 0)
        if current is not None and event.epoch == current.epoch:
            # The same epoch again: only its own leader asking for the release, or repeating itself.
            if event.worker != current.worker:
                return False
        elif event.epoch <= floor:
            return False
        self.assignments[event.job] = event
        self.floor[event.job] = max(floor, event.epoch)
        return True

    def next_epoch(self, job: str) -> int:
        """The epoch a new owner of `job` gets."""
        return self.floor.get(job, 0) + 1

    def owner(self, job: JobId | str) -> Assignment | None:
        """The assignment of `job` when somebody owns it."""
        found = self.assignments.get(str(job))
        return found if found is not None and found.worker else None

    def owned_by(self, worker: str) -> dict[str, Assignment]:
        """Every job that belongs to `worker`."""
        return {job: a for job, a in self.assignments.items() if a.worker == worker}


def names_a_job(text: str) -> bool:
    """Whether `text` is a job's name."""
    try:
        JobId.parse(text)
    except ValueError:
        return False
    return True


MAX_EPOCH = 1 << 53  # what every JSON reader of the changelogs can still count exactly
