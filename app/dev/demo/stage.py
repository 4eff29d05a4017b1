"""The stage of the demo and of the system tests: a yard, workers and a receiver, all real processes in one
folder.

Every process ends with this one: workers and receivers get the kernel's parent-death signal, brokers have
the yard's warden.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from app.dev.yard import Yard
from app.dev.yard.broker import choose_ports
from app.kernel.json_types import JsonObject

PR_SET_PDEATHSIG = 1
LISTED = {"Route": "routes", "Failover": "failovers", "AuditPlan": "audit/plans", "Alert": "alerts"}
READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0


class StageError(RuntimeError):
    """A process did not start; the text has the end of its log."""


def free_port() -> int:
    """A free port below the ephemeral range, so that no outgoing connection takes it."""
    return choose_ports(1)[0]


# Runs before a process of the stage. A `preexec_fn` would fork, and gRPC's fork handlers sometimes abort the
# child.
DIE_WITH_PARENT = (
    "import ctypes, os, sys; "
    f"ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


@dataclass
class Process:
    """A process on the stage."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    port: int = 0
    address: str = ""

    @property
    def url(self) -> str:
        """The console's address (workers)."""
        return f"http://127.0.0.1:{self.port}"

    def tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self.popen.send_signal(number)

    def kill(self) -> None:
        """Kills it (-9), and waits until it has ended."""
        self.popen.kill()
        self.popen.wait(STOP_TIMEOUT_S)

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Sends SIGTERM; returns the exit code. Raises subprocess.TimeoutExpired."""
        self.popen.terminate()
        return self.popen.wait(timeout_s)

    def jobs(self) -> Counter[str]:
        """The number of jobs of each worker, by its console's address, as this worker knows it; "": no
        worker."""
        workers = http("GET", f"{self.url}/api/v1/workers?limit=1000")[1]["items"]
        urls = {item["worker"]: item["url"] for item in workers}
        items = http("GET", f"{self.url}/api/v1/assignments?limit=1000")[1]["items"]
        return Counter(urls.get(item["worker"], "") for item in items)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None


@dataclass
class DemoStage:
    """The stage, as a context manager."""

    yard: Yard
    region: str = "east"
    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="switchyard-")))
    processes: list[Process] = field(default_factory=list)
    settings: JsonObject = field(default_factory=dict)

    def __enter__(self) -> DemoStage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes and removes the folder."""
        for process in self.processes:
            if process.running:
                process.popen.send_signal(signal.SIGCONT)
                process.popen.terminate()
        for process in self.processes:
            try:
                process.popen.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    # -- processes -------------------------------------------------------------------------------

    def config(self, name: str = "") -> Path:
        """Writes the switchyard.yaml of the region, or of one worker: settings may change in between."""
        path = self.home / f"switchyard-{self.region}{name and '-'}{name}.yaml"
        home = self.yard.clusters[0].region
        clusters = [
            # Another region's name gives separate control topics in the same brokers.
            {"name": c.cluster, "region": self.region if c.region == home else c.region, "tier": c.tier,
             "bootstrap": c.bootstrap}
            for c in self.yard.clusters
        ]  # fmt: skip
        content = {
            "region": self.region,
            "clusters": clusters,
            "data_dir": str(self.home / "data"),
            **self.settings,
        }
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))  # JSON is YAML
        return path

    def start(
        self, name: str, command: list[str], env: Mapping[str, str] | None = None, **fields: Any
    ) -> Process:
        """Starts a command whose output goes to a log of its own."""
        log = self.home / f"{name}.log"
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [sys.executable, "-S", "-c", DIE_WITH_PARENT, *command],
                env={**os.environ, **(env or {})},
                cwd=Path(__file__).resolve().parents[3],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        process = Process(name, popen, log, **fields)
        self.processes.append(process)
        return process

    def worker(self, name: str | None = None, *, wait: bool = True) -> Process:
        """Starts a worker; with `wait`, returns once it is ready."""
        port = free_port()
        name = name or f"worker-{sum(p.name.startswith('worker') for p in self.processes) + 1}"
        process = self.start(
            name,
            [sys.executable, "-m", "faust", "-A", "app", "worker", "-l", "info"],
            {
                "SWITCHYARD_CONFIG": str(self.config(name)),
                "SWITCHYARD_WEB_PORT": str(port),
                "PYTHONUNBUFFERED": "1",
            },
            port=port,
        )
        if wait:
            self.wait_ready(process)
        return process

    def wait_ready(self, process: Process, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until a worker is ready. Raises StageError."""

        def ready() -> bool:
            if not process.running:
                raise StageError(f"{process.name} ended with {process.popen.returncode}:\n{process.tail()}")
            try:
                status, _ = http("GET", f"{process.url}/health/ready")
            except OSError:
                return False
            return status == 200

        wait_until(ready, timeout_s, lambda: f"{process.name} is not ready:\n{process.tail()}")

    def receiver(self, group: str, *topics: str, port: int = 0, extra: tuple[str, ...] = ()) -> Process:
        """Starts a sample receiver with a journal; returns once it listens."""
        name = f"receiver-{len(self.processes)}"
        arguments = [sys.executable, "-m", "app.dev.sample_receiver", "--group", group]
        arguments += [part for topic in topics for part in ("--topic", topic)]
        arguments += ["--port", str(port or free_port()), "--journal", str(self.journal), *extra]
        process = self.start(name, arguments)

        def listening() -> bool:
            if not process.running:
                raise StageError(f"{name} ended with {process.popen.returncode}:\n{process.tail()}")
            for line in process.log.read_text(errors="replace").splitlines():
                if line.startswith("{"):
                    process.address = json.loads(line)["address"]
                    process.port = int(process.address.rpartition(":")[2])
                    return True
            return False

        wait_until(listening, 30.0, lambda: f"{name} does not listen:\n{process.tail()}")
        return process

    @property
    def journal(self) -> Path:
        """The journal of all deliveries."""
        return self.home / "journal.jsonl"

    def deliveries(self) -> list[JsonObject]:
        """Every delivery so far, in order."""
        if not self.journal.exists():
            return []
        lines = self.journal.read_bytes().split(b"\n")
        return [orjson.loads(line) for line in lines[:-1]]  # the last one is empty or incomplete

    # -- definitions -----------------------------------------------------------------------------

    def deploy(self, worker: Process, definition: JsonObject) -> None:
        """PUTs a definition. Raises StageError when it is refused."""
        metadata = definition["metadata"]
        listed = LISTED.get(definition["kind"])
        path = (
            f"{listed}/{metadata['name']}" if listed else f"workloads/{metadata['group']}/{metadata['topic']}"
        )
        url = f"{worker.url}/api/v1/{path}"
        status, body = http("PUT", url, definition)
        if status not in {200, 201}:
            raise StageError(f"PUT {url} answered {status}: {body!r}")


def workload(group: str, topic: str, cluster: str, address: str, **spec: Any) -> JsonObject:
    """A workload's definition."""
    target = {"address": address, **spec.pop("target", {})}
    return {
        "apiVersion": "switchyard/v1",
        "kind": "Workload",
        "metadata": {"group": group, "topic": topic, "cluster": cluster, "owner": "demo"},
        "spec": {"target": target, **spec},
    }


def route(name: str, source: str, target: str, *topics: str, **spec: Any) -> JsonObject:
    """A route's definition."""
    return {
        "apiVersion": "switchyard/v1",
        "kind": "Route",
        "metadata": {"name": name, "owner": "demo"},
        "spec": {"from": source, "to": target, "topics": list(topics), **spec},
    }


def http(method: str, url: str, body: Any = None, timeout_s: float = 30.0) -> tuple[int, Any]:
    """Sends one request to a worker; returns status and decoded JSON (or text). Raises OSError when there
    is no answer."""
    data = None if body is None else orjson.dumps(body)
    request = urllib.request.Request(  # noqa: S310 - our own worker
        url, data=data, method=method, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            status, content = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, content = error.code, error.read()
    try:
        return status, orjson.loads(content)
    except orjson.JSONDecodeError:
        return status, content.decode("utf-8", "replace")


def wait_until(
    condition: Callable[[], Any], timeout_s: float, otherwise: Callable[[], str], pause_s: float = 0.1
) -> None:
    """Waits until `condition` holds. Raises StageError with `otherwise()`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise StageError(f"after {timeout_s:.0f} s: {otherwise()}")
        time.sleep(pause_s)
