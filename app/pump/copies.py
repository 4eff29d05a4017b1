"""The way out of a topic: copies in a retry topic or the DLQ, and what is finished once they are safe.

Invariant: a message is finished here only after all in-sync replicas have acknowledged its copy. A copy that
is not taken is tried again for as long as the job is this worker's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from app.core.lease import Lease
from app.core.retry_headers import Header, moved_headers

if TYPE_CHECKING:
    from app.pump.delivery import Delivery

log = structlog.get_logger(__name__)

PRODUCE_RETRY_S = 0.5  # a copy that was not taken is tried again this much later
LEASE_RETRY_S = 0.05


class Copies(Protocol):
    """What the way out needs of a producer."""

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[Header]
    ) -> Awaitable[Any]: ...


class Copier:
    """Copies of one workload's messages."""

    def __init__(self, copies: Copies, lease: Lease, clock: Callable[[], float]) -> None:
        self._copies = copies
        self._lease = lease
        self._clock = clock

    def start(
        self, delivery: Delivery, topic: str, tier: int | None, reason: str, code: str,
        finished: Callable[[], None],
    ) -> None:  # fmt: skip
        """Begins to copy; `finished` is called once it is finished here, unless the pump is closed."""
        pump = delivery.pump
        task = asyncio.get_running_loop().create_task(
            self._copy(delivery, topic, tier, reason, code, finished)
        )
        pump.copying[delivery.record.offset] = task
        task.add_done_callback(lambda _: pump.copying.pop(delivery.record.offset, None))

    async def _copy(
        self, delivery: Delivery, topic: str, tier: int | None, reason: str, code: str,
        finished: Callable[[], None],
    ) -> None:  # fmt: skip
        pump, record = delivery.pump, delivery.record
        origin = delivery.told_origin()
        failed = replace(
            origin, attempt=origin.attempt + delivery.attempts, tier_attempt=origin.tier_attempt + 1,
            timeouts=origin.timeouts + delivery.timeouts,
        )  # fmt: skip
        while not pump.closed:
            if not self._lease.holds(self._clock()):
                await asyncio.sleep(LEASE_RETRY_S)
                continue
            headers = moved_headers(
                record.headers, failed, tier=tier, reason=reason, code=code,
                moved_at_ms=time.time_ns() // 1_000_000,
            )  # fmt: skip
            try:
                await self._copies.send(topic, record.key, record.value, headers)
            except Exception as error:  # noqa: BLE001 - whatever the producer raises, the message stays
                pump.trouble = f"no copy in {topic}: {error}"
                log.warning(
                    "a copy was not taken and is tried again; the message stays unfinished",
                    topic=topic, job=str(pump.job), offset=record.offset, error=repr(error),
                )  # fmt: skip
                await asyncio.sleep(PRODUCE_RETRY_S)
                continue
            if pump.trouble.startswith("no copy"):
                pump.trouble = ""
            if not pump.closed:
                pump.finished(record, acknowledged=False, dead=tier is None)
                finished()
            return

    async def send_raw(self, topic: str, value: bytes, headers: list[Header]) -> None:
        """Writes bytes that are no message (an undecodable batch).

        Raises: whatever the producer raises; the caller tries again.
        """
        await self._copies.send(topic, None, value, headers)
