"""Workers are added, stopped, killed and frozen at random under load, and definitions change: every message
is counted.

SWITCHYARD_CHAOS_S: seconds of chaos (30; make it 600 for the long run). SWITCHYARD_CHAOS_SEED: the seed of
the steps; printed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import create_topic
from tests.system.fleet import Flow, Journal, JournalEntry, committed, counted_assignments, repetitions

pytestmark = pytest.mark.system

FOR_S = float(os.environ.get("SWITCHYARD_CHAOS_S") or 30)
SEED = int(os.environ.get("SWITCHYARD_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))

CLUSTER, GROUP = "east-aggregate", "chaos"
PARTITIONS, PER_PARTITION = 3, 20.0
MAX_IN_FLIGHT = 64
LOTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"ordering": "key"},
    "stream": {"target": {"contract": "stream"}},
    "visitor": {"ordering": "key", "target": {"contract": "stream"}},  # deleted and deployed again
}
FEWEST, MOST = 2, 4  # workers
STEP_S, TICK_S, SETTLE_S, ENDS_S = 2.5, 0.1, 120.0, 60.0
UNSAVED_MS = 600.0  # a snapshot is due every 0.1 s; while none is taken, pushing stops at 0.5 s
LATE_MS = 1_000.0  # a receiver on a busy machine reads calls this late
DEADLY_S = 2.0  # a lease: a worker frozen for less has lost no job
UNHEARD_MS = 4_000.0  # without heartbeats for this long, and a round, a worker counts as dead


class Kind(StrEnum):
    """A kind of step."""

    ADD = "a worker is added"
    KILL = "kill -9"
    TERM = "SIGTERM"
    FREEZE = "SIGSTOP"
    CHANGE = "a definition is changed"
    VISIT = "a workload is deleted, or deployed again"
    STALL = "a worker that nobody touched was taken for dead"  # not planned: the machine is busy


WEIGHTS = {Kind.ADD: 4, Kind.KILL: 3, Kind.TERM: 2, Kind.FREEZE: 2, Kind.CHANGE: 2, Kind.VISIT: 2}


@dataclass(frozen=True, slots=True)
class Step:
    """At `at_s` of the chaos: `which` (0 to 1) selects the worker; a freeze lasts `for_s`."""

    kind: Kind
    at_s: float
    which: float
    for_s: float


def steps(seed: int, for_s: float) -> Iterator[Step]:
    """Steps drawn from the seed; every kind comes once before any repeats."""
    chance = random.Random(f"{seed}/chaos")
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    deck = [Kind.KILL, Kind.FREEZE, Kind.TERM, Kind.CHANGE, Kind.VISIT]
    chance.shuffle(deck)
    at_s = 1.0
    while at_s < for_s:
        frozen_s = DEADLY_S + 3.0 if deck else chance.choice((1.0, 5.0, 8.0))
        kind = deck.pop() if deck else chance.choices(kinds, weights)[0]
        yield Step(kind, at_s, chance.random(), frozen_s)
        at_s += STEP_S * chance.uniform(0.5, 1.5)


@dataclass(frozen=True, slots=True)
class Death:
    """A cause of repetitions: messages delivered within this time (ms) may arrive twice."""

    kind: Kind
    from_ms: float
    to_ms: float


@dataclass
class Chaos:
    """Runs in one thread, because processes die with the thread that started them."""

    stage: DemoStage
    prefix: str
    ready: list[Process] = field(default_factory=list)
    starting: list[Process] = field(default_factory=list)
    frozen: dict[float, tuple[Process, float]] = field(
        default_factory=dict
    )  # by the end of the freeze (monotonic)
    ending: list[Process] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)  # pids

    def __post_init__(self) -> None:
        self.bootstrap = self.stage.yard.bootstrap(CLUSTER)
        self.topics = {lot: f"{self.prefix}-{lot}" for lot in LOTS}
        for topic in self.topics.values():
            asyncio.run(create_topic(self.bootstrap, topic, PARTITIONS))
        self.receiver = self.stage.receiver(GROUP, *self.topics.values())
        self.starting = [self.stage.worker(wait=False) for _ in range(FEWEST + 1)]
        for worker in list(self.starting):
            self.stage.wait_ready(worker)
        self.settle_starting()
        for lot in LOTS:
            self.deploy(lot)
        self.visiting = True

    def deploy(self, lot: str, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        spec = {**LOTS[lot], "flow": {"max_inflight": max_in_flight}}
        self.stage.deploy(
            self.ready[0], workload(GROUP, self.topics[lot], CLUSTER, self.receiver.address, **spec)
        )

    # -- what happens ----------------------------------------------------------------------------

    def play(self, seed: int, for_s: float) -> None:
        """Carries out all steps, each at its time."""
        began_s = time.monotonic()
        for step in steps(seed, for_s):
            while time.monotonic() < began_s + step.at_s:
                self.tick()
                time.sleep(TICK_S)
            self.tick()
            result = self.do(step)
            print_line(f"{time.monotonic() - began_s:5.1f} s  {step.kind}: {result}")
        self.settle()

    def tick(self) -> None:
        """Notes workers that became ready or ended, and wakes frozen ones."""
        self.settle_starting()
        for until_s, (worker, from_ms) in list(self.frozen.items()):
            if time.monotonic() >= until_s:
                worker.signal(signal.SIGCONT)
                del self.frozen[until_s]
                if now_ms() - from_ms >= DEADLY_S * 1_000:
                    self.deaths.append(Death(Kind.FREEZE, from_ms, now_ms()))
                self.ready.append(worker)
        for worker in list(self.ending):
            if not worker.running:
                self.ending.remove(worker)
                assert worker.popen.returncode == 0, worker.tail(40)
        for worker in [*self.ready, *self.starting]:
            assert worker.running, f"{worker.name} ended by itself:\n{worker.tail(40)}"

    def settle_starting(self) -> None:
        """Moves workers that are ready from `starting` to `ready`."""
        for worker in list(self.starting):
            try:
                status, _ = http("GET", f"{worker.url}/health/ready", timeout_s=2.0)
            except OSError:
                continue
            if status == 200:
                self.starting.remove(worker)
                self.ready.append(worker)

    def do(self, step: Step) -> str:
        """Carries out one step; returns a text for the log."""
        match step.kind:
            case Kind.ADD:
                return self.add()
            case Kind.CHANGE:
                lot = list(LOTS)[int(step.which * 3)]  # `visitor` has steps of its own
                self.deploy(lot, MAX_IN_FLIGHT // 2 + int(step.which * MAX_IN_FLIGHT / 2))
                return lot
            case Kind.VISIT:
                return self.visit()
        if len(self.ready) <= 1:
            return "no worker: one must be left"
        worker = self.ready.pop(int(step.which * len(self.ready)))
        if step.kind is not Kind.FREEZE or step.for_s >= DEADLY_S:
            self.touched.add(worker.popen.pid)
        at_ms = now_ms()
        if step.kind is Kind.KILL:
            worker.kill()
            self.deaths.append(Death(Kind.KILL, at_ms, now_ms()))
        elif step.kind is Kind.TERM:
            worker.signal(signal.SIGTERM)
            self.ending.append(worker)
        else:
            worker.signal(signal.SIGSTOP)
            self.frozen[time.monotonic() + step.for_s] = (worker, at_ms)
        if len(self.ready) + len(self.starting) + len(self.frozen) < FEWEST + 1:
            self.add()
        return f"{worker.name}, {step.for_s:.0f} s" if step.kind is Kind.FREEZE else worker.name

    def add(self) -> str:
        if len(self.ready) + len(self.starting) + len(self.frozen) >= MOST:
            return "no worker: there are enough"
        self.starting.append(self.stage.worker(wait=False))
        return self.starting[-1].name

    def visit(self) -> str:
        if self.visiting:
            url = f"{self.ready[0].url}/api/v1/workloads/{GROUP}/{self.topics['visitor']}"
            status, answer = http("DELETE", url)
            assert status == 200, answer
        else:
            self.deploy("visitor")
        self.visiting = not self.visiting
        return "deployed" if self.visiting else "deleted"

    def settle(self) -> None:
        """Waits until no worker is frozen, ending or starting."""

        def quiet() -> bool:
            self.tick()
            return not (self.frozen or self.ending or self.starting)

        wait_until(
            quiet, ENDS_S, lambda: "\n".join(f"{p.name}\n{p.tail()}" for p in [*self.ending, *self.starting])
        )
        if not self.visiting:
            self.visit()

    # -- the balance -----------------------------------------------------------------------------

    def story(self, part: tuple[str, int]) -> Iterator[str]:
        """The owners of a partition's job, since when and why."""
        job = f"dispatch:{GROUP}/{part[0]}:{part[0]}:{part[1]}"
        for event in counted_assignments(self.stage):
            if event.job == job:
                release = " asked back:" if event.release else ":"
                yield f"{event.at_ms} {event.worker} epoch {event.epoch}{release} {event.reason}"

    def taken_over(self, part: tuple[str, int]) -> list[float]:
        """When the job of a partition was taken from a worker without heartbeats (ms)."""
        job = f"dispatch:{GROUP}/{part[0]}:{part[0]}:{part[1]}"
        takeovers = [
            event
            for event in counted_assignments(self.stage)
            if event.job == job and " is dead" in event.reason
        ]
        return [float(event.at_ms) for event in takeovers]

    def stalls(self) -> list[Death]:
        """Workers that the leader took for dead although no step had touched them."""
        found: dict[str, Death] = {}
        for event in counted_assignments(self.stage):
            name, _, rest = event.reason.partition(" is dead")
            pid = name.rpartition("-")[0].rpartition("-")[2]
            if rest and pid.isdigit() and int(pid) not in self.touched:
                found[name] = Death(Kind.STALL, event.at_ms - UNHEARD_MS, event.at_ms)
        return list(found.values())


def unexplained(
    entries: list[JournalEntry], deaths: list[Death], taken_over: Sequence[float] = ()
) -> list[str]:
    """Repeated messages of a partition without a cause.

    A death is a cause when it happened at the time of the earlier delivery. A takeover from a silent worker
    (`taken_over`: when) is a cause, too. It is none when that worker delivered for so long after the earlier
    delivery that it must have saved it. A worker that cannot save stops delivering.
    """
    first: dict[str, JournalEntry] = {}
    found = []
    for one in entries:
        before = first.setdefault(one.id, one)
        if before is one or any(
            death.from_ms - UNSAVED_MS <= before.at_ms <= death.to_ms + LATE_MS for death in deaths
        ):
            continue
        went_on_ms = before.at_ms + UNSAVED_MS + LATE_MS
        if not any(
            before.at_ms - LATE_MS <= at_ms <= one.at_ms
            and not any(went_on_ms < other.at_ms < at_ms for other in entries)
            for at_ms in taken_over
        ):
            found.append(f"{one.id} at {before.at_ms:.0f} and {one.at_ms:.0f}")
    return found


def disordered(entries: list[JournalEntry]) -> list[str]:
    """Messages that were first delivered after a later one of their key."""
    latest: dict[str, int] = defaultdict(int)
    seen: set[str] = set()
    found = []
    for one in entries:
        lane, _, number = one.id.rpartition("/")
        if one.id not in seen and int(number) < latest[lane]:
            found.append(one.id)
        seen.add(one.id)
        latest[lane] = max(latest[lane], int(number))
    return found


def test_the_balance_finds_disorder_and_unexplained_repetitions() -> None:
    entries = [
        JournalEntry(f"t/0/k0/{number}", 0, at_ms, 0)
        for number, at_ms in ((1, 10), (3, 20), (2, 30), (3, 5000))
    ]
    assert disordered(entries) == ["t/0/k0/2"]
    assert [one.id for one in repetitions(entries)] == ["t/0/k0/3"]
    assert len(unexplained(entries, [])) == 1
    assert unexplained(entries, [Death(Kind.KILL, 600, 600)]) == []
    assert unexplained(entries, [], [3000]) == []
    assert len(unexplained(entries, [], [6000])) == 1, "after the second delivery"
    continued = [*entries, JournalEntry("t/0/k0/4", 0, 2500, 0)]
    assert len(unexplained(continued, [], [3000])) == 1, (
        "it delivered for long enough to have saved the earlier delivery"
    )
    assert list(steps(7, 60.0)) == list(steps(7, 60.0)) != list(steps(8, 60.0))
    assert {step.kind for step in steps(7, 15.0)} >= {Kind.KILL, Kind.FREEZE, Kind.TERM}


@pytest.mark.deep(minutes=0.9)
@pytest.mark.timeout(FOR_S + 300)
def test_under_random_worker_faults_all_messages_arrive_in_order_and_repetitions_have_a_cause(
    stage: DemoStage, topic_name: str
) -> None:
    print_line(f"SWITCHYARD_CHAOS_SEED={SEED} SWITCHYARD_CHAOS_S={FOR_S:.0f}")
    chaos, journal = Chaos(stage, topic_name), Journal(stage.journal)
    with Flow(chaos.bootstrap, dict.fromkeys(chaos.topics.values(), PARTITIONS), PER_PARTITION) as flow:
        chaos.play(SEED, FOR_S)
    wait_until(
        lambda: flow.sent.keys() <= journal.read().ids(), SETTLE_S,
        lambda: f"{len(flow.sent.keys() - journal.ids())} are missing, such as "
        f"{sorted(flow.sent.keys() - journal.ids())[:5]}\n{chaos.ready[0].tail(40)}",
    )  # fmt: skip
    partitions = [(topic, partition) for topic in flow.partitions for partition in range(PARTITIONS)]
    wait_until(
        lambda: all(done == end for done, end in committed(chaos.bootstrap, GROUP, partitions).values()),
        ENDS_S,
        lambda: str(committed(chaos.bootstrap, GROUP, partitions)), 0.5,
    )  # fmt: skip
    time.sleep(2.0)  # repetitions arrive now
    journal.read()
    stalls = chaos.stalls()
    deaths = chaos.deaths + stalls
    repeated = [one for topic in flow.partitions for one in repetitions(journal.entries_of(topic))]
    rate = PER_PARTITION * len(partitions)
    bound = len(deaths) * (len(LOTS) * MAX_IN_FLIGHT + rate * UNSAVED_MS / 1_000)
    print_line(
        f"{len(flow.sent):,} messages, lost 0, {len(repeated)} twice (bound {bound:.0f}: {len(chaos.deaths)} "
        f"workers killed or frozen, {len(stalls)} taken for dead without a step)"
    )
    assert len(flow.sent) > FOR_S * rate / 2, "too few messages for a meaningful test"
    for part in partitions:
        found = unexplained(journal.entries[part], deaths, chaos.taken_over(part))
        assert found == [], "\n".join([*found, *chaos.story(part), *map(str, deaths)])
    assert len(repeated) <= bound
    for lot in ("keyed", "visitor"):
        for partition in range(PARTITIONS):
            assert disordered(journal.entries[chaos.topics[lot], partition]) == []
    assert all(worker.running for worker in chaos.ready)


def now_ms() -> float:
    return time.time_ns() / 1e6


def print_line(text: str) -> None:
    """Prints a line, which pytest shows when the test fails, or with -s."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
