"""Repeated health checks of one receiver, by gRPC's standard protocol. `health` has the single check.

A receiver that answers NOT_SERVING (during shutdown or warm-up) or UNKNOWN gets no messages until its answer
changes. No message counts as its failure. A receiver that does not report its health, or is
not there, is judged by the results of messages (`app.dispatch.model.circuit_breaker`). One that has answered
checks, and then does not, is silent: other endpoints get its messages.
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
UNIMPLEMENTED_CHECK_INTERVAL_S = 60.0  # a new version may report its health
MIN_INTERVAL_S = 0.1  # however often `ask` is called


class HealthWatch:
    """Watches the server at `address` by `client`; calls `changed` when `serving` or `silent` has changed.

    `heard` is the last check's result, None before the first; `answers` counts the checks that were answered.
    """

    def __init__(self, address: str, client: HealthClient, changed: Callable[[], None]) -> None:
        self.serving = True
        self.silent = False
        self.heard: ReceiverHealth | None = None
        self.answers = 0
        self._check_now = asyncio.Event()
        self._client = client
        self._address = address
        self._changed = changed
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self._check_now.clear()
            health = self.heard = await self._client.check()
            self.answers += health is not ReceiverHealth.UNREACHABLE
            serving = not health.holds
            silent = self.answers > 0 and health is ReceiverHealth.UNREACHABLE
            if (serving, silent) != (self.serving, self.silent):
                self.serving, self.silent = serving, silent
                log.info("a receiver's health changed", receiver=self._address, health=str(health))
                self._changed()
            await asyncio.sleep(MIN_INTERVAL_S)
            wait_s = (
                UNIMPLEMENTED_CHECK_INTERVAL_S
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
