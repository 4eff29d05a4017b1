"""Placement through random joins, deaths, drains, loads and wishes, checked against invariants."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.controllog.events import Assignment
from app.kernel.load import Load
from app.placement.model.bin_packing import plan
from app.placement.model.plan import Member, PlacementDecision, PlacementRules, RoundPlan
from tests.placement.model.fleets import WORKER, assignment_of, carry_out, cpu, job

names = st.sampled_from([f"w{n}" for n in range(6)])
numbers = st.integers(0, 24)
RULES = PlacementRules(moves=3)


class PlacementThroughTime(RuleBasedStateMachine):
    """The region as a leader sees it. Owners release jobs later; a new leader does not know what was
    `planned`."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: set[str] = set()
        self.loads: dict[str, Load] = {}
        self.members: dict[str, Member] = {}
        self.assignments: dict[str, Assignment] = {}
        self.wishes: dict[str, str] = {}
        self.planned: dict[str, PlacementDecision] = {}

    def plan(self) -> RoundPlan:
        return plan(
            self.wanted, self.members.values(), self.assignments, self.loads,
            wishes=self.wishes, planned=self.planned, rules=RULES,
        )  # fmt: skip

    @rule(name=names, size=st.sampled_from([0.5, 1.0, 2.0]))
    def join(self, name: str, size: float) -> None:
        capacity = Load(size, WORKER.memory_bytes, WORKER.network_bytes_per_s)
        self.members[name] = Member(name, capacity=capacity)

    @rule(name=names)
    def die(self, name: str) -> None:
        self.members.pop(name, None)

    @rule(name=names)
    def drain(self, name: str) -> None:
        if name in self.members:
            self.members[name] = Member(name, draining=True)

    @rule(number=numbers, cores=st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.7, 3.0]))
    def want(self, number: int, cores: float) -> None:
        self.wanted.add(job(number))
        self.loads[job(number)] = cpu(cores)

    @rule(number=numbers)
    def want_no_more(self, number: int) -> None:
        self.wanted.discard(job(number))

    @rule(number=numbers, name=names)
    def wish(self, number: int, name: str) -> None:
        self.wishes[job(number)] = name

    @rule()
    def take_wishes_back(self) -> None:
        self.wishes.clear()

    @rule()
    def forget(self) -> None:
        """Another leader takes over, which does not know the plans of this one."""
        self.planned.clear()

    @rule(number=numbers)
    def let_go(self, number: int) -> None:
        found = self.assignments.get(job(number))
        if found is not None and found.release:
            self.assignments[job(number)] = assignment_of(job(number), "")

    @rule()
    def round(self) -> None:
        self.carry_out_round(self.plan())

    def carry_out_round(self, decided: RoundPlan) -> None:
        before = self.assignments
        self.check(decided)
        for decision in decided.decisions:
            worker = decision.worker
            self.assignments = {
                **self.assignments,
                decision.job: assignment_of(decision.job, worker, release=decision.release),
            }  # fmt: skip
            if decision.release:
                self.planned[decision.job] = decision
        assert before.keys() <= self.assignments.keys()

    def check(self, decided: RoundPlan) -> None:
        """Checks the rules that every single round must keep."""
        decisions = decided.decisions
        assert len({decision.job for decision in decisions}) == len(decisions), "one decision a job"
        moves = 0
        for decision in decisions:
            assert decision.reason
            current = self.assignments.get(decision.job)
            owner = current.worker if current is not None else ""
            if not decision.release:
                assert owner not in self.members, "a live owner must release the job first"
                assert not decision.worker or not self.members[decision.worker].draining
                assert bool(decision.worker) == (decision.job in self.wanted)
                continue
            assert current is not None
            assert owner == decision.worker, "only the owner is asked to release a job"
            assert not current.release
            if decision.job not in self.wanted:
                continue
            moves += 1
            if self.members[owner].draining:
                continue
            coming = {d.job for d in decisions if owner == (d.target if d.release else d.worker)}
            assert self.level(owner, coming) > RULES.high or decision.job in self.wishes, (
                "jobs of a worker that is not too full stay"
            )
        on_their_way = sum(a.release and a.worker in self.members for a in self.assignments.values())
        assert not moves or moves + on_their_way <= RULES.moves

    def level(self, worker: str, coming: set[str]) -> float:
        """The worker's level with its present jobs, and all jobs that are still on their way."""
        here = [
            self.loads[one].cpu_cores
            for one in self.wanted
            if one in coming or ((a := self.assignments.get(one)) and (a.worker == worker or a.release))
        ]
        return (sum(here) + 0.0005 * len(here)) / self.members[worker].capacity.cpu_cores

    @precondition(lambda self: any(not member.draining for member in self.members.values()))
    @invariant()
    def left_alone_it_comes_to_rest(self) -> None:
        assignments, planned = self.assignments, dict(self.planned)
        for _ in range(100):
            decided = plan(
                self.wanted, self.members.values(), assignments, self.loads,
                wishes=self.wishes, planned=planned, rules=RULES,
            )  # fmt: skip
            released = {one: assignment_of(one, "") for one, a in assignments.items() if a.release}
            if not decided.decisions and not released:
                break
            planned |= {d.job: d for d in decided.decisions if d.release}
            assignments = carry_out({**assignments, **released}, decided.decisions)
        else:
            raise AssertionError(f"no rest: {decided.decisions}")
        able = {name for name, member in self.members.items() if not member.draining}
        assert {one for one, a in assignments.items() if a.worker} == self.wanted, (
            "all wanted jobs are placed, and no other"
        )
        assert all(assignments[one].worker in able for one in self.wanted)
        assert all(
            assignments[one].worker == wish
            for one, wish in self.wishes.items()
            if one in self.wanted and wish in able
        )


TestPlacementThroughTime = PlacementThroughTime.TestCase
TestPlacementThroughTime.settings = settings(stateful_step_count=30)
