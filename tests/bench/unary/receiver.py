"""The receiver of all sides: a gRPC server in Go, in a process of its own."""

from __future__ import annotations

from pathlib import Path

from app.dev.demo.stage import DemoStage, Process, StageError, free_port, wait_until
from tests.grpc_client.peers.build import command
from tests.grpc_client.peers.certificates import Certificates

READY = "listening on "
READY_S = 30.0


def started(
    stage: DemoStage,
    delay_ms: int,
    latencies: Path | None = None,
    tls: Certificates | None = None,
    at_once: int = 0,
) -> Process:
    """A receiver whose calls last `delay_ms`; it is built first if it must be.

    Args:
        tls: For TLS; None: without.
        at_once: How many calls it works on at a time; 0: all.
        latencies: The file in which it counts how old messages are (`tests.bench.latency.histogram`).

    Raises:
        BuildFailed: It does not compile.
        StageError: It ended, or does not listen.
    """
    port = free_port()
    name = f"go-receiver-{len(stage.processes)}"
    options = ["--port", str(port), "--bench-delay-ms", str(delay_ms)]
    options += ["--bench-at-once", str(at_once)]
    options += [] if latencies is None else ["--bench-latencies", str(latencies)]
    options += [] if tls is None else tls.server_options
    process = stage.start(name, [*command("go"), *options], port=port, address=f"127.0.0.1:{port}")

    def listens() -> bool:
        if not process.running:
            raise StageError(f"{name} ended with {process.popen.returncode}:\n{process.tail()}")
        return READY in process.log.read_text()

    wait_until(listens, READY_S, lambda: f"{name} does not listen:\n{process.tail()}", 0.01)
    return process
