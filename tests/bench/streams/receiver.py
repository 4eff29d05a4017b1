"""A receiver of our SDK, in a process of its own, whose handler does as little as it is told to.

It counts what it has handled in memory that it shares with the bench: `Counter`. Delivered again counts
again, so that a bench must not have redeliveries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from app.push.receiver import Message, Receiver, Stash, Verdict

WORD_BYTES = 8
POISON_EVERY = 1_000


class Counter:
    """Numbers in a file, one a handler; whoever has it open sees each at once."""

    def __init__(self, path: Path, size: int) -> None:
        path.touch()
        descriptor = os.open(path, os.O_RDWR)
        os.ftruncate(descriptor, size * WORD_BYTES)
        self.cells = memoryview(mmap.mmap(descriptor, size * WORD_BYTES)).cast("Q")
        os.close(descriptor)


def handler(cells: memoryview[int], index: int, latency_s: float, stuck_at: int | None) -> Any:
    """The handler for the group at `index`. With `stuck_at` it stashes one message in a thousand, and the
    one of partition 0 at that offset is never answered."""

    def count(_: Message) -> Verdict:
        cells[index] += 1
        return None

    async def wait(_: Message) -> Verdict:
        await asyncio.sleep(latency_s)
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
        await asyncio.sleep(latency_s)
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
    cells = Counter(options.counter, len(options.group)).cells
    receiver = Receiver(max_tasks=options.handlers)
    for index, group in enumerate(options.group):
        handle = handler(cells, index, options.latency_ms / 1000, options.stuck_at)
        receiver.on(topic=options.topic, group=group)(handle)

    def started(port: int) -> None:
        sys.stdout.write(json.dumps({"address": f"{receiver.host}:{port}"}) + "\n")
        sys.stdout.flush()

    uvloop.run(receiver.serve(started))


if __name__ == "__main__":
    main()
