"""Ends consumers, also while their broker is away."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer


async def stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stops a consumer.

    One that waits after a fetch that has failed raises CancelledError at whoever stops it: aiokafka awaits
    what it has cancelled itself. Whoever was not cancelled would end as if it were, try nothing again, and
    leave the connections open.

    Raises:
        KafkaError, OSError; CancelledError: the caller was cancelled.
    """
    task = asyncio.current_task()
    asked = task.cancelling() if task is not None else 0
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        await consumer._client.close()  # what it had still to do
        if task is not None and task.cancelling() > asked:
            raise
