"""Ends a process whose event loop stands still, and writes the stacks of all threads to its standard error.

Such a worker renews no lease, so other workers already have its jobs. But it keeps its connections,
answers no probe and never drains. A restart heals it, and the stacks show the cause.

Rules
1. A thread checks whether the loop has run. It counts only time in which the thread itself ran. A process
   that was paused (SIGSTOP, a suspended host) sees a long gap, and continues.
2. A long call into C that holds Python's lock stops that thread, too. It uses CPU time, so a CPU timer,
   which the loop resets, then ends the process. A paused process uses none.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import threading
import time

from app.worker.runtime.watchdog import EXIT_STALLED

BEAT_INTERVAL_S = 1.0
STDERR = 2  # Faust replaces sys.stderr by its log, which may hang


class LoopStall:
    """The time without beats, measured by a checker that runs every `tick_s` and may be paused."""

    __slots__ = ("_beats", "_checked_s", "_tick_s", "still_s")

    def __init__(self, tick_s: float) -> None:
        self.still_s = 0.0
        self._tick_s = tick_s
        self._beats = -1
        self._checked_s = float("inf")

    def measure(self, beats: int, now_s: float) -> float:
        """Monotonic seconds without a new one of `beats`; a pause counts as two ticks at most."""
        passed_s = min(max(0.0, now_s - self._checked_s), 2 * self._tick_s)
        self.still_s = self.still_s + passed_s if beats == self._beats else 0.0
        self._beats, self._checked_s = beats, now_s
        return self.still_s


class LoopGuard:
    """`limit_s`: how long the loop may stand still. `cpu_cores`: what the process may use."""

    def __init__(self, limit_s: float, cpu_cores: float, tick_s: float = BEAT_INTERVAL_S) -> None:
        self._limit_s = limit_s
        self._tick_s = tick_s
        self._cpu_limit_s = limit_s * max(2, cpu_cores)  # other threads use CPU time, too
        self._beats = 0
        self._next: asyncio.TimerHandle | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Starts the guard; call it in the guarded loop, in the main thread."""
        faulthandler.register(signal.SIGPROF, file=STDERR, all_threads=True, chain=True)
        self._beat(asyncio.get_running_loop())
        threading.Thread(target=self._watch, daemon=True, name="loop-guard").start()

    def stop(self) -> None:
        self._ended.set()
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        if self._next is not None:
            self._next.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beats += 1
        signal.setitimer(signal.ITIMER_PROF, self._cpu_limit_s)
        self._next = loop.call_later(self._tick_s, self._beat, loop)

    def _watch(self) -> None:
        stillness = LoopStall(self._tick_s)
        while not self._ended.wait(self._tick_s):
            still_s = stillness.measure(self._beats, time.monotonic())
            if still_s >= self._limit_s:
                words = (
                    f"switchyard: the event loop has stood still for {still_s:.0f} s; this process ends, and "
                    "other workers take its jobs over. The stacks below show the cause; start it again\n"
                )
                os.write(STDERR, words.encode())
                faulthandler.dump_traceback(STDERR, all_threads=True)
                os._exit(EXIT_STALLED)
