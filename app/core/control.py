"""The fold of the control log's events: who leads, which workloads and routes exist, who owns which job.

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
   again, so that compaction (which keeps the last record a key) cannot keep the refused one. Of a definition
   it says that it replaces itself, or that what it deletes is gone: that changes nothing, and is refused and
   repaired in turn when an operator's change came in between.
6. A definition that says which one it replaces (`expected`) counts only while that one stands: of two changes
   of the same definition, made at the same moment at two workers, one is refused. The leader repairs as in 5.
7. A `MoveWish` stands until the job is given to somebody under a later epoch than it names, whoever that is,
   or until it is taken back: by one without a worker.
8. A `Begun` counts while its workload exists, and the first one of a deployment stays: the leader writes
   it again behind every change of the definition, so that compaction never puts it before the deployment.
9. `Moving` pauses its workload until the next definition, deletion, or word on pausing all of it. A
   definition with a move's name counts only while that move is the last and under way: this one record ends
   the pause, names the new cluster and says where the workload begins there (`begun`).
10. The first definition that a reader finds of a workload counts in spite of 6 and 9: compaction dropped what
   it replaced. What was deleted is known as such until then.
11. What is said of workloads' definitions holds for routes' too. Their keys cannot be the same.

Invariants: `term` and every job's epoch never decrease; a job has at most one owner.
"""

from __future__ import annotations

import msgspec

from app.core.control_events import (
    ALL,
    AnyControlEvent,
    Assignment,
    Begun,
    Claim,
    DefinitionDeleted,
    DefinitionPut,
    Drain,
    MoveWish,
    Moving,
    OperatorAct,
    Paused,
    Released,
    RouteDeleted,
    RoutePut,
    WorkloadDeleted,
    WorkloadPut,
)
from app.core.job import JobId, names_a_job

MAX_EPOCH = 1 << 53  # what every JSON reader of the changelogs can still count exactly


class ControlState:
    """The fold of the control log up to `next_offset`.

    Attributes:
        term: the current leader's term, 0 before the first claim.
        leader: the current leader's worker id, "" before the first claim.
        workloads: key ("group/topic") -> `WorkloadPut`.
        routes: name -> `RoutePut`.
        assignments: job -> the valid `Assignment`; one whose worker is "" has no owner.
        floor: job -> the highest epoch ever named for it.
        begun: key -> its `Begun`, when its leader or a move wrote one.
        moves: key -> the `Moving` that is under way.
        deleted: keys whose last word was their deletion.
        paused: key -> the partitions that are paused, `ALL` among them when the whole workload is.
        draining: worker -> the `Drain` that asks it to give its jobs away.
        wishes: job -> the `MoveWish` that is not decided yet.
        refused: events that did not count (rule 5).
    """

    __slots__ = (
        "assignments", "begun", "deleted", "draining", "floor", "leader", "moves", "next_offset", "paused",
        "refused", "routes", "term", "wishes", "workloads",
    )  # fmt: skip

    def __init__(self) -> None:
        self.term = 0
        self.leader = ""
        self.workloads: dict[str, WorkloadPut] = {}
        self.routes: dict[str, RoutePut] = {}
        self.assignments: dict[str, Assignment] = {}
        self.floor: dict[str, int] = {}
        self.begun: dict[str, Begun] = {}
        self.moves: dict[str, Moving] = {}
        self.deleted: set[str] = set()
        self.paused: dict[str, set[int]] = {}
        self.draining: dict[str, Drain] = {}
        self.wishes: dict[str, MoveWish] = {}
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
            case WorkloadPut() | RoutePut():
                return self._put(event)
            case WorkloadDeleted() | RouteDeleted():
                if not self._is_expected(event):
                    return False
                self.deleted.add(event.key)
                if event.expected != "":  # a repair changes nothing: what was paused meanwhile stays so
                    for told in (self.paused, self.begun, self.moves):
                        told.pop(event.key, None)
                return self._defined(event).pop(event.key, None) is not None or event.expected == ""
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
            case Drain():
                if event.draining:
                    self.draining[event.worker] = event
                else:
                    self.draining.pop(event.worker, None)
                return True
            case MoveWish():
                if not event.worker:
                    return self.wishes.pop(event.job, None) is not None
                if not names_a_job(event.job) or self.floor.get(event.job, 0) > event.epoch:
                    return False
                self.wishes[event.job] = event
                return True
            case OperatorAct():
                return True
            case Begun():
                return self._begin(event)
            case Moving():
                if event.move:
                    self.moves[event.key] = event
                else:
                    self.moves.pop(event.key, None)
                return True

    def _put(self, event: WorkloadPut | RoutePut) -> bool:
        defined = self._defined(event)
        if event.key in defined or event.key in self.deleted:
            if not self._is_expected(event):
                return False
            if isinstance(event, WorkloadPut) and event.move and not self._is_moving(event):
                return False
        self.moves.pop(event.key, None)
        self.deleted.discard(event.key)
        if isinstance(event, RoutePut):
            self.routes[event.key] = event
            return True
        # Without the move's name: as a repair (rule 5) it has to count again.
        self.workloads[event.key] = msgspec.structs.replace(event, move="") if event.move else event
        begun = self.begun.get(event.key)
        if event.begun is not None:
            self.begun[event.key] = event.begun
        elif begun is not None:
            self.begun[event.key] = msgspec.structs.replace(begun, etag="")  # to be written again (rule 8)
        return True

    def _defined(
        self, event: DefinitionPut | DefinitionDeleted
    ) -> dict[str, WorkloadPut] | dict[str, RoutePut]:
        """Those of the event's kind."""
        return self.routes if isinstance(event, RoutePut | RouteDeleted) else self.workloads

    def standing(self, event: DefinitionPut | DefinitionDeleted) -> WorkloadPut | RoutePut | None:
        """The definition that stands where `event` wants to change one."""
        return self._defined(event).get(event.key)

    def _is_moving(self, event: WorkloadPut) -> bool:
        move = self.moves.get(event.key)
        return move is not None and move.move == event.move

    def _is_expected(self, event: DefinitionPut | DefinitionDeleted) -> bool:
        stands = self.standing(event)
        return event.expected is None or event.expected == ("" if stands is None else stands.etag)

    def _begin(self, event: Begun) -> bool:
        if event.key not in self.workloads:
            return False
        first = self.begun.get(event.key, event)
        self.begun[event.key] = msgspec.structs.replace(first, etag=event.etag)
        return True

    def _pause(self, event: Paused) -> None:
        found = self.paused.setdefault(event.key, set())
        if event.partition == ALL:  # the last word on all of them, whatever compaction left of those before
            self.moves.pop(event.key, None)
            found.clear()
        if event.paused:
            found.add(event.partition)
        else:
            found.discard(event.partition)
        if not found:
            del self.paused[event.key]

    def is_paused(self, key: str, partition: int | None) -> bool:
        """Whether a partition of the main topic is paused; None asks for the workload's retry topics."""
        found = self.paused.get(key, ())
        return ALL in found or partition in found or key in self.moves

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
        if event.job in self.wishes and self.wishes[event.job].epoch < event.epoch:
            del self.wishes[event.job]
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
