"""Failover runs, carried out by leaders that read late and have old views:

- By the highest epoch, one region is active.
- No region acts before the former one has released the workload, unless the run was forced.
- Every run ends, or says what it waits for.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.controllog import codec
from app.controllog.events import (
    AnyControlEvent,
    FailoverRun,
    RolePut,
    RoleReleased,
    RunWorkload,
    compaction_key,
    for_people,
)
from app.controllog.failover_run import (
    ABORTED,
    DONE,
    EXECUTING,
    PLANNED,
    FailoverRunLog,
    KnownWorkload,
    WorkloadStage,
    WorkloadStanding,
    conclusion,
    holders,
    stand,
)
from app.controllog.roles import ACTIVE, MOVING, initial, next_epoch
from app.controllog.state import ControlState

KEYS = ("billing/orders", "billing/refunds")
REGIONS = ("east", "west", "north")
regions = st.sampled_from(REGIONS)
keys = st.sampled_from(KEYS)
RUN_STATES = (PLANNED, EXECUTING, DONE, ABORTED)


def folded(events: list[AnyControlEvent]) -> ControlState:
    state = ControlState()
    for event in events:
        state.apply(event)
    return state


def compacted(events: list[AnyControlEvent]) -> list[AnyControlEvent]:
    """The least that compaction leaves: the last event of each key, in order."""
    last = {compaction_key(event): n for n, event in enumerate(events)}
    return [event for n, event in enumerate(events) if last[compaction_key(event)] == n]


def without_reason(role: RolePut | None) -> Any:
    """The role without its free text."""
    return None if role is None else msgspec.structs.replace(role, reason="")


def leader_events(region: str, view: ControlState, positions: set[str]) -> list[AnyControlEvent]:
    """Events that the region's leader writes for what it knows, as `app.failover.run.runner` does."""
    moving_plans = {role.plan for role in view.roles if role.state == MOVING}
    found: list[AnyControlEvent] = []
    for run in view.runs:
        if run.to != region or not (run.state == EXECUTING or run.id in moving_plans):
            continue
        standings = standings_of(run, view, positions)
        found += [one.write for one in standings if one.write is not None]
        if (ended := conclusion(run, standings, 9)) is not None:
            found.append(ended)
    return found


def standings_of(run: FailoverRun, view: ControlState, positions: set[str]) -> list[WorkloadStanding]:
    standings = []
    for planned in run.workloads:
        role = view.roles.of(planned.key)
        released = view.roles.released(planned.key)
        held_by = tuple(
            region
            for region in sorted(holders(run, planned, role))
            if role is None or region not in released or released[region].epoch < role.epoch
        )
        missing = "" if planned.key in positions else "positions"
        standings.append(stand(run, planned, KnownWorkload(role, held_by, REGIONS, True, missing), 9))
    return standings


class Failovers(RuleBasedStateMachine):
    """Regions that each have a log and hear each other late. A leader may act on any prefix of its log."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[str, list[AnyControlEvent]] = {region: [] for region in REGIONS}
        self.dead: set[str] = set()
        self.positions: set[str] = set()
        self.acted: dict[tuple[str, int], set[str]] = {}
        self.let_go: set[tuple[str, str, int]] = set()
        self.forced: set[str] = set()
        self.count = 0

    @initialize(primary=regions)
    def begin(self, primary: str) -> None:
        region, epoch = initial(primary, REGIONS)
        for log in self.logs.values():
            log += [RolePut(at_ms=0, key=key, region=region, epoch=epoch, state=ACTIVE) for key in KEYS]

    def view(self, region: str) -> ControlState:
        return folded(self.logs[region])

    def write(self, region: str, events: list[AnyControlEvent]) -> None:
        for event in events:
            if isinstance(event, RolePut) and event.region == region and event.state == ACTIVE and event.plan:
                needs_no_release = event.plan in self.forced or event.plan.startswith("back")
                previous = event.previous == region or any(
                    (key, let_go) == (event.key, event.previous) and epoch >= event.epoch
                    for key, let_go, epoch in self.let_go
                )
                if not needs_no_release and self.view(region).runs.get(event.plan).to == region:  # type: ignore[union-attr]
                    assert previous, "it is active, and the former region has not released it"
            self.logs[region].append(event)

    # -- what operators do ------------------------------------------------------------------------

    @rule(at=regions, which=st.sets(keys, min_size=1), forced=st.booleans())
    def plans_and_executes(self, at: str, which: set[str], forced: bool) -> None:
        view = self.view(at)
        roles = {key: view.roles.of(key) for key in sorted(which)}
        chosen = [RunWorkload(k, r.region, r.epoch) for k, r in roles.items() if r and r.region != at]
        if not chosen or at in self.dead:
            return
        self.count += 1
        run = FailoverRun(at_ms=1, id=f"f{self.count}", to=at, workloads=chosen, state=PLANNED, plan={"a": 1})
        self.write(at, [run])
        if forced:
            self.forced.add(run.id)
        executing = msgspec.structs.replace(run, state=EXECUTING, forced=forced, plan=None)
        self.write(at, [executing])

    @rule(at=regions, data=st.data())
    def forces(self, at: str, data: st.DataObject) -> None:
        for run in self.of(at, EXECUTING, data):
            self.forced.add(run.id)
            self.write(at, [msgspec.structs.replace(run, forced=True, plan=None)])

    @rule(at=regions, data=st.data())
    def aborts(self, at: str, data: st.DataObject) -> None:
        for run in self.of(at, EXECUTING, data):
            self.write(at, [msgspec.structs.replace(run, state=ABORTED, plan=None)])

    def of(self, at: str, state: str, data: st.DataObject) -> list[FailoverRun]:
        found = [run for run in self.view(at).runs if run.state == state]
        return [data.draw(st.sampled_from(found))] if found and at not in self.dead else []

    # -- what regions do --------------------------------------------------------------------------

    @rule(at=regions, behind=st.integers(0, 6))
    def a_leader_acts_by_what_it_knows(self, at: str, behind: int) -> None:
        log = self.logs[at]
        known = log[: max(len(KEYS), len(log) - behind)]
        self.write(at, leader_events(at, folded(known), set(self.positions)))

    @rule(at=regions)
    def a_fresh_leader_knows_what_compaction_left(self, at: str) -> None:
        self.write(at, leader_events(at, folded(compacted(self.logs[at])), set(self.positions)))

    @rule(at=regions, of=regions)
    def hears(self, at: str, of: str) -> None:
        if at == of or {at, of} & self.dead:
            return
        decided = [e for e in self.logs[of] if isinstance(e, RolePut | RoleReleased)]
        self.logs[at] += [event for event in decided if event not in self.logs[at]]

    @rule(at=regions, key=keys)
    def lets_go(self, at: str, key: str) -> None:
        role = self.view(at).roles.of(key)
        if role is not None and role.region != at and at not in self.dead:
            self.let_go.add((key, at, role.epoch))
            self.write(at, [RoleReleased(at_ms=2, key=key, region=at, epoch=role.epoch)])

    @rule(key=keys)
    def positions_come(self, key: str) -> None:
        self.positions.add(key)

    @precondition(lambda self: not self.dead)
    @rule(at=regions)
    def is_lost(self, at: str) -> None:
        self.dead.add(at)

    # -- what holds -------------------------------------------------------------------------------

    @invariant()
    def no_two_regions_act_under_one_epoch(self) -> None:
        for region in REGIONS:
            view = self.view(region)
            for key in KEYS:
                role = view.roles.of(key)
                if role is not None and view.roles.is_active(key, region):
                    self.acted.setdefault((key, role.epoch), set()).add(region)
        assert all(len(of) == 1 for of in self.acted.values()), self.acted

    @invariant()
    def an_executing_run_says_what_each_workload_waits_for(self) -> None:
        for region in REGIONS:
            view = self.view(region)
            for run in view.runs:
                if run.state == EXECUTING:
                    found = standings_of(run, view, self.positions)
                    assert all(one.waits_for for one in found if not one.has_ended), found

    @invariant()
    def compaction_changes_neither_roles_nor_runs(self) -> None:
        for region, log in self.logs.items():
            whole, left = folded(log), folded(compacted(log))
            for key in KEYS:
                assert without_reason(whole.roles.of(key)) == without_reason(left.roles.of(key))
            runs = [
                {run.id: (run.state, run.forced, run.plan) for run in view.runs} for view in (whole, left)
            ]
            assert runs[0] == runs[1], region

    def teardown(self) -> None:
        """Once all regions have heard all events, every run ends, or says what it waits for."""
        self.positions.update(KEYS)
        for _ in range(12):
            for region in REGIONS:
                for other in REGIONS:
                    self.hears(region, other)
                for key in KEYS:
                    self.lets_go(region, key)
                if region not in self.dead:
                    view = self.view(region)
                    self.write(region, leader_events(region, view, set(KEYS)))
        for region in set(REGIONS) - self.dead:
            view = self.view(region)
            assert not leader_events(region, view, set(KEYS)), "no leader writes more"
            for run in view.runs:
                waiting = [one.waits_for for one in standings_of(run, view, set(KEYS)) if not one.has_ended]
                assert run.state in {DONE, ABORTED} or any(waiting), run
                assert self.dead or run.state in {DONE, ABORTED}, "no region is lost, and the run still waits"
            for role in view.roles:
                mine = role.plan and role.region == region and role.state == MOVING
                assert not mine or self.dead, "no move stays unfinished"
                ended = view.runs.get(role.plan)
                assert not (mine and ended is not None and ended.state == ABORTED), (
                    "the abort gave the workload back"
                )


TestFailovers = Failovers.TestCase
TestFailovers.settings = settings(stateful_step_count=30)


# -- one by one ------------------------------------------------------------------------------------------

KEY = KEYS[0]
RUN = FailoverRun(
    at_ms=1,
    id="f",
    to="west",
    workloads=[RunWorkload(KEY, "east", 0)],
    state=EXECUTING,
    actor="me",
    reason="why",
)


def role(region: str, epoch: int, state: Any = ACTIVE, **fields: Any) -> RolePut:
    return RolePut(at_ms=0, key=KEY, region=region, epoch=epoch, state=state, **fields)


def standing(run: FailoverRun, at: RolePut | None, **known: Any) -> WorkloadStanding:
    return stand(run, run.workloads[0], KnownWorkload(at, regions=REGIONS, **known), 5)


def test_a_run_waits_for_release_then_for_positions_and_is_active_under_one_epoch() -> None:
    due = standing(RUN, role("east", 0))
    moving = due.write
    assert due.waits_for == "the leader of west to write it"
    assert moving == RolePut(
        at_ms=5, key=KEY, region="west", epoch=2, state="moving", previous="east", plan="f", actor="me",
        reason="failover f; why",
    )  # fmt: skip
    waits = standing(RUN, moving, held_by=("east",))
    assert (waits.stage, waits.waits_for, waits.write) == (
        WorkloadStage.RELEASING, "region east to release it", None,
    )  # fmt: skip
    assert standing(RUN, moving, positions="p").stage is WorkloadStage.POSITIONS
    active = standing(RUN, moving, note="it went on").write
    assert active is not None
    assert (active.state, active.epoch, active.reason) == (ACTIVE, 2, "failover f; why; it went on")
    assert standing(RUN, active).stage is WorkloadStage.ACTIVE
    ended = conclusion(RUN, [standing(RUN, active)], 7)
    assert ended is not None
    assert (ended.state, ended.at_ms) == (DONE, 7)
    assert ended.result == f"1 active; {KEY}: it went on", "the result also names an unfinished wait"


def test_a_forced_run_is_active_at_once_also_when_it_already_waits() -> None:
    forced = msgspec.structs.replace(RUN, forced=True)
    at_once = standing(forced, role("east", 0)).write
    assert at_once is not None
    assert (at_once.state, at_once.epoch) == (ACTIVE, 2)
    moving = standing(RUN, role("east", 0)).write
    assert moving is not None
    later = standing(forced, moving, held_by=("east",)).write
    assert later is not None
    assert (later.state, later.epoch, later.reason) == (ACTIVE, 2, "forced failover f; why")


def test_an_aborted_run_gives_moving_workloads_back_under_a_new_epoch_and_keeps_active_ones() -> None:
    aborted = msgspec.structs.replace(RUN, state=ABORTED)
    moving = standing(RUN, role("east", 0)).write
    returned = standing(aborted, moving).write
    assert returned is not None
    assert (returned.region, returned.state, returned.previous) == ("east", ACTIVE, "east")
    assert returned.epoch == next_epoch(2, "east", REGIONS)
    assert standing(aborted, returned).stage is WorkloadStage.BACK
    assert standing(aborted, role("west", 2, plan="f")).stage is WorkloadStage.ACTIVE
    assert standing(aborted, role("east", 0)).stage is WorkloadStage.LEFT


@pytest.mark.parametrize(
    ("at", "stage"),
    [
        (role("north", 1), WorkloadStage.TAKEN),
        (role("west", 66, plan="other"), WorkloadStage.TAKEN),
        (None, WorkloadStage.TO_BEGIN),
    ],
)
def test_a_later_decision_is_left_alone(at: RolePut | None, stage: WorkloadStage) -> None:
    found = standing(RUN, at)
    assert (found.stage, found.write) == (stage, None)
    assert found.waits_for


def test_a_run_that_moved_nothing_is_aborted_and_one_of_other_regions_says_what_it_waits_for() -> None:
    taken = conclusion(RUN, [standing(RUN, role("north", 1))], 7)
    assert taken is not None
    assert (taken.state, taken.result) == (ABORTED, "1 changed otherwise meanwhile")
    alone = stand(RUN, RUN.workloads[0], KnownWorkload(role("east", 0), regions=("east", "north")), 5)
    assert alone.write is None
    assert "region west is none of those that share the topic" in alone.waits_for
    assert conclusion(RUN, [alone], 7) is None
    gone = standing(RUN, role("east", 0), exists=False)
    assert (gone.stage, gone.write) == (WorkloadStage.GONE, None)


def test_a_runs_state_only_advances_whatever_arrives_late_and_keeps_its_plan() -> None:
    planned = msgspec.structs.replace(RUN, state=PLANNED, plan={"rows": 1})
    aborted = msgspec.structs.replace(RUN, state=ABORTED)
    forced = msgspec.structs.replace(RUN, forced=True)
    for order in ((planned, RUN, forced, aborted), (aborted, forced, RUN, planned), (RUN, aborted, planned)):
        runs = FailoverRunLog()
        for event in order:
            runs.put(event)
        held = runs.get("f")
        assert held is not None
        assert (held.state, held.plan) == (ABORTED, {"rows": 1})
    runs = FailoverRunLog()
    assert [runs.put(event) for event in (planned, planned, forced, RUN)] == [True, False, True, False]
    assert runs.executing(KEY) is not None
    assert runs.executing("other/topic") is None


def test_an_abort_after_the_run_is_done_changes_nothing() -> None:
    done, aborted = (msgspec.structs.replace(RUN, state=state) for state in (DONE, ABORTED))
    for order in ((RUN, done, aborted), (RUN, aborted, done), (aborted, done, RUN)):
        held = folded(list(order)).runs.get("f")
        assert held is not None
        assert held.state == DONE


def test_a_run_crosses_the_wire_and_people_see_it_without_its_plan() -> None:
    planned = msgspec.structs.replace(RUN, state=PLANNED, plan={"rows": [1]})
    assert codec.control_event(codec.encode(planned)) == planned
    shown = for_people(planned)
    assert isinstance(shown, FailoverRun)
    assert shown.plan is None
