"""Readers of topics that lie behind take turns, so that whatever else runs in their event loop goes on.

A reader that always finds something buffered never waits, and gives the loop to nobody. Several of them,
each of which yields after some hundred records, still take all of it.

Rules
1. A reader that finds records buffered waits for its turn before it takes them (`wait`).
2. Before a turn everybody rests for as long as the reader's last one took of the CPU, and turns do not
   overlap. So all readers of a loop together leave about half of it to others.
3. A reader that is first gives the loop away, and does not rest; while it lies behind others wait for it, up
   to `MOST_WAIT_S`. No lease is renewed before the control log was read to its end, and nothing is delivered
   without one.
4. A turn counts for `MOST_TURN_S` at most: part of that CPU time may have been another task's.
"""

from __future__ import annotations

import asyncio
import threading
import time

MOST_TURN_S = 0.02
MOST_WAIT_S = 1.0
FIRST_TURN_S = 0.1  # a turn of the first takes no longer, with what comes between
FIRST_POLL_INTERVAL_S = 0.05


class _Loop(threading.local):
    """Of the event loop of this thread: when the last turn that was given away ends. Monotonic seconds."""

    ends_s = 0.0
    first_s = 0.0  # until then the first reader lies behind, as far as is known


_loop = _Loop()


class ReaderTurns:
    """The turns of one reader, which lives in one thread. `is_first`: rule 3."""

    __slots__ = ("_began_cpu_s", "is_first")

    def __init__(self) -> None:
        self.is_first = False
        self._began_cpu_s = time.thread_time()

    def begin(self) -> None:
        """It has taken records, and works on them until it waits again."""
        self._began_cpu_s = time.thread_time()

    async def wait(self) -> None:
        """Gives the loop away, once at least, until it is this reader's turn."""
        now_s = time.monotonic()
        if self.is_first:
            _loop.first_s = now_s + FIRST_TURN_S
            await asyncio.sleep(0)
            return
        turn_s = min(time.thread_time() - self._began_cpu_s, MOST_TURN_S)
        until_s = now_s + MOST_WAIT_S
        while now_s < min(_loop.first_s, until_s):
            await asyncio.sleep(FIRST_POLL_INTERVAL_S)
            now_s = time.monotonic()
        begins_s = min(max(now_s, _loop.ends_s) + turn_s, now_s + MOST_WAIT_S)
        _loop.ends_s = begins_s + turn_s
        await asyncio.sleep(begins_s - now_s)
