"""Plans failovers: which workloads move, what blocks them, and what the move means for every partition.

Rules
1. The region that is to become active makes the plan, and needs no answer of the other region. The plan says
   what is unknown without it.
2. A plan takes at most `PLAN_TIMEOUT_S`. An answer that has not arrived by then is unknown.
3. A plan changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence

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
from app.failover.plan.ports import PlanPorts
from app.kernel.clock import now_ms
from app.offsets.store.records import ROUTES
from app.worker.members.membership import DRAINING

log = structlog.get_logger(__name__)

PLAN_TIMEOUT_S = 10.0  # below the timeout of a client
MAP_READ_TIMEOUT_S = 6.0
PLAN_EXPIRES_MS = 10 * 60_000
MAX_WORKLOADS = 2_000
WORKLOADS_AT_ONCE = 8
OLD_COPY_S = 5.0  # a copied control log is usually two seconds old at the most
UNHEARD_S = 15.0  # a region that is silent for longer counts as away


class PlanRefused(Exception):
    """This region cannot plan it, or no workload would move; says what to do."""


class FailoverPlanner:
    """Plans one request."""

    def __init__(self, ports: PlanPorts) -> None:
        self._ports = ports
        self._participant = ports.failover
        self._view = ports.control.view
        self.own = self._participant.keeper.own

    # -- workloads ---------------------------------------------------------------------------------

    def choose(self, to: str, keys: Sequence[str] = ()) -> list[RunWorkload]:
        """The workloads that move: the named ones, or all that may run here and are active in another region.

        Raises:
            PlanRefused: Another region has to plan it, or nothing would move.
        """
        if to != self.own:
            raise PlanRefused(
                f"to: a worker of region {to} has to plan this; send the command to a worker of {to} "
                f"(this worker is in {self.own})"
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
                why = "has no role yet; try again in some seconds, and see failover status"
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
        """A failover that took workloads away from here, with the keys of those that it can give back.

        It is the last one, or `name`. The roles name the failover, whichever region carried it out.

        Raises:
            PlanRefused: There is none.
        """
        lost = [
            role
            for workload in self._participant.keeper.moded()
            if (role := self._participant.keeper.highest(workload.key)) is not None
            and role.plan and role.region != self.own and role.previous == self.own
            and self._view.runs.get(role.plan) is None  # our aborted failovers took nothing away
        ]  # fmt: skip
        if not lost:
            raise PlanRefused(
                "no failover has a workload to give back here; to move a workload, name it to failover plan"
            )
        wanted = name or max(lost, key=lambda role: role.at_ms).plan
        keys = [role.key for role in lost if role.plan == wanted]
        if not keys:
            known = ", ".join(sorted({role.plan for role in lost}))
            raise PlanRefused(
                f"id: failover {wanted[:100]} has no workload to give back here; these have: {known}"
            )
        return wanted, keys

    # -- checks ------------------------------------------------------------------------------------

    def region_checks(self, chosen: Sequence[RunWorkload], *, forced: bool) -> list[Check]:
        """The checks of the regions. They read only what this worker knows."""
        live = self._ports.members.live(time.monotonic())
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
            detail = f"region {self.own} has just returned, and has not read yet what others decided"
            found.append(Check(name="returned", level="blocked", detail=detail,
                               remedy="that takes some seconds; try again"))  # fmt: skip
        heard, at_ms = self._participant.last_pulse_ms(), now_ms()
        for region in sorted({one.region for one in chosen}):
            at = heard.get(region)
            age_s = None if at is None else max(0.0, (at_ms - at) / 1000)
            found.append(_check_heard(region, age_s, forced=forced))
        return found

    def workload_checks(self, one: RunWorkload, run: str = "") -> list[Check]:
        """The checks of a workload that need no answer of a cluster or region.

        `run`: the failover that asks; it does not block itself.
        """
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
        """Why a planned failover may not begin now."""
        why: list[str] = []
        for one in run.workloads:
            role = self._participant.keeper.highest(one.key)
            if role is None or (role.epoch, role.region) != (one.epoch, one.region):
                now = "unknown" if role is None else f"{role.region}'s under epoch {role.epoch}"
                why.append(
                    f"{one.key} was {one.region}'s under epoch {one.epoch}, now it is {now}; plan again"
                )
            why += [f"{one.key}: {c.detail}; {c.remedy}" for c in self.workload_checks(one, run.id)
                    if c.level == "blocked"]  # fmt: skip
        checks = blocked(self.region_checks(run.workloads, forced=forced), forced=forced)
        why += [f"{check.detail}; {check.remedy}" for check in checks]
        for of, check in lasting(read(run.plan), forced=forced):
            why.append(f"{of}{': ' * bool(of)}{check.detail}; {check.remedy or 'plan again, and read it'}")
        return why

    # -- the plan ----------------------------------------------------------------------------------

    async def plan(self, chosen: Sequence[RunWorkload], *, forced: bool) -> Plan:
        """Plans the workloads."""
        until_s = time.monotonic() + PLAN_TIMEOUT_S
        assessor = ImpactAssessor(self._ports, until_s)
        self._start_queries(assessor, chosen)
        failed = await self._read_tables()
        gate = asyncio.Semaphore(WORKLOADS_AT_ONCE)

        async def one(planned: RunWorkload) -> PlannedWorkload:
            async with gate:
                return await self._workload(planned, assessor, failed)

        found = list(await asyncio.gather(*(one(planned) for planned in chosen)))
        checks = self.region_checks(chosen, forced=forced)
        return Plan(at_ms=now_ms(), checks=checks, workloads=found, totals=totals(found))

    def _start_queries(self, assessor: ImpactAssessor, chosen: Sequence[RunWorkload]) -> None:
        """Starts the queries early: a lost cluster is known only after a timeout."""
        if self._participant.derived_routes.layout is None:
            return
        found = ((self._ports.catalog.workloads.workload(planned.key), planned.region) for planned in chosen)
        assessor.start_queries((workload, region) for workload, region in found if workload is not None)

    async def _workload(self, planned: RunWorkload, assessor: ImpactAssessor, failed: str) -> PlannedWorkload:
        workload = self._ports.catalog.workloads.workload(planned.key)
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
        """Reads the offset map; returns why it is unknown or old, "": it is current."""
        regions = self._ports.regions
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
        """The planned failover, with the part of the plan that the control log keeps.

        Raises:
            PlanRefused: It does not fit into one record of the control log.
        """
        at_ms = now_ms()
        run = FailoverRun(
            at_ms=at_ms, id=name, to=to, workloads=chosen, state=PLANNED, forced=forced, actor=actor,
            reason=reason, made_ms=at_ms, expires_ms=at_ms + PLAN_EXPIRES_MS, back_of=back_of,
        )  # fmt: skip
        kept_plan = kept(plan, min(MAX_KEPT_BYTES, MAX_RECORD_BYTES - len(codec.encode(run))))
        if kept_plan is None:
            raise PlanRefused(f"{len(chosen)} workloads are too many for one plan; name some of them")
        return msgspec.structs.replace(run, plan=kept_plan)

    # -- last positions ----------------------------------------------------------------------------

    async def arrived(self, workloads: list[tuple[Workload, str]]) -> dict[str, Missing]:
        """Which last positions of the workloads have not arrived here (`app.failover.run.runner`)."""
        regions, failed = self._ports.regions, "this worker has no offset map"
        if regions is not None:
            failed = await _failed(
                regions.remote_progress.read_positions(
                    {region for _, region in workloads}, MAP_READ_TIMEOUT_S
                )
            )
        assessor = ImpactAssessor(self._ports, time.monotonic() + MAP_READ_TIMEOUT_S)
        found = await asyncio.gather(*(assessor.missing(*one, failed) for one in workloads))
        return {workload.key: why for (workload, _), why in zip(workloads, found, strict=True)}


async def _failed(*readings: Awaitable[object]) -> str:
    """The first error of the readings, as text; "": all succeeded."""
    ended = await asyncio.gather(*readings, return_exceptions=True)
    return next((str(one) or repr(one) for one in ended if isinstance(one, BaseException)), "")


def _check_heard(region: str, age_s: float | None, *, forced: bool) -> Check:
    age = (
        f"no report of region {region} has arrived"
        if age_s is None
        else f"the last report of region {region} arrived {age_s:.1f} s ago"
    )
    if forced and (age_s is None or age_s > OLD_COPY_S):
        detail = f"{age}: it is not asked to stop. If it runs, it delivers until it reads the new epoch"
        remedy = "make sure that it is lost, or cannot reach its receivers"
        return Check(name="heard", level="warn", detail=detail, remedy=remedy)
    if age_s is None or age_s > UNHEARD_S:
        return Check(
            name="heard", level="blocked", detail=f"{age}, so the failover would wait in vain",
            remedy="if it is lost, plan with --force; else check its route switchyard-"
            f"{region}-to-... (route list)", may_force=True,
        )  # fmt: skip
    if forced:
        remedy = "plan without --force: then it stops first, and nothing is delivered twice"
        detail = f"{age}: it runs, and delivers until it reads the new epoch"
        return Check(name="heard", level="warn", detail=detail, remedy=remedy)
    if age_s > OLD_COPY_S:
        remedy = "the copy of its control log is late; see route list"
        return Check(name="heard", level="warn", detail=age, remedy=remedy)
    return Check(name="heard", level="ok", detail=age)


def is_expired(run: FailoverRun, at_ms: int) -> bool:
    """Whether the plan is too old to be executed."""
    return run.state == PLANNED and at_ms > run.expires_ms
