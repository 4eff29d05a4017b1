"""A receiver in a process of its own that dies of some messages, and is started again at once.

python -m tests.dispatch.scheduler.crashing_receiver PORT CONTRACT
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from switchyard.receiver import Message, Receiver
from tests.dispatch.pump.rig import ENOUGH_S, GROUP, TOPIC, DispatchRig


async def _serve(port: int, contract: str) -> None:
    receiver = Receiver(port=port, stream=contract == "stream")

    @receiver.on(topic=TOPIC, group=GROUP)
    async def handle(message: Message) -> None:
        await asyncio.sleep(0.3 if message.value.startswith(b"slow") else 0.002)
        if message.value.startswith(b"kill"):
            os._exit(1)

    await receiver.serve()


def _supervise(port: int, contract: str) -> None:
    """Forks receivers, one after another, and writes a line for each; ends with its standard input."""
    while True:
        child = os.fork()
        if not child:
            asyncio.run(_serve(port, contract))
        os.write(1, b"begun\n")
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if select.select([sys.stdin], [], [], 0.02)[0]:
                os.kill(child, signal.SIGKILL)
                return


class CrashingReceiver:
    """The receiver's process. `deaths`: how often it was started again."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.deaths = -1

    async def live(self, contract: str) -> None:
        """Runs the receiver until canceled."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.dispatch.scheduler.crashing_receiver", str(self.port), contract,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while await process.stdout.readline():
                self.deaths += 1
        finally:
            process.stdin.close()
            await process.wait()


@contextlib.asynccontextmanager
async def rig_with_crashing_receiver(
    contract: str, **spec: Any
) -> AsyncIterator[tuple[DispatchRig, CrashingReceiver]]:
    """A rig whose receiver can be killed by messages."""
    receiver, rig = CrashingReceiver(), DispatchRig(lambda _: None)
    life = asyncio.create_task(receiver.live(contract))
    rig.port = receiver.port
    async with asyncio.timeout(ENOUGH_S):
        while receiver.deaths < 0:  # noqa: ASYNC110 - a task changes it
            await asyncio.sleep(0.01)
    rig.run(target={"contract": contract}, **spec)
    try:
        yield rig, receiver
    finally:
        await rig.close()
        life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await life


async def until(condition: Callable[[], bool], each: Callable[[], object], limit_s: float) -> None:
    """Waits until the condition holds, and runs `each` ten times a second."""
    async with asyncio.timeout(limit_s):
        while not condition():
            each()
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    _supervise(int(sys.argv[1]), sys.argv[2])
