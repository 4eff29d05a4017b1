"""Writes messages to a topic, evenly in time, as fast as they are wanted."""

from __future__ import annotations

import asyncio
import random

from aiokafka import AIOKafkaProducer

VALUE_BYTES = 200
KEYS = 10_000
STEP_S = 0.001  # messages that are due within it are sent together
LATE_FACTOR = 1.05


class TooSlow(RuntimeError):
    """The rate was not reached."""


async def feed(bootstrap: str, topic: str, per_second: float, count: int) -> None:
    """Writes `count` messages and returns when the broker has them.

    Raises:
        TooSlow: This machine does not write so many a second.
    """
    value = random.Random(VALUE_BYTES).randbytes(VALUE_BYTES)
    loop = asyncio.get_running_loop()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, linger_ms=0) as producer:
        waiting: list[asyncio.Future[object]] = []
        began_s = loop.time()
        while len(waiting) < count:
            due = min(count, int((loop.time() - began_s) * per_second) + 1)
            keys = (b"%05d" % (number % KEYS) for number in range(len(waiting), due))
            waiting += [await producer.send(topic, value, key=key) for key in keys]
            next_s = began_s + len(waiting) / per_second
            await asyncio.sleep(max(STEP_S, next_s - loop.time()))
        await asyncio.gather(*waiting)
        took_s = loop.time() - began_s
        if took_s > count / per_second * LATE_FACTOR:
            raise TooSlow(f"{count} messages took {took_s:.1f} s instead of {count / per_second:.1f}")
