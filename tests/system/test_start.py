"""Workers start while their control cluster does not answer, or not always."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.dev.demo.stage import DemoStage, Process, free_port, http, wait_until

pytestmark = pytest.mark.system

CONTROL = "east-regional"
ENOUGH_S = 150.0


@dataclass
class Gate:
    """The share of all connections that it closes at once."""

    refused: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(7))


@contextlib.contextmanager
def forwarding(port: int, to: str, gate: Gate | None = None) -> Iterator[None]:
    """Forwards connections on the port to `to`, unless the gate closes them."""
    host, _, to_port = to.rpartition(":")
    started, stop = threading.Event(), asyncio.Event()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if gate is not None and gate.chance.random() < gate.refused:
            writer.close()
            return
        upstream = await asyncio.open_connection(host, int(to_port))
        await asyncio.gather(pipe(reader, upstream[1]), pipe(upstream[0], writer))

    async def serve() -> None:
        server = await asyncio.start_server(forward, "127.0.0.1", port)
        started.set()
        await stop.wait()
        server.close()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(ENOUGH_S)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()


def worker_with_control_at(stage: DemoStage, name: str, bootstrap: str) -> Process:
    """A worker with this address of its control cluster."""
    config = Path(stage.config(name))
    text = config.read_text()
    assert stage.yard.bootstrap(CONTROL) in text
    config.write_text(text.replace(stage.yard.bootstrap(CONTROL), bootstrap))
    web = free_port()
    env = {"SWITCHYARD_CONFIG": str(config), "SWITCHYARD_WEB_PORT": str(web), "PYTHONUNBUFFERED": "1"}
    return stage.start(name, [sys.executable, "-m", "faust", "-A", "app", "worker"], env, port=web)


def test_a_worker_started_before_its_control_cluster_waits_and_logs_the_reason(
    stage: DemoStage,
) -> None:
    port = free_port()
    worker = worker_with_control_at(stage, "early", f"127.0.0.1:{port}")
    mistaken = worker_with_control_at(stage, "mistaken", "no-such-host.invalid:9092")

    def says(process: Process, *parts: str) -> bool:
        text = process.log.read_text(errors="replace")
        return "waiting for a cluster" in text and all(part in text for part in parts)

    for process, why in ((worker, f"nothing listens at 127.0.0.1:{port}"), (mistaken, "does not resolve")):
        wait_until(lambda: says(process, why, "switchyard.yaml"), ENOUGH_S, process.tail)  # noqa: B023
        assert process.running
    mistaken.popen.terminate()
    mistaken.popen.wait(ENOUGH_S)
    with forwarding(port, stage.yard.bootstrap(CONTROL)):
        stage.wait_ready(worker)
        assert worker.terminate() == 0


@pytest.mark.deep(minutes=0.5)
def test_a_worker_starts_although_half_of_its_connections_to_the_control_cluster_fail(
    stage: DemoStage,
) -> None:
    # Clients connect mostly one after the other; half of these attempts fail, as if the broker were down.
    port, gate = free_port(), Gate(0.5)
    with forwarding(port, stage.yard.bootstrap(CONTROL), gate):
        worker = worker_with_control_at(stage, "interrupted", f"127.0.0.1:{port}")
        stage.wait_ready(worker, ENOUGH_S)
        assert worker.terminate() == 0


@pytest.mark.deep(minutes=0.3)
def test_a_worker_that_waits_during_its_start_is_not_ready_and_ends_on_sigterm(
    stage: DemoStage,
) -> None:
    port, gate = free_port(), Gate(0.5)
    with forwarding(port, stage.yard.bootstrap(CONTROL), gate):
        worker = worker_with_control_at(stage, "waiting", f"127.0.0.1:{port}")

        def waits() -> bool:
            assert worker.running, worker.tail(40)
            if "this worker is not ready" not in worker.log.read_text(errors="replace"):
                return False
            try:
                return http("GET", f"{worker.url}/health/ready")[0] == 503
            except OSError:  # no console yet
                return False

        wait_until(waits, ENOUGH_S, worker.tail)
        gate.refused = 1.0
        assert worker.terminate() == 0, worker.tail(40)
