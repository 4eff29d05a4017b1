"""Carries failover runs out, as the leader of the region that they lead to (`app.controllog.failover_run`).

Rules
1. What a run waits for is told as an incident once that takes `STUCK_AFTER_S`, with what can be done.
2. The last positions of an active-passive workload are waited for as long as they come nearer, until they
   have stood still for `POSITIONS_STALL_TIMEOUT_S`, or for `MOST_S`: nobody delivers meanwhile. Then it goes
   on, and says so with the run and the role: what they do not tell is delivered again. Who will not wait has
   it go on by force.
3. A region that lay still itself and has not heard the others yet carries nothing out, and says so.
4. Plans that expired and runs that ended long ago leave the control log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from app.controllog.events import AnyControlEvent, FailoverRun, RunWorkload
from app.controllog.failover_run import (
    COMING,
    DONE,
    EXECUTING,
    KnownWorkload,
    Missing,
    WorkloadStage,
    WorkloadStanding,
    conclusion,
    holders,
    leader_of,
    stand,
)
from app.controllog.log import ControlLog
from app.controllog.roles import ACTIVE_PASSIVE, MOVING
from app.dispatch.definition import Workload
from app.failover.run.derived_routes import DerivedRoutes
from app.failover.run.role_keeper import MAX_WAIT_FOR_REGIONS_S, RoleKeeper
from app.kernel.clock import now_ms
from app.worker.jobs.start_position import ReportIncident

log = structlog.get_logger(__name__)

STUCK_AFTER_S = 20.0
# with positions that stand still: a route that begins anew on a busy machine takes as long
POSITIONS_STALL_TIMEOUT_S = 30.0
MOST_S = 120.0  # with all that come
ARRIVAL_POLL_INTERVAL_S = 0.2
REDELIVERY_NOTE = "what they do not tell is delivered again"
STUCK_INCIDENT = "failover-stuck"
UNWRITTEN = (
    "it goes on by itself once there is a leader whose rounds succeed: see that workers live (worker list), "
    "and what the log of the leader says"
)
RETURNED = (
    f"it goes on by itself once they have answered, after {MAX_WAIT_FOR_REGIONS_S:.0f} s at the "
    "latest (failover status)"
)

# Of workloads, each with the region that had it: what is missing here of its last positions.
Arrived = Callable[[list[tuple[Workload, str]]], Awaitable[Mapping[str, Missing]]]


class FailoverRuns:
    """See the module. `standings` is of use on every worker, `steps` on the leader.

    Args: `on_news` makes a round of the leader's soon.
    Attributes: `arrived`, set by whoever can find that out; without it positions are not waited for.
    """

    def __init__(
        self,
        control: ControlLog,
        derived_routes: DerivedRoutes,
        keeper: RoleKeeper,
        workload: Callable[[str], Workload | None],
        report_incident: ReportIncident,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        self.arrived: Arrived | None = None
        self._control = control
        self._derived_routes = derived_routes
        self._keeper = keeper
        self._workload = workload
        self._report_incident = report_incident
        self._on_news = on_news
        self._missing: dict[tuple[str, str], Missing] = {}  # by run and workload
        self._since_s: dict[tuple[str, str], float] = {}  # since when they are waited for
        self._nearest: dict[tuple[str, str], tuple[Missing, float]] = {}  # and when that was seen first
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

    def standings(self, run: FailoverRun) -> list[WorkloadStanding]:
        """How far each workload of a run is."""
        at_ms, returned = now_ms(), self._keeper.has_just_returned()
        found = [stand(run, one, self._known(run, one), at_ms) for one in run.workloads]
        return [
            replace(one, waits_for=waits_to_hear(run), write=None)
            if returned and not one.has_ended and (run.state == EXECUTING or one.write is not None)
            else one
            for one in found
        ]

    def end_waits_for(self, run: FailoverRun, standings: Sequence[WorkloadStanding]) -> str:
        """What the word that it has ended waits for; "" while it goes on, and once it stands."""
        if conclusion(run, standings, now_ms()) is None:
            return ""
        returned = self._keeper.has_just_returned()
        return waits_to_hear(run) if returned else f"{leader_of(run)} to write that it has ended"

    def _known(self, run: FailoverRun, planned: RunWorkload) -> KnownWorkload:
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
            missing = self._missing.get(at, COMING).words
        regions: tuple[str, ...] = ()
        if workload is not None:
            regions = self._derived_routes.regions_of(workload) or (workload.spec.primary or "",)
        return KnownWorkload(role, held_by, regions, key in view.workloads, missing, self._notes.get(at, ""))

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
        awaited: list[tuple[FailoverRun, WorkloadStanding]] = []
        seen: set[tuple[str, str]] = set()
        for run in under_way:
            standings = self.standings(run)
            for one in standings:
                seen.add((run.id, one.key))
                if one.write is not None:
                    events.append(one.write)
                if one.stage is WorkloadStage.POSITIONS and not returned:
                    awaited.append((run, one))
                waits_for = "" if one.has_ended else one.waits_for
                self._report_when_stuck(run, one.key, waits_for, remedy(run, one), now_s)
            seen.add((run.id, ""))
            waits_for = self.end_waits_for(run, standings)
            self._report_when_stuck(run, "", waits_for, end_remedy(run, waits_for), now_s)
            ended = None if returned else conclusion(run, standings, now_ms())
            if ended is not None:
                log.info("a failover has ended", run=run.id, state=ended.state, result=ended.result)
                events.append(ended)
        self._keep(seen)
        self._wait_for(awaited, now_s)
        return events

    def _keep(self, seen: set[tuple[str, str]]) -> None:
        for known in (self._missing, self._since_s, self._nearest, self._notes, self._waiting_s):
            for at in known.keys() - seen:
                del known[at]
        self._told = {told for told in self._told if told[:2] in seen}

    def _report_when_stuck(
        self, run: FailoverRun, key: str, waits_for: str, what_to_do: str, now_s: float
    ) -> None:
        """`key` "": its end."""
        at = run.id, key
        what, since_s = self._waiting_s.get(at, ("", now_s))
        if what != waits_for:
            what, since_s = self._waiting_s[at] = waits_for, now_s
        if not what or now_s - since_s < STUCK_AFTER_S or (*at, what) in self._told:
            return
        self._told.add((*at, what))
        message = f"failover {run.id}{f' of {key}' * bool(key)} to {run.to} waits for {what}"
        self._report_incident(STUCK_INCIDENT, run.id, message, what_to_do)

    # -- last positions --------------------------------------------------------------------------

    def _wait_for(self, awaited: list[tuple[FailoverRun, WorkloadStanding]], now_s: float) -> None:
        for run, one in awaited:
            at = run.id, one.key
            waited_s = now_s - self._since_s.setdefault(at, now_s)
            missing = self._missing.get(at, COMING)
            nearest, since_s = self._nearest.setdefault(at, (missing, now_s))
            if missing.is_nearer(nearest):
                _, since_s = self._nearest[at] = missing, now_s
            if missing.words and (now_s - since_s >= POSITIONS_STALL_TIMEOUT_S or waited_s >= MOST_S):
                self._notes[at] = (
                    f"it went on after {waited_s:.0f} s without {missing.words}: {REDELIVERY_NOTE}"
                )
                self._missing[at] = Missing()
                log.warning("a failover goes on without last positions", run=run.id, workload=one.key,
                            missing=missing.words, waited_s=round(waited_s, 1))  # fmt: skip
        left = [(run, one.key) for run, one in awaited if self._missing.get((run.id, one.key), COMING).words]
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
                self._missing[run.id, key] = Missing()  # it comes from here
            elif workload is not None and role is not None:
                asked[key] = run.id, workload, role.previous
        try:
            found = await self.arrived([(workload, region) for _, workload, region in asked.values()])
        except Exception as error:  # noqa: BLE001 - whatever it is, the patience ends
            found = dict.fromkeys(asked, Missing(f"{COMING.words} ({error or repr(error)})", None))
        for key, (name, _, _) in asked.items():
            if self._missing.get((name, key), COMING).words:
                self._missing[name, key] = found.get(key, COMING)
        if not all(self._missing.get((run.id, key), COMING).words for run, key in left):
            self._on_news()
        await asyncio.sleep(max(0.0, ARRIVAL_POLL_INTERVAL_S - (time.monotonic() - began_s)))


def waits_to_hear(run: FailoverRun) -> str:
    """What a run waits for in a region that has just returned."""
    return f"region {run.to} to hear what others decided"


def end_remedy(run: FailoverRun, waits_for: str) -> str:
    """What can be done about what the word of a run's end waits for."""
    return RETURNED if waits_for == waits_to_hear(run) else UNWRITTEN


def remedy(run: FailoverRun, one: WorkloadStanding) -> str:
    """What can be done about what a run waits for."""
    back = f"give it up: switchyard failover abort {run.id}"
    if one.waits_for == waits_to_hear(run):
        return RETURNED
    if one.write is not None:
        return UNWRITTEN
    if one.stage is WorkloadStage.RELEASING:
        return (
            f"see that its region can be heard (failover status); if it is lost, go on without it: "
            f"switchyard failover execute {run.id} --force; or {back}"
        )
    if one.stage is WorkloadStage.POSITIONS:
        return (
            f"it goes on by itself when they have come, or stood still for "
            f"{POSITIONS_STALL_TIMEOUT_S:.0f} s ({REDELIVERY_NOTE}); see "
            f"that the routes from there copy (route list), or have it go on at once: "
            f"switchyard failover execute {run.id} --force"
        )
    if run.state == DONE:
        return "see failover status"
    return f"see the Failover definition of its topic; or {back}"
