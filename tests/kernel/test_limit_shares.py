"""A limit that workers share: the sum never exceeds it, and a worker gets what it needs if the limit
allows."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.controllog.events import Claim, LimitShares
from app.controllog.state import ControlState
from app.kernel.limit_shares import (
    IDLE_PART,
    WHOLE,
    GrantedShare,
    LimitDemand,
    LimitGrant,
    LimitUsage,
    WorkerShare,
    aims,
    is_worth,
    scaled,
    step,
)

names = st.sampled_from("abcde")
workers = st.sampled_from("abc")
wants = st.dictionaries(
    names, st.builds(LimitDemand, st.integers(0, 2 * WHOLE), st.booleans(), st.integers(1, 50)), min_size=1
)


@given(st.integers(1, WHOLE), wants, st.integers(0, 1000))
def test_all_of_a_limit_is_given_out_and_no_more(
    total: int, wanted: dict[str, LimitDemand], turn: int
) -> None:
    found = aims(total, wanted, turn)

    assert sum(found.values()) == total
    assert found.keys() == wanted.keys()
    assert min(found.values()) >= (1 if total >= len(wanted) else 0)


@given(st.integers(1000, WHOLE), wants)
def test_needs_that_fit_together_are_satisfied(total: int, wanted: dict[str, LimitDemand]) -> None:
    each = total // (2 * len(wanted))
    modest = {name: LimitDemand(min(want.used, each), more=False) for name, want in wanted.items()}
    found = aims(total, modest)

    assert all(found[name] >= want.used for name, want in modest.items())


def test_a_busy_worker_gets_what_idle_ones_do_not_need() -> None:
    found = aims(WHOLE, {"busy": LimitDemand(more=True), "idle": LimitDemand(), "other": LimitDemand()})

    assert found["busy"] >= WHOLE * (1 - 1 / IDLE_PART)


def test_busy_workers_share_by_their_busy_partitions() -> None:
    found = aims(WHOLE, {"one": LimitDemand(more=True, weight=1), "three": LimitDemand(more=True, weight=3)})

    assert found["three"] == pytest.approx(3 * found["one"], rel=0.02)


def test_with_fewer_calls_than_workers_the_workers_in_need_take_turns() -> None:
    wanted = {name: LimitDemand(more=name != "c") for name in "abc"}
    had = [name for turn in range(6) for name, slots in aims(1, wanted, turn).items() if slots]

    assert set(had) == {"a", "b"}


def test_one_worker_alone_gets_the_whole_at_once() -> None:
    assert step(WHOLE, aims(WHOLE, {"a": LimitDemand()}), {}) == {"a": GrantedShare(WHOLE, WHOLE)}
    left = {"a": GrantedShare(WHOLE // 3, WHOLE // 3)}
    aimed = aims(WHOLE, {"a": LimitDemand()})

    assert is_worth(WHOLE, {"a": LimitDemand()}, aimed, left)
    assert step(WHOLE, aimed, left)["a"].now == WHOLE


@given(st.integers(1, 100), st.integers(1, 100), st.lists(st.integers(0, 100), max_size=6))
def test_slots_fit_a_changed_limit(former: int, limit: int, weights: list[int]) -> None:
    slots = [former * weight // max(1, sum(weights)) for weight in weights]

    assert sum(scaled(one, former, limit) for one in slots) <= limit
    assert sum(WorkerShare(slots=one, of=former).in_flight(limit) for one in slots) <= limit


def test_use_is_averaged_and_want_is_forgotten() -> None:
    usage = LimitUsage()
    for tenth in range(200):
        usage.add(100 + tenth / 10, 0.05)
    usage.short(120)

    assert usage.per_s(120) == pytest.approx(0.5, rel=0.1)
    assert usage.wants(120.5)
    assert not usage.wants(122)
    assert usage.per_s(200) < 0.001


def test_a_share_is_given_away_only_after_its_worker_has_read_the_loss() -> None:
    wanted = {"late": LimitDemand(), "busy": LimitDemand(more=True)}
    held = {"late": GrantedShare(50, 50), "busy": GrantedShare(50, 50)}
    for _ in range(3):
        held = step(100, aims(100, wanted), held)  # no worker has read anything
        assert held["busy"] == GrantedShare(50, 50)
        assert held["late"] == GrantedShare(1, 50)
    read = {name: GrantedShare(one.now, one.now) for name, one in held.items()}

    assert step(100, aims(100, wanted), read) == {"late": GrantedShare(1, 1), "busy": GrantedShare(99, 99)}


@dataclass
class Worker:
    """One worker: what it has read of the log, what the leader last heard of this, and what it uses."""

    read: int = 0
    heard: int | None = None  # None: no heartbeat since this leader leads
    heard_in_flight: int = 0
    in_flight: int = 0  # slots; may exceed the grant until calls are answered
    want: LimitDemand = field(default_factory=LimitDemand)
    alive: bool = True  # its lease holds
    gone: bool = False  # the leader counts it dead


class Region(RuleBasedStateMachine):
    """Workers read late, lose heartbeats, die or pause, and leaders change. At no moment do the workers'
    shares, or their calls in flight, add up to more than the limit."""

    TOTAL = 7

    def __init__(self) -> None:
        super().__init__()
        self.log: list[dict[str, GrantedShare]] = []
        self.workers: dict[str, Worker] = {}

    @initialize()
    def begin(self) -> None:
        for name in "ab":
            self.join(name)
        self.leader_looks(0)

    @rule(name=workers)
    def join(self, name: str) -> None:
        if name not in self.workers:  # names are never reused
            self.workers[name] = Worker(read=len(self.log))

    @rule(name=workers, count=st.sampled_from([1, 100]))
    def reads(self, name: str, count: int) -> None:
        if (worker := self.workers.get(name)) is not None:
            worker.read = min(len(self.log), worker.read + count)

    @rule(name=workers)
    def is_heard(self, name: str) -> None:
        worker = self.workers.get(name)
        if worker is not None and worker.alive:
            worker.heard, worker.heard_in_flight = worker.read, worker.in_flight

    @rule(name=workers, used=st.sampled_from([0, 10]), more=st.booleans())
    def needs(self, name: str, used: int, more: bool) -> None:
        if (worker := self.workers.get(name)) is not None:
            worker.want = LimitDemand(used, more)
            self.leader_looks(0)

    @rule(name=workers)
    def sends(self, name: str) -> None:
        worker = self.workers.get(name)
        if worker is not None and worker.alive:
            worker.in_flight = max(worker.in_flight, self.granted(name))

    @rule(name=workers)
    def is_answered(self, name: str) -> None:
        if (worker := self.workers.get(name)) is not None:
            worker.in_flight = max(0, worker.in_flight - 1)

    @rule(name=workers)
    def dies(self, name: str) -> None:
        if (worker := self.workers.get(name)) is not None:
            worker.alive, worker.in_flight = False, 0

    @rule(name=workers)
    def is_buried(self, name: str) -> None:
        worker = self.workers.get(name)
        if worker is not None and not worker.alive:
            worker.gone = True

    @rule(name=workers)
    def wakes(self, name: str) -> None:
        """A paused worker wakes; it reads the whole log before its lease holds again."""
        worker = self.workers.get(name)
        if worker is not None and not worker.alive:
            worker.alive, worker.gone, worker.heard, worker.read = True, False, None, len(self.log)

    @rule()
    def another_leads(self) -> None:
        for worker in self.workers.values():
            worker.heard = None

    @rule(turn=st.integers(0, 5))
    def leader_looks(self, turn: int) -> None:
        present = {name: worker for name, worker in self.workers.items() if not worker.gone}
        held = {}
        for name, one in (self.log[-1] if self.log else {}).items():
            if (worker := present.get(name)) is None:
                continue
            has_read = worker.heard is not None and worker.heard >= len(self.log)
            flying = worker.heard_in_flight if worker.heard is not None else 0
            held[name] = GrantedShare(one.now, max(one.now, one.now if has_read else one.most, flying))
        aimed = aims(self.TOTAL, {name: worker.want for name, worker in present.items()}, turn)
        self.log.append(step(self.TOTAL, aimed, held))

    def granted(self, name: str) -> int:
        worker = self.workers[name]
        if not worker.read:
            return 0
        return self.log[worker.read - 1].get(name, GrantedShare()).now

    @invariant()
    def the_sum_is_within_the_limit(self) -> None:
        used = sum(
            max(worker.in_flight, self.granted(name)) for name, worker in self.workers.items() if worker.alive
        )
        assert used <= self.TOTAL

    @rule()
    def once_all_is_heard_the_aims_are_reached(self) -> None:
        for worker in self.workers.values():
            if not worker.alive:
                worker.gone = True
                continue
            worker.in_flight = 0
        for _ in range(3):
            for name in self.workers:
                self.reads(name, len(self.log) + 1)
                self.is_heard(name)
            self.leader_looks(0)
        wanted = {name: worker.want for name, worker in self.workers.items() if not worker.gone}
        assert {n: one.now for n, one in self.log[-1].items() if one.now} == {
            n: amount for n, amount in aims(self.TOTAL, wanted, 0).items() if amount
        }


TestRegion = Region.TestCase


def test_shares_of_a_deposed_leader_or_of_a_stale_look_do_not_count() -> None:
    state = ControlState()
    state.next_offset = 10
    claims = [Claim(at_ms=0, term=term, worker=f"w{term}") for term in (1, 2)]

    def divided(term: int, number: int, worker: str) -> LimitShares:
        whole = {worker: LimitGrant(WHOLE, WHOLE, 0, 0)}
        return LimitShares(at_ms=0, key="g/t", term=term, number=number, slots=0, grants=whole)

    assert state.apply(claims[0])
    assert state.apply(divided(1, 1, "a"))
    assert not state.apply(divided(1, 1, "b")), "its number is that of the present shares"
    assert state.apply(claims[1])
    assert not state.apply(divided(1, 2, "b"))
    assert not state.apply(divided(2, 1 << 60, "b"))
    assert state.limits["g/t"][0].grants.keys() == {"a"}
    assert state.apply(divided(2, 2, "b"))
    assert state.limits["g/t"][0].grants.keys() == {"b"}
