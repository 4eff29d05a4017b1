"""Stops consumers, even while their broker is unreachable."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer

from app.kafka.client.aiokafka_internals import client_of


async def stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stops a consumer.

    aiokafka awaits a task that it has cancelled. So a consumer that waits after a failed fetch raises
    CancelledError, although its caller was not cancelled. The caller would end, not retry, and leave
    connections open. Upstream issue: aiokafka #647.

    Raises KafkaError, OSError: the consumer fails. Raises CancelledError: the caller was cancelled.
    """
    task = asyncio.current_task()
    cancellations = task.cancelling() if task is not None else 0
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        await client_of(consumer).close()  # the step that `stop` did not reach
        if task is not None and task.cancelling() > cancellations:
            raise
