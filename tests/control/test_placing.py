"""What the leader places by: loads that owners measured, isolation groups, moves that were planned before."""

from __future__ import annotations

import msgspec

from app.config.definitions import Workload
from app.control.placing import Placing, members_of
from app.core.control import ControlState, Drain, MoveWish
from app.core.load import Load
from app.core.placement import Member
from tests.console.hand_fed import assigned, beat, definition, flowing, job, put

BIG, SMALL = Load(0.6, 1 << 20, 1000), Load(0.1, 1 << 20, 1000)


class Region:
    """A control log's state, and the leader's picture of it."""

    def __init__(self, **spec: object) -> None:
        self.view = ControlState()
        self.told: list[str] = []
        self.view.apply(put(definition("billing", "orders", **spec)))
        self.placing = Placing(self.workload, lambda *trouble: self.told.append(trouble[0]))

    def workload(self, key: str) -> Workload | None:
        found = self.view.workloads.get(key)
        return Workload.from_wire(found.definition) if found else None


def test_a_load_counts_from_the_owner_only_and_stays_known_when_the_owner_dies() -> None:
    region = Region()
    region.view.apply(assigned(job(0), "a"))
    theirs = beat(flowing(job(0), load=BIG), worker="a")
    region.placing.hear(region.view, [theirs, beat(flowing(job(0), load=SMALL), worker="b")])
    assert region.placing.loads == {job(0): BIG}
    region.placing.hear(region.view, [])
    assert region.placing.loads == {job(0): BIG}


def test_a_worker_over_capacity_gives_a_job_away_and_it_arrives_where_it_was_planned() -> None:
    region, members = Region(), [Member("a"), Member("b")]
    for partition in (0, 1):
        region.view.apply(assigned(job(partition), "a"))
    region.placing.hear(region.view, [beat(*(flowing(job(p), load=BIG) for p in (0, 1)), worker="a")])
    jobs = {job(0), job(1)}

    made = region.placing.look(region.view, jobs, members, asleep={})
    (move,) = made.decisions
    assert (move.worker, move.release, move.target) == ("a", True, "b")
    assert "of its cpu" in move.reason
    region.placing.decided(region.view, made)

    held = region.view.assignments[move.job]
    region.view.assignments[move.job] = msgspec.structs.replace(held, worker="", release=False)
    made = region.placing.look(region.view, jobs, [*members, Member("c")], asleep={})
    (arrival,) = made.decisions
    assert (arrival.worker, arrival.release) == ("b", False)
    assert "as planned" in arrival.reason


def test_an_isolation_group_keeps_its_jobs_to_itself_and_what_cannot_be_is_told_once() -> None:
    region, jobs = Region(placement={"group": "critical"}), {job(0)}
    for _ in range(2):
        made = region.placing.look(region.view, jobs, [Member("a")], asleep={})
        assert made.decisions == []
        region.placing.decided(region.view, made)
    assert region.told == ["no-worker"]
    (placed,) = region.placing.look(region.view, jobs, [Member("a"), Member("b", group="critical")],
                                    asleep={}).decisions  # fmt: skip
    assert placed.worker == "b"


def test_a_worker_drains_because_it_stops_or_because_an_operator_wants_it() -> None:
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
    made = region.placing.look(
        region.view, {job(0), job(1)}, [Member("a"), Member("b")], asleep={}, wishes={job(1): "b"}
    )
    assert {(move.job, move.target) for move in made.decisions} == {(job(0), "b"), (job(1), "b")}
