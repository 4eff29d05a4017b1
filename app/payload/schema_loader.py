"""The schemas of a worker, opened and compiled off its event loop.

Rules
1. `OPENERS` threads open them, and nobody waits longer than `SCHEMA_OPEN_TIMEOUT_S`. A file system that hangs
   holds these threads and what needs a schema, never the worker.
2. One of these threads looks for files that have come since (`look`); to decode looks into memory only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from app.payload.descriptors import DescriptorError
from app.payload.schema_files import SchemaFiles

OPENERS = 2
SCHEMA_OPEN_TIMEOUT_S = 120.0  # a registry of a hundred `.proto` files takes half a minute

P = ParamSpec("P")
T = TypeVar("T")


class SchemaLoader:
    """See the module. `files`: those of the configured folder."""

    def __init__(self, folder: Path, open_s: float = SCHEMA_OPEN_TIMEOUT_S) -> None:
        self.files = SchemaFiles(folder)
        self._open_s = open_s
        self._openers = ThreadPoolExecutor(OPENERS, thread_name_prefix="schemas")
        self._look: asyncio.Future[None] | None = None

    async def run(self, opening: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `opening` returns, which runs in one of the threads.

        Raises:
            DescriptorError: that took too long. And what `opening` raises.
        """
        running = asyncio.get_running_loop().run_in_executor(self._openers, partial(opening, *args, **kwargs))
        done, _ = await asyncio.wait([running], timeout=self._open_s)
        if not done:
            running.cancel()
            raise DescriptorError(
                self.files.root or "", f"a schema could not be opened within {self._open_s:g} s",
                "see whether its file system answers, or split what it holds",
            )  # fmt: skip
        return running.result()

    def start_refresh(self) -> None:
        """Begins to look for schemas that have come since, unless it still does."""
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().run_in_executor(self._openers, self.files.refresh)

    def close(self) -> None:
        """Ends the threads once they have nothing to do."""
        self._openers.shutdown(wait=False, cancel_futures=True)
