"""The sample receiver as one instance of several, which a signal takes out of service and back.

SIGUSR1: it reports NOT_SERVING, and answers what comes nevertheless. SIGUSR2: it reports SERVING.

    python -m tests.system.endpoint_receiver --host 127.0.0.2 --port 7000 --group billing --topic orders
"""

from __future__ import annotations

import asyncio
import signal
import sys

from grpc_health.v1.health_pb2 import HealthCheckResponse

from app.dev.sample_receiver import build, parse
from switchyard.receiver import Receiver

STATUSES = {signal.SIGUSR1: HealthCheckResponse.NOT_SERVING, signal.SIGUSR2: HealthCheckResponse.SERVING}


async def serve(receiver: Receiver) -> None:
    """Serves until SIGTERM."""
    loop = asyncio.get_running_loop()
    changes: set[asyncio.Task[None]] = set()

    def report(status: HealthCheckResponse.ServingStatus) -> None:
        change = loop.create_task(receiver._health.set("", status))
        changes.add(change)
        change.add_done_callback(changes.discard)

    def started(port: int) -> None:
        sys.stdout.write(f"listens on {receiver.host}:{port}\n")
        sys.stdout.flush()

    for number, status in STATUSES.items():
        loop.add_signal_handler(number, report, status)
    await receiver.serve(started)


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(build(parse())))
