"""The example receiver in Go, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from tests.dispatch.push.grpc_servers import ENOUGH_S


class Example:
    """The example in a process of its own."""

    def __init__(self, program: Path, journal: Path) -> None:
        self._program = program
        self._journal = journal
        self._journals: list[Path] = []  # one for each process, in order
        self._killed: set[Path] = set()
        self.port = 0

    async def start(self, *arguments: str) -> None:
        """Starts the example, after the first time at the same port."""
        self._journals.append(self._journal.with_name(f"{len(self._journals)}-{self._journal.name}"))
        self.process = await asyncio.create_subprocess_exec(
            self._program, "-listen", f"127.0.0.1:{self.port}", "-journal", self._journals[-1], *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = json.loads(await self.process.stdout.readline())["address"]
        self.port = int(self.address.rpartition(":")[2])

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal; returns the exit code."""
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self._killed.add(self._journals[-1])
        async with asyncio.timeout(ENOUGH_S):
            return await self.process.wait()

    def lines(self) -> list[dict[str, Any]]:
        """The lines of all journals. A kill may cut a line short; its message was not answered then."""
        found: list[dict[str, Any]] = []
        for journal in self._journals:
            *lines, torn = journal.read_text().split("\n")
            assert not torn or journal in self._killed
            found += map(json.loads, lines)
        return found

    def handled(self) -> Counter[tuple[str, str]]:
        """Counts deliveries by id and outcome."""
        return Counter((line["id"], line["outcome"]) for line in self.lines())
