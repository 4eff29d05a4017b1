"""Starts aiokafka clients, however long their cluster is unreachable.

A client that finds no broker raises, and an error at startup ends the worker. No worker would then run
when the broker is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from aiokafka.errors import KafkaError, KafkaTimeoutError

from app.kafka.client.cluster import CLUSTER_RETRY_INTERVAL_S, WAITING_LOG_INTERVAL_S

log = structlog.get_logger(__name__)

ATTEMPT_S = 30.0  # the longest attempt with a broker that accepts connections but does not answer


async def start_patiently(
    start: Callable[[], Awaitable[None]], what: str, stopping: Callable[[], bool] = lambda: False
) -> None:
    """Calls an aiokafka client's `start` until it succeeds; logs why it waits, like `ClusterClient`. Returns
    early once `stopping()`; can be cancelled. `what` names the client in the log."""
    began_s, logged_s = time.monotonic(), float("-inf")
    while not stopping():
        try:
            async with asyncio.timeout(ATTEMPT_S):
                await start()
        except (KafkaError, OSError, TimeoutError) as error:
            now_s = time.monotonic()
            if now_s - logged_s >= WAITING_LOG_INTERVAL_S:
                logged_s = now_s
                log.warning(
                    "this worker is not ready: a client of the control cluster cannot start yet",
                    client=what,
                    waited_s=round(now_s - began_s),
                    why=repr(error),
                    remedy="check that its brokers answer at bootstrap in switchyard.yaml; then it continues",
                )
            await asyncio.sleep(CLUSTER_RETRY_INTERVAL_S)
        else:
            return


def heals(error: BaseException | None) -> bool:
    """Whether a Kafka error passes once the broker is back."""
    return isinstance(error, KafkaError) and (error.retriable or isinstance(error, KafkaTimeoutError))
