"""A region through deaths, pauses and wrong clocks. After a full stop it never acts on what it knew before;
a region that runs without a break keeps acting.
"""

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
from tests.failover.run.test_role_keeper import exchange_logs, record, shared_workload, two_regions

TICK_S = 0.5
LEASE_S = 2.0
DEAD_S = 3.0
LAG = 2  # ticks until a record is in the other region's copy
CLOCK_SKEWS_MS = st.integers(-1_200_000, 1_200_000)
TICKS = st.sampled_from([0, 1, 4, 10, 40])
NUMBERS = st.integers(0, 3)
DEFINED = failover(), workload()


class Worker:
    """One process of a region, with its own view of the log, its lease and its clock."""

    def __init__(self, world: World, own: str, number: int, clock_skew_ms: int) -> None:
        self.world, self.number = world, number
        self.name = f"{own}-{number}"
        self.region = FakeRegion(own, *DEFINED, worker=self.name, clock_skew_ms=clock_skew_ms)
        self.region.in_touch_s = float("-inf")
        self.region.now_s = world.now_s
        self.born_s = self.heard_s = world.now_s
        self.paused = self.leads = self.fresh = False
        self.read = self.copied = 0
        self.heard_name = ""  # its name, as the other workers last heard it

    @property
    def holds(self) -> bool:
        """Whether its lease lets it act."""
        return not self.paused and self.world.now_s - self.region.in_touch_s < LEASE_S

    @property
    def acts(self) -> bool:
        return self.holds and self.region.keeper.runs_here(shared_workload(self.region)) is True


class World:
    """Two regions; the west is one worker that always runs."""

    def __init__(self) -> None:
        self.now_s, self.count = 1_000.0, 0
        self.logs: dict[str, list[tuple[float, AnyControlEvent]]] = {"east": [], "west": []}
        self.workers: dict[str, list[Worker]] = {"east": [], "west": []}
        self.is_away = False  # the east's control cluster
        self.touched_s = 0.0  # when a worker of the east last had a lease
        self.back_at = -1  # end of the west's log when the east returned; -1: the east has not stopped
        self.behind: list[AnyControlEvent] = []  # events that a producer holds and has not written yet
        self.join("west", 0)

    def join(self, own: str, clock_skew_ms: int) -> Worker:
        self.count += 1
        made = Worker(self, own, self.count, clock_skew_ms)
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
                        worker.region.presence.update(self.now_s)  # a heartbeat that is lost
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
        worker.heard_name, worker.heard_s = worker.region.presence.name, self.now_s
        self._follow(worker)
        worker.region.in_touch_s = self.now_s

    def live(self, own: str) -> list[Worker]:
        """The workers that the others count as alive."""
        return [
            worker
            for worker in self.workers[own]
            if self.now_s - worker.heard_s < DEAD_S and worker.heard_name
        ]

    def _lead(self, own: str, able: list[Worker]) -> None:
        leader = next((worker for worker in self.workers[own] if worker.leads), None)
        if leader is None or leader not in self.live(own):
            # A new worker waits until it would have heard of a leader.
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
        region.live = {worker.heard_name for worker in self.live(own)}
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
        """Keeps what is true, independent of what workers believe."""
        leases = [worker for worker in self.workers["east"] if worker.holds]
        if leases:
            if self.now_s - self.touched_s > OUT_OF_TOUCH_S and self.logs["east"]:
                self.back_at = len(self.logs["west"])
            self.touched_s = self.now_s
        if self.back_at >= 0 and any(worker.copied > self.back_at for worker in leases if worker.leads):
            self.back_at = -1  # the leader has read what was decided meanwhile


class RegionThroughTime(RuleBasedStateMachine):
    """The east; after every tick the test checks that it does not act on old knowledge."""

    @initialize(clocks=st.lists(CLOCK_SKEWS_MS, min_size=1, max_size=3))
    def begin(self, clocks: list[int]) -> None:
        self.world = World()
        self.world.touched_s = self.world.now_s
        for clock_skew_ms in clocks:
            self.world.join("east", clock_skew_ms)
        for _ in range(60):
            self.world.tick()

    @property
    def east(self) -> list[Worker]:
        return self.world.workers["east"]

    def later(self, ticks: int) -> None:
        for _ in range(ticks):
            self.world.tick()
            self.acts_by_nothing_old()

    @rule(clock_skew_ms=CLOCK_SKEWS_MS, ticks=TICKS)
    def join(self, clock_skew_ms: int, ticks: int) -> None:
        if len(self.east) < 4:
            self.world.join("east", clock_skew_ms)
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

    @rule(number=NUMBERS, clock_skew_ms=CLOCK_SKEWS_MS)
    def step_the_clock(self, number: int, clock_skew_ms: int) -> None:
        for worker in self.east[number : number + 1]:
            worker.region.clock_skew_ms = clock_skew_ms
        self.later(1)

    @rule(ticks=TICKS, after=TICKS)
    def the_cluster_is_away(self, ticks: int, after: int) -> None:
        leader = next((worker for worker in self.east if worker.leads and not worker.paused), None)
        if leader is not None:  # one more round, which its producer keeps trying to write
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
    clocks=st.lists(CLOCK_SKEWS_MS, min_size=2, max_size=3),
    acts=st.lists(st.tuples(st.sampled_from(["kill", "clock", "away"]), NUMBERS, CLOCK_SKEWS_MS), max_size=8),
)
@settings(max_examples=as_profile(30), deadline=None)
def test_a_running_region_acts_through_changes_of_leader_and_clock_steps(
    clocks: list[int], acts: list[tuple[str, int, int]]
) -> None:
    world = World()
    for clock_skew_ms in clocks:
        world.join("east", clock_skew_ms)
    east = world.workers["east"]
    for _ in range(60):
        world.tick()
    for act, number, clock_skew_ms in acts:
        at = number % len(east)
        if act == "kill":
            east.pop(at)
            world.join("east", clock_skew_ms)
        elif act == "clock":
            east[at].region.clock_skew_ms = clock_skew_ms
        world.is_away = act == "away"
        for tick in range(int(OUT_OF_TOUCH_S / TICK_S) - 2):
            world.tick()
            leased = [worker for worker in east if worker.holds and world.now_s - worker.born_s > 2 * TICK_S]
            leader = any(worker.leads and worker in east for worker in world.live("east"))
            assert not leader or all(worker.acts for worker in leased), (act, tick)
        world.is_away = False
        world.tick()
        assert all(worker.acts for worker in east)


async def test_the_next_leader_hears_the_answer_although_its_clock_is_behind() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    first = FakeRegion("east", *DEFINED, worker="east-2", clock_skew_ms=600_000)
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
    assert following.keeper.runs_here(shared_workload(following)) is True


async def test_all_workers_of_a_region_follow_its_leaders_pulses() -> None:
    east, west = two_regions()
    await exchange_logs(east, west)
    assert east.keeper.has_just_returned() is False
    east.log.apply(RegionPulse(at_ms=1, region="east", leader="east-2/1", returned_ms=1))
    assert east.keeper.has_just_returned() is True
    await east.round(PULSE_INTERVAL_S)
    assert east.keeper.has_just_returned() is False, "this worker leads now, and its own presence counts"


def test_an_old_pulse_names_no_worker_and_lost_contact_ends_a_name() -> None:
    in_touch_s = float("-inf")
    presence = Presence("w", lambda: in_touch_s)

    def east_pulse(**fields: Any) -> RegionPulse:
        return RegionPulse(at_ms=1, region="east", **fields)

    assert not presence.knows(east_pulse())
    first = presence.name
    presence.update(0.0)
    assert not presence.knows(east_pulse(workers=[first])), "it had no contact yet"
    in_touch_s = 0.0
    presence.update(OUT_OF_TOUCH_S)
    assert not presence.knows(east_pulse(workers=[presence.name], returned_ms=1))
    assert presence.knows(east_pulse(workers=["v/1", presence.name]))
    assert presence.knows(east_pulse(workers=["v/1"])), "it was proved before"
    presence.update(OUT_OF_TOUCH_S + 0.1)
    assert not presence.knows(east_pulse(workers=["w/0", "w/1"]))


def test_an_older_leaders_pulses_prove_presence_once_this_worker_has_read_the_log() -> None:
    in_touch_s = float("-inf")
    presence = Presence("w", lambda: in_touch_s)

    def east_pulse(at_ms: int, **fields: Any) -> RegionPulse:
        return RegionPulse(at_ms=at_ms, region="east", **fields)

    assert not presence.knows(east_pulse(1))
    assert not presence.knows(east_pulse(2)), "the log was not read to its end, so the pulse may be old"
    in_touch_s = 100.0
    assert not presence.knows(east_pulse(3)), "this one may be old, too"
    assert not presence.knows(east_pulse(4, returned_ms=1)), (
        "this pulse says that the region has just returned"
    )
    assert presence.knows(east_pulse(5))
    presence.update(100.1 + OUT_OF_TOUCH_S)
    assert not presence.knows(east_pulse(6)), "it had no contact since it changed its name"
    in_touch_s = 101.0 + OUT_OF_TOUCH_S
    assert not presence.knows(east_pulse(6))
    assert not presence.knows(east_pulse(6))
    assert presence.knows(east_pulse(8))
    assert presence.knows(east_pulse(8, workers=["v/1"])), "it was proved before"


def test_a_pulse_of_an_older_version_is_read() -> None:
    older = b'{"event":"region-pulse","at_ms":5,"region":"west","heard":{"east":4},"returned_ms":3}'
    assert codec.control_event(older) == RegionPulse(at_ms=5, region="west", heard={"east": 4}, returned_ms=3)


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


@pytest.mark.parametrize("clock_skew_s", [0, 600])
def test_a_pulse_that_was_in_the_copy_before_it_was_read_did_not_arrive_now(clock_skew_s: int) -> None:
    east = FakeRegion("east", *DEFINED)
    east.bridge.accept("west", [pulse(now_ms() + (clock_skew_s - 1) * 1000)], old=True)
    assert east.bridge.age_s("west") is None, "the pulse may come from a lost region"
    east.bridge.accept("west", [pulse(now_ms() - 3_600_000)], old=True)
    age_s = east.bridge.age_s("west")
    assert age_s is not None
    assert age_s > 3_500 > UNHEARD_S
    east.bridge.accept("west", [pulse(now_ms() - 3_600_000)])
    assert east.bridge.age_s("west") == 0


async def test_a_leader_shares_when_it_heard_a_region_by_its_own_clock() -> None:
    east = FakeRegion("east", *DEFINED, clock_skew_ms=-600_000)
    east.bridge.accept("west", [pulse(now_ms() + 600_000)])
    await east.round(3.0)
    latest = east.log.view.pulses["east"]
    assert latest.at_ms - latest.heard["west"] == 3_000


async def test_a_new_worker_is_named_at_once() -> None:
    east = FakeRegion("east", *DEFINED)
    await east.round(PULSE_INTERVAL_S)
    assert not [event for event in await east.round() if isinstance(event, RegionPulse)]
    east.live = {"east-2/1"}
    (latest,) = [event for event in await east.round() if isinstance(event, RegionPulse)]
    assert latest.workers == ["east-1/0", "east-2/1"]
    assert not [event for event in await east.round() if isinstance(event, RegionPulse)]
