"""A failover run: a plan and its execution, step by step.

    planned --execute--> executing --> done         for each workload, while the run is executing:
       |                     |          ^
       +------- abort -------+--> aborted           to begin --> moving --> released --> positions --> active
                                                       +------------------- forced ---------------------^

Rules
1. A run's progress is in the workloads' roles (`app.controllog.roles`), which carry its id, and nowhere
   else. So any leader of the region continues it. A deposed leader's late record is a step that was due
   once, under an epoch of this region.
2. A run's state only advances, and `forced` is never withdrawn: the known state is a maximum, as for
   roles. Each state has a record key of its own, so compaction drops none. `done` is last: nothing was
   left to give back, so a late abort changes nothing.
3. A workload moves under a new epoch: first `moving`, which stops it in its region; then `active`, once
   that region has released it and its last positions have arrived here. A forced run makes it `active` at
   once, also later, under the same epoch.
4. A role that was changed otherwise since the plan is left alone.
5. An ended run leaves no role `moving`. An aborted run gives it back to its former region, under a new
   epoch of that region. A run that is done continues with it: a deposed leader began that workload again.
6. Every run ends, or says what it waits for.
7. The log does not keep runs for ever: a leader has compaction drop old ones (`FailoverRunLog.outlived`),
   and with the tombstone every reader forgets them. States are dropped in their order, so that no
   remaining state shows an ended run as executing.

`tests/controllog/test_failover_run.py` holds these rules.
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
MAX_NOTES = 3  # in the result of a run
MAX_RUNS = 200  # remembered runs, the newest, beside those that execute
EXPIRED_KEPT_MS = 3_600_000  # a plan that was never executed, after it expired; some have 300 kB
ENDED_KEPT_MS = 30 * 86_400_000  # a run, after it ended


class FailoverRunLog:
    """The runs that `put` has taken, by id; of each the maximum (rule 2)."""

    __slots__ = ("_held", "_keys")

    def __init__(self) -> None:
        self._held: dict[str, FailoverRun] = {}
        self._keys: dict[
            str, dict[str, FailoverRun]
        ] = {}  # id -> record keys -> events without workloads and plan

    def put(self, event: FailoverRun) -> bool:
        """Takes a state; returns whether it advances the run. The plan of the first state is kept."""
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
        """Forgets the oldest runs above `MAX_RUNS`; returns their record keys, in the order in which they
        may be dropped."""
        keys: list[str] = []
        ended = [one for one in self._held.values() if one.state != EXECUTING]
        ended.sort(key=lambda one: (one.made_ms, one.id), reverse=True)
        while len(self._held) > MAX_RUNS and ended:
            oldest = ended.pop().id
            keys += self._keys_of(oldest)
            del self._held[oldest], self._keys[oldest]
        return keys

    def outlived(self, at_ms: int, under_way: Collection[str]) -> list[str]:
        """Record keys of runs that are too old to keep, in the order in which they may be dropped.

        `under_way` are the runs that a role is still `moving` by.
        """
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
        """Forgets the record of this key: the log has a tombstone for it (rule 7)."""
        for name, keys in self._keys.items():
            if keys.pop(key, None) is not None:
                if not keys:
                    del self._held[name], self._keys[name]
                return

    def get(self, name: str) -> FailoverRun | None:
        """The run in its current state."""
        return self._held.get(name)

    def __iter__(self) -> Iterator[FailoverRun]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def executing(self, key: str) -> FailoverRun | None:
        """The run that executes for a workload."""
        found = (run for run in self if run.state == EXECUTING and any(w.key == key for w in run.workloads))
        return next(found, None)


def _place(event: FailoverRun) -> tuple[int, bool]:
    return _ORDER.index(event.state), event.forced


def _is_outlived(run: FailoverRun, at_ms: int) -> bool:
    if run.state == PLANNED:
        return at_ms > run.expires_ms + EXPIRED_KEPT_MS
    return run.state in {DONE, ABORTED} and at_ms > run.at_ms + ENDED_KEPT_MS


class Missing(NamedTuple):
    """The positions of a workload that have not arrived here, for people; "": all have.

    Numbers that change are in brackets. `behind` is the number of missing offsets; None: not known.
    """

    words: str = ""
    behind: int | None = 0

    def is_nearer(self, than: Missing) -> bool:
        """Whether positions have arrived since `than`."""
        return self.behind is not None and (than.behind is None or self.behind < than.behind)


COMING = Missing("its last positions to arrive here", None)


class WorkloadStage(StrEnum):
    """The progress of a workload in a run."""

    TO_BEGIN = "to-begin"
    RELEASING = "releasing"  # its former region has not released it yet
    POSITIONS = "positions"  # its last positions have not arrived here yet
    ACTIVATING = "activating"  # the leader writes that it is active
    RETURNING = "returning"  # the run was aborted, and the leader gives it back
    ACTIVE = "active"
    BACK = "back"  # given back, after the run was aborted
    LEFT = "left"  # the run ended before this workload began to move
    TAKEN = "taken"  # its role was changed otherwise since the plan
    GONE = "gone"  # its definition was deleted


ENDED = frozenset(
    {WorkloadStage.ACTIVE, WorkloadStage.BACK, WorkloadStage.LEFT, WorkloadStage.TAKEN, WorkloadStage.GONE}
)


@dataclass(frozen=True, slots=True)
class KnownWorkload:
    """The leader's knowledge of a workload.

    Attributes:
        role: The highest role of this region's log and of other regions' messages.
        held_by: The regions of `holders` that have not released its epoch.
        regions: The regions that share its topic.
        exists: Whether it is defined.
        positions: The missing last positions; "": none, or the run does not wait for them.
        note: Added to the reason of the step that makes it active.
    """

    role: RolePut | None
    held_by: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    exists: bool = True
    positions: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadStanding:
    """A workload's stage, what it waits for, and the role that the leader must write next.

    `note`: for an active workload, what the run did not wait for.
    """

    key: str
    stage: WorkloadStage
    waits_for: str = ""
    write: RolePut | None = None
    note: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the workload's part of the run has ended."""
        return self.stage in ENDED


def stand(run: FailoverRun, planned: RunWorkload, known: KnownWorkload, at_ms: int) -> WorkloadStanding:
    """The standing of a workload in a run."""
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
            key, WorkloadStage.TO_BEGIN, "its role to arrive here, as it was when this was planned"
        )
    if (role.epoch, role.region) != (planned.epoch, planned.region):
        return WorkloadStanding(
            key, WorkloadStage.TAKEN, f"it moved to {role.region} under epoch {role.epoch} since"
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
                role.key, WorkloadStage.RELEASING, f"region {' and '.join(known.held_by)} to release it"
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
    """A step under a new epoch. Without one, because the list of regions changed, it waits for the list."""
    role = known.role
    assert role is not None
    try:
        epoch = next_epoch(role.epoch, region, known.regions)
    except LookupError as error:
        return WorkloadStanding(planned.key, stage, f"its list of regions to be as planned: {error}")
    write = RolePut(
        at_ms=at_ms, key=planned.key, region=region, epoch=epoch, state=ACTIVE if state == ACTIVE else MOVING,
        previous=_had_it(role), plan=run.id, actor=run.actor, reason=_reason(run, known),
    )  # fmt: skip
    return WorkloadStanding(planned.key, stage, f"{leader_of(run)} to write it", write)


def _had_it(role: RolePut) -> str:
    """The region that acts until it releases: for a role that is still `moving`, the region before it."""
    return role.previous or role.region if role.state == MOVING else role.region


def holders(run: FailoverRun, planned: RunWorkload, role: RolePut | None) -> set[str]:
    """The regions that must release the workload before the run makes it active."""
    previous = planned.region if role is None else role.previous
    return {previous, planned.region} - {run.to, ""}


def _reason(run: FailoverRun, known: KnownWorkload) -> str:
    what = "failover aborted" if run.state == ABORTED else "forced failover" if run.forced else "failover"
    parts = [f"{what} {run.id}", run.reason, known.note]
    return "; ".join(part for part in parts if part)


def _note_of(run: FailoverRun, role: RolePut) -> str:
    """The `note` within a reason of `_reason`."""
    bare = f"{_reason(run, KnownWorkload(role))}; "
    return role.reason.removeprefix(bare) if role.reason.startswith(bare) else ""


def leader_of(run: FailoverRun) -> str:
    """The writer of the next step."""
    return f"the leader of {run.to}"


def conclusion(run: FailoverRun, standings: Iterable[WorkloadStanding], at_ms: int) -> FailoverRun | None:
    """The run's last state, when no workload is under way any more; None: it continues."""
    found = list(standings)
    if run.state != EXECUTING or not all(one.has_ended for one in found):
        return None
    here = sum(one.stage is WorkloadStage.ACTIVE for one in found)
    state = DONE if here else ABORTED
    return msgspec.structs.replace(run, state=state, at_ms=at_ms, result=describe_outcome(found), plan=None)


def describe_outcome(standings: Iterable[WorkloadStanding]) -> str:
    """The outcome of a run's workloads, for people, with the notes of some."""
    found = list(standings)
    words = {
        WorkloadStage.ACTIVE: "active",
        WorkloadStage.BACK: "back where they were",
        WorkloadStage.LEFT: "left where they were",
        WorkloadStage.TAKEN: "changed otherwise meanwhile",
        WorkloadStage.GONE: "no longer defined",
    }
    counts: dict[str, int] = {}
    for one in found:
        word = words.get(one.stage, "under way")
        counts[word] = counts.get(word, 0) + 1
    noted = [f"{one.key}: {one.note}" for one in found if one.note]
    more = [f"and {len(noted) - MAX_NOTES} more with such a note"] if len(noted) > MAX_NOTES else []
    became = ", ".join(f"{count} {word}" for word, count in counts.items()) or "no workload"
    return "; ".join([became, *noted[:MAX_NOTES], *more])
