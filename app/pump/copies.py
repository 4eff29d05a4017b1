"""The way out of a topic: copies in a retry topic or the DLQ, and what is finished once they are safe.

Invariant: a message is finished here only after all in-sync replicas have acknowledged its copy. A copy that
is not taken is tried again for as long as the job is this worker's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from app.clock import now_ms
from app.core.lease import Lease
from app.core.retry_headers import PREFIX, RAW_BATCH, VALUE_BYTES, Header, Origin, moved_headers
from app.kafka.produce import RecordTooLarge

if TYPE_CHECKING:
    from app.kafka.decode import UndecodableBatch
    from app.pump.delivery import Delivery
    from app.pump.dispatch import DispatchPump

log = structlog.get_logger(__name__)

PRODUCE_RETRY_S = 0.5  # a copy that was not taken is tried again this much later
LEASE_RETRY_S = 0.05
NO_DLQ_RETRY_S = 1.0
MAX_KEPT_KEY_BYTES = 64 * 1024
TOO_LARGE = "too large for a copy, read it where it stood"


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
        dlq_topic: str | None, finished: Callable[[], None],
    ) -> None:  # fmt: skip
        """Begins to copy; `finished` is called once it is finished here, unless the pump is closed.

        What is too large for the topic goes to the DLQ without its value, which is still where it stood.
        """
        pump, record = delivery.pump, delivery.record
        origin = delivery.told_origin()
        failed = replace(
            origin, attempt=origin.attempt + delivery.attempts, tier_attempt=origin.tier_attempt + 1,
            timeouts=origin.timeouts + delivery.timeouts,
        )  # fmt: skip

        def letter(where: str, too_large: bool) -> tuple[bytes | None, bytes | None, list[Header]]:
            to_tier = None if where == dlq_topic else tier
            words = f"{TOO_LARGE}; {reason}" if too_large else reason
            headers = moved_headers(
                record.headers, failed, tier=to_tier, reason=words, code=code, moved_at_ms=now_ms()
            )
            if not too_large:
                return record.key, record.value, headers
            kept = [(name, value) for name, value in headers if name.startswith(PREFIX)]
            kept.append((VALUE_BYTES, str(len(record.value or b"")).encode()))
            key = record.key if len(record.key or b"") <= MAX_KEPT_KEY_BYTES else None
            return key, None, kept

        def done(where: str) -> None:
            pump.finished(record, acknowledged=False, dead=where == dlq_topic)
            finished()

        self._run(pump, record.offset, self._copy(pump, topic, lambda: dlq_topic, letter, done))

    def start_raw(
        self, pump: DispatchPump, error: UndecodableBatch, dlq_topic: Callable[[], str | None],
        finished: Callable[[], None],
    ) -> None:  # fmt: skip
        """Begins to copy the bytes of a batch that cannot be decoded; then calls `finished`."""
        log.error(
            "a record batch cannot be decoded; its bytes go to the DLQ", job=str(pump.job), error=str(error)
        )
        origin = Origin(pump.job.topic, pump.job.partition, error.start, -1)

        def letter(_: str, too_large: bool) -> tuple[bytes | None, bytes | None, list[Header]]:
            words = f"{TOO_LARGE}; {error}" if too_large else str(error)
            headers = moved_headers(
                [], origin, tier=None, reason=words, code="UNDECODABLE", moved_at_ms=now_ms()
            )
            headers.append((RAW_BATCH, f"{error.start}-{error.end}".encode()))
            return None, None if too_large else error.raw, headers

        self._run(pump, error.start, self._copy(pump, None, dlq_topic, letter, lambda _: finished()))

    @staticmethod
    def _run(pump: DispatchPump, offset: int, copying: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(copying)
        pump.copying[offset] = task
        task.add_done_callback(lambda _: pump.copying.pop(offset, None))

    async def _copy(
        self, pump: DispatchPump, topic: str | None, dlq_topic: Callable[[], str | None],
        letter: Callable[[str, bool], tuple[bytes | None, bytes | None, list[Header]]],
        done: Callable[[str], None],
    ) -> None:  # fmt: skip
        too_large = False
        while not pump.closed:
            where = dlq_topic() if too_large or topic is None else topic
            if where is None:
                pump.trouble = "no copy: a message can go nowhere but to a DLQ, and there is none: enable dlq"
                await asyncio.sleep(NO_DLQ_RETRY_S)
                continue
            if not self._lease.holds(self._clock()):
                await asyncio.sleep(LEASE_RETRY_S)
                continue
            try:
                await self._copies.send(where, *letter(where, too_large))
            except RecordTooLarge as error:
                if too_large:  # without its value even
                    pump.trouble = f"no copy in {where}: {error}"
                    await asyncio.sleep(NO_DLQ_RETRY_S)
                too_large = True
                continue
            except Exception as error:  # noqa: BLE001 - whatever the producer raises, the message stays
                pump.trouble = f"no copy in {where}: {error}"
                log.warning(
                    "a copy was not taken and is tried again; the message stays unfinished",
                    topic=where, job=str(pump.job), error=repr(error),
                )  # fmt: skip
                await asyncio.sleep(PRODUCE_RETRY_S)
                continue
            if pump.trouble.startswith("no copy"):
                pump.trouble = ""
            if not pump.closed:
                done(where)
            return
