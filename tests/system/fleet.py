"""Helpers for the workers of a region, an even flow of messages, and the journal of their deliveries.

with Flow(bootstrap, {"orders": 4}, per_partition=50) as flow: ...
Journal(stage.journal).read().entries["orders", 3]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer

from app.controllog import codec
from app.controllog.events import AnyControlEvent, Assignment
from app.controllog.state import ControlState
from app.dev.demo.background_thread import Background
from app.dev.demo.stage import DemoStage, Process, http, wait_until
from app.dev.demo.traffic import read_all
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter

TICK_S = 0.05

Part = tuple[str, int]  # topic, partition
OwnerByJob = dict[str, tuple[str, int]]  # job -> owner, epoch


def start_workers(stage: DemoStage, count: int = 2) -> list[Process]:
    """Starts workers at the same time; returns when all are ready."""
    started = [stage.worker(wait=False) for _ in range(count)]
    for worker in started:
        stage.wait_ready(worker)
    return started


def known_workers(worker: Process) -> list[dict[str, Any]]:
    """The API's list of workers, from this worker."""
    return list(http("GET", f"{worker.url}/api/v1/workers?limit=1000")[1]["items"])


def id_of(worker: Process, seen_by: Process | None = None) -> str:
    """The worker's id, once `seen_by` (or the worker itself) lists it."""
    found: list[str] = []

    def known() -> bool:
        found[:] = [item["worker"] for item in known_workers(seen_by or worker) if item["url"] == worker.url]
        return bool(found)

    wait_until(known, 30.0, worker.tail)
    return found[0]


def assignments(worker: Process) -> OwnerByJob:
    """Job -> owner and epoch, from this worker's API."""
    items = http("GET", f"{worker.url}/api/v1/assignments?limit=1000")[1]["items"]
    return {item["job"]: (item["worker"], item["epoch"]) for item in items if item["worker"]}


def start_command(worker: Process, *arguments: str) -> subprocess.Popen[str]:
    """Starts `switchyard` with these arguments against this worker, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "from app.cli.main import main; main()", *arguments, "--url", worker.url],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )  # fmt: skip


def run_command(worker: Process, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs such a command to its end."""
    with start_command(worker, *arguments) as running:
        try:
            stdout, stderr = running.communicate(timeout=150)
        except BaseException:
            running.kill()
            raise
    return subprocess.CompletedProcess(running.args, running.returncode, stdout, stderr)


def incidents(worker: Process, kind: str) -> list[dict[str, Any]]:
    """The worker's incidents of one kind."""
    items = http("GET", f"{worker.url}/api/v1/incidents?limit=1000")[1]["items"]
    return [item for item in items if item["kind"] == kind]


def control_log(stage: DemoStage) -> list[tuple[bool, AnyControlEvent]]:
    """Each event of the control log, and whether it counted."""
    control = stage.yard.bootstrap(f"{stage.yard.clusters[0].region}-regional")
    state, found = ControlState(), []
    for record in asyncio.run(read_all(control, f"switchyard-{stage.region}-control")):
        if record.value is not None:
            event = codec.control_event(record.value)
            found.append((state.apply(event), event))
    return found


def counted_assignments(stage: DemoStage) -> list[Assignment]:
    """All assignments that counted, in order."""
    return [event for counted, event in control_log(stage) if counted and isinstance(event, Assignment)]


def committed(bootstrap: str, group: str, at: list[Part]) -> dict[Part, tuple[int | None, int]]:
    """Partition -> (committed offset, end offset), read from the group's cluster."""

    async def read() -> dict[Part, tuple[int | None, int]]:
        client = ClusterClient(ClusterSpec("test", (bootstrap,)))
        await client.start()
        try:
            done, ends = await OffsetCommitter(client).committed(group, at), await client.end_offsets(at)
            return {part: (done[part], ends[part]) for part in at}
        finally:
            await client.stop()

    return asyncio.run(read())


@dataclass
class Flow(Background):
    """Produces `per_partition` messages a second into each partition while it is entered.

    An id is `topic/partition/key/number`; numbers rise within a partition. `sent` has the time (ms) of each
    message that the broker acknowledged.
    """

    bootstrap: str
    partitions: dict[str, int]  # topic -> number of partitions; may grow while it runs
    per_partition: float
    keys: int = 4  # of a partition
    sent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def work(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        loop = asyncio.get_running_loop()
        numbers: dict[Part, int] = defaultdict(int)
        began: dict[Part, float] = {}
        waiting: set[asyncio.Task[None]] = set()
        async with AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True, linger_ms=2,
            metadata_max_age_ms=1_000,
        ) as producer:  # fmt: skip
            while not self.ended.is_set():
                for part in [(t, p) for t, count in list(self.partitions.items()) for p in range(count)]:
                    due = (loop.time() - began.setdefault(part, loop.time())) * self.per_partition
                    while numbers[part] < due:
                        number = numbers[part] = numbers[part] + 1
                        key = f"k{number % self.keys}"
                        name = f"{part[0]}/{part[1]}/{key}/{number}"
                        value = orjson.dumps({"id": name, "behaviour": "ok"})
                        acknowledged = await producer.send(
                            part[0], value, key=f"{part[1]}-{key}".encode(), partition=part[1]
                        )
                        task = loop.create_task(self._note(acknowledged, name))
                        waiting.add(task)
                        task.add_done_callback(waiting.discard)
                await asyncio.sleep(TICK_S / 5)
            await asyncio.gather(*waiting)

    async def _note(self, acknowledged: Any, name: str) -> None:
        try:
            await acknowledged
        except Exception as error:  # noqa: BLE001 - raised when the flow is left
            self.errors.append(error)
        else:
            self.sent[name] = time.time_ns() / 1e6


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One delivery of a message; `timestamp_ms` is when it was produced."""

    id: str
    offset: int
    at_ms: float
    timestamp_ms: float
    attempt: int = 1


@dataclass
class Journal:
    """The receiver's deliveries by partition, in order; `read` adds the new ones."""

    path: Path
    entries: Mapping[Part, list[JournalEntry]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._at = 0

    def read(self) -> Journal:
        """Reads the lines that were added since the last call."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._at)
                whole = file.read().rpartition(b"\n")[0]
            self._at += len(whole) + bool(whole)
            for line in map(orjson.loads, filter(None, whole.split(b"\n"))):
                one = JournalEntry(
                    line["id"], line["offset"], line["at_ms"], line["timestamp_ms"], line.get("attempt", 1)
                )
                self.entries[line["topic"], line["partition"]].append(one)
        return self

    def entries_of(self, topic: str) -> list[JournalEntry]:
        """All deliveries of a topic, partition by partition."""
        return [one for (name, _), all_of in sorted(self.entries.items()) for one in all_of if name == topic]

    def ids(self) -> set[str]:
        """The ids of all delivered messages."""
        return {one.id for all_of in self.entries.values() for one in all_of}


def repetitions(entries: list[JournalEntry]) -> list[JournalEntry]:
    """Deliveries beyond the first of their message."""
    seen: set[str] = set()
    return [one for one in entries if one.id in seen or seen.add(one.id)]  # type: ignore[func-returns-value]


def most_deliveries_within(deliveries: list[dict[str, Any]], within_ms: float) -> int:
    """The largest number of deliveries within any interval of this length."""
    at_ms = sorted(one["at_ms"] for one in deliveries)
    return max(
        (number - bisect_left(at_ms, at - within_ms) + 1 for number, at in enumerate(at_ms)), default=0
    )


def pauses(entries: list[JournalEntry], available_ms: Mapping[str, float]) -> list[tuple[float, float]]:
    """For each delivery: how long none had arrived although a message was available, and when that ended
    (ms).

    `available_ms`: by message id, since when the message was available.
    """
    found, before_ms = [], entries[0].at_ms
    for one in entries[1:]:
        found.append((one.at_ms - max(before_ms, available_ms[one.id]), one.at_ms))
        before_ms = max(before_ms, one.at_ms)
    return found
