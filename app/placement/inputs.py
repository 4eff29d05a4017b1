"""The inputs of a placement round, as the leader knows them: heartbeats, definitions and the control log.

A job's load is its owner's last measurement, also after the owner died. A new owner has measured for a
short while only, so the earlier load counts for as long as a peak does (`app.kernel.load`, rule 5). A new
leader knows all loads after the next heartbeats, half a second later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from app.controllog.codec import Heartbeat
from app.controllog.events import WorkloadPut
from app.controllog.leader_reports import NewTerm
from app.controllog.state import ControlState
from app.dispatch.definition import Workload
from app.kernel.incidents import IsOver, ReportIncident
from app.kernel.load import InheritedLoad, Load, with_estimates
from app.placement.model.bin_packing import plan
from app.placement.model.plan import UNREAD, Member, Notice, PlacementDecision, PlacementRules, RoundPlan
from app.placement.model.round import GONE
from app.worker.members.membership import DRAINING

NO_ROOM = "no-room"  # of the moment when jobs were placed; "overloaded" says that it lasts


class PlacementInputs:
    """The leader's memory between rounds: loads, planned moves, reported notices.

    `why_gone` gives the reason for a job that should not exist any more.
    """

    def __init__(
        self,
        workload: Callable[[str], Workload | None],
        report_incident: ReportIncident,
        why_gone: Callable[[str], str] = lambda _: GONE,
    ) -> None:
        self.loads: dict[str, Load] = {}
        self.took_s = 0.0  # the last plan's computation
        self._known: dict[str, InheritedLoad] = {}
        self._heard: dict[str, Heartbeat] = {}
        self._workload = workload
        self._report_incident = report_incident
        self._why_gone = why_gone
        self._planned: dict[str, tuple[int, PlacementDecision]] = {}  # with the epoch that the move ends
        self._reported: set[tuple[str, str]] = set()
        self._new_term = NewTerm()

    def observe(self, state: ControlState, beats: Iterable[Heartbeat], now_s: float | None = None) -> None:
        """Takes the loads in heartbeats; `now_s` in monotonic seconds, by default now."""
        at_s = time.monotonic() if now_s is None else now_s
        held, heard = state.assignments, self._heard
        self._heard = {beat.worker: beat for beat in beats}
        for worker, beat in self._heard.items():
            if heard.get(worker) is beat:
                continue
            for status in beat.jobs:
                job, load = status.job, status.load
                if load is None or (owner := held.get(job)) is None or owner.worker != worker:
                    continue
                known = self._known.get(job)
                if known is None or known.epoch != status.epoch:
                    known = self._known[job] = InheritedLoad(status.epoch, self.loads.get(job), at_s)
                self.loads[job] = known.load(load, at_s)
        if len(self.loads) > 2 * len(held):
            self.loads = {job: load for job, load in self.loads.items() if job in held}
            self._known = {job: known for job, known in self._known.items() if job in held}

    def plan(
        self,
        state: ControlState,
        jobs: Collection[str],
        members: Iterable[Member],
        *,
        asleep: Mapping[str, str],
        wishes: Mapping[str, str] | None = None,
        rules: PlacementRules = PlacementRules(),  # noqa: B008  frozen
    ) -> RoundPlan:
        """Plans a round; changes nothing. `wishes` are added to those in the log."""
        groups = {
            key: group
            for key, put in state.workloads.items()
            if (group := group_of(put, self._workload(key)))
        }
        held = state.assignments
        planned = {
            job: decision
            for job, (epoch, decision) in self._planned.items()
            if job in held and held[job].epoch == epoch
        }
        self._planned = {job: self._planned[job] for job in planned}
        began_s = time.perf_counter()
        made = plan(
            jobs,
            members,
            held,
            with_estimates(jobs, self.loads),
            groups=groups,
            wishes={job: wish.worker for job, wish in state.wishes.items()} | dict(wishes or {}),
            planned=planned,
            asleep=asleep,
            rules=rules,
        )
        self.took_s = time.perf_counter() - began_s
        return msgspec.structs.replace(made, decisions=list(map(self._explained, made.decisions)))

    def _explained(self, decision: PlacementDecision) -> PlacementDecision:
        if not decision.reason.startswith(GONE):
            return decision
        reason = decision.reason.replace(GONE, self._why_gone(decision.job), 1)
        return msgspec.structs.replace(decision, reason=reason)

    def decided(self, state: ControlState, made: RoundPlan) -> None:
        """Notes the moves of `made`, which the leader carries out, and reports its new notices."""
        for decision in made.decisions:
            if decision.release:
                self._planned[decision.job] = (state.assignments[decision.job].epoch, decision)
        if self._new_term.has_begun(state.term):
            self._reported = set()
        for notice in made.notices:
            if (notice.kind, notice.subject) not in self._reported:
                is_over = None if notice.kind == NO_ROOM else self._is_over(notice)
                self._report_incident(notice.kind, notice.subject, notice.message, notice.remedy, is_over)
        self._reported = {(notice.kind, notice.subject) for notice in made.notices}

    def _is_over(self, notice: Notice) -> IsOver:
        """Whether a round has come without this notice."""
        noticed = notice.kind, notice.subject
        return lambda: noticed not in self._reported


def group_of(put: WorkloadPut, workload: Workload | None) -> str:
    """A workload's isolation group, "" for none; `UNREAD` when the group cannot be read.

    Args:
        workload: The definition; None: this version cannot read it, and does not guess where its jobs may
            run.
    """
    if workload is not None:
        return "" if workload.spec.placement is None else workload.spec.placement.group
    spec = put.definition.get("spec")
    place = spec.get("placement") if isinstance(spec, dict) else UNREAD
    if place is None:
        return ""
    group = place.get("group") if isinstance(place, dict) else None
    return group if isinstance(group, str) else UNREAD


def members_of(state: ControlState, live: Mapping[str, Heartbeat]) -> list[Member]:
    """The live workers as input of placement."""
    return [
        Member(worker, beat.state == DRAINING or worker in state.draining, beat.capacity, beat.group)
        for worker, beat in sorted(live.items())
    ]
