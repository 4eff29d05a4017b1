"""A region through deaths, pauses and wrong clocks: it never acts by what it knew before it lay still, and
one that lives never lies still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.controllog import codec
from app.controllog.events import AnyControlEvent, RegionPulse, compaction_key
from app.failover.run.presence import OUT_OF_TOUCH_S, Presence
from app.failover.run.region_bridge import UNHEARD_S
from app.failover.run.role_keeper import PULSE_INTERVAL_S
from app.kernel.clock import now_ms
from tests.examples import as_profile
from tests.failover.run.region_fakes import FakeRegion, failover, workload
from tests.failover.run.test_role_keeper import record, settled, the, two

TICK_S = 0.5
LEASE_S = 2.0
DEAD_S = 3.0
LAG = 2  # ticks until a record is in the other region's copy
AHEAD_MS = st.integers(-1_200_000, 1_200_000)
TICKS = st.sampled_from([0, 1, 4, 10, 40])
NUMBERS = st.integers(0, 3)
DEFINED = failover(), workload()


class Worker:
    """One process of a region: its own view of the log, its lease, its clock."""

    def __init__(self, world: World, own: str, number: int, ahead_ms: int) -> None:
        self.world, self.number = world, number
        self.name = f"{own}-{number}"
        self.region = FakeRegion(own, *DEFINED, worker=self.name, ahead_ms=ahead_ms)
        self.region.in_touch_s = float("-inf")
        self.region.now_s = world.now_s
        self.born_s = self.heard_s = world.now_s
        self.paused = self.leads = self.fresh = False
        self.read = self.copied = 0
        self.told = ""  # its presence, as the others hear it

    @property
    def holds(self) -> bool:
        """Whether it may act."""
        return not self.paused and self.world.now_s - self.region.in_touch_s < LEASE_S

    @property
    def acts(self) -> bool:
        return self.holds and self.region.keeper.runs_here(the(self.region)) is True


class World:
    """Two regions; the west is one worker that always lives."""

    def __init__(self) -> None:
        self.now_s, self.count = 1_000.0, 0
        self.logs: dict[str, list[tuple[float, AnyControlEvent]]] = {"east": [], "west": []}
        self.workers: dict[str, list[Worker]] = {"east": [], "west": []}
        self.is_away = False  # the east's control cluster
        self.touched_s = 0.0  # when anybody in the east had a lease last
        self.back_at = -1  # where the west's log ended when the east returned; -1: it goes on
        self.behind: list[AnyControlEvent] = []  # what a producer has taken and not yet written
        self.join("west", 0)

    def join(self, own: str, ahead_ms: int) -> Worker:
        self.count += 1
        made = Worker(self, own, self.count, ahead_ms)
        self.workers[own].append(made)
        self._follow(made)
        return made

    def _follow(self, worker: Worker) -> None:
        log = self.logs[worker.region.own]
        worker.region.log.apply(*(event for _, event in log[worker.read :]))
        worker.read = len(log)

    def tick(self) -> None:
        self.now_s += TICK_S
        for own, workers in self.workers.items():
            if own == "east" and self.is_away:
                for worker in workers:
                    if not worker.paused:
                        worker.region.now_s = self.now_s
                        worker.region.presence.update(self.now_s)  # a heartbeat that does not come through
                continue
            if own == "east":
                self.logs[own] += [(self.now_s, event) for event in self.behind]
                self.behind = []
            for worker in workers:
                if not worker.paused:
                    self._beat(worker)
            self._lead(own, [worker for worker in workers if not worker.paused])
        self._watch()

    def _beat(self, worker: Worker) -> None:
        worker.region.now_s = self.now_s
        worker.region.presence.update(self.now_s)
        worker.told, worker.heard_s = worker.region.presence.name, self.now_s
        self._follow(worker)
        worker.region.in_touch_s = self.now_s

    def live(self, own: str) -> list[Worker]:
        """As everybody hears them."""
        return [
            worker for worker in self.workers[own] if self.now_s - worker.heard_s < DEAD_S and worker.told
        ]

    def _lead(self, own: str, able: list[Worker]) -> None:
        leader = next((worker for worker in self.workers[own] if worker.leads), None)
        if leader is None or leader not in self.live(own):
            # A worker that has just come waits for as long as it takes to hear that one leads.
            claims = [worker for worker in able if self.now_s - worker.born_s >= DEAD_S]
            if not claims:
                return
            if leader is not None:
                leader.leads = False
            leader = claims[0]
            leader.leads, leader.copied = True, 0
            leader.region.bridge.pulses.clear()
        if leader.paused or not leader.holds:
            return
        self._copy(leader)
        region = leader.region
        region.live = {worker.told for worker in self.live(own)}
        self.logs[own] += [(self.now_s, event) for event in region.keeper.steps(self.now_s)]
        self._follow(leader)

    def _copy(self, leader: Worker) -> None:
        other = "west" if leader.region.own == "east" else "east"
        log = self.logs[other]
        while leader.copied < len(log) and log[leader.copied][0] <= self.now_s - LAG * TICK_S:
            event = log[leader.copied][1]
            value = SimpleNamespace(offset=0, key=compaction_key(event).encode(), value=codec.encode(event))
            leader.region.bridge.accept(other, [value])
            leader.copied += 1

    def _watch(self) -> None:
        """What is true, whatever anybody believes."""
        leases = [worker for worker in self.workers["east"] if worker.holds]
        if leases:
            if self.now_s - self.touched_s > OUT_OF_TOUCH_S and self.logs["east"]:
                self.back_at = len(self.logs["west"])
            self.touched_s = self.now_s
        if self.back_at >= 0 and any(worker.copied > self.back_at for worker in leases if worker.leads):
            self.back_at = -1  # it has heard what was decided meanwhile


class RegionThroughTime(RuleBasedStateMachine):
    """The east; whether it acts is asked after every tick."""

    @initialize(clocks=st.lists(AHEAD_MS, min_size=1, max_size=3))
    def begin(self, clocks: list[int]) -> None:
        self.world = World()
        self.world.touched_s = self.world.now_s
        for ahead_ms in clocks:
            self.world.join("east", ahead_ms)
        for _ in range(60):
            self.world.tick()

    @property
    def east(self) -> list[Worker]:
        return self.world.workers["east"]

    def later(self, ticks: int) -> None:
        for _ in range(ticks):
            self.world.tick()
            self.acts_by_nothing_old()

    @rule(ahead_ms=AHEAD_MS, ticks=TICKS)
    def join(self, ahead_ms: int, ticks: int) -> None:
        if len(self.east) < 4:
            self.world.join("east", ahead_ms)
        self.later(ticks)

    @rule(number=NUMBERS, ticks=TICKS)
    def kill(self, number: int, ticks: int) -> None:
        del self.east[number : number + 1]
        self.later(ticks)

    @rule(ticks=TICKS)
    def kill_all(self, ticks: int) -> None:
        self.east.clear()
        self.later(ticks)

    @rule(number=NUMBERS, ticks=TICKS)
    def pause_or_wake(self, number: int, ticks: int) -> None:
        for worker in self.east[number : number + 1]:
            worker.paused ^= True
        self.later(ticks)

    @rule(number=NUMBERS, ahead_ms=AHEAD_MS)
    def step_the_clock(self, number: int, ahead_ms: int) -> None:
        for worker in self.east[number : number + 1]:
            worker.region.ahead_ms = ahead_ms
        self.later(1)

    @rule(ticks=TICKS, after=TICKS)
    def the_cluster_is_away(self, ticks: int, after: int) -> None:
        leader = next((worker for worker in self.east if worker.leads and not worker.paused), None)
        if leader is not None:  # one round more, which its producer goes on trying to write
            self.world.behind += leader.region.keeper.steps(self.world.now_s)
        self.world.is_away = True
        self.later(ticks)
        self.world.is_away = False
        self.later(after)

    @invariant()
    def acts_by_nothing_old(self) -> None:
        if self.world.back_at >= 0:
            assert not [worker.name for worker in self.east if worker.acts]


TestRegionThroughTime = RegionThroughTime.TestCase
TestRegionThroughTime.settings = settings(max_examples=as_profile(80), stateful_step_count=20, deadline=None)


@given(
    clocks=st.lists(AHEAD_MS, min_size=2, max_size=3),
    acts=st.lists(st.tuples(st.sampled_from(["kill", "clock", "away"]), NUMBERS, AHEAD_MS), max_size=8),
)
@settings(max_examples=as_profile(30), deadline=None)
def test_a_region_that_lives_acts_through_changes_of_its_leader_and_steps_of_its_clocks(
    clocks: list[int], acts: list[tuple[str, int, int]]
) -> None:
    world = World()
    for ahead_ms in clocks:
        world.join("east", ahead_ms)
    east = world.workers["east"]
    for _ in range(60):
        world.tick()
    for act, number, ahead_ms in acts:
        at = number % len(east)
        if act == "kill":
            east.pop(at)
            world.join("east", ahead_ms)
        elif act == "clock":
            east[at].region.ahead_ms = ahead_ms
        world.is_away = act == "away"
        for tick in range(int(OUT_OF_TOUCH_S / TICK_S) - 2):
            world.tick()
            lives = [worker for worker in east if worker.holds and world.now_s - worker.born_s > 2 * TICK_S]
            leader = any(worker.leads and worker in east for worker in world.live("east"))
            assert not leader or all(worker.acts for worker in lives), (act, tick)
        world.is_away = False
        world.tick()
        assert all(worker.acts for worker in east)


async def test_a_next_leader_whose_clock_is_behind_hears_the_answer_all_the_same() -> None:
    east, west = two()
    await settled(east, west)
    first = FakeRegion("east", *DEFINED, worker="east-2", ahead_ms=600_000)
    first.log.apply(*east.log.appended)
    await first.round()
    assert first.log.view.pulses["east"].returned_ms > 0
    following = FakeRegion("east", *DEFINED, worker="east-3")
    following.log.apply(*east.log.appended, *first.log.appended)
    for _ in range(2):
        await following.round(PULSE_INTERVAL_S)
        west.hear(following)
        await west.round(PULSE_INTERVAL_S)
        following.hear(west)
    await following.round(PULSE_INTERVAL_S)
    assert following.log.view.pulses["east"].returned_ms == 0
    assert following.keeper.runs_here(the(following)) is True


async def test_all_workers_of_a_region_follow_its_leaders_pulses() -> None:
    east, west = two()
    await settled(east, west)
    assert east.keeper.has_just_returned() is False
    east.log.apply(RegionPulse(at_ms=1, region="east", leader="east-2/1", returned_ms=1))
    assert east.keeper.has_just_returned() is True
    await east.round(PULSE_INTERVAL_S)
    assert east.keeper.has_just_returned() is False, "this one leads now, and knows better"


def test_an_old_pulse_names_no_worker_and_a_name_ends_with_the_lost_touch() -> None:
    in_touch_s = float("-inf")
    presence = Presence("w", lambda: in_touch_s)

    def told(**of: Any) -> RegionPulse:
        return RegionPulse(at_ms=1, region="east", **of)

    assert not presence.knows(told())
    first = presence.name
    presence.update(0.0)
    assert not presence.knows(told(workers=[first])), "it had no touch yet"
    in_touch_s = 0.0
    presence.update(OUT_OF_TOUCH_S)
    assert not presence.knows(told(workers=[presence.name], returned_ms=1))
    assert presence.knows(told(workers=["v/1", presence.name]))
    assert presence.knows(told(workers=["v/1"])), "it was proved before"
    presence.update(OUT_OF_TOUCH_S + 0.1)
    assert not presence.knows(told(workers=["w/0", "w/1"]))


def test_while_an_older_version_leads_its_pulses_prove_it_that_came_since_this_worker_reads() -> None:
    in_touch_s = float("-inf")
    presence = Presence("w", lambda: in_touch_s)

    def told(at_ms: int, **of: Any) -> RegionPulse:
        return RegionPulse(at_ms=at_ms, region="east", **of)

    assert not presence.knows(told(1))
    assert not presence.knows(told(2)), "the log was not read to its end: that may have stood there for long"
    in_touch_s = 100.0
    assert not presence.knows(told(3)), "as may this"
    assert not presence.knows(told(4, returned_ms=1)), "that one says itself that it lay still"
    assert presence.knows(told(5))
    presence.update(100.1 + OUT_OF_TOUCH_S)
    assert not presence.knows(told(6)), "it has had no touch since it has another name"
    in_touch_s = 101.0 + OUT_OF_TOUCH_S
    assert not presence.knows(told(6))
    assert not presence.knows(told(6))
    assert presence.knows(told(8))
    assert presence.knows(told(8, workers=["v/1"])), "it was proved before"


def test_a_pulse_of_an_older_version_is_read() -> None:
    told = b'{"event":"region-pulse","at_ms":5,"region":"west","heard":{"east":4},"returned_ms":3}'
    assert codec.control_event(told) == RegionPulse(at_ms=5, region="west", heard={"east": 4}, returned_ms=3)


# -- ages ------------------------------------------------------------------------------------------


def pulse(at_ms: int) -> Any:
    return record(b"pulse/west", codec.encode(RegionPulse(at_ms=at_ms, region="west")))


def test_the_last_pulse_counts_whatever_its_clock_and_its_age_is_since_it_came() -> None:
    east = FakeRegion("east", *DEFINED)
    assert east.bridge.age_s("west") is None
    east.bridge.accept("west", [pulse(now_ms() + 600_000)])
    east.now_s += 40
    assert east.bridge.age_s("west") == 40
    slower = pulse(now_ms() - 600_000)
    east.bridge.accept("west", [slower])
    assert codec.control_event(slower.value) == east.bridge.pulses["west"]
    assert east.bridge.age_s("west") == 0


@pytest.mark.parametrize("ahead_s", [0, 600])
def test_a_pulse_that_was_in_the_copy_before_it_was_read_did_not_arrive_now(ahead_s: int) -> None:
    east = FakeRegion("east", *DEFINED)
    east.bridge.accept("west", [pulse(now_ms() + (ahead_s - 1) * 1000)], old=True)
    assert east.bridge.age_s("west") is None, "it may be of a region that is lost"
    east.bridge.accept("west", [pulse(now_ms() - 3_600_000)], old=True)
    age_s = east.bridge.age_s("west")
    assert age_s is not None
    assert age_s > 3_500 > UNHEARD_S
    east.bridge.accept("west", [pulse(now_ms() - 3_600_000)])
    assert east.bridge.age_s("west") == 0


async def test_a_leader_shares_when_it_heard_a_region_by_its_own_clock() -> None:
    east = FakeRegion("east", *DEFINED, ahead_ms=-600_000)
    east.bridge.accept("west", [pulse(now_ms() + 600_000)])
    await east.round(3.0)
    told = east.log.view.pulses["east"]
    assert told.at_ms - told.heard["west"] == 3_000


async def test_a_new_worker_is_named_at_once() -> None:
    east = FakeRegion("east", *DEFINED)
    await east.round(PULSE_INTERVAL_S)
    assert not [event for event in await east.round() if isinstance(event, RegionPulse)]
    east.live = {"east-2/1"}
    (told,) = [event for event in await east.round() if isinstance(event, RegionPulse)]
    assert told.workers == ["east-1/0", "east-2/1"]
    assert not [event for event in await east.round() if isinstance(event, RegionPulse)]
