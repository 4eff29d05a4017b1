"""Readers of topics that lie behind take turns, so that whatever else runs in their event loop goes on.

A reader that always finds something buffered never waits, and gives the loop to nobody. Several of them,
each of which yields after some hundred records, still take all of it.

Rules
1. A reader that finds records buffered waits for its turn before it takes them (`wait`).
2. Before a turn everybody rests for as long as the reader's last one took of the CPU, and turns do not
   overlap. So all readers of a loop together leave about half of it to others.
3. A turn counts for `MOST_TURN_S` at most: part of that CPU time may have been another task's.
"""

from __future__ import annotations

import asyncio
import threading
import time

MOST_TURN_S = 0.02
MOST_WAIT_S = 1.0


class _Loop(threading.local):
    """Of the event loop of this thread: when the last turn that was given away ends (monotonic seconds)."""

    ends_s = 0.0


_loop = _Loop()


class ReaderTurns:
    """The turns of one reader, which lives in one thread."""

    __slots__ = ("_began_cpu_s",)

    def __init__(self) -> None:
        self._began_cpu_s = time.thread_time()

    def begin(self) -> None:
        """It has taken records, and works on them until it waits again."""
        self._began_cpu_s = time.thread_time()

    async def wait(self) -> None:
        """Gives the loop away, once at least, until it is this reader's turn."""
        now_s = time.monotonic()
        turn_s = min(time.thread_time() - self._began_cpu_s, MOST_TURN_S)
        begins_s = min(max(now_s, _loop.ends_s) + turn_s, now_s + MOST_WAIT_S)
        _loop.ends_s = begins_s + turn_s
        await asyncio.sleep(begins_s - now_s)
