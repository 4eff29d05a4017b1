"""A receiver of our SDK, in a process of its own, whose handler does as little as possible.

It counts handled messages in numbers that it shares with the bench. A redelivery counts again, so a bench
must not have any.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from switchyard.receiver import Message, Receiver, Stash, Verdict
from tests.bench.processes.sdk_receiver import serve
from tests.bench.processes.shared_numbers import shared_numbers

POISON_EVERY = 1_000
TICK_S = 0.001


class Nap:
    """Sleeps of `mean_s` on average, as measured.

    uvloop's timers count whole milliseconds, and a sleep of 10 takes 10.5 to 11.5: it asks for one less as
    often as it must. Java's threads are late by a tenth of a millisecond.
    """

    def __init__(self, mean_s: float) -> None:
        self.mean_s = mean_s
        self._slept_s = 0.0
        self._naps = 0

    async def take(self) -> None:
        """Sleeps once."""
        began_s = time.perf_counter()
        late = self._slept_s > self.mean_s * self._naps
        await asyncio.sleep(self.mean_s - TICK_S if late else self.mean_s)
        self._slept_s += time.perf_counter() - began_s
        self._naps += 1


def handler(cells: memoryview[int], index: int, latency_s: float, stuck_at: int | None) -> Any:
    """The handler for the group at `index`. With `stuck_at` it stashes one message in a thousand, and the
    one of partition 0 at that offset is never answered."""

    nap = Nap(latency_s)

    def count(_: Message) -> Verdict:
        cells[index] += 1
        return None

    async def wait(_: Message) -> Verdict:
        await nap.take()
        cells[index] += 1
        return None

    def count_with_faults(message: Message) -> Any:
        if message.offset == stuck_at and message.partition == 0:
            return asyncio.get_running_loop().create_future()
        cells[index] += 1
        return Stash("poison") if message.offset % POISON_EVERY == 0 else None

    async def wait_with_faults(message: Message) -> Verdict:
        if message.offset == stuck_at and message.partition == 0:
            await asyncio.get_running_loop().create_future()
        await nap.take()
        cells[index] += 1
        return Stash("poison") if message.offset % POISON_EVERY == 0 else None

    if stuck_at is None:
        return wait if latency_s else count
    return wait_with_faults if latency_s else count_with_faults


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", action="append", required=True)
    parser.add_argument("--counter", type=Path, required=True)
    parser.add_argument("--latency-ms", type=int, default=0)
    parser.add_argument("--handlers", type=int, default=10_000, help="at once")
    parser.add_argument("--stuck-at", type=int)
    options = parser.parse_args(arguments)
    cells = shared_numbers(options.counter, len(options.group))
    receiver = Receiver(max_tasks=options.handlers)
    for index, group in enumerate(options.group):
        handle = handler(cells, index, options.latency_ms / 1000, options.stuck_at)
        receiver.on(topic=options.topic, group=group)(handle)
    serve(receiver)


if __name__ == "__main__":
    main()
