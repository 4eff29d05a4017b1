"""The leader's inputs for placement: loads that owners measured, isolation groups, and planned moves."""

from __future__ import annotations

import msgspec
import pytest

from app.controllog.events import Drain, MoveWish
from app.controllog.state import ControlState
from app.dispatch.definition import Workload
from app.kernel.incidents import IsOver
from app.kernel.load import SLOW_WINDOW_S, Load
from app.placement.inputs import PlacementInputs, members_of
from app.placement.model.plan import Member
from tests.web.runtime_fake import assigned, beat, definition, flowing, job, put

BIG, SMALL = Load(0.6, 1 << 20, 1000), Load(0.1, 1 << 20, 1000)


class Region:
    """A control log's state, and the leader's inputs from it."""

    def __init__(self, **spec: object) -> None:
        self.view = ControlState()
        self.incidents: list[str] = []
        self.is_over: list[IsOver | None] = []
        self.view.apply(put(definition("billing", "orders", **spec)))
        self.placing = PlacementInputs(self.workload, self._report)

    def _report(
        self, kind: str, subject: str, message: str, remedy: str, is_over: IsOver | None = None
    ) -> None:
        self.incidents.append(kind)
        self.is_over.append(is_over)

    def workload(self, key: str) -> Workload | None:
        found = self.view.workloads.get(key)
        try:
            return Workload.from_wire(found.definition) if found else None
        except ValueError:
            return None

    def spoil(self, **spec: object) -> None:
        """Makes the definition one that this version cannot read."""
        found = self.view.workloads["billing/orders"]
        found.definition["spec"] |= {"ordering": "by-a-newer-version"} | spec


def test_a_load_counts_from_the_owner_only_and_stays_known_when_the_owner_dies() -> None:
    region = Region()
    region.view.apply(assigned(job(0), "a"))
    theirs = beat(flowing(job(0), load=BIG), worker="a")
    region.placing.observe(region.view, [theirs, beat(flowing(job(0), load=SMALL), worker="b")])
    assert region.placing.loads == {job(0): BIG}
    region.placing.observe(region.view, [])
    assert region.placing.loads == {job(0): BIG}


def test_a_worker_over_capacity_gives_a_job_away_and_it_arrives_where_it_was_planned() -> None:
    region, members = Region(), [Member("a"), Member("b")]
    for partition in (0, 1):
        region.view.apply(assigned(job(partition), "a"))
    region.placing.observe(region.view, [beat(*(flowing(job(p), load=BIG) for p in (0, 1)), worker="a")])
    jobs = {job(0), job(1)}

    made = region.placing.plan(region.view, jobs, members, asleep={})
    (move,) = made.decisions
    assert (move.worker, move.release, move.target) == ("a", True, "b")
    assert "of its cpu" in move.reason
    region.placing.decided(region.view, made)

    held = region.view.assignments[move.job]
    region.view.assignments[move.job] = msgspec.structs.replace(held, worker="", release=False)
    made = region.placing.plan(region.view, jobs, [*members, Member("c")], asleep={})
    (arrival,) = made.decisions
    assert (arrival.worker, arrival.release) == ("b", False)
    assert "as planned" in arrival.reason


def test_an_isolation_group_keeps_its_jobs_and_an_impossible_placement_is_reported_once() -> None:
    region, jobs = Region(placement={"group": "critical"}), {job(0)}
    for _ in range(2):
        made = region.placing.plan(region.view, jobs, [Member("a")], asleep={})
        assert made.decisions == []
        region.placing.decided(region.view, made)
    assert region.incidents == ["no-worker"]
    (is_over,) = region.is_over
    assert is_over is not None
    assert not is_over()
    made = region.placing.plan(region.view, jobs, [Member("a"), Member("b", group="critical")], asleep={})
    (placed,) = made.decisions
    assert placed.worker == "b"
    region.placing.decided(region.view, made)
    assert is_over()


def test_a_leader_that_leads_again_reports_again_what_still_holds() -> None:
    region, jobs = Region(placement={"group": "critical"}), {job(0)}
    for term in (1, 1, 3):
        region.view.term = term
        region.placing.decided(region.view, region.placing.plan(region.view, jobs, [Member("a")], asleep={}))
    assert region.incidents == ["no-worker", "no-worker"]


@pytest.mark.parametrize("placement", [{"group": "critical"}, {"class": "critical"}, "critical"])
def test_isolation_holds_while_a_definition_cannot_be_read(placement: object) -> None:
    region, members = Region(placement={"group": "critical"}), [Member("a"), Member("b", group="critical")]
    region.spoil(placement=placement)
    region.view.apply(assigned(job(0), "b"))
    region.view.apply(assigned(job(1), "dead"))
    made = region.placing.plan(region.view, {job(0), job(1)}, members, asleep={})
    assert "a" not in {decision.worker for decision in made.decisions}
    assert job(0) not in {decision.job for decision in made.decisions}, "the job stays with its worker"
    drained = [Member("a"), Member("b", draining=True, group="critical")]
    made = region.placing.plan(region.view, {job(0), job(1)}, drained, asleep={})
    assert made.decisions == []
    assert {notice.kind for notice in made.notices} == {"no-worker"}


def test_a_definition_without_a_group_is_run_by_all_although_it_cannot_be_read() -> None:
    region = Region()
    region.spoil()
    (placed,) = region.placing.plan(region.view, {job(0)}, [Member("a")], asleep={}).decisions
    assert placed.worker == "a"


def test_a_new_owners_first_figures_raise_a_known_load_and_lower_it_only_after_hours() -> None:
    region = Region()
    region.view.apply(assigned(job(0), "a"))
    region.placing.observe(region.view, [beat(flowing(job(0), load=BIG), worker="a")], 0.0)
    region.view.apply(assigned(job(0), "b", epoch=2))

    def load_after(load: Load, now_s: float) -> Load:
        heartbeat = beat(flowing(job(0), epoch=2, load=load), worker="b")
        region.placing.observe(region.view, [heartbeat], now_s)
        return region.placing.loads[job(0)]

    assert load_after(SMALL, 10.0) == BIG
    assert load_after(Load(0.9, 0.0, 0.0), 20.0) == Load(0.9, BIG.memory_bytes, BIG.network_bytes_per_s)
    assert load_after(SMALL, 3000.0) == BIG
    assert load_after(SMALL, 10.0 + SLOW_WINDOW_S) == SMALL


def test_a_worker_drains_because_it_stops_or_because_an_operator_drains_it() -> None:
    region = Region()
    region.view.apply(Drain(at_ms=1, worker="b", draining=True, actor="me"))
    stopping = msgspec.structs.replace(beat(worker="c"), state="draining", group="g")
    live = {"a": beat(worker="a"), "b": beat(worker="b"), "c": stopping}
    members = {member.worker: (member.draining, member.group) for member in members_of(region.view, live)}
    assert members == {"a": (False, ""), "b": (True, ""), "c": (True, "g")}


def test_wishes_of_the_log_and_of_a_dry_run_are_heeded() -> None:
    region = Region()
    for partition in (0, 1):
        region.view.apply(assigned(job(partition), "a"))
    region.view.apply(MoveWish(at_ms=1, job=job(0), worker="b", epoch=1, actor="me"))
    made = region.placing.plan(
        region.view, {job(0), job(1)}, [Member("a"), Member("b")], asleep={}, wishes={job(1): "b"}
    )
    assert {(move.job, move.target) for move in made.decisions} == {(job(0), "b"), (job(1), "b")}
