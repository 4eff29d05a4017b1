"""Turns of readers that catch up on topics, so that other tasks of their event loop still run.

A reader that always finds records buffered never waits, and so never yields. Several readers that yield
every few hundred records would still use the whole loop.

Rules (tests/kafka/fetch/test_reader_turns.py)
1. A reader that finds records buffered waits for its turn before it takes them (`wait`).
2. Turns do not overlap, and each begins after a rest as long as the CPU time of the reader's last turn. So
   all readers of a loop together leave about half of it free.
3. A first reader yields without a rest. While it is behind, other readers wait for it, up to `MOST_WAIT_S`.
   The reader of the control log is first: no lease is renewed, and so nothing delivered, before it is read.
4. A turn counts at most `MOST_TURN_S`, because another task may have used part of its CPU time.
"""

from __future__ import annotations

import asyncio
import threading
import time

MOST_TURN_S = 0.02
MOST_WAIT_S = 1.0
FIRST_TURN_S = 0.1  # longer than a first reader's turn and the tasks after it
FIRST_POLL_INTERVAL_S = 0.05


class _Loop(threading.local):
    """The turns in this thread's event loop, in monotonic seconds."""

    ends_s = 0.0  # when the last granted turn ends
    first_s = 0.0  # until when a first reader is known to be behind


_loop = _Loop()


class ReaderTurns:
    """The turns of one reader, which stays in one thread. `is_first`: see rule 3."""

    __slots__ = ("_began_cpu_s", "is_first")

    def __init__(self) -> None:
        self.is_first = False
        self._began_cpu_s = time.thread_time()

    def begin(self) -> None:
        """Begins a turn: the reader has taken records, and works until it waits again."""
        self._began_cpu_s = time.thread_time()

    async def wait(self) -> None:
        """Yields to the event loop, at least once, until it is this reader's turn."""
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
