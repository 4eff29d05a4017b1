"""Workers that are started before their control cluster answers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.stage import Process, Stage, free_port, wait_until

pytestmark = pytest.mark.system

CONTROL = "east-regional"
ENOUGH_S = 150.0


@contextlib.contextmanager
def forwarding(port: int, to: str) -> Iterator[None]:
    """What connects to the port is connected to `to`."""
    host, _, to_port = to.rpartition(":")
    started, stop = threading.Event(), asyncio.Event()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(host, int(to_port))
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))

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


def early(stage: Stage, name: str, bootstrap: str) -> Process:
    """A worker that looks for its control cluster there."""
    config = Path(stage.config(name))
    text = config.read_text()
    assert stage.yard.bootstrap(CONTROL) in text
    config.write_text(text.replace(stage.yard.bootstrap(CONTROL), bootstrap))
    web = free_port()
    env = {"SWITCHYARD_CONFIG": str(config), "SWITCHYARD_WEB_PORT": str(web), "PYTHONUNBUFFERED": "1"}
    return stage.start(name, [sys.executable, "-m", "faust", "-A", "app", "worker"], env, port=web)


def test_a_worker_that_starts_before_its_control_cluster_waits_for_it_and_says_what_it_waits_for(
    stage: Stage,
) -> None:
    port = free_port()
    worker = early(stage, "early", f"127.0.0.1:{port}")
    mistaken = early(stage, "mistaken", "no-such-host.invalid:9092")

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
