"""Carries failover runs out, as the leader of the region that they lead to (`app.core.failover_run`).

Rules
1. What a run waits for is told as an incident once that takes `STUCK_S`, with what can be done.
2. The last positions of an active-passive workload are waited for `PATIENCE_S`; then it goes on, and says so:
   what was delivered meanwhile is delivered again.
3. A region that lay still itself and has not heard the others yet carries nothing out, and says so.
4. Plans that expired and runs that ended long ago leave the control log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from app.clock import now_ms
from app.config.definitions import Workload
from app.control.beginning import Trouble
from app.control.failovers import Failovers
from app.control.log import ControlLog
from app.control.role_keeper import SLOW_S, RoleKeeper
from app.core.control_events import AnyControlEvent, FailoverRun, RunWorkload
from app.core.failover_run import (
    DONE,
    EXECUTING,
    Known,
    Stage,
    Standing,
    conclusion,
    holders,
    leader_of,
    stand,
)
from app.core.roles import ACTIVE_PASSIVE, MOVING

log = structlog.get_logger(__name__)

STUCK_S = 20.0
PATIENCE_S = 10.0
LOOK_S = 0.2
COMING = "its last positions to come here"
KIND = "failover-stuck"
UNWRITTEN = (
    "it goes on by itself once there is a leader whose rounds succeed: see that workers live (worker list), "
    "and what the log of the leader says"
)
RETURNED = (
    f"it goes on by itself once they have answered, after {SLOW_S:.0f} s at the latest (failover status)"
)

# Of workloads, each with the region that had it: what is missing here of its last positions; "": nothing.
Arrived = Callable[[list[tuple[Workload, str]]], Awaitable[Mapping[str, str]]]


class FailoverRuns:
    """See the module. `standings` is of use on every worker, `steps` on the leader.

    Args: `on_news` makes a round of the leader's soon.
    Attributes: `arrived`, set by whoever can find that out; without it positions are not waited for.
    """

    def __init__(
        self,
        control: ControlLog,
        failovers: Failovers,
        keeper: RoleKeeper,
        workload: Callable[[str], Workload | None],
        on_trouble: Trouble,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        self.arrived: Arrived | None = None
        self._control = control
        self._failovers = failovers
        self._keeper = keeper
        self._workload = workload
        self._on_trouble = on_trouble
        self._on_news = on_news
        self._missing: dict[tuple[str, str], str] = {}  # run and workload -> what of its positions is missing
        self._since_s: dict[tuple[str, str], float] = {}  # since when they are waited for
        self._notes: dict[tuple[str, str], str] = {}  # what is said of those that were waited for in vain
        self._waiting_s: dict[tuple[str, str], tuple[str, float]] = {}
        self._told: set[tuple[str, str, str]] = set()
        self._look: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Ends what is under way."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait([self._look])

    # -- everybody's -----------------------------------------------------------------------------

    def standings(self, run: FailoverRun) -> list[Standing]:
        """How far each workload of a run is."""
        at_ms, returned = now_ms(), self._keeper.has_just_returned()
        found = [stand(run, one, self._known(run, one), at_ms) for one in run.workloads]
        return [
            replace(one, waits_for=hearing(run), write=None)
            if returned and not one.has_ended and (run.state == EXECUTING or one.write is not None)
            else one
            for one in found
        ]

    def end_waits_for(self, run: FailoverRun, standings: Sequence[Standing]) -> str:
        """What the word that it has ended waits for; "" while it goes on, and once it stands."""
        if conclusion(run, standings, now_ms()) is None:
            return ""
        returned = self._keeper.has_just_returned()
        return hearing(run) if returned else f"{leader_of(run)} to write that it has ended"

    def _known(self, run: FailoverRun, planned: RunWorkload) -> Known:
        key, at = planned.key, (run.id, planned.key)
        view = self._control.view
        role, workload = self._keeper.highest(key), self._workload(key)
        released = view.roles.released(key)
        held_by = tuple(
            region
            for region in sorted(holders(run, planned, role))
            if role is None or region not in released or released[region].epoch < role.epoch
        )
        missing = ""
        if workload is not None and workload.spec.mode == ACTIVE_PASSIVE and self.arrived is not None:
            missing = self._missing.get(at, COMING)
        regions: tuple[str, ...] = ()
        if workload is not None:
            regions = self._failovers.regions_of(workload) or (workload.spec.primary or "",)
        return Known(role, held_by, regions, key in view.workloads, missing, self._notes.get(at, ""))

    # -- the leader's ----------------------------------------------------------------------------

    def steps(self, now_s: float) -> list[AnyControlEvent]:
        """What is to be written now."""
        view = self._control.view
        if not len(view.runs):
            return []
        returned = self._keeper.has_just_returned()
        left = {role.plan for role in view.roles if role.state == MOVING}
        if not returned:
            view.drop_soon(view.runs.outlived(now_ms(), left))
        mine = [run for run in view.runs if run.to == self._keeper.own]
        under_way = [run for run in mine if run.state == EXECUTING or run.id in left]
        events: list[AnyControlEvent] = []
        awaited: list[tuple[FailoverRun, Standing]] = []
        seen: set[tuple[str, str]] = set()
        for run in under_way:
            standings = self.standings(run)
            for one in standings:
                seen.add((run.id, one.key))
                if one.write is not None:
                    events.append(one.write)
                if one.stage is Stage.POSITIONS and not returned:
                    awaited.append((run, one))
                waits_for = "" if one.has_ended else one.waits_for
                self._tell_when_stuck(run, one.key, waits_for, remedy(run, one), now_s)
            seen.add((run.id, ""))
            waits_for = self.end_waits_for(run, standings)
            self._tell_when_stuck(run, "", waits_for, end_remedy(run, waits_for), now_s)
            ended = None if returned else conclusion(run, standings, now_ms())
            if ended is not None:
                log.info("a failover has ended", run=run.id, state=ended.state, result=ended.result)
                events.append(ended)
        self._keep(seen)
        self._wait_for(awaited, now_s)
        return events

    def _keep(self, seen: set[tuple[str, str]]) -> None:
        for known in (self._missing, self._since_s, self._notes, self._waiting_s):
            for at in known.keys() - seen:
                del known[at]
        self._told = {told for told in self._told if told[:2] in seen}

    def _tell_when_stuck(
        self, run: FailoverRun, key: str, waits_for: str, what_to_do: str, now_s: float
    ) -> None:
        """`key` "": its end."""
        at = run.id, key
        what, since_s = self._waiting_s.get(at, ("", now_s))
        if what != waits_for:
            what, since_s = self._waiting_s[at] = waits_for, now_s
        if not what or now_s - since_s < STUCK_S or (*at, what) in self._told:
            return
        self._told.add((*at, what))
        message = f"failover {run.id}{f' of {key}' * bool(key)} to {run.to} waits for {what}"
        self._on_trouble(KIND, run.id, message, what_to_do)

    # -- last positions --------------------------------------------------------------------------

    def _wait_for(self, awaited: list[tuple[FailoverRun, Standing]], now_s: float) -> None:
        for run, one in awaited:
            at = run.id, one.key
            waited_s = now_s - self._since_s.setdefault(at, now_s)
            missing = self._missing.get(at, COMING)
            if waited_s >= PATIENCE_S and missing:
                self._notes[at] = f"it went on after {PATIENCE_S:.0f} s without {missing}"
                self._missing[at] = ""
        left = [(run, one.key) for run, one in awaited if self._missing.get((run.id, one.key), COMING)]
        if left and (self._look is None or self._look.done()):
            self._look = asyncio.get_running_loop().create_task(self._find(left))

    async def _find(self, left: Sequence[tuple[FailoverRun, str]]) -> None:
        """Looks once; the next round asks again."""
        assert self.arrived is not None
        began_s = time.monotonic()
        asked: dict[str, tuple[str, Workload, str]] = {}
        for run, key in left:
            workload, role = self._workload(key), self._keeper.highest(key)
            if workload is not None and role is not None and role.previous == self._keeper.own:
                self._missing[run.id, key] = ""  # it comes from here
            elif workload is not None and role is not None:
                asked[key] = run.id, workload, role.previous
        try:
            found = await self.arrived([(workload, region) for _, workload, region in asked.values()])
        except Exception as error:  # noqa: BLE001 - whatever it is, the patience ends
            found = dict.fromkeys(asked, f"{COMING} ({error or repr(error)})")
        for key, (name, _, _) in asked.items():
            if self._missing.get((name, key)) != "":
                self._missing[name, key] = found.get(key, COMING)
        if not all(self._missing.get((run.id, key), COMING) for run, key in left):
            self._on_news()
        await asyncio.sleep(max(0.0, LOOK_S - (time.monotonic() - began_s)))


def hearing(run: FailoverRun) -> str:
    """What a run waits for in a region that has just returned."""
    return f"region {run.to} to hear what others decided"


def end_remedy(run: FailoverRun, waits_for: str) -> str:
    """What can be done about what the word of a run's end waits for."""
    return RETURNED if waits_for == hearing(run) else UNWRITTEN


def remedy(run: FailoverRun, one: Standing) -> str:
    """What can be done about what a run waits for."""
    back = f"give it up: switchyard failover abort {run.id}"
    if one.waits_for == hearing(run):
        return RETURNED
    if one.write is not None:
        return UNWRITTEN
    if one.stage is Stage.RELEASING:
        return (
            f"see that its region can be heard (failover status); if it is lost, go on without it: "
            f"switchyard failover execute {run.id} --force; or {back}"
        )
    if one.stage is Stage.POSITIONS:
        return "it goes on by itself within seconds"
    if run.state == DONE:
        return "see failover status"
    return f"see the Failover definition of its topic; or {back}"
