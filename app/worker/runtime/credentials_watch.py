"""Reads the credentials and tokens for receivers again and again, so that renewed ones need no restart."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog
from mode import Service

from app.grpc_client.credentials import SYSTEM, Credentials, shown
from app.kernel.incidents import ReportOwnIncident

log = structlog.get_logger(__name__)

READ_INTERVAL_S = 10.0
AGAIN_S = 1.0  # after a wrong file: its renewal may be half done
START_TIMEOUT_S = 5.0
REMEDY = f"repair the file; the worker reads it again every {READ_INTERVAL_S:.0f} s"


class CredentialsWatch(Service):
    """Starts once the files were read, or `START_TIMEOUT_S` later. Wrong files are reported when they are
    still wrong after a second look, and cost only the workloads that name them."""

    def __init__(self, credentials: Credentials, report: ReportOwnIncident) -> None:
        super().__init__()
        self._credentials = credentials
        self._report = report
        self._seen: dict[str, str] = {}  # what was wrong at the last look
        self._reported: dict[str, str] = {}

    async def on_start(self) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self.read()
        except TimeoutError:
            log.warning("the credentials for receivers cannot be read yet; their workloads wait")

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            await self.sleep(READ_INTERVAL_S if self._seen == self._reported else AGAIN_S)
            await self.read()

    async def read(self) -> None:
        """Reads the files, and reports what is wrong with them for the second time."""
        await asyncio.to_thread(self._credentials.load)
        problems = self._problems()
        still = {what: why for what, why in problems.items() if self._seen.get(what) == why}
        for what, why in still.items():
            if self._reported.get(what) != why:
                message, is_over = f"{what} for receivers: {why}", partial(self._is_over, what, why)
                self._report("receiver-credentials", message, REMEDY, is_over)
        self._seen, self._reported = problems, still

    def _problems(self) -> dict[str, str]:
        """What is wrong now, and why. Without the system's authorities: a workload that needs them says so
        when it starts."""
        found = {shown(name): why for name, why in self._credentials.problems.items() if name != SYSTEM}
        return found | {f"token {name!r}": why for name, why in self._credentials.tokens.problems.items()}

    def _is_over(self, what: str, why: str) -> bool:
        return self._problems().get(what) != why
