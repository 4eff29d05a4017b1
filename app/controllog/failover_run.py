"""A failover run: a plan that is carried out step by step. Pure.

    planned --execute--> executing --> done         of each workload, while the run is executing:
       |                     |          ^
       +------- abort -------+--> aborted           to begin --> moving --> released --> positions --> active
                                                       +------------------- forced ---------------------^

Rules
1. How far a run is stands in the workloads' roles (`app.controllog.roles`), which carry its id, and nowhere
   else: any leader of the region goes on where another one stopped, and what a deposed one writes late is a
   step that was due once, under an epoch that is this region's.
2. A run's state only goes forward, and `forced` is never taken back: what is known is a maximum, as of roles.
   Each state has a key of its own in the log, so that compaction takes none of them. `done` is the last one:
   it says that there was nothing left to be given back, and an abort that comes late changes nothing.
3. A workload goes under a new epoch: `moving`, which stops it where it was; then `active`, once that region
   has let go and its last positions have come here. Forced, `active` at once, also later, under the epoch
   that it has.
4. A role that somebody else has changed since it was planned is that one's, and is left alone.
5. What has ended leaves no role `moving`: an aborted run gives it back to the region that had it, under a new
   epoch of that one's; a run that was done goes on (a deposed leader had begun it once more).
6. Every run ends, or says what it waits for.
7. The log does not keep them for ever: a leader has compaction drop what nobody asks for any more
   (`FailoverRunLog.outlived`), and with that record of no value every reader forgets it. States are dropped
   in their order: what is left never says that an ended run goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from app.controllog.events import FailoverRun, RolePut, RunWorkload, compaction_key
from app.controllog.roles import ACTIVE, MOVING, next_epoch

PLANNED: Final = "planned"
EXECUTING: Final = "executing"
DONE: Final = "done"
ABORTED: Final = "aborted"
_ORDER = (PLANNED, EXECUTING, ABORTED, DONE)
MAX_NOTES = 3  # in what is told of a run that has ended
MAX_RUNS = 200  # that are remembered, beside those under way: the newest
EXPIRED_KEPT_MS = 3_600_000  # a plan that was never begun, once it has expired: some have 300 kB
ENDED_KEPT_MS = 30 * 86_400_000  # a run that has ended


class FailoverRunLog:
    """What `put` was told of runs, by id; the maximum of each (rule 2)."""

    __slots__ = ("_held", "_keys")

    def __init__(self) -> None:
        self._held: dict[str, FailoverRun] = {}
        self._keys: dict[str, dict[str, FailoverRun]] = {}  # id -> keys in the log -> without workloads, plan

    def put(self, event: FailoverRun) -> bool:
        """Whether it says more than is known; if so, it is known now. The plan stays with it."""
        known = self._held.get(event.id)
        bare = msgspec.structs.replace(event, workloads=[], plan=None)
        self._keys.setdefault(event.id, {})[compaction_key(event)] = bare
        if known is not None and _place(event) <= _place(known):
            if known.plan is None and event.plan is not None:
                self._held[event.id] = msgspec.structs.replace(known, plan=event.plan)
            return False
        plan = event.plan or (None if known is None else known.plan)
        self._held[event.id] = msgspec.structs.replace(event, plan=plan)
        return True

    def forget(self) -> list[str]:
        """Forgets the oldest above `MAX_RUNS`; the keys under which they stand in the log, in the order in
        which they may be dropped there."""
        keys: list[str] = []
        ended = [one for one in self._held.values() if one.state != EXECUTING]
        ended.sort(key=lambda one: (one.made_ms, one.id), reverse=True)
        while len(self._held) > MAX_RUNS and ended:
            oldest = ended.pop().id
            keys += self._keys_of(oldest)
            del self._held[oldest], self._keys[oldest]
        return keys

    def outlived(self, at_ms: int, under_way: Collection[str]) -> list[str]:
        """Keys in the log of runs that nobody asks for any more, in the order in which they may be dropped
        there. `under_way`: those by which a role is still `moving`."""
        return [
            key
            for run in self._held.values()
            if run.id not in under_way and _is_outlived(run, at_ms)
            for key in self._keys_of(run.id)
        ]

    def _keys_of(self, name: str) -> list[str]:
        keys = self._keys[name]
        return sorted(keys, key=lambda key: (*_place(keys[key]), key))

    def drop(self, key: str) -> None:
        """The log has no record of this key any more (rule 7)."""
        for name, keys in self._keys.items():
            if keys.pop(key, None) is not None:
                if not keys:
                    del self._held[name], self._keys[name]
                return

    def get(self, name: str) -> FailoverRun | None:
        """The run, as it stands."""
        return self._held.get(name)

    def __iter__(self) -> Iterator[FailoverRun]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def executing(self, key: str) -> FailoverRun | None:
        """The run that is being carried out for a workload."""
        found = (run for run in self if run.state == EXECUTING and any(w.key == key for w in run.workloads))
        return next(found, None)


def _place(event: FailoverRun) -> tuple[int, bool]:
    return _ORDER.index(event.state), event.forced


def _is_outlived(run: FailoverRun, at_ms: int) -> bool:
    if run.state == PLANNED:
        return at_ms > run.expires_ms + EXPIRED_KEPT_MS
    return run.state in {DONE, ABORTED} and at_ms > run.at_ms + ENDED_KEPT_MS


class Missing(NamedTuple):
    """What is missing of a workload's last positions, in words (with numbers that change in brackets); "":
    they are all here. `behind`: by how many offsets; None: that is not known."""

    words: str = ""
    behind: int | None = 0

    def is_nearer(self, than: Missing) -> bool:
        """Whether some have come since."""
        return self.behind is not None and (than.behind is None or self.behind < than.behind)


COMING = Missing("its last positions to come here", None)


class WorkloadStage(StrEnum):
    """How far a workload is."""

    TO_BEGIN = "to-begin"
    RELEASING = "releasing"  # the region that had it has not let go yet
    POSITIONS = "positions"  # its last positions are on their way here
    ACTIVATING = "activating"  # nothing else is waited for: it is written that it is active
    RETURNING = "returning"  # the run was aborted: it is written that it goes back
    ACTIVE = "active"
    BACK = "back"  # where it was, after the run was aborted
    LEFT = "left"  # where it was: the run ended before it was begun
    TAKEN = "taken"  # somebody else has decided since
    GONE = "gone"  # its definition was deleted


ENDED = frozenset(
    {WorkloadStage.ACTIVE, WorkloadStage.BACK, WorkloadStage.LEFT, WorkloadStage.TAKEN, WorkloadStage.GONE}
)


@dataclass(frozen=True, slots=True)
class KnownWorkload:
    """What is known of a workload.

    Attributes:
        role: the highest of this region's log and what was heard.
        held_by: of those that may act for it (`holders`), the regions that have not let go of its epoch.
        regions: those that share its topic. exists: whether it is defined.
        positions: what is missing of the last positions; "" when they are here, or not waited for.
        note: told with the step that makes it active.
    """

    role: RolePut | None
    held_by: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    exists: bool = True
    positions: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadStanding:
    """How far a workload is, what that waits for, and what the leader has to write: until it has, that is
    what is waited for. `note`: what was not waited for, of one that is active."""

    key: str
    stage: WorkloadStage
    waits_for: str = ""
    write: RolePut | None = None
    note: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.stage in ENDED


def stand(run: FailoverRun, planned: RunWorkload, known: KnownWorkload, at_ms: int) -> WorkloadStanding:
    """How far a workload of a run is."""
    key, role = planned.key, known.role
    mine = role is not None and (role.plan, role.region) == (run.id, run.to)
    if role is not None and mine:
        if role.state == ACTIVE:
            return WorkloadStanding(key, WorkloadStage.ACTIVE, note=_note_of(run, role))
        if run.state == ABORTED:
            back = role.previous or planned.region
            return _written(run, planned, known, at_ms, back, WorkloadStage.RETURNING, ACTIVE)
        return _moving(run, role, known, at_ms)
    if role is not None and role.plan == run.id and role.epoch > planned.epoch:
        return WorkloadStanding(key, WorkloadStage.BACK)
    if not known.exists:
        return WorkloadStanding(key, WorkloadStage.GONE)
    if role is None or role.epoch < planned.epoch:
        return WorkloadStanding(
            key, WorkloadStage.TO_BEGIN, "its role to be known here, as it was when this was planned"
        )
    if (role.epoch, role.region) != (planned.epoch, planned.region):
        return WorkloadStanding(
            key, WorkloadStage.TAKEN, f"it went to {role.region} under epoch {role.epoch} since"
        )
    if run.state in {DONE, ABORTED}:
        return WorkloadStanding(key, WorkloadStage.LEFT)
    if run.state == PLANNED:
        return WorkloadStanding(key, WorkloadStage.TO_BEGIN)
    state = ACTIVE if run.forced else MOVING
    return _written(run, planned, known, at_ms, run.to, WorkloadStage.TO_BEGIN, state)


def _moving(run: FailoverRun, role: RolePut, known: KnownWorkload, at_ms: int) -> WorkloadStanding:
    if not run.forced:
        if known.held_by:
            return WorkloadStanding(
                role.key, WorkloadStage.RELEASING, f"region {' and '.join(known.held_by)} to let go of it"
            )
        if known.positions:
            return WorkloadStanding(role.key, WorkloadStage.POSITIONS, known.positions)
    write = msgspec.structs.replace(
        role, state=ACTIVE, at_ms=at_ms, actor=run.actor, reason=_reason(run, known)
    )
    return WorkloadStanding(role.key, WorkloadStage.ACTIVATING, f"{leader_of(run)} to write it", write)


def _written(
    run: FailoverRun,
    planned: RunWorkload,
    known: KnownWorkload,
    at_ms: int,
    region: str,
    stage: WorkloadStage,
    state: str,
) -> WorkloadStanding:
    """A step under a new epoch; while there is none, as the regions are others now, that is waited for."""
    role = known.role
    assert role is not None
    try:
        epoch = next_epoch(role.epoch, region, known.regions)
    except LookupError as error:
        return WorkloadStanding(planned.key, stage, f"its regions to be as they were: {error}")
    write = RolePut(
        at_ms=at_ms, key=planned.key, region=region, epoch=epoch, state=ACTIVE if state == ACTIVE else MOVING,
        previous=_had_it(role), plan=run.id, actor=run.actor, reason=_reason(run, known),
    )  # fmt: skip
    return WorkloadStanding(planned.key, stage, f"{leader_of(run)} to write it", write)


def _had_it(role: RolePut) -> str:
    """The region that acts until it lets go: of a role that had not come anywhere yet, the one before."""
    return role.previous or role.region if role.state == MOVING else role.region


def holders(run: FailoverRun, planned: RunWorkload, role: RolePut | None) -> set[str]:
    """The regions that have to let go before the workload is active by the run."""
    previous = planned.region if role is None else role.previous
    return {previous, planned.region} - {run.to, ""}


def _reason(run: FailoverRun, known: KnownWorkload) -> str:
    what = "failover aborted" if run.state == ABORTED else "forced failover" if run.forced else "failover"
    parts = [f"{what} {run.id}", run.reason, known.note]
    return "; ".join(part for part in parts if part)


def _note_of(run: FailoverRun, role: RolePut) -> str:
    """What `_reason` was told with it."""
    bare = f"{_reason(run, KnownWorkload(role))}; "
    return role.reason.removeprefix(bare) if role.reason.startswith(bare) else ""


def leader_of(run: FailoverRun) -> str:
    """Who has to write what is due."""
    return f"the leader of {run.to}"


def conclusion(run: FailoverRun, standings: Iterable[WorkloadStanding], at_ms: int) -> FailoverRun | None:
    """The run as it ends, when nothing of it is under way any more; None: it goes on."""
    found = list(standings)
    if run.state != EXECUTING or not all(one.has_ended for one in found):
        return None
    here = sum(one.stage is WorkloadStage.ACTIVE for one in found)
    state = DONE if here else ABORTED
    return msgspec.structs.replace(run, state=state, at_ms=at_ms, result=describe_outcome(found), plan=None)


def describe_outcome(standings: Iterable[WorkloadStanding]) -> str:
    """What became of a run's workloads, for people; of those that were not waited for until all was here
    some are named."""
    found = list(standings)
    words = {
        WorkloadStage.ACTIVE: "active",
        WorkloadStage.BACK: "back where they were",
        WorkloadStage.LEFT: "left where they were",
        WorkloadStage.TAKEN: "decided otherwise meanwhile",
        WorkloadStage.GONE: "no longer defined",
    }
    counts: dict[str, int] = {}
    for one in found:
        word = words.get(one.stage, "under way")
        counts[word] = counts.get(word, 0) + 1
    noted = [f"{one.key}: {one.note}" for one in found if one.note]
    more = [f"likewise {len(noted) - MAX_NOTES} more"] if len(noted) > MAX_NOTES else []
    became = ", ".join(f"{count} {word}" for word, count in counts.items()) or "no workload"
    return "; ".join([became, *noted[:MAX_NOTES], *more])
