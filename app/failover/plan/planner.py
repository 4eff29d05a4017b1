"""Plans failovers: which workloads, whether they may, and what that would mean for every partition.

Rules
1. A plan is made in the region that is to become active, and needs nothing of the other one: what cannot be
   known without it is said to be unknown.
2. All of it takes `PLAN_TIMEOUT_S` at the most; what has not answered by then is not known.
3. Making one changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

from app.controllog import codec
from app.controllog.events import ALL, FailoverRun, RunWorkload
from app.controllog.failover_run import PLANNED, Missing
from app.controllog.roles import MOVING
from app.dispatch.definition import Workload
from app.failover.plan.document import (
    MAX_KEPT_BYTES,
    MAX_RECORD_BYTES,
    Check,
    Plan,
    PlannedWorkload,
    blocked,
    kept,
    lasting,
    read,
    totals,
)
from app.failover.plan.impact import ImpactAssessor
from app.kernel.clock import now_ms
from app.offsets.store.records import ROUTES
from app.worker.members.membership import DRAINING

if TYPE_CHECKING:
    from app.worker.runtime.service import Runtime

log = structlog.get_logger(__name__)

PLAN_TIMEOUT_S = 10.0  # below what a client waits
MAP_READ_TIMEOUT_S = 6.0
PLAN_EXPIRES_MS = 10 * 60_000
MAX_WORKLOADS = 2_000
WORKLOADS_AT_ONCE = 8
OLD_COPY_S = 5.0  # a copied control log is usually two seconds old at the most
UNHEARD_S = 15.0  # above which a region is taken for away


class PlanRefused(Exception):
    """There is nothing to plan, or not here; says what to do."""


class FailoverPlanner:
    """See the module; of one request."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._participant = runtime.failover
        self._view = runtime.control.view
        self.own = self._participant.keeper.own

    # -- which -------------------------------------------------------------------------------------

    def choose(self, to: str, keys: Sequence[str] = ()) -> list[RunWorkload]:
        """The workloads that move: those named, or all that are active elsewhere and may be here.

        Raises:
            PlanRefused: it is not this region's to plan, or there is nothing.
        """
        if to != self.own:
            raise PlanRefused(
                f"to: failing over to region {to} is decided there, where nothing else is needed; "
                f"give the command to a worker of {to} (this is one of {self.own})"
            )
        moded = {workload.key: workload for workload in self._participant.keeper.moded()}
        found: list[RunWorkload] = []
        for key in sorted(set(keys)) or sorted(moded):
            workload, role = moded.get(key), self._participant.keeper.highest(key)
            named = bool(keys)
            if workload is None:
                raise PlanRefused(f"workloads: {key[:200]} is no workload with a mode; see failover status")
            regions = self._participant.derived_routes.regions_of(workload)
            why = ""
            if to not in regions:
                why = f"may not be active in {to}: no Failover definition of its topic names that region"
            elif role is None:
                why = "has no role yet; ask again in some seconds, and see failover status"
            elif role.region == to:
                why = f"is {role.state} in {to} already; see failover status"
            if why and named:
                raise PlanRefused(f"workloads: {key} {why}")
            if not why and role is not None:
                found.append(RunWorkload(key, role.region, role.epoch))
        if not found:
            raise PlanRefused(
                f"there is nothing to move: no workload with a mode that may be active in {to} is active in "
                "another region; failover status shows where each is"
            )
        if len(found) > MAX_WORKLOADS:
            raise PlanRefused(f"{len(found)} workloads; at most {MAX_WORKLOADS} at once: name them")
        return found

    def went_away(self, name: str | None) -> tuple[str, list[str]]:
        """A failover that took workloads away from here, and those that may come back from it: by its name,
        or the last one. Roles say so, in whichever region it was.

        Raises:
            PlanRefused: there is none.
        """
        lost = [
            role
            for workload in self._participant.keeper.moded()
            if (role := self._participant.keeper.highest(workload.key)) is not None
            and role.plan and role.region != self.own and role.previous == self.own
            and self._view.runs.get(role.plan) is None  # one of ours that was aborted took nothing away
        ]  # fmt: skip
        if not lost:
            raise PlanRefused(
                "no failover took a workload away from here; failover plan moves any, by its name"
            )
        wanted = name or max(lost, key=lambda role: role.at_ms).plan
        keys = [role.key for role in lost if role.plan == wanted]
        if not keys:
            known = ", ".join(sorted({role.plan for role in lost}))
            raise PlanRefused(
                f"id: no workload of failover {wanted[:100]} is to come back here; there are {known}"
            )
        return wanted, keys

    # -- whether -----------------------------------------------------------------------------------

    def region_checks(self, chosen: Sequence[RunWorkload], *, forced: bool) -> list[Check]:
        """Preconditions of the regions, at once."""
        live = self._runtime.members.live(time.monotonic())
        able = [beat for beat in live.values() if beat.state != DRAINING]
        detail = f"{len(able)} workers live here" + (
            f", {len(live) - len(able)} drain" * (len(live) > len(able))
        )
        found = [
            Check(name="workers", level="ok", detail=detail) if able
            else Check(name="workers", level="blocked", detail=f"no worker of {self.own} may have jobs",
                       remedy="start one")
        ]  # fmt: skip
        if self._participant.keeper.has_just_returned():
            detail = f"region {self.own} has just come back, and has not heard yet what others decided"
            found.append(Check(name="returned", level="blocked", detail=detail,
                               remedy="it takes some seconds; ask again"))  # fmt: skip
        heard, at_ms = self._participant.last_pulse_ms(), now_ms()
        for region in sorted({one.region for one in chosen}):
            at = heard.get(region)
            age_s = None if at is None else max(0.0, (at_ms - at) / 1000)
            found.append(_check_heard(region, age_s, forced=forced))
        return found

    def workload_checks(self, one: RunWorkload, run: str = "") -> list[Check]:
        """Those of a workload that need no answer from anywhere; `run` is the one that asks."""
        key = one.key
        found: list[Check] = []
        other = self._view.runs.executing(key)
        if other is not None and other.id != run:
            found.append(Check(
                name="run", level="blocked", detail=f"failover {other.id} is moving it",
                remedy=f"wait for it (failover show {other.id}), or failover abort {other.id}",
            ))  # fmt: skip
        role = self._participant.keeper.highest(key)
        if role is not None and role.state == MOVING and role.region != self.own:
            detail = f"it is moving to {role.region} (epoch {role.epoch})"
            remedy = f"wait for that, or abort it there: failover abort {role.plan or 'ID'}"
            found.append(Check(name="moving", level="warn", detail=detail, remedy=remedy))
        paused = self._view.paused.get(key, set())
        if key in self._view.moves or paused:
            which = "all" if ALL in paused or key in self._view.moves else f"{len(paused)}"
            found.append(Check(
                name="paused", level="warn", detail=f"{which} of its partitions are paused here",
                remedy=f"they deliver nothing until: switchyard workload resume {key}",
            ))  # fmt: skip
        return found

    def in_the_way(self, run: FailoverRun, *, forced: bool) -> list[str]:
        """Why a planned run may not begin now."""
        why: list[str] = []
        for one in run.workloads:
            role = self._participant.keeper.highest(one.key)
            if role is None or (role.epoch, role.region) != (one.epoch, one.region):
                now = "unknown" if role is None else f"{role.region}'s under epoch {role.epoch}"
                why.append(f"{one.key} was {one.region}'s under epoch {one.epoch}, and is {now}; plan again")
            why += [f"{one.key}: {c.detail}; {c.remedy}" for c in self.workload_checks(one, run.id)
                    if c.level == "blocked"]  # fmt: skip
        checks = blocked(self.region_checks(run.workloads, forced=forced), forced=forced)
        why += [f"{check.detail}; {check.remedy}" for check in checks]
        for of, check in lasting(read(run.plan), forced=forced):
            why.append(f"{of}{': ' * bool(of)}{check.detail}; {check.remedy or 'plan again, and read it'}")
        return why

    # -- what --------------------------------------------------------------------------------------

    async def plan(self, chosen: Sequence[RunWorkload], *, forced: bool) -> Plan:
        """What moving them would mean."""
        until_s = time.monotonic() + PLAN_TIMEOUT_S
        looker = ImpactAssessor(self._runtime, until_s)
        self._begin(looker, chosen)
        failed = await self._read_tables()
        gate = asyncio.Semaphore(WORKLOADS_AT_ONCE)

        async def one(planned: RunWorkload) -> PlannedWorkload:
            async with gate:
                return await self._workload(planned, looker, failed)

        found = list(await asyncio.gather(*(one(planned) for planned in chosen)))
        checks = self.region_checks(chosen, forced=forced)
        return Plan(at_ms=now_ms(), checks=checks, workloads=found, totals=totals(found))

    def _begin(self, assessor: ImpactAssessor, chosen: Sequence[RunWorkload]) -> None:
        """Asks the clusters meanwhile: of one that is lost it takes a while to know."""
        if self._participant.derived_routes.layout is None:
            return
        found = ((self._runtime.catalog.workload(planned.key), planned.region) for planned in chosen)
        assessor.start_queries((workload, region) for workload, region in found if workload is not None)

    async def _workload(self, planned: RunWorkload, assessor: ImpactAssessor, failed: str) -> PlannedWorkload:
        workload = self._runtime.catalog.workload(planned.key)
        checks = self.workload_checks(planned)
        if workload is None:
            detail = "this worker cannot read its definition"
            checks.append(Check(name="definition", level="blocked", detail=detail, remedy="deploy it again"))
            return PlannedWorkload(
                workload=planned.key, mode="", region=planned.region, epoch=planned.epoch, checks=checks,
                why=detail,
            )  # fmt: skip
        rows, more, why = await assessor.assess(workload, planned.region, failed)
        return PlannedWorkload(
            workload=planned.key, mode=str(workload.spec.mode), region=planned.region, epoch=planned.epoch,
            checks=checks + more, partitions=rows, why=why,
        )  # fmt: skip

    async def _read_tables(self) -> str:
        """Why the offset map is not known, or only as it was; "" when it is."""
        regions = self._runtime.regions
        if regions is None:
            return "this worker has no offset map"
        return await _failed(
            regions.remote_progress.read(MAP_READ_TIMEOUT_S),
            regions.tables.read(MAP_READ_TIMEOUT_S, (ROUTES,)),
        )

    def made(
        self, to: str, chosen: list[RunWorkload], plan: Plan, *, forced: bool, actor: str, reason: str,
        name: str, back_of: str = "",
    ) -> FailoverRun:  # fmt: skip
        """The run, as it is planned, with what is kept of the plan.

        Raises:
            PlanRefused: it is more than the control log takes at once.
        """
        at_ms = now_ms()
        run = FailoverRun(
            at_ms=at_ms, id=name, to=to, workloads=chosen, state=PLANNED, forced=forced, actor=actor,
            reason=reason, made_ms=at_ms, expires_ms=at_ms + PLAN_EXPIRES_MS, back_of=back_of,
        )  # fmt: skip
        told = kept(plan, min(MAX_KEPT_BYTES, MAX_RECORD_BYTES - len(codec.encode(run))))
        if told is None:
            raise PlanRefused(f"{len(chosen)} workloads are too many for one plan; name some of them")
        return msgspec.structs.replace(run, plan=told)

    # -- last positions ----------------------------------------------------------------------------

    async def arrived(self, workloads: list[tuple[Workload, str]]) -> dict[str, Missing]:
        """What of the last positions of workloads has not come here (`app.failover.run.runner`)."""
        regions, failed = self._runtime.regions, "this worker has no offset map"
        if regions is not None:
            failed = await _failed(
                regions.remote_progress.read_positions(
                    {region for _, region in workloads}, MAP_READ_TIMEOUT_S
                )
            )
        looker = ImpactAssessor(self._runtime, time.monotonic() + MAP_READ_TIMEOUT_S)
        found = await asyncio.gather(*(looker.missing(*one, failed) for one in workloads))
        return {workload.key: why for (workload, _), why in zip(workloads, found, strict=True)}


async def _failed(*readings: Awaitable[object]) -> str:
    """The first of what failed: a plan says what it does not know; "" if none did."""
    ended = await asyncio.gather(*readings, return_exceptions=True)
    return next((str(one) or repr(one) for one in ended if isinstance(one, BaseException)), "")


def _check_heard(region: str, age_s: float | None, *, forced: bool) -> Check:
    age = (
        f"nothing was heard of region {region}"
        if age_s is None
        else f"region {region} was heard {age_s:.1f} s ago"
    )
    if forced and (age_s is None or age_s > OLD_COPY_S):
        detail = f"{age}: it is not asked to let go; should it live, it acts until it hears"
        remedy = "see that it is lost, or cannot reach its receivers"
        return Check(name="heard", level="warn", detail=detail, remedy=remedy)
    if age_s is None or age_s > UNHEARD_S:
        return Check(
            name="heard", level="blocked", detail=f"{age}, so that it would be waited for in vain",
            remedy="if it is lost, plan with --force; else see its route switchyard-"
            f"{region}-to-... (route list)", may_force=True,
        )  # fmt: skip
    if forced:
        remedy = "leave --force out: it then lets go first, and nothing is delivered twice"
        detail = f"{age}: it lives, and acts until it hears of this"
        return Check(name="heard", level="warn", detail=detail, remedy=remedy)
    if age_s > OLD_COPY_S:
        remedy = "its control log comes late: see route list"
        return Check(name="heard", level="warn", detail=age, remedy=remedy)
    return Check(name="heard", level="ok", detail=age)


def is_expired(run: FailoverRun, at_ms: int) -> bool:
    """Whether it may not be begun any more."""
    return run.state == PLANNED and at_ms > run.expires_ms
