"""The sample receiver as one instance of several, which a signal takes out of service and back.

SIGUSR1: it reports NOT_SERVING, and answers what comes nevertheless. SIGUSR2: it reports SERVING.
SIGHUP: its handler raises from now on, or no longer does.

    python -m tests.system.endpoint_receiver --host 127.0.0.2 --port 7000 --group billing --topic orders
"""

from __future__ import annotations

import asyncio
import signal
import sys

from grpc_health.v1.health_pb2 import HealthCheckResponse

from app.dev.sample_receiver import build, parse
from switchyard.receiver import Message, Receiver

STATUSES = {signal.SIGUSR1: HealthCheckResponse.NOT_SERVING, signal.SIGUSR2: HealthCheckResponse.SERVING}


class Illness:
    """While it lasts each message fails, before the handler notes it."""

    def __init__(self) -> None:
        self.lasts = False

    def turn(self) -> None:
        self.lasts = not self.lasts

    def before(self, message: Message) -> None:
        if self.lasts:
            raise RuntimeError(f"this instance is ill: it cannot handle {message.offset}")


async def serve(receiver: Receiver) -> None:
    """Serves until SIGTERM."""
    loop = asyncio.get_running_loop()
    illness = Illness()
    receiver.intercept(illness.before)
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
    loop.add_signal_handler(signal.SIGHUP, illness.turn)
    await receiver.serve(started)


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(build(parse())))
