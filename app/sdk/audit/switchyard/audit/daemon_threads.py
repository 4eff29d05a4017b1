"""Threads of an event loop that nobody waits for when the process ends.

Python's own executor waits at exit for its threads. A child of a fork in C has none of them, and is not told:
it would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
MOST_THREADS = 32  # calls that never end hold them


class DaemonThreads(ThreadPoolExecutor):
    """An executor for `loop.set_default_executor`; each call has a thread of its own."""

    def __init__(self) -> None:
        super().__init__(1)
        self._free = threading.Semaphore(MOST_THREADS)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises RuntimeError: too many calls have not ended."""
        if not self._free.acquire(blocking=False):
            raise RuntimeError(f"{MOST_THREADS} calls of the output have not ended")
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # it cannot be cancelled any more

        def run() -> None:
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                done.set_exception(error)
            finally:
                self._free.release()

        threading.Thread(target=run, name="switchyard-audit-output", daemon=True).start()
        return done
