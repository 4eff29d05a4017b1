"""Carries out failover runs, as the leader of the region that they lead to (`app.controllog.failover_run`).

Rules
1. The leader reports an incident when a run has waited for the same thing for `STUCK_AFTER_S`. Its remedy
   says what to do.
2. An active-passive workload waits for its last positions, because without them messages are delivered again.
   It waits until they have stood still for `POSITIONS_STALL_TIMEOUT_S`, and at most `MOST_S`: no region
   delivers meanwhile. Then it continues, and the run and the role say so. A forced run does not wait.
3. A region that lay still and has not heard the others yet carries out nothing, and says so.
4. Expired plans, and runs that ended long ago, leave the control log.
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
from app.controllog.leader_reports import NewTerm, until_deposed
from app.controllog.log import ControlLog
from app.controllog.roles import ACTIVE_PASSIVE, MOVING
from app.dispatch.definition import Workload
from app.failover.run.derived_routes import DerivedRoutes
from app.failover.run.role_keeper import MAX_WAIT_FOR_REGIONS_S, RoleKeeper
from app.kernel.clock import now_ms
from app.kernel.incidents import ReportIncident

log = structlog.get_logger(__name__)

STUCK_AFTER_S = 20.0
# for positions that stand still: a route may take this long to restart on a busy machine
POSITIONS_STALL_TIMEOUT_S = 30.0
MOST_S = 120.0  # for positions that advance
ARRIVAL_POLL_INTERVAL_S = 0.2
REDELIVERY_NOTE = "messages that they would have skipped are delivered again"
STUCK_INCIDENT = "failover-stuck"
UNWRITTEN = (
    "it continues once the region has a leader whose rounds succeed; check that workers live (worker list), "
    "and read the leader's log"
)
RETURNED = (
    f"it continues once they have answered, at the latest after {MAX_WAIT_FOR_REGIONS_S:.0f} s "
    "(failover status)"
)

# Workloads, each with its former region -> by key, the last positions that are missing here.
Arrived = Callable[[list[tuple[Workload, str]]], Awaitable[Mapping[str, Missing]]]


class FailoverRuns:
    """The runs of one region. `standings` is for every worker, `steps` for the leader.

    Args:
        on_news: Starts a round of the leader soon.
        arrived: Finds missing last positions; None: runs do not wait for positions.
    """

    def __init__(
        self,
        control: ControlLog,
        derived_routes: DerivedRoutes,
        keeper: RoleKeeper,
        workload: Callable[[str], Workload | None],
        report_incident: ReportIncident,
        on_news: Callable[[], None] = lambda: None,
        arrived: Arrived | None = None,
    ) -> None:
        self._arrived = arrived
        self._control = control
        self._derived_routes = derived_routes
        self._keeper = keeper
        self._workload = workload
        self._report_incident = report_incident
        self._on_news = on_news
        self._missing: dict[tuple[str, str], Missing] = {}  # by run and workload
        self._since_s: dict[tuple[str, str], float] = {}  # since when the run waits for positions
        self._nearest: dict[
            tuple[str, str], tuple[Missing, float]
        ] = {}  # the fewest, and when that was first seen
        self._notes: dict[tuple[str, str], str] = {}  # for roles that became active without positions
        self._waiting_s: dict[tuple[str, str], tuple[str, float]] = {}
        self._reported: set[tuple[str, str, str]] = set()
        self._new_term = NewTerm()
        self._query: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Cancels the query for positions."""
        if self._query is not None:
            self._query.cancel()
            await asyncio.wait([self._query])

    # -- everybody's -----------------------------------------------------------------------------

    def standings(self, run: FailoverRun) -> list[WorkloadStanding]:
        """The standing of each workload of a run."""
        at_ms, returned = now_ms(), self._keeper.has_just_returned()
        found = [stand(run, one, self._known(run, one), at_ms) for one in run.workloads]
        return [
            replace(one, waits_for=waits_to_hear(run), write=None)
            if returned and not one.has_ended and (run.state == EXECUTING or one.write is not None)
            else one
            for one in found
        ]

    def end_waits_for(self, run: FailoverRun, standings: Sequence[WorkloadStanding]) -> str:
        """The writer that a run's last record waits for; "": the run continues, or has ended."""
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
        if workload is not None and workload.spec.mode == ACTIVE_PASSIVE and self._arrived is not None:
            missing = self._missing.get(at, COMING).words
        regions: tuple[str, ...] = ()
        if workload is not None:
            regions = self._derived_routes.regions_of(workload) or (workload.spec.primary or "",)
        return KnownWorkload(role, held_by, regions, key in view.workloads, missing, self._notes.get(at, ""))

    # -- the leader's ----------------------------------------------------------------------------

    def steps(self, now_s: float) -> list[AnyControlEvent]:
        """The events that the leader has to write now."""
        view = self._control.view
        if self._new_term.has_begun(view.term):
            self._reported.clear()
        if not len(view.runs):
            self._forget_ended(set())
            return []
        returned = self._keeper.has_just_returned()
        moving = {role.plan for role in view.roles if role.state == MOVING}
        if not returned:
            view.drop_soon(view.runs.outlived(now_ms(), moving))
        mine = [run for run in view.runs if run.to == self._keeper.own]
        under_way = [run for run in mine if run.state == EXECUTING or run.id in moving]
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
        self._forget_ended(seen)
        self._wait_for_positions(awaited, now_s)
        return events

    def _forget_ended(self, seen: set[tuple[str, str]]) -> None:
        for known in (self._missing, self._since_s, self._nearest, self._notes, self._waiting_s):
            for at in known.keys() - seen:
                del known[at]
        self._reported = {reported for reported in self._reported if reported[:2] in seen}

    def _report_when_stuck(
        self, run: FailoverRun, key: str, waits_for: str, what_to_do: str, now_s: float
    ) -> None:
        """Reports a wait that takes long, once. `key`: the workload; "": the end of the run."""
        at = run.id, key
        what, since_s = self._waiting_s.get(at, ("", now_s))
        if what != waits_for:
            self._reported.discard((*at, what))
            what, since_s = self._waiting_s[at] = waits_for, now_s
        if not what or now_s - since_s < STUCK_AFTER_S or (*at, what) in self._reported:
            return
        self._reported.add((*at, what))
        message = f"failover {run.id}{f' of {key}' * bool(key)} to {run.to} waits for {what}"
        is_over = until_deposed(self._control, lambda: self._waiting_s.get(at, ("", 0.0))[0] != what)
        self._report_incident(STUCK_INCIDENT, run.id, message, what_to_do, is_over)

    # -- last positions --------------------------------------------------------------------------

    def _wait_for_positions(self, awaited: list[tuple[FailoverRun, WorkloadStanding]], now_s: float) -> None:
        for run, one in awaited:
            at = run.id, one.key
            waited_s = now_s - self._since_s.setdefault(at, now_s)
            missing = self._missing.get(at, COMING)
            nearest, since_s = self._nearest.setdefault(at, (missing, now_s))
            if missing.is_nearer(nearest):
                _, since_s = self._nearest[at] = missing, now_s
            if missing.words and (now_s - since_s >= POSITIONS_STALL_TIMEOUT_S or waited_s >= MOST_S):
                self._notes[at] = (
                    f"it continued after {waited_s:.0f} s of waiting for {missing.words}: {REDELIVERY_NOTE}"
                )
                self._missing[at] = Missing()
                log.warning("a failover continues without last positions", run=run.id, workload=one.key,
                            missing=missing.words, waited_s=round(waited_s, 1))  # fmt: skip
        unarrived = [
            (run, one.key) for run, one in awaited if self._missing.get((run.id, one.key), COMING).words
        ]
        if unarrived and (self._query is None or self._query.done()):
            self._query = asyncio.get_running_loop().create_task(self._query_positions(unarrived))

    async def _query_positions(self, unarrived: Sequence[tuple[FailoverRun, str]]) -> None:
        """Queries the missing positions once; the next round starts another query."""
        assert self._arrived is not None
        began_s = time.monotonic()
        queried: dict[str, tuple[str, Workload, str]] = {}
        for run, key in unarrived:
            workload, role = self._workload(key), self._keeper.highest(key)
            if workload is not None and role is not None and role.previous == self._keeper.own:
                self._missing[run.id, key] = Missing()  # the positions are this region's own
            elif workload is not None and role is not None:
                queried[key] = run.id, workload, role.previous
        try:
            found = await self._arrived([(workload, region) for _, workload, region in queried.values()])
        except Exception as error:  # noqa: BLE001 - after any error the time limit still ends the wait
            found = dict.fromkeys(queried, Missing(f"{COMING.words} ({error or repr(error)})", None))
        for key, (name, _, _) in queried.items():
            if self._missing.get((name, key), COMING).words:
                self._missing[name, key] = found.get(key, COMING)
        if not all(self._missing.get((run.id, key), COMING).words for run, key in unarrived):
            self._on_news()
        await asyncio.sleep(max(0.0, ARRIVAL_POLL_INTERVAL_S - (time.monotonic() - began_s)))


def waits_to_hear(run: FailoverRun) -> str:
    """The wait of a run in a region that has just returned."""
    return f"region {run.to} to read what other regions decided"


def end_remedy(run: FailoverRun, waits_for: str) -> str:
    """The remedy for the wait of `FailoverRuns.end_waits_for`."""
    return RETURNED if waits_for == waits_to_hear(run) else UNWRITTEN


def remedy(run: FailoverRun, one: WorkloadStanding) -> str:
    """The remedy for a workload's wait."""
    back = f"abort it: switchyard failover abort {run.id}"
    if one.waits_for == waits_to_hear(run):
        return RETURNED
    if one.write is not None:
        return UNWRITTEN
    if one.stage is WorkloadStage.RELEASING:
        return (
            f"check whether its region is heard (failover status); if it is lost, continue without it: "
            f"switchyard failover execute {run.id} --force; or {back}"
        )
    if one.stage is WorkloadStage.POSITIONS:
        return (
            f"it continues when they have arrived, or stood still for "
            f"{POSITIONS_STALL_TIMEOUT_S:.0f} s ({REDELIVERY_NOTE}); "
            f"check that the routes from there copy (route list), or continue at once: "
            f"switchyard failover execute {run.id} --force"
        )
    if run.state == DONE:
        return "see failover status"
    return f"check the Failover definition of its topic; or {back}"
