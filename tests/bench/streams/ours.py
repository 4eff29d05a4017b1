"""A run of ours: one worker reads a filled topic and pushes it over a stream to one receiver."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.dev.demo.stage import DemoStage, Process, StageError, http, wait_until, workload
from tests.bench.processes.receiver_address import address_of
from tests.bench.processes.shared_numbers import shared_numbers

CLUSTER = "east-aggregate"
HEAD, TAIL = 0.1, 0.9  # measured between these shares of the messages: neither start nor end
POLL_S = 0.005
RUN_S = 180.0


@dataclass(frozen=True, slots=True)
class Case:
    """A measured case.

    Attributes:
        latency_ms: How long the handler sleeps; with 0 it is synchronous and instant.
        in_flight: Messages given to the receiver that it has not answered.
        handlers: Messages handled at once.
        ordering: Either none or key.
        count: Messages.
        capacity: The tracker's, for each partition.
        stuck_at: With a number, one message in a thousand is stashed, and the message at this offset is never
            answered.
    """

    latency_ms: int
    in_flight: int
    handlers: int
    ordering: str
    count: int
    capacity: int = 10_000
    stuck_at: int | None = None

    def definition(self, group: str, topic: str, address: str) -> dict[str, Any]:
        """The workload."""
        return workload(
            group,
            topic,
            CLUSTER,
            address,
            target={"contract": "stream", "timeout": "60s"},
            ordering=self.ordering,
            flow={"max_inflight": self.in_flight},
            tracker={"capacity": self.capacity},
        )


class Receivers:
    """The receiver of a case, with a group of its own for each run."""

    def __init__(self, stage: DemoStage, topic: str, case: Case, runs: int) -> None:
        number = len(stage.processes)
        self.topic = topic
        self.case = case
        self.groups = [f"{stage.region}{number}-{run}" for run in range(runs)]
        counter = stage.home / f"counter-{number}"
        self.cells = shared_numbers(counter, runs)
        command = [sys.executable, "-m", "tests.bench.streams.receiver", "--topic", topic]
        command += ["--counter", str(counter), "--latency-ms", str(case.latency_ms)]
        command += ["--handlers", str(case.handlers)]
        command += [part for group in self.groups for part in ("--group", group)]
        if case.stuck_at is not None:
            command += ["--stuck-at", str(case.stuck_at)]
        self.process = stage.start(f"stream-receiver-{number}", command)
        self.address = address_of(self.process)

    def close(self) -> None:
        """Ends it."""
        self.process.kill()


def rate(worker: Process, stage: DemoStage, receivers: Receivers, run: int) -> float:
    """Messages a second that the receiver handled between HEAD and TAIL; the worker has them acknowledged."""
    case, group, cells = receivers.case, receivers.groups[run], receivers.cells
    low, high = int(case.count * HEAD), int(case.count * TAIL)
    stage.deploy(worker, case.definition(group, receivers.topic, receivers.address))
    begin = reaches(low, lambda: cells[run], worker)
    end = reaches(high, lambda: cells[run], worker)
    url = f"{worker.url}/api/v1/workloads/{group}/{receivers.topic}"
    if case.stuck_at is None:
        wait_until(lambda: trackers(url)[0] >= high, RUN_S, worker.tail)
        handled = cells[run]
        if handled > (fetched := trackers(url)[1]):
            raise StageError(f"{handled} of {fetched} messages were handled: some came twice, and counted so")
    http("DELETE", url)
    return (end[1] - begin[1]) / (end[0] - begin[0])


def trackers(url: str) -> tuple[int, int]:
    """Messages that may be committed, and that were fetched, over all partitions of the workload at `url`."""
    base = end = partition = 0
    while True:
        status, tracker = http("GET", f"{url}/partitions/{partition}/tracker")
        if status != 200:
            return base, end
        base, end, partition = base + tracker["base"], end + tracker["end"], partition + 1


def reaches(count: int, read: Callable[[], int], worker: Process) -> tuple[float, int]:
    """The time at which `read` first gave `count` or more, and that value.

    Raises:
        StageError: Not within RUN_S.
    """
    deadline_s = time.monotonic() + RUN_S
    while (handled := read()) < count:
        if time.monotonic() > deadline_s:
            raise StageError(f"{handled} of {count} messages after {RUN_S:.0f} s:\n{worker.tail()}")
        time.sleep(POLL_S)
    return time.monotonic(), handled
