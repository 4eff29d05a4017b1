"""Repeated health checks of one receiver, by gRPC's standard protocol. `health` has the single check.

A receiver that answers NOT_SERVING, such as during shutdown or warm-up, or UNKNOWN, gets no messages until
its answer changes, and no message counts as its failure. A receiver that does not report its health, or is
not there, is judged by the results of messages (`app.dispatch.model.circuit_breaker`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from app.dispatch.push.health import HealthClient, ReceiverHealth

log = structlog.get_logger(__name__)

SERVING_CHECK_INTERVAL_S = 2.0
NOT_SERVING_CHECK_INTERVAL_S = 0.5  # so that recovery is noticed within two seconds
SILENT_CHECK_INTERVAL_S = 60.0  # a new version may report its health


class HealthWatch:
    """Watches the receiver at `address`; calls `changed` when `serving` has changed.

    `heard` is the last check's result, None before the first; `answers` counts the checks that were answered.
    """

    def __init__(self, address: str, changed: Callable[[], None]) -> None:
        self.serving = True
        self.heard: ReceiverHealth | None = None
        self.answers = 0
        self._check_now = asyncio.Event()
        self._client = HealthClient(address)
        self._address = address
        self._changed = changed
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self._check_now.clear()
            health = self.heard = await self._client.check()
            self.answers += health is not ReceiverHealth.UNREACHABLE
            serving = not health.holds
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
                    await self._check_now.wait()

    def ask(self) -> None:
        self._check_now.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._client.close()
