"""Ends a process whose event loop stands still, with the stacks of all threads on its standard error.

Such a worker renews no lease: others have its jobs long before. It would hold its connections, answer no
probe and drain nothing for ever; a restart heals it, and the stacks say what held it.

Rules
1. A thread looks whether the loop has run. It counts only time in which it ran itself: a process that was
   paused (SIGSTOP, a suspended host) finds a long time passed, and goes on.
2. What holds Python's lock (one long call into C) holds that thread, too. It takes CPU time, so a timer of
   CPU time, which the loop sets back, ends the process then; a paused process takes none.
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
STDERR = 2  # Faust replaces sys.stderr by its log, which may be what hangs


class LoopStall:
    """For how long beats have not come, by the clock of who looks every `tick_s` and may be paused."""

    __slots__ = ("_beats", "_looked_s", "_tick_s", "still_s")

    def __init__(self, tick_s: float) -> None:
        self.still_s = 0.0
        self._tick_s = tick_s
        self._beats = -1
        self._looked_s = float("inf")

    def measure(self, beats: int, now_s: float) -> float:
        """The seconds (monotonic, as `now_s`) without a new one of `beats`; of a pause two ticks count."""
        passed_s = min(max(0.0, now_s - self._looked_s), 2 * self._tick_s)
        self.still_s = self.still_s + passed_s if beats == self._beats else 0.0
        self._beats, self._looked_s = beats, now_s
        return self.still_s


class LoopGuard:
    """See the module. `limit_s`: how long the loop may stand still."""

    def __init__(self, limit_s: float, tick_s: float = BEAT_INTERVAL_S) -> None:
        self._limit_s = limit_s
        self._tick_s = tick_s
        self._cpu_limit_s = limit_s * max(2, os.cpu_count() or 1)  # other threads take CPU time, too
        self._beats = 0
        self._next: asyncio.TimerHandle | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Begins; to be called in the loop that is guarded, in the main thread."""
        faulthandler.register(signal.SIGPROF, file=STDERR, all_threads=True, chain=True)
        self._beat(asyncio.get_running_loop())
        threading.Thread(target=self._watch, daemon=True, name="loop-guard").start()

    def stop(self) -> None:
        """Ends nothing any more."""
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
                    "others take its jobs over. The stacks below say what held it; start it again\n"
                )
                os.write(STDERR, words.encode())
                faulthandler.dump_traceback(STDERR, all_threads=True)
                os._exit(EXIT_STALLED)
