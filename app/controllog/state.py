"""The fold of the control log's events: the leader, all definitions, and the owner of each job.

The control log is one compacted Kafka partition, which every worker reads from its beginning. Kafka orders
it, so all workers that have read up to one offset hold the same `ControlState` without asking each other.
Positions in the log decide, never a clock.

Rules
1. A `Claim` makes its worker the leader when its term is above the current one. Of two claims for one
   term, the first in the log wins.
2. An assignment counts only when it has the current term and names a job. So a leader that was suspended
   and deposed cannot move anything, whatever it still writes.
3. A job's epoch only grows: a new owner has a higher epoch than any before it. The leader may write the
   same epoch and worker again, to request a release.
4. A `Released` counts only for the epoch that it names.
5. A refused event changes no owner and no definition, and is counted. (A refused `Released` still raises its
   job's floor.) The leader that reads one writes the valid record again, because compaction keeps the last
   record of a key. For a definition, the repair names itself as the one it replaces, or deletes what is
   deleted already. So it changes nothing, and when an operator's change came in between, the repair is
   refused and repaired in turn.
6. A definition that names the one it replaces (`expected`) counts only while that one is current. So of
   two changes made at the same moment at two workers, one is refused. The leader repairs as in 5.
7. A `MoveWish` lasts until the job gets an owner under a later epoch than the wish names, or until a wish
   without a worker cancels it. An assignment without a worker counts as an owner from the second later epoch
   on.
8. A `StartRecorded` counts for the deployment that it names, wherever compaction leaves it, even before
   that definition. The first complete set of parts counts; all have keys of their own, so none is
   compacted away. Those of ended deployments are `stale`: the leader has compaction drop them.
9. `Moving` pauses its workload until its next definition, its deletion, a `Paused` event for all of it, or a
   `Moving` without a move. A definition with a move's name counts only while that move is the current one.
   The definition with the move's name ends the pause, names the new cluster, and says where the workload
   begins there (`begun`), as all later definitions do.
10. A reader accepts the first definition that it finds for a workload in spite of 6 and 9, because compaction
    dropped the one it replaced. A deleted key is remembered until its next definition, so rules 6 and 9 hold
    for it. A reader that compaction overtakes begins again (`app.controllog.log`).
11. The rules for workloads' definitions hold for all other kinds too. Keys of two kinds are never equal.
12. Roles and failover runs count by the rules of `app.controllog.roles` and `app.controllog.failover_run`,
    which need no order. Old runs become `stale`.
13. A change keeps its definition's `deployment`, and counts only while that deployment is current.
14. A term or epoch above `app.kernel.counters.highest` is a jump that no worker makes. It is refused; a
    `Released` with such an epoch raises the job's floor to the bound. So there is always a next term and a
    next epoch.
15. `LimitShares` count with the current term and a higher number than the current record, because each is
    computed from the one before. The leader repairs as in 5.

Invariants (`tests/controllog/test_state.py`): `term` and every job's epoch never decrease; a job has at
most one owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from app.controllog.alert_state import AlertState, AlertStates
from app.controllog.events import (
    ALL,
    AlertDeleted,
    AlertPut,
    AnyControlEvent,
    AnyPut,
    Assignment,
    AuditDeleted,
    AuditPut,
    Claim,
    DefinitionDeleted,
    DefinitionPut,
    DestinationTopic,
    Drain,
    FailoverDeleted,
    FailoverPut,
    FailoverRun,
    LimitShares,
    MoveWish,
    Moving,
    OperatorAct,
    Paused,
    RegionPulse,
    Released,
    RolePut,
    RoleReleased,
    RouteDeleted,
    RoutePut,
    StartRecorded,
    WorkloadDeleted,
    WorkloadPut,
    compaction_key,
)
from app.controllog.failover_run import FailoverRunLog
from app.controllog.roles import Roles
from app.kernel.counters import highest
from app.kernel.fencing import LogId
from app.kernel.job import JobId, names_a_job

Put = TypeVar("Put", bound=AnyPut)


class ControlState:
    """The fold of the control log up to `next_offset`.

    Attributes: term: The current leader's term, 0 before the first claim. leader: The current leader's worker
    id, "" before the first claim. workloads: Key ("group/topic") -> `WorkloadPut`. routes: Name ->
    `RoutePut`. failovers: Key ("failover:name") -> `FailoverPut`. audits: Key ("audit:name") -> `AuditPut`.
    alerts: Key ("alert:name") -> `AlertPut`. alert_states: The alerts' states (`app.controllog.alert_state`).
    assignments: Job -> the valid `Assignment`; with worker "" the job has no owner. floor: Job -> the highest
    epoch ever named for it. moves: Key -> the current `Moving`. deleted: Keys whose last event was their
    deletion. paused: Key -> the paused partitions, `ALL` among them when the whole workload is paused.
    limits: Key -> the current `LimitShares`, and the next offset after it. draining: Worker -> the `Drain`
    that makes it hand over its jobs. wishes: Job -> the pending `MoveWish`. roles: The active region of each
    workload (`app.controllog.roles`); roles outlive the workload. runs: Failover runs to this region
    (`app.controllog.failover_run`). pulses: Region -> its last `RegionPulse`. Usually the region's own only.
    stale: Compaction keys that are not needed any more, in the order in which they may be dropped: starts of
    ended deployments (rule 8), pauses and limit shares of deleted definitions, alerts that are gone, old
    failover runs. own_topics: Cluster id (or name) and topic -> id of a destination topic
    without records of others (`DestinationTopic`). refused: The number of events that did not count (rule 5).
    """

    __slots__ = (
        "_first", "_tries", "alert_states", "alerts", "assignments", "audits", "deleted", "draining",
        "failovers", "floor", "leader", "limits", "moves", "next_offset", "own_topics", "paused", "pulses",
        "refused", "roles", "routes", "runs", "stale", "term", "wishes", "workloads",
    )  # fmt: skip

    def __init__(self) -> None:
        self.term = 0
        self.leader = ""
        self.workloads: dict[str, WorkloadPut] = {}
        self.routes: dict[str, RoutePut] = {}
        self.assignments: dict[str, Assignment] = {}
        self.floor: dict[str, int] = {}
        # Where deployments begin: key -> (deployment, nonce) -> parts; then the first complete set.
        self._tries: dict[str, dict[tuple[str, str], dict[int, StartRecorded]]] = {}
        self._first: dict[tuple[str, str], dict[int, StartRecorded]] = {}
        self.moves: dict[str, Moving] = {}
        self.deleted: set[str] = set()
        self.paused: dict[str, set[int]] = {}
        self.draining: dict[str, Drain] = {}
        self.wishes: dict[str, MoveWish] = {}
        self.own_topics: dict[tuple[str, str], str] = {}
        self.limits: dict[str, tuple[LimitShares, int]] = {}
        self.failovers: dict[str, FailoverPut] = {}
        self.audits: dict[str, AuditPut] = {}
        self.alerts: dict[str, AlertPut] = {}
        self.alert_states = AlertStates()
        self.roles = Roles()
        self.runs = FailoverRunLog()
        self.pulses: dict[str, RegionPulse] = {}
        self.stale: dict[str, None] = {}
        self.refused = 0
        self.next_offset = 0

    def apply(self, event: AnyControlEvent) -> bool:
        """Applies one event; returns whether it counted."""
        counted = self._apply(event)
        if not counted:
            self.refused += 1
        return counted

    def drop_soon(self, keys: Iterable[str]) -> None:
        """Marks these keys for the leader, which has compaction drop them."""
        self.stale |= dict.fromkeys(keys)

    def dropped(self, key: str) -> None:
        """Forgets the record of this key: the log has a tombstone for it."""
        self.stale.pop(key, None)
        self.runs.drop(key)
        self.alert_states.drop(key)
        self.limits.pop(key.removeprefix("limit-shares/"), None)
        paused, _, partition = key.removeprefix("paused/").rpartition("/")
        if key.startswith("paused/") and paused in self.paused:
            left = {one for one in self.paused.pop(paused) if str(one) != partition}
            self.paused |= {paused: left} if left else {}

    def _apply(self, event: AnyControlEvent) -> bool:
        match event:
            case WorkloadPut() | RoutePut() | FailoverPut() | AuditPut() | AlertPut():
                return self._put(event)
            case WorkloadDeleted() | RouteDeleted() | FailoverDeleted() | AuditDeleted() | AlertDeleted():
                return self._delete(event)
            case Claim():
                if not self.term < event.term <= highest(self.next_offset):
                    return False
                self.term, self.leader = event.term, event.worker
                return True
            case Assignment():
                return self._assign(event)
            case Released():
                if not names_a_job(event.job):
                    return False
                current = self.assignments.get(event.job)
                named = min(max(event.epoch, event.known_epoch), highest(self.next_offset))
                self.floor[event.job] = max(self.floor.get(event.job, 0), named)
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
                if not names_a_job(event.job) or self.is_jump(event):
                    return False
                if self.floor.get(event.job, 0) > event.epoch:
                    return False
                self.wishes[event.job] = event
                return True
            case LimitShares():
                return self._divide(event)
            case OperatorAct():
                return True
            case DestinationTopic():
                at = event.cluster_id or event.cluster, event.topic
                if event.is_own:
                    self.own_topics[at] = event.topic_id
                else:
                    self.own_topics.pop(at, None)
                return True
            case StartRecorded():
                return self._record_start(event)
            case Moving():
                if event.move:
                    self.moves[event.key] = event
                else:
                    self.moves.pop(event.key, None)
                return True
            case RolePut():
                return self.roles.put(event)
            case RoleReleased():
                return self.roles.release(event)
            case FailoverRun():
                counted = self.runs.put(event)
                self.drop_soon(self.runs.forget())
                return counted
            case AlertState():
                if event.state == "gone" and event.term == self.term:
                    self.drop_soon([compaction_key(event)])
                return self.alert_states.put(event, self.term)
            case RegionPulse():
                self.pulses[event.region] = event
                return True

    def _put(self, event: AnyPut) -> bool:
        defined = self._defined(event)
        if event.key in defined or event.key in self.deleted:
            stands = defined.get(event.key)
            if stands is not None and not event.deployment:  # written by hand, or by an older version
                event = msgspec.structs.replace(event, deployment=stands.deployment)
            if not self._is_expected(event) or (stands and stands.deployment != event.deployment):
                return False
            if isinstance(event, WorkloadPut) and event.move and not self._is_moving(event):
                return False
        self.moves.pop(event.key, None)
        self.deleted.discard(event.key)
        self._end_deployments(event.key, but=event.deployment)
        match event:
            case RoutePut():
                self.routes[event.key] = event
            case FailoverPut():
                self.failovers[event.key] = event
            case AuditPut():
                self.audits[event.key] = event
            case AlertPut():
                self.alerts[event.key] = event
            case WorkloadPut():  # without the move's name, so that a repair (rule 5) counts later
                self.workloads[event.key] = msgspec.structs.replace(event, move="") if event.move else event
        return True

    def _delete(self, event: DefinitionDeleted) -> bool:
        if not self._is_expected(event):
            return False
        self.deleted.add(event.key)
        if event.expected != "":  # a repair changes nothing, so a later pause stays
            self._end_deployments(event.key)
            self.moves.pop(event.key, None)
            ended = self.paused.pop(event.key, set())  # compaction may keep these longer than the deletion
            self.drop_soon(f"paused/{event.key}/{partition}" for partition in ended)
        return self._defined(event).pop(event.key, None) is not None or event.expected == ""

    def _defined(
        self, event: DefinitionPut | DefinitionDeleted
    ) -> (
        dict[str, WorkloadPut] | dict[str, RoutePut] | dict[str, FailoverPut] | dict[str, AuditPut]
        | dict[str, AlertPut]
    ):  # fmt: skip
        """The definitions of the event's kind."""
        match event:
            case AlertPut() | AlertDeleted():
                return self.alerts
            case AuditPut() | AuditDeleted():
                return self.audits
            case FailoverPut() | FailoverDeleted():
                return self.failovers
            case RoutePut() | RouteDeleted():
                return self.routes
            case _:
                return self.workloads

    def standing(self, event: DefinitionPut | DefinitionDeleted) -> AnyPut | None:
        """The current definition that `event` changes."""
        return self._defined(event).get(event.key)

    def _is_moving(self, event: WorkloadPut) -> bool:
        move = self.moves.get(event.key)
        return move is not None and move.move == event.move

    def _is_expected(self, event: DefinitionPut | DefinitionDeleted) -> bool:
        stands = self.standing(event)
        return event.expected is None or event.expected == ("" if stands is None else stands.etag)

    def replacing(self, event: Put, deployment: str) -> Put:
        """`event` as it must be written to replace the current definition, or, without one, to begin
        `deployment` (a name that was never used)."""
        stands = self.standing(event)
        if stands is None:
            return msgspec.structs.replace(event, expected="", deployment=deployment)
        event = msgspec.structs.replace(event, expected=stands.etag, deployment=stands.deployment)
        if isinstance(event, WorkloadPut) and isinstance(stands, WorkloadPut) and event.begun is None:
            return msgspec.structs.replace(event, begun=stands.begun)
        return event

    def _record_start(self, event: StartRecorded) -> bool:
        tries = self._tries.setdefault(event.key, {})
        parts = tries.setdefault((event.deployment, event.nonce), {})
        parts.setdefault(event.part, event)
        first = self._first.get((event.key, event.deployment))
        if first is None and len(parts) == event.parts:
            first = self._first[event.key, event.deployment] = parts
        return first is None or first is parts

    def _end_deployments(self, key: str, but: str | None = None) -> None:
        tries = self._tries.get(key, {})
        for name, parts in list(tries.items()):
            if name[0] != but:
                self.drop_soon(map(compaction_key, parts.values()))
                self._first.pop((key, name[0]), None)
                del tries[name]

    def start_parts_of(self, key: str) -> list[StartRecorded]:
        """All parts of where a workload or route begins; none until they are complete."""
        put = self.workloads.get(key) or self.routes.get(key)
        if put is None:
            return []
        if isinstance(put, WorkloadPut) and put.begun is not None:
            return [put.begun]
        parts = self._first.get((key, put.deployment), {})
        return [parts[part] for part in sorted(parts)]

    def start_of(self, workload: str) -> StartRecorded | None:
        """Where a workload begins, once a leader or a move has recorded it."""
        return next(iter(self.start_parts_of(workload)), None)

    def begins_at(self, route: str, topic: str, partition: int, topic_id: str) -> int | None:
        """Where a route with `start: latest` begins on a partition of this log; None: the partition was not
        recorded."""
        for begun in self.start_parts_of(route):
            at = begun.others.get(topic)
            if at is not None and not LogId(topic_id=at.topic_id).is_another(LogId(topic_id=topic_id)):
                known = partition < len(at.offsets) and at.offsets[partition] >= 0
                return at.offsets[partition] if known else None
        return None

    def _pause(self, event: Paused) -> None:
        self.stale.pop(compaction_key(event), None)
        found = self.paused.setdefault(event.key, set())
        if event.partition == ALL:  # overrides older pauses that compaction kept
            self.moves.pop(event.key, None)
            found.clear()
        if event.paused:
            found.add(event.partition)
        else:
            found.discard(event.partition)
        if not found:
            del self.paused[event.key]

    def is_paused(self, key: str, partition: int | None) -> bool:
        """Whether a partition of the main topic is paused; None: the workload's retry topics."""
        found = self.paused.get(key, ())
        return ALL in found or partition in found or key in self.moves

    def _assign(self, event: Assignment) -> bool:
        if event.term != self.term or not names_a_job(event.job) or self.is_jump(event):
            return False
        current = self.assignments.get(event.job)
        floor = self.floor.get(event.job, 0)
        if current is not None and event.epoch == current.epoch:
            # The same epoch again: the leader requests a release, or repeats itself.
            if event.worker != current.worker:
                return False
        elif event.epoch <= floor:
            return False
        self.assignments[event.job] = event
        self.floor[event.job] = max(floor, event.epoch)
        # A repair without a worker uses an epoch, too (`app.placement.repairs`), but grants no wish.
        given = event.epoch if event.worker else event.epoch - 1
        if event.job in self.wishes and self.wishes[event.job].epoch < given:
            del self.wishes[event.job]
        return True

    def is_jump(self, event: AnyControlEvent) -> bool:
        """Whether the log's last event names an impossible term or epoch (rule 14)."""
        limit = highest(self.next_offset)
        match event:
            case Claim():
                return event.term > limit
            case Assignment():
                return max(event.term, event.epoch) > limit
            case Released():
                return max(event.epoch, event.known_epoch) > limit
            case MoveWish():
                return event.epoch > limit
            case LimitShares():
                return max(event.term, event.number) > limit
            case _:
                return False

    def _divide(self, event: LimitShares) -> bool:
        stands = self.limits.get(event.key)
        is_newer = stands is None or event.number > stands[0].number
        if event.term != self.term or self.is_jump(event) or not is_newer:
            return False
        self.limits[event.key] = event, self.next_offset
        return True

    def next_epoch(self, job: str) -> int:
        """The epoch for a new owner of `job`."""
        return self.floor.get(job, 0) + 1

    def owner(self, job: JobId | str) -> Assignment | None:
        """The assignment of `job`; None: it has no owner."""
        found = self.assignments.get(str(job))
        return found if found is not None and found.worker else None

    def owned_by(self, worker: str) -> dict[str, Assignment]:
        """Every job that `worker` owns."""
        return {job: a for job, a in self.assignments.items() if a.worker == worker}
