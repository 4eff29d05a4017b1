"""Watches what a receiver says of its own health, by gRPC's standard protocol.

A receiver that says NOT_SERVING (it shuts down, it warms up) gets nothing until it says otherwise: no
message is tried on it, and none is held against it. One that says nothing of its health, or is not there,
is judged by what becomes of messages (`app.core.breaker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from app.push.health import Health, HealthClient

log = structlog.get_logger(__name__)

SERVING_S = 2.0  # between checks
NOT_SERVING_S = 0.5  # recovery is noticed within two seconds
SILENT_S = 60.0  # a new version may speak


class HealthWatch:
    """Of the receiver at `address`; `changed` is told when `serving` has changed."""

    def __init__(self, address: str, changed: Callable[[], None]) -> None:
        self.serving = True
        self._client = HealthClient(address)
        self._address = address
        self._changed = changed
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            health = await self._client.check()
            serving = health is not Health.NOT_SERVING
            if serving != self.serving:
                self.serving = serving
                log.info("a receiver's health changed", receiver=self._address, health=str(health))
                self._changed()
            if not serving:
                await asyncio.sleep(NOT_SERVING_S)
            else:
                await asyncio.sleep(SILENT_S if health is Health.UNIMPLEMENTED else SERVING_S)

    async def close(self) -> None:
        """Ends the watch."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._client.close()
