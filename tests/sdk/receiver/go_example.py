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
        self.port = 0

    async def start(self, *arguments: str) -> None:
        """Starts it, again at the same port."""
        self.process = await asyncio.create_subprocess_exec(
            self._program, "-listen", f"127.0.0.1:{self.port}", "-journal", self._journal, *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = json.loads(await self.process.stdout.readline())["address"]
        self.port = int(self.address.rpartition(":")[2])

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        async with asyncio.timeout(ENOUGH_S):
            return await self.process.wait()

    def lines(self) -> list[dict[str, Any]]:
        """The journal."""
        return [json.loads(line) for line in self._journal.read_text().splitlines()]

    def handled(self) -> Counter[tuple[str, str]]:
        """Deliveries by id and outcome."""
        return Counter((line["id"], line["outcome"]) for line in self.lines())
