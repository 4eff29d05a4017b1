"""Several instances of a receiver behind one name: whole workers balance between them, and every message is
counted.

Each instance is a process at a loopback address of its own. The workers find the addresses in a file that
only they see as `/etc/hosts`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.dev.demo.stage import Process, StageError, free_port, http, wait_until, workload
from app.dev.demo.traffic import create_topic, read_all
from app.dev.yard import Yard
from tests.full_disk import APART, need_namespaces
from tests.system.conftest import ShortLivedStage
from tests.system.fleet import (
    Flow,
    Journal,
    JournalEntry,
    committed,
    incidents,
    pauses,
    repetitions,
    start_workers,
)
from tests.system.test_chaos import disordered, now_ms, print_line

pytestmark = pytest.mark.system

CONTRACTS = ["unary", "stream"]
CLUSTER, GROUP = "east-aggregate", "billing"
HOSTS = [f"127.0.0.{number}" for number in range(1, 7)]
BALANCERS = ["127.0.0.7", "127.0.0.8"]
AGE = {"max_connection_age": "2s"}  # so that renewals are part of each test
PARTITIONS, PER_PARTITION, KEYS = 4, 100.0, 25
LATENCY_MS = 10
TIMEOUT = "1s"
MAX_IN_FLIGHT = 60
ZONE = "eu-1a"
WINDOW = 300  # messages
ENOUGH_S, SETTLE_S = 30.0, 60.0
LONGEST_PAUSE_S = 90.0  # of an endpoint that was ejected, and enough
MAX_PAUSE_MS = 1_000
LATE_MS = 1_000  # an answer that was sent before a fault was journaled this long before it at most
HOSTS_BYTES = 2_000


@dataclass
class NamedStage(ShortLivedStage):
    """A stage whose workers run in `ZONE`, and see a file of the stage as `/etc/hosts`. `addresses`: by name,
    in that file."""

    addresses: dict[str, list[str]] = field(default_factory=lambda: {"localhost": ["127.0.0.1"]})

    def __post_init__(self) -> None:
        self.hosts.touch()
        self._write_hosts()

    @property
    def hosts(self) -> Path:
        return self.home / "hosts"

    def publish(self, name: str, addresses: list[str]) -> None:
        """Gives the name these addresses from now on."""
        self.addresses[name] = addresses
        self._write_hosts()

    def _write_hosts(self) -> None:
        lines = [f"{address} {name}\n" for name, found in self.addresses.items() for address in found]
        text = "".join(lines).encode()
        assert len(text) <= HOSTS_BYTES
        # The workers have mounted this file, so it must stay the same one. A look-up may read it at any time,
        # so one write replaces all of it.
        with self.hosts.open("r+b", buffering=0) as file:
            file.write(text.ljust(HOSTS_BYTES, b"\n"))

    def start(
        self, name: str, command: list[str], env: Mapping[str, str] | None = None, **fields: Any
    ) -> Process:
        """As `DemoStage.start`; a worker gets the file as its `/etc/hosts`."""
        if name.startswith("worker"):
            script = 'mount --bind "$0" /etc/hosts && exec "$@"'
            command = ["unshare", *APART, "sh", "-c", script, str(self.hosts), *command]
            env = {**(env or {}), "SWITCHYARD_ZONE": ZONE}
        return super().start(name, command, env, **fields)


@dataclass
class Instance:
    """A process of the receiver, and the journal of what it has handled."""

    host: str
    process: Process
    journal: Journal

    def handled(self) -> list[JournalEntry]:
        return [one for all_of in self.journal.read().entries.values() for one in all_of]


@dataclass
class Step:
    """What is done to an instance, from when until when."""

    name: str
    from_ms: float
    to_ms: float = 0.0


@dataclass
class Fault:
    """Messages that the instance handled in this time may come again at another."""

    instance: Instance
    from_ms: float
    to_ms: float = field(default=float("inf"))


class ReceiverFleet:
    """A topic with steady traffic, the instances of its receiver, and the name that has their addresses."""

    def __init__(self, stage: NamedStage, workers: list[Process], topic: str) -> None:
        self.stage, self.workers, self.topic = stage, workers, topic
        self.name, self.port = f"{topic}.test", free_port()
        self.bootstrap = stage.yard.bootstrap(CLUSTER)
        self.instances: list[Instance] = []  # all that were ever started
        self.steps: list[Step] = []
        self.balancers: list[Process] = []
        asyncio.run(create_topic(self.bootstrap, topic, PARTITIONS))
        self.flow = Flow(self.bootstrap, {topic: PARTITIONS}, PER_PARTITION, keys=KEYS)

    def begin(self, *hosts: str) -> list[Instance]:
        """Starts an instance at each of these addresses; returns when they listen."""
        started = [self._start(host) for host in hosts]
        self._wait_listens(*(instance.process for instance in started))
        return started

    def _wait_listens(self, *started: Process) -> None:
        wait_until(
            lambda: all("listens on" in process.log.read_text() for process in started),
            ENOUGH_S,
            lambda: "\n".join(process.tail() for process in started),
            0.02,
        )

    def _start(self, host: str) -> Instance:
        name = f"receiver-{self.topic}-{len(self.instances)}"
        journal = Journal(self.stage.home / f"{name}.jsonl")
        arguments = ["--host", host, "--port", str(self.port), "--group", GROUP, "--topic", self.topic]
        arguments += ["--journal", str(journal.path), "--latency-ms", str(LATENCY_MS)]
        command = [sys.executable, "-m", "tests.system.endpoint_receiver", *arguments]
        self.instances.append(Instance(host, self.stage.start(name, command), journal))
        return self.instances[-1]

    def publish(self, *instances: Instance) -> None:
        self.stage.publish(self.name, [instance.host for instance in instances])

    def balance(self, *instances: Instance, by: list[str] = BALANCERS[:1]) -> None:
        """Has load balancers lead to these instances from now on. The first time, the name gets their
        addresses."""
        file = self.stage.home / f"balanced-{self.topic}"
        found = "".join(f"{instance.host}:{self.port}\n" for instance in instances)
        beside = file.with_suffix(".new")
        beside.write_text(found)
        beside.replace(file)
        if not self.balancers:
            command = [sys.executable, "-m", "tests.dispatch.push.load_balancer"]
            for number, host in enumerate(by):
                place = [f"{host}:{self.port}", str(file)]
                self.balancers.append(self.stage.start(f"balancer-{number}-{self.topic}", command + place))
                self._wait_listens(self.balancers[-1])
            self.stage.publish(self.name, by)

    def deploy(
        self,
        contract: str,
        zones: Mapping[str, str] | None = None,
        limit: int | str = MAX_IN_FLIGHT,
        **spec: Any,
    ) -> None:
        target = {"contract": contract, "timeout": TIMEOUT, "zones": zones or {}, **AGE}
        definition = workload(
            GROUP, self.topic, CLUSTER, f"{self.name}:{self.port}",
            target=target, flow={"max_inflight": limit}, **spec,
        )  # fmt: skip
        self.stage.deploy(self.workers[0], definition)

    def end(self) -> None:
        """Deletes the workload, and kills the instances."""
        http("DELETE", f"{self.workers[0].url}/api/v1/workloads/{GROUP}/{self.topic}")
        started = [instance.process for instance in self.instances]
        for process in (*started, *self.balancers):
            if process.running:
                process.kill()

    def states(self, instance: Instance) -> set[str]:
        """How the workers see this instance."""
        flow = http("GET", f"{self.workers[0].url}/api/v1/workloads/{GROUP}/{self.topic}")[1]["flow"]
        endpoints = [one for receiver in flow["receivers"] for one in receiver["endpoints"]]
        return {one["state"] for one in endpoints if one["name"] == f"{instance.host}:{self.port}"}

    # -- traffic ---------------------------------------------------------------------------------

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        found = Step(name, now_ms())
        self.steps.append(found)
        yield found
        found.to_ms = now_ms()

    def counts(self) -> dict[str, int]:
        """The messages that each process has handled, by its name."""
        return {instance.process.name: len(instance.handled()) for instance in self.instances}

    def progress(self) -> str:
        """For failures."""
        url = f"{self.workers[0].url}/api/v1/workloads/{GROUP}/{self.topic}"
        tails = "\n".join(f"{worker.name}\n{worker.tail(20)}" for worker in self.workers)
        return f"{self.counts()}\n{http('GET', url)[1]}\n{tails}"

    def wait_share(self, instance: Instance, enough_s: float = ENOUGH_S) -> None:
        """Waits until the instance gets a part of the messages, as one of several."""
        wanted = len(instance.handled()) + WINDOW // 5
        wait_until(lambda: len(instance.handled()) >= wanted, enough_s, self.progress, 0.02)

    def window(self) -> Counter[str]:
        """Waits for `WINDOW` messages; returns how many of them each process has handled."""
        before = self.counts()

        def more() -> Counter[str]:
            return Counter({name: count - before.get(name, 0) for name, count in self.counts().items()})

        wait_until(lambda: more().total() >= WINDOW, ENOUGH_S, self.progress, 0.02)
        return more()

    def wait_without(self, instance: Instance, others: list[Instance]) -> None:
        """Waits until the others get all messages, and this instance none."""
        deadline_s = time.monotonic() + ENOUGH_S
        while (found := self.window())[instance.process.name]:
            if time.monotonic() > deadline_s:
                raise StageError(f"{instance.host} still gets messages: {found}\n{self.progress()}")
        found = self.window()
        assert not found[instance.process.name], found
        assert all(found[other.process.name] for other in others), found

    def wait_delivered(self, ids: set[str]) -> None:
        """Waits until these messages have been handled."""

        def missing() -> set[str]:
            return ids - {one.id for one in self.entries()}

        wait_until(lambda: not missing(), SETTLE_S, lambda: f"{sorted(missing())[:5]}\n{self.progress()}")

    # -- the balance -----------------------------------------------------------------------------

    def entries(self) -> list[JournalEntry]:
        """All deliveries, in order. Of those at the same time the later message is first: the next message of
        a key comes at least `LATENCY_MS` later, so this hides no disorder."""
        found = [one for instance in self.instances for one in instance.handled()]
        return sorted(found, key=lambda one: (one.at_ms, -one.offset))

    def settle(self) -> list[JournalEntry]:
        """Waits until all messages are handled and committed; checks that none is a dead letter."""
        self.wait_delivered({*self.flow.sent})
        parts = [(self.topic, partition) for partition in range(PARTITIONS)]

        def lags() -> Mapping[Any, tuple[int | None, int]]:
            return committed(self.bootstrap, GROUP, parts)

        wait_until(lambda: all(done == end for done, end in lags().values()), SETTLE_S, lambda: str(lags()))
        assert sum(end for _, end in lags().values()) == len(self.flow.sent)
        assert asyncio.run(read_all(self.bootstrap, f"{self.topic}__{GROUP}__dlq")) == []
        return self.entries()

    def longest_pause_ms(self, entries: list[JournalEntry]) -> float:
        """The longest time in which no instance handled a message although there was one; prints all."""
        found = pauses(entries, {one.id: one.timestamp_ms for one in entries})
        for step in self.steps:
            inside = [ms for ms, at_ms in found if at_ms > step.from_ms and at_ms - ms < step.to_ms]
            print_line(
                f"{step.name}: took {step.to_ms - step.from_ms:,.0f} ms, longest pause "
                f"{max(inside, default=0.0):,.0f} ms"
            )
        return max(ms for ms, _ in found)

    def unexplained(self, entries: list[JournalEntry], faults: list[Fault]) -> list[str]:
        """Messages that came again although no fault befell an instance that had them."""
        explained = {
            one.id
            for fault in faults
            for one in fault.instance.handled()
            if fault.from_ms - LATE_MS <= one.at_ms <= fault.to_ms
        }
        return [one.id for one in repetitions(entries) if one.id not in explained]


@pytest.fixture(scope="module")
def named_stage(_shared_yard: Yard) -> Iterator[NamedStage]:
    """A stage that the tests of this file share: none of them stops a worker."""
    need_namespaces()
    stage = NamedStage(_shared_yard, region=f"r{uuid.uuid4().hex[:8]}")
    with stage:
        yield stage


@pytest.fixture(scope="module")
def workers(named_stage: NamedStage) -> list[Process]:
    return start_workers(named_stage)


@pytest.fixture
def fleet(named_stage: NamedStage, workers: list[Process], topic_name: str) -> Iterator[ReceiverFleet]:
    """Instances at the first three addresses, behind one name."""
    made = ReceiverFleet(named_stage, workers, topic_name)
    try:
        made.publish(*made.begin(*HOSTS[:3]))
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("contract", CONTRACTS)
def test_instances_behind_a_name_get_equal_shares(fleet: ReceiverFleet, contract: str) -> None:
    fleet.deploy(contract)
    with fleet.flow:
        for instance in fleet.instances:
            fleet.wait_share(instance)
        with fleet.step("three instances"):
            shares = fleet.window() + fleet.window() + fleet.window()
    entries = fleet.settle()
    print_line(f"{shares}")
    assert len(shares) == 3
    assert max(shares.values()) < 0.4 * shares.total(), shares
    assert repetitions(entries) == []
    assert fleet.longest_pause_ms(entries) < MAX_PAUSE_MS


@pytest.mark.parametrize("contract", ["unary", pytest.param("stream", marks=pytest.mark.deep(minutes=0.3))])
def test_workers_prefer_the_instance_of_their_zone_until_it_is_lost(
    fleet: ReceiverFleet, contract: str
) -> None:
    near, *others = fleet.instances
    fleet.stage.publish(f"{ZONE}.{fleet.name}", [near.host])
    zones = {ZONE: f"{ZONE}.{fleet.name}:{fleet.port}", "elsewhere": "nowhere.test:1"}
    fleet.deploy(contract, zones, limit=4_000)  # the instance alone can have all that is on its way
    with fleet.flow:
        fleet.wait_share(near)
        with fleet.step("one is in the zone"):
            shares = fleet.window()
        with fleet.step("it is killed") as kill:
            near.process.kill()
            fleet.wait_without(near, others)
    entries = fleet.settle()
    print_line(f"{shares}")
    assert shares[near.process.name] > 0.9 * shares.total()
    assert fleet.unexplained(entries, [Fault(near, kill.from_ms)]) == []
    assert fleet.longest_pause_ms(entries) < MAX_PAUSE_MS


@pytest.mark.deep(minutes=0.7)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_an_instance_that_fails_what_the_others_take_is_ejected_and_tried_again(
    fleet: ReceiverFleet, contract: str
) -> None:
    fleet.deploy(contract)
    ill, *others = fleet.instances
    with fleet.flow:
        for instance in fleet.instances:
            fleet.wait_share(instance)
        with fleet.step("one fails everything"):
            ill.process.signal(signal.SIGHUP)
            wait_until(lambda: fleet.states(ill) == {"ejected"}, ENOUGH_S, fleet.progress)
            told = incidents(fleet.workers[0], "endpoint-outlier")
            assert any(f"{ill.host}:{fleet.port}" in incident["message"] for incident in told), told
            fleet.wait_without(ill, others)
        with fleet.step("it is well again"):
            ill.process.signal(signal.SIGHUP)
            fleet.wait_share(ill, LONGEST_PAUSE_S)
            wait_until(lambda: fleet.states(ill) == {"ready"}, LONGEST_PAUSE_S, fleet.progress)
    entries = fleet.settle()
    print_line(
        f"{len(fleet.flow.sent):,} messages, attempts {Counter(one.attempt for one in entries)}, "
        f"{fleet.counts()}"
    )
    assert repetitions(entries) == []
    assert fleet.longest_pause_ms(entries) < MAX_PAUSE_MS


@pytest.mark.deep(minutes=0.5)
@pytest.mark.parametrize(
    ("contract", "limit"), [("unary", MAX_IN_FLIGHT), ("stream", MAX_IN_FLIGHT), ("auto", "adaptive")]
)
def test_drained_added_killed_frozen_and_removed_instances_lose_no_message_and_others_continue(
    fleet: ReceiverFleet, contract: str, limit: int | str
) -> None:
    fleet.deploy(contract, limit=limit)
    first, second, third = fleet.instances
    with fleet.flow:
        for instance in fleet.instances:
            fleet.wait_share(instance)
        with fleet.step("one reports NOT_SERVING"):
            first.process.signal(signal.SIGUSR1)
            fleet.wait_without(first, [second, third])
        with fleet.step("it reports SERVING"):
            first.process.signal(signal.SIGUSR2)
            fleet.wait_share(first)
        with fleet.step("a fourth is added"):
            (fourth,) = fleet.begin(HOSTS[3])
            fleet.publish(first, second, third, fourth)
            fleet.wait_share(fourth)
        with fleet.step("one is killed") as kill:
            second.process.kill()
            fleet.wait_delivered({*fleet.flow.sent})
            fleet.wait_without(second, [first, third, fourth])
        with fleet.step("it is started again"):
            (successor,) = fleet.begin(second.host)
            fleet.wait_share(successor)
        with fleet.step("one is frozen") as freeze:
            third.process.signal(signal.SIGSTOP)
            fleet.wait_delivered({*fleet.flow.sent})
            fleet.wait_without(third, [first, successor, fourth])
        with fleet.step("it wakes"):
            third.process.signal(signal.SIGCONT)
            fleet.wait_share(third)
        with fleet.step("one is removed"):
            fleet.publish(successor, third, fourth)
            fleet.wait_without(first, [successor, third, fourth])
    entries = fleet.settle()
    faults = [Fault(second, kill.from_ms, kill.to_ms), Fault(third, freeze.from_ms)]
    repeated = repetitions(entries)
    print_line(
        f"{len(fleet.flow.sent):,} messages, lost 0, {len(repeated)} twice, "
        f"attempts {Counter(one.attempt for one in entries)}, {fleet.counts()}"
    )
    longest_ms = fleet.longest_pause_ms(entries)
    assert fleet.unexplained(entries, faults) == []
    assert limit == "adaptive" or len(repeated) <= len(faults) * MAX_IN_FLIGHT
    assert longest_ms < MAX_PAUSE_MS


@pytest.mark.deep(minutes=0.5)
@pytest.mark.parametrize("balancers", [1, 2])
@pytest.mark.parametrize("contract", CONTRACTS)
def test_instances_behind_load_balancers_come_and_go_and_no_message_is_lost(
    fleet: ReceiverFleet, contract: str, balancers: int
) -> None:
    first, second, third = fleet.instances
    fleet.balance(first, second, third, by=BALANCERS[:balancers])
    fleet.deploy(contract)
    with fleet.flow:
        for instance in fleet.instances:
            fleet.wait_share(instance)
        with fleet.step("a fourth is added"):
            (fourth,) = fleet.begin(HOSTS[3])
            fleet.balance(first, second, third, fourth)
            fleet.wait_share(fourth)
        with fleet.step("one reports NOT_SERVING"):
            first.process.signal(signal.SIGUSR1)
            fleet.window()
        with fleet.step("it is removed"):
            fleet.balance(second, third, fourth)
            fleet.wait_without(first, [second, third, fourth])
        with fleet.step("one is killed") as kill:
            second.process.kill()
            fleet.window()
            fleet.balance(third, fourth)
            fleet.wait_delivered({*fleet.flow.sent})
            fleet.wait_without(second, [third, fourth])
        with fleet.step("it is started again"):
            (successor,) = fleet.begin(second.host)
            fleet.balance(third, fourth, successor)
            fleet.wait_share(successor)
    entries = fleet.settle()
    repeated = repetitions(entries)
    print_line(
        f"{len(fleet.flow.sent):,} messages, lost 0, {len(repeated)} twice, "
        f"attempts {Counter(one.attempt for one in entries)}, {fleet.counts()}"
    )
    longest_ms = fleet.longest_pause_ms(entries)
    assert fleet.unexplained(entries, [Fault(second, kill.from_ms, kill.to_ms)]) == []
    assert len(repeated) <= MAX_IN_FLIGHT
    assert longest_ms < MAX_PAUSE_MS


@pytest.mark.deep(minutes=0.3)
@pytest.mark.parametrize("ordering", ["none", "key"])
@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_roll_out_delivers_every_message_once_and_in_order(
    fleet: ReceiverFleet, contract: str, ordering: str
) -> None:
    fleet.deploy(contract, ordering=ordering)
    serving = [*fleet.instances]
    with fleet.flow:
        for instance in serving:
            fleet.wait_share(instance)
        for old, host in zip(list(serving), HOSTS[3:], strict=True):
            with fleet.step(f"{old.host} is replaced by {host}"):
                (new,) = fleet.begin(host)
                serving.append(new)
                fleet.publish(*serving)
                fleet.wait_share(new)
                assert old.process.terminate() == 0, old.process.tail()
                serving.remove(old)
                fleet.publish(*serving)
        fleet.window()
    entries = fleet.settle()
    print_line(f"{len(fleet.flow.sent):,} messages, {fleet.counts()}")
    longest_ms = fleet.longest_pause_ms(entries)
    attempts = Counter(one.attempt for one in entries)
    print_line(f"attempts {attempts}")
    assert repetitions(entries) == []
    assert set(attempts) == {1}
    assert ordering == "none" or disordered(entries) == []
    assert longest_ms < MAX_PAUSE_MS
