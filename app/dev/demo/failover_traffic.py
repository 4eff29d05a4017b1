"""Traffic into two regions, a workload that moves between them, and the commands that move it. The
failover story, its test and its bench use them.

    producers homed in east ──> east-regional ─┬─> east-aggregate ──> receivers of east
    producers homed in west ──> west-regional ─┴─> west-aggregate ──> receivers of west
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson

from app.dev.demo.background_thread import Background
from app.dev.demo.stage import StageError, wait_until, workload
from app.dev.demo.traffic import create_topic, read_all
from app.dev.demo.two_regions import HOMES, STEP_TIMEOUT_S, TwoRegions, failover
from app.kernel.json_types import JsonObject
from switchyard.producer import Delivered, ProducerError, Region, RegionalProducer

PARTITIONS = 4
PASSIVE, ACTIVE = "billing", "search"  # groups: active in one region, and active in both
SLOW_EVERY, SLOW_MS = 40, 300
TICK_S = 0.005
UNHEALTHY_S, RETURN_S = 3.0, 3.0
DONE = ("done", "aborted")


class Writer(Background):
    """Writes messages evenly into all partitions while it is entered, by the producer that fails over:
    into the first region that answers. `name` and time alone decide the messages.

    Attributes:
        sent: Id -> the region that acknowledged it.
        failed: Id -> why its outcome is unknown.
    """

    def __init__(self, name: str, regions: Sequence[Region], topic: str, per_second: float) -> None:
        super().__init__()
        self.sent: dict[str, Delivered] = {}
        self.failed: dict[str, str] = {}
        self._name, self._regions = name, regions
        self._topic, self._per_second = topic, per_second

    def work(self) -> None:
        """Writes messages."""
        asyncio.run(self._write())

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        producer = RegionalProducer(self._regions, unhealthy_after_s=UNHEALTHY_S, return_after_s=RETURN_S)
        async with producer:
            began_s, number = loop.time(), 0
            while not self.ended.is_set():
                due = int((loop.time() - began_s) * self._per_second)
                while number < due:
                    name = f"{self._name}-{number:07}"
                    slow = number % SLOW_EVERY == SLOW_EVERY - 1
                    value = {"id": name, "behaviour": "slow" if slow else "ok", "ms": SLOW_MS}
                    answer = await producer.send(
                        self._topic, orjson.dumps(value), key=name.encode(), partition=number % PARTITIONS
                    )
                    answer.add_done_callback(partial(self._note, name))
                    number += 1
                await asyncio.sleep(TICK_S)

    def _note(self, name: str, answer: asyncio.Future[Delivered]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or isinstance(error, ProducerError):
            self.failed[name] = repr(error)
        elif error is None:
            self.sent[name] = answer.result()


class Journal:
    """A receiver's journal as it grows."""

    def __init__(self, path: Path) -> None:
        self.lines: list[JsonObject] = []
        self._path, self._at = path, 0

    def read(self) -> list[JsonObject]:
        """All lines so far, in order."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._at)
                whole = file.read().rpartition(b"\n")[0]
            self._at += len(whole) + bool(whole)
            self.lines += [orjson.loads(line) for line in whole.split(b"\n") if line]
        return self.lines


@dataclass
class MovingWorkloads:
    """A workload of each mode on one topic, in two running regions.

    Attributes:
        active: Whether there is also a workload that is active in both regions.
        journals: Group -> home -> its deliveries.
    """

    two: TwoRegions
    topic: str
    active: bool = True
    journals: dict[str, dict[str, Journal]] = field(default_factory=dict)

    @property
    def groups(self) -> list[str]:
        """The workloads' groups."""
        return [PASSIVE, *([ACTIVE] if self.active else [])]

    def key(self, group: str = PASSIVE) -> str:
        """A workload's key."""
        return f"{group}/{self.topic}"

    def start(self) -> None:
        """Creates topics, routes and workloads; returns once the passive one is active in the east."""
        two = self.two
        for home in HOMES:
            asyncio.run(create_topic(two.bootstrap(home, "regional"), self.topic, PARTITIONS))
        two.deploy(failover("shared", list(two.names.values()), self.topic))
        for home in HOMES:
            two.until_routes(home)
        modes = {PASSIVE: "active-passive", ACTIVE: "active-active"}
        for group in self.groups:
            self.journals[group] = {}
            for home in HOMES:
                receiver, journal = two.receiver(home, group, self.topic)
                self.journals[group][home] = Journal(journal)
                cluster = f"{two.names[home]}-aggregate"
                definition = workload(group, self.topic, cluster, receiver.address, mode=modes[group])
                two.stages[home].deploy(two.workers[home], definition)
        self.until_role("east", HOMES)

    def until_role(self, home: str, seen_by: tuple[str, ...] = HOMES) -> float:
        """Waits until these homes know that the passive workload is active in `home`; returns the seconds."""
        began_s, region = time.monotonic(), self.two.names[home]

        def known() -> bool:
            found = [self.two.roles(one).get(self.key(), {}) for one in seen_by]
            return all((role.get("region"), role.get("state")) == (region, "active") for role in found)

        wait_until(known, STEP_TIMEOUT_S, lambda: f"{[self.two.roles(one) for one in seen_by]}")
        return time.monotonic() - began_s

    def until_flows(
        self, home: str, since_ms: float, group: str = PASSIVE, least: int = 1
    ) -> dict[int, float]:
        """Waits until every partition has at least this many deliveries in `home` since `since_ms`;
        returns the time of the first ones by partition."""
        journal = self.journals[group][home]
        at = 0
        first: dict[int, float] = {}
        counts: Counter[int] = Counter()

        def flows() -> bool:
            nonlocal at
            lines = journal.read()
            for line in lines[at:]:
                if line["at_ms"] >= since_ms:
                    counts[line["partition"]] += 1
                    first.setdefault(line["partition"], line["at_ms"])
            at = len(lines)
            return len(counts) == PARTITIONS and min(counts.values()) >= least

        wait_until(
            flows, STEP_TIMEOUT_S, lambda: f"{group} in {home}: {dict(counts)}\n{self._problem(home)}", 0.02
        )
        return first

    def _problem(self, home: str) -> str:
        return "\n".join(worker.tail(30) for worker in self.two.running(home))

    def writers(self, per_second: Mapping[str, float], name: str = "") -> dict[str, Writer]:
        """A writer for each home."""
        found = {}
        for home, rate in per_second.items():
            homes = [home, *(other for other in HOMES if other != home)]
            regions = [Region(self.two.names[one], self.two.bootstrap(one, "regional")) for one in homes]
            found[home] = Writer(f"{name}{home}", regions, self.topic, rate)
        return found

    # -- commands --------------------------------------------------------------------------------

    def plan(self, to: str, *, force: bool = False) -> JsonObject:
        """Requests a plan for a failover to this home, with its `id`. `force`: without waiting for the
        region that has the workloads."""
        body = {"to": self.two.names[to], "force": force}
        return dict(self.two.ask(to, "failover/plan", "POST", body))

    def failback(self, home: str) -> JsonObject:
        """Requests a plan that moves back here the workloads of the last failover, once the region that
        returned has heard from the others."""
        plan: JsonObject = {}

        def may_go() -> bool:
            plan.update(self.two.ask(home, "failover/failback", "POST", {}))
            return not any(check["level"] == "blocked" for check in plan["plan"]["checks"])

        wait_until(may_go, STEP_TIMEOUT_S, lambda: f"{plan['plan']['checks']}")
        return plan

    def execute(self, to: str, run: str) -> None:
        """Starts the execution of a plan."""
        self.two.ask(to, "failover/execute", "POST", {"id": run})

    def until_done(self, home: str, run: str) -> JsonObject:
        """Waits until the run is done, and returns it. Raises StageError."""
        found: JsonObject = {}

        def over() -> bool:
            found.update(self.two.ask(home, f"failover/{run}"))
            return found["state"] in DONE

        wait_until(over, STEP_TIMEOUT_S, lambda: f"{found}\n{self._problem(home)}")
        if found["state"] != "done":
            raise StageError(f"{run} is {found['state']}: {found}")
        return found

    # -- the end ---------------------------------------------------------------------------------

    def records(self) -> Counter[str]:
        """The number of records of each message in the regional clusters."""
        found: Counter[str] = Counter()
        for home in HOMES:
            records = asyncio.run(read_all(self.two.bootstrap(home, "regional"), self.topic))
            found.update(orjson.loads(record.value)["id"] for record in records)
        return found

    def until_delivered(self, wanted: set[str], settle_s: float) -> None:
        """Waits until each message was delivered wherever it must be, or the time is over; then until no
        delivery came for `settle_s`."""

        def missing() -> set[str]:
            by_home = {
                group: [{line["id"] for line in journal.read()} for journal in homes.values()]
                for group, homes in self.journals.items()
            }
            found = wanted - set().union(*by_home[PASSIVE])
            return found.union(*(wanted - ids for ids in by_home.get(ACTIVE, [])))

        deadline_s = time.monotonic() + STEP_TIMEOUT_S
        while missing() and time.monotonic() < deadline_s:
            time.sleep(0.2)
        before, since_s = -1, time.monotonic()
        while time.monotonic() - since_s < settle_s:
            now = sum(len(j.read()) for homes in self.journals.values() for j in homes.values())
            if now != before:
                before, since_s = now, time.monotonic()
            time.sleep(0.2)


def now_ms() -> float:
    """The clock that all processes here share."""
    return time.time_ns() / 1e6
