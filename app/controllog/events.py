"""What may stand in the control log: definitions, claims, assignments, releases, acts, roles, alerts.

`app.controllog.state` has the rules by which they count.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from app.controllog.alert_state import AlertState, alert_key
from app.kernel.limit_shares import LimitGrant


class ControlEvent(msgspec.Struct, frozen=True, tag_field="event", kw_only=True):
    """Base of everything that stands in the control log. `at_ms` is for people only."""

    at_ms: int


class StartOffsets(msgspec.Struct, frozen=True, array_like=True):
    """Offsets to begin at, by partition, of the topic with this id ("": the broker is too old to tell)."""

    topic_id: str
    offsets: list[int]


class StartRecorded(ControlEvent, frozen=True, tag="begun"):
    """Where a workload begins on a log of which nothing is known: with `start: latest`, at the ends that its
    topic's partitions had when it was deployed; after a move, where it was mapped to.

    Resolved once for all, so that no takeover skips what came meanwhile, and partitions that are added later
    begin at their beginning. It is of one `deployment` of the definition, whatever came before or behind it
    in the log; `topic_id` is the topic's. A move sets `cluster_id`, and `others`: the same of retry topics.

    Of a route (`key` is its name) `others` has all of its topics, in as many `parts` as fit into an event
    each, of which this is the `part`th. An offset below 0 was not to be known. Every try to record it has
    another `nonce`, and so keys of its own: none is compacted away in favour of a later one.
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
        """Where a move begins on this partition of this very log; None: it recorded nothing of it."""
        if not self.cluster_id or self.cluster_id != cluster_id:
            return None
        is_main = topic == self.key.rpartition("/")[2]
        at = StartOffsets(self.topic_id, self.ends) if is_main else self.others.get(topic)
        if at is None or at.topic_id != topic_id or partition >= len(at.offsets):
            return None
        return at.offsets[partition]


class DefinitionPut(ControlEvent, frozen=True):
    """Something is defined or changed: `definition` is the validated document (wire form).

    `expected` is the etag of the definition it replaces, "" for none, None for whatever there is.
    `deployment` is the same from a definition to its deletion, and never used again.
    """

    key: str
    definition: dict[str, Any]
    etag: str
    actor: str
    expected: str | None = None
    deployment: str = ""


class DefinitionDeleted(ControlEvent, frozen=True):
    """It is gone; its jobs finish what is in flight and stop. `expected` as in `DefinitionPut`."""

    key: str
    actor: str
    expected: str | None = None


class WorkloadPut(DefinitionPut, frozen=True, tag="workload-put"):
    """A workload. A move ends with one that has its name, and says where the workload has `begun` in its new
    cluster; all that follow say so, too.
    """

    move: str = ""
    begun: StartRecorded | None = None


class WorkloadDeleted(DefinitionDeleted, frozen=True, tag="workload-deleted"):
    """A workload is gone."""


class RoutePut(DefinitionPut, frozen=True, tag="route-put"):
    """A route; its key is its name, which has no '/' as a workload's has. `made_by` is the failover
    definition that it is derived from, "" for one that somebody defined."""

    made_by: str = ""


class RouteDeleted(DefinitionDeleted, frozen=True, tag="route-deleted"):
    """A route is gone; what it copied stays where it is."""


class FailoverPut(DefinitionPut, frozen=True, tag="failover-put"):
    """Regions that share topics; its key begins with "failover:", which no workload's nor route's does."""


class FailoverDeleted(DefinitionDeleted, frozen=True, tag="failover-deleted"):
    """A failover definition is gone, and with it the routes that are derived from it; roles stay."""


class AuditPut(DefinitionPut, frozen=True, tag="audit-put"):
    """A plan of what is audited; its key begins with "audit:", which no other definition's does."""


class AuditDeleted(DefinitionDeleted, frozen=True, tag="audit-deleted"):
    """A plan is gone; what was counted stays until it is too old."""


class AlertPut(DefinitionPut, frozen=True, tag="alert-put"):
    """What of the audit is told to whom; its key begins with "alert:"."""


class AlertDeleted(DefinitionDeleted, frozen=True, tag="alert-deleted"):
    """It is gone, and so are its alerts: nobody is told of them any more."""


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
    Of a route (`key` is its name) there is but `ALL`.

    Resuming all ends every pause of the workload.
    """

    key: str
    partition: int
    paused: bool
    actor: str


class Drain(ControlEvent, frozen=True, tag="drain"):
    """A worker is to give its jobs away and to get no more, or may have some again."""

    worker: str
    draining: bool
    actor: str


class MoveWish(ControlEvent, frozen=True, tag="move-wish"):
    """Somebody wants `job`, which has `epoch`, on `worker`; it is moved there if that one may have it. With
    "" as worker the wish is taken back."""

    job: str
    worker: str
    epoch: int
    actor: str
    why: str = ""


class LimitShares(ControlEvent, frozen=True, tag="limit-shares"):
    """How the limits of a workload or route are divided among workers from here on, by the leader of `term`
    (`app.kernel.limit_shares`). A worker that is not among `grants` may use nothing of them.

    `number` grows with every record of `key`. `slots` calls in flight are divided, 0: they have no limit.
    """

    key: str
    term: int
    number: int
    slots: int
    grants: dict[str, LimitGrant]


class OperatorAct(ControlEvent, frozen=True, tag="operator-act"):
    """Somebody skipped, stashed or reset what `subject` names; told here for the record, done elsewhere."""

    subject: str
    action: str
    detail: str
    actor: str


class Moving(ControlEvent, frozen=True, tag="moving"):
    """A workload is being moved to cluster `to`, and paused for it; `move` is this try's own name, "" when it
    was given up."""

    key: str
    move: str
    to: str
    actor: str


class RolePut(ControlEvent, frozen=True, tag="role-put"):
    """Under `epoch` region `region` is active for workload `key`, or (state `moving`) is to be. See
    `app.controllog.roles`, by whose rules it counts; it is the same in every region's log.

    `previous` is the region that was active before, `plan` the failover that did it, "" for none.
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
    """Region `region` has heard that `epoch` is another region's, and does nothing any more for workload
    `key` that only the active one may do."""

    key: str
    region: str
    epoch: int


class RegionPulse(ControlEvent, frozen=True, tag="region-pulse"):
    """Region `region` lives, says its leader, and what it hears. Names are those of
    `app.failover.run.presence`.

    Attributes:
        heard: when a pulse of each other region came here last, by the clock of who wrote this.
        returned_ms: since then the region lives again, after it lay still as a whole, and others may have
            taken its roles: it has not heard from them yet. 0: it goes on.
        leader: the name of who wrote this.
        workers: the names of those that live here.
        answers: of each other region the `leader` of its newest pulse that had come here by then.
    """

    region: str
    heard: dict[str, int] = {}
    returned_ms: int = 0
    leader: str = ""
    workers: list[str] = []
    answers: dict[str, str] = {}


class RunWorkload(msgspec.Struct, frozen=True, array_like=True):
    """A workload of a run: where it was active, and under which epoch, when planned."""

    key: str
    region: str
    epoch: int


class FailoverRun(ControlEvent, frozen=True, tag="failover-run"):
    """Workloads are to become active in region `to`, which keeps the run. See `app.controllog.failover_run`,
    by whose rules it counts.

    `actor` and `reason` are of this state; `expires_ms` is how long it may be begun, `began_ms` when it was.
    `back_of` is the run whose workloads go back by it. `result` says what became of it, `plan` (of the first
    state only, and if it is not too large) what was read before.
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
    plan: dict[str, Any] | None = None


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
    | StartRecorded
    | Moving
)
ALL = -1
SHOWN = 20  # workloads of a run, for people


def deletion_of(event: DefinitionPut | DefinitionDeleted) -> type[AnyDeleted]:
    """What deletes a definition of the event's kind."""
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
    """The record key under which compaction may drop all but the last event.

    Claims have a key each: dropping an accepted claim in favour of a later, refused one of the same
    term would let a fresh reader believe in another leader than everyone else.
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
        case RolePut():  # one each: whatever compaction leaves, the newest is among it
            plan = f"/{event.plan}" if event.plan else ""
            return f"role/{event.key}/{event.epoch}/{event.region}/{event.state}{plan}"
        case RoleReleased():
            return f"role-released/{event.key}/{event.epoch}/{event.region}"
        case RegionPulse():
            return f"pulse/{event.region}"
        case FailoverRun():  # one each, as of roles
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
        case StartRecorded():
            part = f"#{event.part}" if event.part else ""  # no key has a '#'
            return f"begun/{event.key}{part}/{event.deployment}/{event.nonce}".rstrip("/")
        case Moving():
            return f"moving/{event.key}"


def for_people(event: AnyControlEvent) -> AnyControlEvent:
    """The event without an offset for every partition, or all of a large plan."""
    if isinstance(event, FailoverRun):
        return msgspec.structs.replace(event, plan=None, workloads=event.workloads[:SHOWN])
    return msgspec.structs.replace(event, begun=None) if isinstance(event, WorkloadPut) else event
