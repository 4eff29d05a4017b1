"""p99 seconds from kill -9 of a worker to the first message of each moved partition.

Counted is the first message that was appended after the kill and reached a handler, so messages fetched
before do not count. The peer is a Kafka consumer group of as many members that reads the same topic: Apache
Kafka's own console consumer, which prints its messages. It has two settings: the shortest session that
brokers allow by default, and Kafka's defaults. A worker and the leader are killed by turns; of the group any
member.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import create_topic
from app.dev.yard import Yard
from tests.bench.run import Progress, alternate

GROUP = "bench"
CLUSTER = "east-aggregate"
WORKERS, PARTITIONS, PER_SECOND = 3, 12, 600
KILLS = 2  # of ours a round: a worker, then the leader
STEADY_S, BEHIND_MS, ENOUGH_S = 5.0, 2_000, 120.0
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TUNED = {
    "session.timeout.ms": "6000",  # brokers take no shorter one: group.min.session.timeout.ms
    "heartbeat.interval.ms": "2000",
    "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
PRINTED = re.compile(rb"CreateTime:(\d+)\tPartition:(\d+)")


def run(progress: Progress) -> dict[str, Any]:
    """Three rounds each."""
    times: dict[str, list[float]] = {"ours": [], "tuned": [], "default": []}
    topic = f"recovery-{uuid.uuid4().hex[:8]}"
    with Yard(regions=1) as yard, DemoStage(yard, region=f"b{uuid.uuid4().hex[:6]}") as stage:
        bootstrap = yard.bootstrap(CLUSTER)
        asyncio.run(create_topic(bootstrap, topic, PARTITIONS))
        with feeding(bootstrap, topic):
            ours = Ours(stage, topic)

            def peer() -> float:
                _p99(times["default"], group_kill(yard, bootstrap, topic, {}))
                return _p99(times["tuned"], group_kill(yard, bootstrap, topic, TUNED))

            pair = alternate(
                lambda: _p99(times["ours"], [s for _ in range(KILLS) for s in ours.kill()]),
                peer,
                progress=progress,
            )
    ours_p99, default_p99 = _p99([], times["ours"]), _p99([], times["default"])
    return {
        "value": pair.ours, "unit": "s", "peer": "Kafka consumer group, tuned", "peer_value": pair.peer,
        "setup": {
            "workers": WORKERS, "partitions": PARTITIONS, "messages/s": PER_SECOND,
            "kills": {"ours": KILLS * len(pair.rounds), "peer": len(pair.rounds)}, "tuned": TUNED,
        },
        "rows": [
            _row("recovery, p50", median(times["ours"]), "tuned", median(times["tuned"])),
            _row("recovery, slowest", max(times["ours"]), "tuned", max(times["tuned"])),
            _row("recovery, default", ours_p99, "default settings", default_p99),
            _row("recovery, default, p50", median(times["ours"]), "default settings",
                 median(times["default"])),
        ],
    }  # fmt: skip


def _row(name: str, value: float, settings: str, peer_value: float) -> dict[str, Any]:
    return {"bench": name, "value": value, "unit": "s", "peer": f"Kafka consumer group, {settings}",
            "peer_value": peer_value, "ratio": value / peer_value}  # fmt: skip


def _p99(kept: list[float], times_s: list[float]) -> float:
    """Notes the times and returns their p99."""
    kept += times_s
    return quantiles(times_s, n=100, method="inclusive")[98]


def now_ms() -> int:
    """The clock that all processes here share."""
    return time.time_ns() // 1_000_000


@contextmanager
def feeding(bootstrap: str, topic: str) -> Iterator[None]:
    """An even flow into every partition."""
    ended = threading.Event()

    async def feed() -> None:
        loop = asyncio.get_running_loop()
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, linger_ms=1) as producer:
            began_s, count = loop.time(), 0
            while not ended.is_set():
                for partition in range(PARTITIONS):
                    value = orjson.dumps({"id": f"m-{count}", "behaviour": "ok"})
                    await producer.send(topic, value, partition=partition)
                    count += 1
                await asyncio.sleep(max(0.0, began_s + count / PER_SECOND - loop.time()))

    feeder = threading.Thread(target=lambda: asyncio.run(feed()))
    feeder.start()
    try:
        yield
    finally:
        ended.set()
        feeder.join()


# -- ours ------------------------------------------------------------------------------------------


class Ours:
    """Workers of which one is killed at a time, and replaced."""

    def __init__(self, stage: DemoStage, topic: str) -> None:
        self.stage, self.topic = stage, topic
        self.workers = [stage.worker() for _ in range(WORKERS)]
        self.kills = 0
        receiver = stage.receiver(GROUP, topic)
        definition = workload(
            GROUP, topic, CLUSTER, receiver.address, target={"contract": "stream"}, start="latest"
        )
        stage.deploy(self.workers[0], definition)

    def kill(self) -> list[float]:
        """Seconds of each moved partition."""
        owned = self._steady()
        items = http("GET", f"{self.workers[0].url}/api/v1/workers?limit=1000")[1]["items"]
        at = {item["worker"]: self._at(item["url"]) for item in items if self._at(item["url"])}
        leader = next(item["worker"] for item in items if item["leader"])
        candidates = sorted((worker for worker in owned if worker != leader), key=lambda w: -len(owned[w]))
        lead_now = leader in owned and (self.kills % 2 == 1 or not candidates)
        victim = leader if lead_now else candidates[0]
        self.kills += 1
        with self.stage.journal.open("rb") as journal:
            journal.seek(0, 2)
            since_ms = now_ms()
            process = at[victim]
            assert process is not None
            process.kill()
            self.workers.remove(process)
            first = self._first(journal, since_ms, owned[victim])
        self.workers.append(self.stage.worker())
        return first

    def _at(self, url: str) -> Process | None:
        return next((worker for worker in self.workers if worker.url == url), None)

    def _first(self, journal: Any, since_ms: int, partitions: set[int]) -> list[float]:
        first: dict[int, float] = {}
        rest = b""

        def all_flow() -> bool:
            nonlocal rest
            *lines, rest = (rest + journal.read()).split(b"\n")
            for line in map(orjson.loads, lines):
                if line["topic"] == self.topic and line["timestamp_ms"] >= since_ms:
                    first.setdefault(line["partition"], (line["at_ms"] - since_ms) / 1000)
            return partitions <= first.keys()

        wait_until(all_flow, ENOUGH_S, self.workers[0].tail, 0.02)
        return [first[partition] for partition in partitions]

    def _steady(self) -> dict[str, set[int]]:
        """The partitions of each owner, once nothing has moved for a while."""

        def owned() -> dict[str, set[int]]:
            found: dict[str, set[int]] = {}
            items = http("GET", f"{self.workers[0].url}/api/v1/assignments?limit=1000")[1]["items"]
            for item in items:
                *_, topic, partition = item["job"].split(":")
                if item["worker"] and topic == self.topic:
                    found.setdefault(item["worker"], set()).add(int(partition))
            return found

        def unmoved() -> bool:
            before = owned()
            with self.stage.journal.open("rb") as journal:
                journal.seek(0, 2)
                time.sleep(STEADY_S)
                lines = [orjson.loads(line) for line in journal.read().split(b"\n")[:-1][-PER_SECOND:]]
            behind_ms = max((line["at_ms"] - line["timestamp_ms"] for line in lines), default=None)
            at_work = {line["partition"] for line in lines}
            if behind_ms is None or behind_ms > BEHIND_MS or len(at_work) < PARTITIONS:
                return False
            return sum(map(len, before.values())) == PARTITIONS and before == owned()

        wait_until(unmoved, ENOUGH_S, lambda: str(owned()))
        return owned()


# -- the peer --------------------------------------------------------------------------------------


class Member:
    """A consumer of the group, and what it prints."""

    def __init__(self, command: list[str], on_message: Callable[[Member, int, int], None]) -> None:
        self._on_message = on_message
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if found := PRINTED.match(line):
                self._on_message(self, int(found[2]), int(found[1]))

    def kill(self) -> None:
        """kill -9, and waits until it is gone."""
        self.popen.kill()
        self.popen.wait(ENOUGH_S)
        self._reader.join()


def group_kill(yard: Yard, bootstrap: str, topic: str, settings: Mapping[str, str]) -> list[float]:
    """Seconds of each partition that a killed member of a new group had."""
    latest: dict[int, tuple[Member, float]] = {}  # partition -> the member with its last message, and when
    first: dict[int, float] = {}
    since_ms = 0

    def on_message(member: Member, partition: int, timestamp_ms: int) -> None:
        latest[partition] = member, time.monotonic()
        if since_ms and timestamp_ms >= since_ms:
            first.setdefault(partition, (now_ms() - since_ms) / 1000)

    command = yard.tool(
        CONSOLE_CONSUMER, "--bootstrap-server", bootstrap, "--topic", topic,
        "--group", f"peer-{uuid.uuid4().hex[:8]}",
        *_options("--command-property", {"auto.offset.reset": "latest", **settings}),
        *_options("--formatter-property", {"print.timestamp": "true", "print.partition": "true"}),
    )  # fmt: skip
    members = [Member(command, on_message) for _ in range(WORKERS)]
    try:

        def steady() -> bool:
            before = {partition: member for partition, (member, _) in latest.items()}
            time.sleep(STEADY_S)
            now = {partition: member for partition, (member, _) in latest.items()}
            return before == now and len(now) == PARTITIONS and set(now.values()) == set(members)

        wait_until(steady, ENOUGH_S, lambda: f"the group reads {sorted(latest)} of {PARTITIONS} partitions")
        victim = members.pop()
        moved = {partition for partition, (member, _) in latest.items() if member is victim}
        since_ms = now_ms()
        victim.kill()
        wait_until(
            lambda: moved <= first.keys(), ENOUGH_S, lambda: f"{sorted(first)} of {sorted(moved)}", 0.02
        )
        return [first[partition] for partition in moved]
    finally:
        for member in members:
            member.kill()


def _options(name: str, values: Mapping[str, str]) -> list[str]:
    return [part for key, value in values.items() for part in (name, f"{key}={value}")]
