"""A run of ours: one worker reads a topic from its beginning and pushes it by unary calls."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.kernel.json_types import JsonObject
from tests.bench.unary.cases import CREDENTIALS, MEASURED_S, METHOD, Case, Measured

CLUSTER = "east-aggregate"
START_S = 60.0
STOP_S = 30.0
POLL_S = 0.5  # seldom: each request costs the worker a millisecond


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of a run: the time, the messages acknowledged up to it, the worker's processor time so far."""

    at_s: float
    messages: int
    cpu_s: float


class Run:
    """A workload of the worker, with a group of its own."""

    def __init__(
        self, stage: DemoStage, worker: Process, topic: str, group: str, in_flight: int, address: str,
        is_secure: bool = False,
    ) -> None:  # fmt: skip
        """Deploys it."""
        self._worker = worker
        self._cpu = psutil.Process(worker.popen.pid)
        self._url = f"{worker.url}/api/v1/workloads/{group}/{topic}"
        target: JsonObject = {"method": METHOD}
        if is_secure:
            target["tls"] = {"credentials": CREDENTIALS}
        flow = {"max_inflight": in_flight}
        stage.deploy(worker, workload(group, topic, CLUSTER, address, target=target, flow=flow))

    def mark(self) -> Mark:
        """Now. All messages before the tracker's base are acknowledged."""
        status, body = http("GET", f"{self._url}/partitions/0/tracker")
        messages = body["base"] if status == 200 else 0
        times = self._cpu.cpu_times()
        return Mark(time.monotonic(), messages, times.user + times.system)

    def shares(self) -> list[float]:
        """Each endpoint's part of the answers of the last seconds."""
        (target,) = http("GET", self._url)[1]["flow"]["receivers"]
        return [endpoint["share"] for endpoint in target["endpoints"]]

    def wait_started(self) -> None:
        """Waits for the first acknowledged message. Raises StageError."""
        wait_until(lambda: self.mark().messages, START_S, self._worker.tail)

    def end(self) -> None:
        """Removes the workload, and waits until its job has ended. Raises StageError."""
        http("DELETE", self._url)
        wait_until(
            lambda: http("GET", f"{self._url}/partitions/0/tracker")[0] != 200, STOP_S, self._worker.tail
        )


def measure(stage: DemoStage, worker: Process, case: Case, topic: str, group: str, address: str) -> Measured:
    """One run. Raises StageError: it does not start or end."""
    run = Run(stage, worker, topic, group, case.in_flight, address, case.is_secure)
    run.wait_started()
    time.sleep(case.warm_up_s)
    begin = end = run.mark()
    while end.at_s - begin.at_s < MEASURED_S and end.messages < case.last:
        time.sleep(POLL_S)
        end = run.mark()
    run.end()
    return between(begin, end)


def between(begin: Mark, end: Mark) -> Measured:
    """The figures of a stretch. Raises RuntimeError: no message was acknowledged in it."""
    messages, seconds = end.messages - begin.messages, end.at_s - begin.at_s
    if not messages:
        raise RuntimeError(f"no message was acknowledged in {seconds:.1f} s, after {begin.messages}")
    return Measured(messages / seconds, (end.cpu_s - begin.cpu_s) * 1e6 / messages, seconds)
