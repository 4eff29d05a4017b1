"""The events of the control log: definitions, claims, assignments, releases, operators' acts, roles, alerts.

`app.controllog.state` has the rules by which they count.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from app.controllog.alert_state import AlertState, alert_key
from app.kernel.json_types import JsonObject
from app.kernel.limit_shares import LimitGrant


class ControlEvent(msgspec.Struct, frozen=True, tag_field="event", kw_only=True):
    """Base of all events of the control log. `at_ms` is for people; no rule uses it."""

    at_ms: int


class StartOffsets(msgspec.Struct, frozen=True, array_like=True):
    """Offsets to begin at, by partition, of the topic with this id ("": the broker does not give it)."""

    topic_id: str
    offsets: list[int]


class StartRecorded(ControlEvent, frozen=True, tag="begun"):
    """Where a workload begins on a log without committed offsets.

    With `start: latest` these are the ends of the topic's partitions at the deployment; after a move, the
    mapped offsets. They are recorded once, so that a takeover does not skip messages that arrived since,
    and partitions added later begin at their start. The record belongs to one `deployment` of the
    definition, wherever it is in the log. `topic_id` is the topic's. A move also sets `cluster_id` and
    `others` (retry topics).

    For a route (`key` is its name) `others` has all of its topics, divided into `parts` events; this is
    number `part`. An offset below 0 could not be read. Each attempt to record a start has another `nonce`,
    and so keys of its own: compaction does not drop an attempt in favour of a later one.
    """

    key: str
    ends: list[int]
    deployment: str = ""
    nonce: str = ""
    topic_id: str = ""
    cluster_id: str = ""
    others: dict[str, StartOffsets] = {}
    part: int = 0
    parts: int = 1

    def mapped(self, topic: str, partition: int, cluster_id: str, topic_id: str) -> int | None:
        """Where a move begins on this partition of this log; None: the move recorded no offset for it."""
        if not self.cluster_id or self.cluster_id != cluster_id:
            return None
        is_main = topic == self.key.rpartition("/")[2]
        at = StartOffsets(self.topic_id, self.ends) if is_main else self.others.get(topic)
        if at is None or at.topic_id != topic_id or partition >= len(at.offsets):
            return None
        return at.offsets[partition]


class DefinitionPut(ControlEvent, frozen=True):
    """A definition is created or changed: `definition` is the validated document (wire form).

    `expected` is the etag of the definition that it replaces, "" for none, None for any. `deployment`
    stays the same from a definition's creation to its deletion, and is never used again.
    """

    key: str
    definition: JsonObject
    etag: str
    actor: str
    expected: str | None = None
    deployment: str = ""


class DefinitionDeleted(ControlEvent, frozen=True):
    """A definition is deleted; its jobs finish the messages in flight and stop. `expected` as in
    `DefinitionPut`."""

    key: str
    actor: str
    expected: str | None = None


class WorkloadPut(DefinitionPut, frozen=True, tag="workload-put"):
    """A workload. `move` is the name of the move that this record ends.

    `begun` is where the workload begins in the cluster that it moved to; all later definitions repeat it.
    """

    move: str = ""
    begun: StartRecorded | None = None


class WorkloadDeleted(DefinitionDeleted, frozen=True, tag="workload-deleted"):
    """A workload is deleted."""


class RoutePut(DefinitionPut, frozen=True, tag="route-put"):
    """A route. Its key is its name, which has no '/', unlike a workload's key.

    `made_by` is the failover definition that the route is derived from; "" for a route of its own.
    """

    made_by: str = ""


class RouteDeleted(DefinitionDeleted, frozen=True, tag="route-deleted"):
    """A route is deleted; its copies stay."""


class FailoverPut(DefinitionPut, frozen=True, tag="failover-put"):
    """Regions that share topics. Its key begins with "failover:", as no workload's or route's does."""


class FailoverDeleted(DefinitionDeleted, frozen=True, tag="failover-deleted"):
    """A failover definition is deleted, with the routes derived from it; roles stay."""


class AuditPut(DefinitionPut, frozen=True, tag="audit-put"):
    """An audit plan. Its key begins with "audit:"."""


class AuditDeleted(DefinitionDeleted, frozen=True, tag="audit-deleted"):
    """An audit plan is deleted; its counts stay until they expire."""


class AlertPut(DefinitionPut, frozen=True, tag="alert-put"):
    """An alert definition. Its key begins with "alert:"."""


class AlertDeleted(DefinitionDeleted, frozen=True, tag="alert-deleted"):
    """An alert definition is deleted, with its alerts; no channel gets a notice of them any more."""


class Claim(ControlEvent, frozen=True, tag="claim"):
    """`worker` claims the leadership of `term`."""

    term: int
    worker: str


class Assignment(ControlEvent, frozen=True, tag="assignment"):
    """Job `job` belongs to `worker` ("": no worker) under `epoch`, by the leader of `term`.

    `release` requests that the owner finishes what is in flight and hands over; it answers `Released`.
    """

    job: str
    worker: str
    epoch: int
    term: int
    reason: str
    release: bool = False


class Released(ControlEvent, frozen=True, tag="released"):
    """The owner under `epoch` has handed over. `known_epoch` is the highest epoch that it has seen.

    A tracker table that outlived the control log has higher epochs than the log; the next assignment must
    be above them.
    """

    job: str
    worker: str
    epoch: int
    known_epoch: int = 0
    reason: str = "released"


class Paused(ControlEvent, frozen=True, tag="paused"):
    """A partition of a workload's main topic is paused or resumed; `ALL` means all, with the retry topics.

    A route (`key` is its name) has only `ALL`. Resuming all ends every pause of the workload.
    """

    key: str
    partition: int
    paused: bool
    actor: str


class Drain(ControlEvent, frozen=True, tag="drain"):
    """A worker hands over its jobs and gets no more, until a `Drain` with `draining` false."""

    worker: str
    draining: bool
    actor: str


class MoveWish(ControlEvent, frozen=True, tag="move-wish"):
    """An operator wants `job`, which has `epoch`, on `worker`. The leader moves it if that worker may have
    it.

    A wish with worker "" cancels the last one.
    """

    job: str
    worker: str
    epoch: int
    actor: str
    why: str = ""


class LimitShares(ControlEvent, frozen=True, tag="limit-shares"):
    """The leader of `term` divides the limits of a workload or route among workers
    (`app.kernel.limit_shares`).

    A worker that is not in `grants` may use nothing. `number` grows with every record of `key`. `slots` is
    the number of calls in flight divided; 0: they have no limit.
    """

    key: str
    term: int
    number: int
    slots: int
    grants: dict[str, LimitGrant]


class OperatorAct(ControlEvent, frozen=True, tag="operator-act"):
    """An operator skipped, stashed or reset `subject`; recorded here for people only."""

    subject: str
    action: str
    detail: str
    actor: str


class DestinationTopic(ControlEvent, frozen=True, tag="destination-topic"):
    """The leader created, enlarged or configured a topic that `routes` copy to; or (no `changes`) it found
    that the topic with this id has no record of others.

    `is_own`: it had no record before the first route wrote to it. `changes` are settings with their old and
    new values: no old one for a new topic, no new one for the default. "partitions" is their number.
    """

    cluster: str
    cluster_id: str
    topic: str
    topic_id: str
    routes: list[str]
    is_own: bool
    changes: list[tuple[str, str | None, str | None]] = []


class Moving(ControlEvent, frozen=True, tag="moving"):
    """A workload is moved to cluster `to`, and paused meanwhile. `move` names this attempt; "": the move
    was given up."""

    key: str
    move: str
    to: str
    actor: str


class RolePut(ControlEvent, frozen=True, tag="role-put"):
    """Under `epoch`, `region` is active for workload `key`, or becomes active (state `moving`).

    It counts by the rules of `app.controllog.roles`, and is the same in every region's log. `previous` is
    the region that was active before, `plan` the failover that changed it; "" for none.
    """

    key: str
    region: str
    epoch: int
    state: Literal["moving", "active"]
    previous: str = ""
    plan: str = ""
    actor: str = ""
    reason: str = ""


class RoleReleased(ControlEvent, frozen=True, tag="role-released"):
    """`region` has read that `epoch` belongs to another region, and has stopped the active region's work
    on workload `key`."""

    key: str
    region: str
    epoch: int


class RegionPulse(ControlEvent, frozen=True, tag="region-pulse"):
    """The leader of `region` reports that the region is alive, and what it hears from other regions.

    Names are those of `app.failover.run.presence`.

    Attributes:
        heard: When the last pulse of each other region arrived here, by the writer's clock.
        returned_ms: Since when the region is alive again after it was suspended as a whole. Others may
            have taken its roles, and it has not heard from them yet. 0: it was not suspended.
        leader: The writer's name.
        workers: The names of the region's live workers.
        answers: For each other region, the `leader` of its newest pulse that had arrived here.
    """

    region: str
    heard: dict[str, int] = {}
    returned_ms: int = 0
    leader: str = ""
    workers: list[str] = []
    answers: dict[str, str] = {}


class RunWorkload(msgspec.Struct, frozen=True, array_like=True):
    """A workload of a run: its active region and epoch when the run was planned."""

    key: str
    region: str
    epoch: int


class FailoverRun(ControlEvent, frozen=True, tag="failover-run"):
    """Workloads are to become active in region `to`, which keeps the run (`app.controllog.failover_run`).

    `actor` and `reason` belong to this state. `expires_ms` is the latest time to start the run, `began_ms`
    the time it started. `back_of` is the run whose workloads this one moves back. `result` describes the
    outcome. `plan` (in the first state only, unless it is too large) is the plan document.
    """

    id: str
    to: str
    workloads: list[RunWorkload]
    state: Literal["planned", "executing", "done", "aborted"]
    forced: bool = False
    actor: str = ""
    reason: str = ""
    made_ms: int = 0
    expires_ms: int = 0
    began_ms: int = 0
    back_of: str = ""
    result: str = ""
    plan: JsonObject | None = None


AnyPut = WorkloadPut | RoutePut | FailoverPut | AuditPut | AlertPut
AnyDeleted = WorkloadDeleted | RouteDeleted | FailoverDeleted | AuditDeleted | AlertDeleted
AnyDefinitionEvent = AnyPut | AnyDeleted
RoleEvent = RolePut | RoleReleased
AnyControlEvent = (
    WorkloadPut
    | WorkloadDeleted
    | RoutePut
    | RouteDeleted
    | FailoverPut
    | FailoverDeleted
    | AuditPut
    | AuditDeleted
    | AlertPut
    | AlertDeleted
    | AlertState
    | RolePut
    | RoleReleased
    | RegionPulse
    | FailoverRun
    | Claim
    | Assignment
    | Released
    | Paused
    | Drain
    | MoveWish
    | LimitShares
    | OperatorAct
    | DestinationTopic
    | StartRecorded
    | Moving
)
ALL = -1
SHOWN = 20  # workloads of a run that people see
SHOWN_CHARS = 16_384  # of a definition; the activity keeps thousands of events in memory


def deletion_of(event: DefinitionPut | DefinitionDeleted) -> type[AnyDeleted]:
    """The event type that deletes a definition of the event's kind."""
    match event:
        case AlertPut() | AlertDeleted():
            return AlertDeleted
        case AuditPut() | AuditDeleted():
            return AuditDeleted
        case FailoverPut() | FailoverDeleted():
            return FailoverDeleted
        case RoutePut() | RouteDeleted():
            return RouteDeleted
        case _:
            return WorkloadDeleted


def compaction_key(event: AnyControlEvent) -> str:
    """The record key, of which compaction keeps the last event only.

    Claims have a key each. Otherwise compaction could drop an accepted claim in favour of a refused one
    for the same term, and a new reader would see another leader than all others.
    """
    match event:
        case WorkloadPut() | WorkloadDeleted():
            return f"workload/{event.key}"
        case RoutePut() | RouteDeleted():
            return f"route/{event.key}"
        case FailoverPut() | FailoverDeleted():
            return f"failover/{event.key}"
        case AuditPut() | AuditDeleted():
            return f"audit/{event.key}"
        case AlertPut() | AlertDeleted():
            return f"alert/{event.key}"
        case AlertState():
            return alert_key(event.id)
        case RolePut():  # a key each, so compaction keeps the newest
            plan = f"/{event.plan}" if event.plan else ""
            return f"role/{event.key}/{event.epoch}/{event.region}/{event.state}{plan}"
        case RoleReleased():
            return f"role-released/{event.key}/{event.epoch}/{event.region}"
        case RegionPulse():
            return f"pulse/{event.region}"
        case FailoverRun():  # a key each, as for roles
            return f"failover-run/{event.id}/{event.state}{'/forced' if event.forced else ''}"
        case Claim():
            return f"claim/{event.term}/{event.worker}"
        case Assignment():
            return f"assignment/{event.job}"
        case Released():
            return f"released/{event.job}"
        case Paused():
            return f"paused/{event.key}/{event.partition}"
        case Drain():
            return f"drain/{event.worker}"
        case MoveWish():
            return f"wish/{event.job}"
        case LimitShares():
            return f"limit-shares/{event.key}"
        case OperatorAct():
            return f"act/{event.subject}"
        case DestinationTopic():
            return f"destination-topic/{event.cluster_id or event.cluster}/{event.topic}"
        case StartRecorded():
            part = f"#{event.part}" if event.part else ""  # no key has a '#'
            return f"begun/{event.key}{part}/{event.deployment}/{event.nonce}".rstrip("/")
        case Moving():
            return f"moving/{event.key}"


def is_activity(event: AnyControlEvent) -> bool:
    """Whether people see the event; others are bookkeeping: large, or frequent."""
    match event:
        case AlertState():
            return event.is_news
        case DestinationTopic():
            return bool(event.changes)
        case _:
            return not isinstance(event, StartRecorded | LimitShares | RegionPulse)


def for_people(event: AnyControlEvent) -> AnyControlEvent:
    """The event without large parts: an offset for every partition, a large `spec`, the whole of a plan."""
    if isinstance(event, FailoverRun):
        return msgspec.structs.replace(event, plan=None, workloads=event.workloads[:SHOWN])
    if isinstance(event, DefinitionPut) and len(str(event.definition)) > SHOWN_CHARS:
        head = {name: part for name, part in event.definition.items() if name != "spec"}
        event = msgspec.structs.replace(event, definition=head)
    return msgspec.structs.replace(event, begun=None) if isinstance(event, WorkloadPut) else event
