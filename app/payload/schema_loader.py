"""Opens and compiles a worker's schemas off its event loop.

Rules
1. `OPENERS` threads open schemas, and no caller waits longer than `SCHEMA_OPEN_TIMEOUT_S`. A file system
   that hangs blocks these threads and the jobs that need a schema, but never the worker.
2. The same threads look for new files (`start_refresh`). Decoding uses schemas in memory only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from app.payload.schema_files import DescriptorError, SchemaFiles

OPENERS = 2
SCHEMA_OPEN_TIMEOUT_S = 120.0  # a registry of 100 `.proto` files takes half a minute

P = ParamSpec("P")
T = TypeVar("T")


class SchemaLoader:
    """Opens schemas in threads. `files` are those of the configured folder."""

    def __init__(self, folder: Path, timeout_s: float = SCHEMA_OPEN_TIMEOUT_S) -> None:
        self.files = SchemaFiles(folder)
        self._timeout_s = timeout_s
        self._openers = ThreadPoolExecutor(OPENERS, thread_name_prefix="schemas")
        self._refresh: asyncio.Future[None] | None = None

    async def run(self, opening: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `opening` in one of the threads, its error, or DescriptorError: it takes too long."""
        running = asyncio.get_running_loop().run_in_executor(self._openers, partial(opening, *args, **kwargs))
        done, _ = await asyncio.wait([running], timeout=self._timeout_s)
        if not done:
            running.cancel()
            raise DescriptorError(
                self.files.root or "",
                f"a schema could not be opened within {self._timeout_s:g} s",
                "check that its file system answers, or split the folder",
            )
        return running.result()

    def start_refresh(self) -> None:
        """Begins to look for new schemas, unless the last look still runs."""
        if self._refresh is None or self._refresh.done():
            self._refresh = asyncio.get_running_loop().run_in_executor(self._openers, self.files.refresh)

    def close(self) -> None:
        """Ends the threads after their current work."""
        self._openers.shutdown(wait=False, cancel_futures=True)
