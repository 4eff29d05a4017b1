"""An even flow of records, each with the time at which it was given to the producer: a process of its own.

python -m tests.bench.copying.feed BOOTSTRAP TOPIC PARTITIONS RECORDS_PER_SECOND SECONDS
"""

from __future__ import annotations

import asyncio
import sys
import time

from aiokafka import AIOKafkaProducer

VALUE_BYTES = 200
STAMP_BYTES = 8  # nanoseconds since the epoch, big-endian, at the start of the value
TICK_S = 0.002
LINGER_MS = 5  # the default of Kafka's own producer


async def feed(bootstrap: str, topic: str, partitions: int, per_second: int, seconds: float) -> None:
    """Sends until `seconds` are over."""
    filler = bytes(VALUE_BYTES - STAMP_BYTES)
    loop = asyncio.get_running_loop()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, linger_ms=LINGER_MS) as producer:
        began_s, count, waiting = loop.time(), 0, []
        while count < per_second * seconds:
            due = min(int((loop.time() - began_s) * per_second), int(per_second * seconds))
            stamp = time.time_ns().to_bytes(STAMP_BYTES, "big")
            waiting += [
                await producer.send(topic, stamp + filler, partition=number % partitions)
                for number in range(count, due)
            ]
            count = due
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*waiting)


if __name__ == "__main__":
    bootstrap, topic, *numbers = sys.argv[1:]
    asyncio.run(feed(bootstrap, topic, int(numbers[0]), int(numbers[1]), float(numbers[2])))
