"""What placement decides by, as the leader knows it: from heartbeats, definitions and the control log.

A job's load is what its owner measured last; where the owner is new or dead, what was measured before. A
leader that has just begun knows what the next heartbeats say, half a second later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from app.config.definitions import Workload
from app.control.beginning import Trouble
from app.control.membership import DRAINING
from app.core.control import ControlState
from app.core.load import Load, with_estimates
from app.core.placement import Decision, Member, Plan, Rules, plan
from app.wire import Heartbeat


class Placing:
    """Remembers between rounds what one round alone cannot know: loads, planned moves, what was told."""

    def __init__(self, workload: Callable[[str], Workload | None], tell: Trouble) -> None:
        self.loads: dict[str, Load] = {}
        self.took_s = 0.0  # the last look
        self._workload = workload
        self._tell = tell
        self._planned: dict[str, tuple[int, Decision]] = {}  # with the epoch that is to end
        self._told: set[tuple[str, str]] = set()

    def hear(self, state: ControlState, beats: Iterable[Heartbeat]) -> None:
        """Takes in what the owners of jobs measured."""
        held = state.assignments
        for beat in beats:
            for status in beat.jobs:
                if status.load is not None and status.job in held and held[status.job].worker == beat.worker:
                    self.loads[status.job] = status.load
        if len(self.loads) > 2 * len(held):
            self.loads = {job: load for job, load in self.loads.items() if job in held}

    def look(
        self,
        state: ControlState,
        jobs: Collection[str],
        members: Iterable[Member],
        *,
        asleep: Mapping[str, str],
        wishes: Mapping[str, str] | None = None,
        rules: Rules = Rules(),  # noqa: B008  frozen
    ) -> Plan:
        """What should be done now; changes nothing. `wishes` are in addition to those in the log."""
        groups = {}
        for key in state.workloads:
            workload = self._workload(key)
            if workload is not None and workload.spec.placement is not None:
                groups[key] = workload.spec.placement.group
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
        return made

    def decided(self, state: ControlState, made: Plan) -> None:
        """`made` is being carried out: keeps where its moves lead, and tells what could not be done."""
        for decision in made.decisions:
            if decision.release:
                self._planned[decision.job] = (state.assignments[decision.job].epoch, decision)
        for notice in made.notices:
            if (notice.kind, notice.subject) not in self._told:
                self._tell(notice.kind, notice.subject, notice.message, notice.remedy)
        self._told = {(notice.kind, notice.subject) for notice in made.notices}


def members_of(state: ControlState, live: Mapping[str, Heartbeat]) -> list[Member]:
    """The live workers as placement sees them."""
    return [
        Member(worker, beat.state == DRAINING or worker in state.draining, beat.capacity, beat.group)
        for worker, beat in sorted(live.items())
    ]
