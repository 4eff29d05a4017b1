"""Threads of an event loop that the process does not wait for at its end.

Python's executor waits for its threads at exit. The child of a fork in C does not have these threads and does
not know it, so it would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
MOST_THREADS = 32  # calls that never end keep theirs


class DaemonThreads(ThreadPoolExecutor):
    """An executor for `loop.set_default_executor`. Each call has its own thread."""

    def __init__(self) -> None:
        super().__init__(1)
        self._free = threading.Semaphore(MOST_THREADS)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises RuntimeError when too many calls have not ended."""
        if not self._free.acquire(blocking=False):
            raise RuntimeError(f"{MOST_THREADS} calls of the output have not ended")
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # from now on it cannot be cancelled

        def run() -> None:
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
                done.set_exception(error)
            finally:
                self._free.release()

        threading.Thread(target=run, name="switchyard-audit-output", daemon=True).start()
        return done
