"""aiokafka's clients, started however long their cluster is away.

A client that finds no broker raises, and what raises while a worker starts ends the worker: nobody would be
there when the broker comes back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from aiokafka.errors import KafkaError, KafkaTimeoutError

from app.kafka.client.cluster import PATIENT_S, TELL_S

log = structlog.get_logger(__name__)

ATTEMPT_S = 30.0  # a broker that takes connections and answers nothing holds up an attempt no longer


async def start_patiently(
    start: Callable[[], Awaitable[None]], what: str, stopping: Callable[[], bool] = lambda: False
) -> None:
    """Calls `start` (of an aiokafka client) until it succeeds; says at once and every `TELL_S` why it waits.

    Returns early once `stopping()`; ends by cancellation, too. `what` is it, in words.
    """
    began_s, told_s = time.monotonic(), float("-inf")
    while not stopping():
        try:
            async with asyncio.timeout(ATTEMPT_S):
                await start()
        except (KafkaError, OSError, TimeoutError) as error:
            now_s = time.monotonic()
            if now_s - told_s >= TELL_S:
                told_s = now_s
                log.warning(
                    "this worker is not ready: a client of the control cluster cannot start yet",
                    client=what,
                    waited_s=round(now_s - began_s),
                    why=repr(error),
                    remedy="none, once its brokers run; see that they answer at bootstrap in switchyard.yaml",
                )
            await asyncio.sleep(PATIENT_S)
        else:
            return


def heals(error: BaseException | None) -> bool:
    """Whether Kafka's error passes when the broker is back."""
    return isinstance(error, KafkaError) and (error.retriable or isinstance(error, KafkaTimeoutError))
