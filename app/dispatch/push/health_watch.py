"""Watches what a receiver says of its own health, by gRPC's standard protocol.

A receiver that says NOT_SERVING (it shuts down, it warms up) gets nothing until it says otherwise: no
message is tried on it, and none is held against it. One that says nothing of its health, or is not there,
is judged by what becomes of messages (`app.dispatch.model.circuit_breaker`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from app.dispatch.push.health import HealthClient, ReceiverHealth

log = structlog.get_logger(__name__)

SERVING_CHECK_INTERVAL_S = 2.0  # between checks
NOT_SERVING_CHECK_INTERVAL_S = 0.5  # recovery is noticed within two seconds
SILENT_CHECK_INTERVAL_S = 60.0  # a new version may speak


class HealthWatch:
    """Of the receiver at `address`; `changed` is told when `serving` has changed.

    Attributes: `serving`, `heard` (what it said last, None while nothing), and `answers` (how often somebody
    was there who answered).
    """

    def __init__(self, address: str, changed: Callable[[], None]) -> None:
        self.serving = True
        self.heard: ReceiverHealth | None = None
        self.answers = 0
        self._asked = asyncio.Event()
        self._client = HealthClient(address)
        self._address = address
        self._changed = changed
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self._asked.clear()
            health = self.heard = await self._client.check()
            self.answers += health is not ReceiverHealth.UNREACHABLE
            serving = health is not ReceiverHealth.NOT_SERVING
            if serving != self.serving:
                self.serving = serving
                log.info("a receiver's health changed", receiver=self._address, health=str(health))
                self._changed()
            wait_s = (
                SILENT_CHECK_INTERVAL_S
                if health is ReceiverHealth.UNIMPLEMENTED
                else SERVING_CHECK_INTERVAL_S
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s if serving else NOT_SERVING_CHECK_INTERVAL_S):
                    await self._asked.wait()

    def ask(self) -> None:
        """Asks again at once."""
        self._asked.set()

    async def close(self) -> None:
        """Ends the watch."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._client.close()
