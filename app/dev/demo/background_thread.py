"""A thread that works while a `with` block lasts."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self


class Background:
    """Runs `work`, which returns soon after `ended` is set. Its exception is raised at the end of the
    block, unless the block raised one itself."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def work(self) -> None:
        """The thread's work."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self._thread.join()
        if self.errors and error is None:
            raise self.errors[0]

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised where the block ends
            self.errors.append(error)
