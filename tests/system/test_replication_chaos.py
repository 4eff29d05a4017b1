"""Brokers and workers of routes are killed at random under load: every record of every topic is compared.

SWITCHYARD_REPLICATION_CHAOS_S: seconds of chaos: 30, in CI too; 600 by hand, for millions of records.
SWITCHYARD_REPLICATION_CHAOS_SEED: the seed of the steps; printed. The same seed draws the same steps. A step
waits until it is possible, so the worker that it hits depends on the machine, too.

One route copies from the regional cluster, which also has the control topics, to the aggregate one; another
copies in the other direction. The topics have all profiles (`sources.TOPIC_PROFILES`), and producers write
throughout.

Afterwards
1. No record is missing, changed, out of order or foreign, in any partition (`compare_topics`; for a compacted
   topic `compare_compacted`).
2. A record is there twice only where a worker reported that it could not know (`UNSURE`).
3. No worker ended by itself, or with an error on SIGTERM while all brokers were up. No worker reported a loss
   of the brokers (`UNTRUE`), as they lose nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import pytest

from app.dev.demo.stage import DemoStage, Process, http, route, wait_until
from app.replicate.pump.route_runtime import group_of
from tests.system.compare_compacted import compare_compacted, differences
from tests.system.compare_topics import Comparison, Row, compare_topics
from tests.system.fleet import committed
from tests.system.sources import AWAY, HOME, Sources

pytestmark = pytest.mark.system

FOR_S = float(os.environ.get("SWITCHYARD_REPLICATION_CHAOS_S") or 30)
SEED = int(os.environ.get("SWITCHYARD_REPLICATION_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))

FEWEST, MOST = 2, 4  # workers
STEP_S, TICK_S = 3.5, 0.1
DEADLY_S = 6.0  # a worker frozen this long has lost its lease (2 s) and its jobs (4 s)
ENDS_S = 180.0  # a busy machine starts brokers and workers slowly
COPIED_S = 300.0
# Kinds of incidents: one that allows repetitions, and those that cannot have happened.
UNSURE = "replica-resumed-unsure"
UNTRUE = {
    "copy-differs", "destination-begun-anew", "destination-truncated", "log-begun-anew",
    "log-truncated", "note-corrupt", "offsets-lost", "replica-stuck",
}  # fmt: skip
INCIDENT = re.compile(r"incident=(\S+) .*subject=(?:replicate:[^:]+:([^:]+):(\d+))?")
ROUTES = {"there": (HOME, AWAY), "back": (AWAY, HOME)}


class Kind(StrEnum):
    """A kind of step."""

    HOME = f"kill -9 of the broker {HOME}"
    AWAY = f"kill -9 of the broker {AWAY}"
    BOTH = "kill -9 of both brokers"
    ADD = "a worker is added"
    KILL = "kill -9 of a worker"
    TERM = "SIGTERM to a worker"
    FREEZE = "SIGSTOP to a worker"


BROKERS = {Kind.HOME: [HOME], Kind.AWAY: [AWAY], Kind.BOTH: [HOME, AWAY]}
WEIGHTS = {
    Kind.HOME: 2, Kind.AWAY: 3, Kind.BOTH: 1, Kind.ADD: 2, Kind.KILL: 4, Kind.TERM: 2, Kind.FREEZE: 3,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """At `at_s` of the chaos: `which` (0 to 1) selects the worker; a broker is down, or a worker frozen, for
    `for_s`."""

    kind: Kind
    at_s: float
    which: float
    for_s: float


def steps(seed: int, for_s: float) -> Iterator[Step]:
    """Steps drawn from the seed; every kind of loss comes once before any repeats."""
    chance = random.Random(f"{seed}/replication-chaos")
    deck = [Kind.HOME, Kind.AWAY, Kind.KILL, Kind.FREEZE, Kind.TERM]
    chance.shuffle(deck)
    at_s = 1.0
    while deck or at_s < for_s:
        kind = deck.pop() if deck else chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        lasts_s = chance.choice((0.0, 1.0, 3.0, 8.0))
        yield Step(kind, at_s, chance.random(), lasts_s if kind in BROKERS else DEADLY_S + lasts_s)
        at_s += STEP_S * chance.uniform(0.3, 1.7)


class Outage(threading.Thread):
    """Kills brokers, waits, and starts them again."""

    def __init__(self, stage: DemoStage, clusters: list[str], for_s: float) -> None:
        super().__init__()
        self._stage, self._clusters, self._for_s = stage, clusters, for_s
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            for cluster in self._clusters:
                self._stage.yard.kill(cluster)
            time.sleep(self._for_s)
            self._stage.yard.up()
        except BaseException as error:  # noqa: BLE001 - raised by `Chaos._tick`
            self.failed = error


@dataclass
class Chaos:
    """Runs all but outages in one thread, because processes die with the thread that started them."""

    stage: DemoStage
    ready: list[Process] = field(default_factory=list)
    starting: list[Process] = field(default_factory=list)
    frozen: list[tuple[float, Process]] = field(default_factory=list)  # end of the freeze (monotonic)
    ending: list[Process] = field(default_factory=list)
    disturbed: set[str] = field(default_factory=set)  # names of workers that ended while a broker was down
    done: Counter[Kind] = field(default_factory=Counter)
    outage: Outage | None = None

    def begin(self) -> None:
        """Starts the first workers."""
        for _ in range(FEWEST + 1):
            self._add()
        self.settle()

    def play(self, seed: int, for_s: float) -> None:
        """Carries out all steps, each when it is due and possible."""
        began_s = time.monotonic()
        for step in steps(seed, for_s):
            self._until(lambda step=step: time.monotonic() >= began_s + step.at_s and self._may(step.kind))
            if step.kind is Kind.ADD and self._workers >= MOST:
                continue
            self.done[step.kind] += 1
            print_line(f"{time.monotonic() - began_s:5.1f} s  {step.kind}: {self._do(step)}")
        self.settle()

    def settle(self) -> None:
        """Waits until all brokers are up and no worker is frozen, ending or starting."""
        self._until(lambda: not (self.frozen or self.ending or self.starting or self.outage))

    def _until(self, condition: object) -> None:
        def holds() -> bool:
            self._tick()
            return bool(condition())  # type: ignore[operator]

        wait_until(holds, ENDS_S, self._waiting_for, TICK_S)

    def _waiting_for(self) -> str:
        busy = "\n".join(f"{p.name}\n{p.tail()}" for p in [*self.ending, *self.starting])
        return f"{len(self.ready)} ready, {len(self.frozen)} frozen, outage {self.outage}\n{busy}"

    def _may(self, kind: Kind) -> bool:
        if kind in BROKERS:
            return self.outage is None
        return kind is Kind.ADD or len(self.ready) > 1

    @property
    def _workers(self) -> int:
        return len(self.ready) + len(self.starting) + len(self.frozen)

    def _tick(self) -> None:
        """Notes workers that became ready or ended, and wakes frozen ones."""
        outage = self.outage
        if outage is not None and not outage.is_alive():
            self.outage = None
            if outage.failed is not None:
                raise outage.failed
        for worker in list(self.starting):
            if _is_ready(worker):
                self.starting.remove(worker)
                self.ready.append(worker)
        for until_s, worker in list(self.frozen):
            if time.monotonic() >= until_s:
                worker.signal(signal.SIGCONT)
                self.frozen.remove((until_s, worker))
                self.ready.append(worker)
        for worker in list(self.ending):
            if not worker.running:
                self.ending.remove(worker)
                code, calm = worker.popen.returncode, worker.name not in self.disturbed
                assert code == 0 or not calm, f"{worker.name} ended with {code}\n{worker.tail(40)}"
                if code:
                    print_line(
                        f"         {worker.name} ended with {code} on SIGTERM, while a broker was down"
                    )
        for worker in [*self.ready, *self.starting]:
            code = worker.popen.poll()
            assert code is None, f"{worker.name} ended by itself with {code}:\n{worker.tail(400)}"

    def _do(self, step: Step) -> str:
        """Carries out one step; returns a text for the log."""
        if step.kind in BROKERS:
            self.outage = Outage(self.stage, BROKERS[step.kind], step.for_s)
            self.outage.start()
            self.disturbed.update(worker.name for worker in self.ending)
            return f"for {step.for_s:.0f} s"
        if step.kind is Kind.ADD:
            return self._add()
        worker = self.ready.pop(int(step.which * len(self.ready)))
        if step.kind is Kind.KILL:
            worker.kill()
        elif step.kind is Kind.TERM:
            worker.signal(signal.SIGTERM)
            self.ending.append(worker)
            if self.outage is not None:
                self.disturbed.add(worker.name)
        else:
            worker.signal(signal.SIGSTOP)
            self.frozen.append((time.monotonic() + step.for_s, worker))
        if self._workers < FEWEST + 1:
            self._add()
        return f"{worker.name}, for {step.for_s:.0f} s" if step.kind is Kind.FREEZE else worker.name

    def _add(self) -> str:
        self.starting.append(self.stage.worker(wait=False))
        return self.starting[-1].name


def _is_ready(worker: Process) -> bool:
    try:
        return http("GET", f"{worker.url}/health/ready", timeout_s=2.0)[0] == 200
    except OSError:
        return False


@dataclass
class Balance:
    """The result of all comparisons."""

    sources: Sources
    same: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # kind of difference -> records
    wrong: list[str] = field(default_factory=list)
    doubled: dict[tuple[str, int], str] = field(default_factory=dict)

    async def count(self) -> None:
        """Compares every topic with its copy."""
        for topic, profile in self.sources.topics.items():
            target = AWAY if profile.home == HOME else HOME
            source_bootstrap, target_bootstrap = (
                self.sources.bootstraps[profile.home],
                self.sources.bootstraps[target],
            )
            if profile.is_compacted:
                compacted = await compare_compacted(source_bootstrap, target_bootstrap, topic, number_of)
                self.same += compacted.copy_records
                self.wrong += [f"{topic}: {difference}" for difference in compacted.differences]
                print_line(
                    f"{topic}: {compacted.same} keys the same; of {self.sources.written[topic]:,} records "
                    f"{compacted.source_records:,} are left, of their copies {compacted.copy_records:,}"
                )
            else:
                self._take(topic, await compare_topics(source_bootstrap, topic, target_bootstrap, topic))

    def _take(self, topic: str, found: Comparison) -> None:
        self.same += found.same
        for difference in found.differences:
            self.counts[difference.kind] += difference.records
            if difference.kind == "twice":
                self.doubled[topic, difference.partition] = f"{topic}: {difference}"
            else:
                self.wrong.append(f"{topic}: {difference}")
        print_line(f"{topic}: {found.same:,} records are the same, {len(found.differences)} differences")


def positions(sources: Sources) -> dict[tuple[str, int], tuple[int | None, int]]:
    """For every partition: committed position and end."""
    found = {}
    for name, (source, _) in ROUTES.items():
        at = sources.partitions(source)
        found.update(committed(sources.bootstraps[source], group_of(name), at))
    return found


def uncopied_partitions(sources: Sources) -> dict[tuple[str, int], tuple[int | None, int]]:
    """Partitions that are not copied to their end."""
    return {part: (done, end) for part, (done, end) in positions(sources).items() if done != end}


def describe_uncopied(sources: Sources, workers: list[Process]) -> str:
    """The lag and the workers' logs, for people."""
    return "\n".join(
        [str(uncopied_partitions(sources)), *(f"{worker.name}\n{worker.tail(40)}" for worker in workers)]
    )


def incidents_in_logs(stage: DemoStage) -> list[tuple[str, str, int]]:
    """Kind, topic and partition of every incident. They come from the workers' logs, because the control
    cluster was down at times."""
    found = [at for process in stage.processes for at in INCIDENT.findall(process.log.read_text())]
    return [(kind, topic, int(partition or -1)) for kind, topic, partition in found]


def number_of(row: Row) -> int:
    """The record's number in its topic."""
    name = row[3][0][1]
    assert name is not None
    return int(name)


def test_the_comparison_of_compacted_copies_finds_each_fault_and_steps_follow_the_seed() -> None:
    def row(number_of: int, key: bytes = b"k") -> Row:
        return 7, key, b"v", (("n", b"%d" % number_of),)

    rows = [row(1), row(2, b"l"), row(4), row(9)]
    assert list(differences(rows, rows, number_of)) == []
    assert list(differences(rows[1:], rows, number_of)) == [], "compacted in the source, not yet in the copy"
    assert list(differences(rows, [rows[1], rows[3]], number_of)) == []
    for copy in (rows[:3], rows[2:], [*rows, rows[3]], [rows[1], rows[0], *rows[2:]], [*rows, row(10)]):
        assert list(differences(rows, copy, number_of)) != []
    assert list(steps(7, 60.0)) == list(steps(7, 60.0)) != list(steps(8, 60.0))
    assert {step.kind for step in steps(7, 1.0)} == {Kind.HOME, Kind.AWAY, Kind.KILL, Kind.TERM, Kind.FREEZE}


@pytest.mark.deep(minutes=3.8)
@pytest.mark.timeout(4 * FOR_S + 900)
def test_under_random_kills_of_brokers_and_workers_every_record_is_copied_once_and_in_order(
    killable_stage: DemoStage, topic_name: str
) -> None:
    print_line(f"SWITCHYARD_REPLICATION_CHAOS_SEED={SEED} SWITCHYARD_REPLICATION_CHAOS_S={FOR_S:.0f}")
    stage, began_s = killable_stage, time.monotonic()
    bootstraps = {cluster: stage.yard.bootstrap(cluster) for cluster in (HOME, AWAY)}
    chaos, sources = Chaos(stage), Sources(bootstraps, topic_name)
    chaos.begin()
    for name, (source, target) in ROUTES.items():
        topics = [topic for topic, profile in sources.topics.items() if profile.home == source]
        stage.deploy(chaos.ready[0], route(name, source, target, *topics))
    with sources:
        # No process is killed before there are records that could be copied twice.
        wait_until(
            lambda: all(done for done, _ in positions(sources).values()),
            COPIED_S,
            lambda: "nothing is copied",
        )
        chaos.play(SEED, FOR_S)
    wait_until(
        lambda: not uncopied_partitions(sources),
        COPIED_S,
        lambda: describe_uncopied(sources, chaos.ready),
        1.0,
    )
    balance = Balance(sources)
    asyncio.run(balance.count())
    incidents = incidents_in_logs(stage)
    kinds = Counter(kind for kind, _, _ in incidents)
    print_line(f"incidents: {dict(kinds)}; producers restarted: {sources.producer_restarts.total()}")
    print_line(", ".join(f"{kind}: {count}" for kind, count in chaos.done.items()))
    lost = balance.counts["missing"]
    print_line(
        f"{balance.same:,} records are the same, {lost} lost, {balance.counts['twice']} twice, other "
        f"differences {len(balance.wrong)}, {time.monotonic() - began_s:.0f} s"
    )
    assert balance.wrong == []
    unsure = {(topic, partition) for kind, topic, partition in incidents if kind == UNSURE}
    assert balance.doubled.keys() <= unsure, "\n".join(balance.doubled.values())
    assert not kinds.keys() & UNTRUE
    for topic in sources.topics:
        assert sources.written[topic], "nothing was written: the test shows nothing"


def print_line(text: str) -> None:
    """Prints a line, which pytest shows when the test fails, or with -s."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
