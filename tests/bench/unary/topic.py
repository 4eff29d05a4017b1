"""Topics with one partition: filled beforehand as fast as a producer can, or fed at a rate."""

from __future__ import annotations

import asyncio
import random
import threading

from aiokafka import AIOKafkaProducer

from app.dev.demo.traffic import create_topic

KEYS = 10_000
HEADERS = [("source", b"demo")]
BATCH_BYTES = 128 * 1024
FEED_STEP_S = 0.02


def value_of(size_bytes: int) -> bytes:
    """The value of every message of this size, the same each time."""
    return random.Random(size_bytes).randbytes(size_bytes)


async def fill(bootstrap: str, topic: str, count: int, value_bytes: int) -> None:
    """Creates the topic and writes `count` messages."""
    await create_topic(bootstrap, topic, 1)
    value, keys = value_of(value_bytes), [b"%05d" % number for number in range(KEYS)]
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks=1, max_batch_size=BATCH_BYTES, linger_ms=0
    ) as producer:
        sent = None
        batch = producer.create_batch()
        for number in range(count):
            key = keys[number % KEYS]
            if batch.append(key=key, value=value, timestamp=None, headers=HEADERS) is None:
                if sent is not None:
                    await sent  # so large values do not all wait in memory
                sent = await producer.send_batch(batch, topic, partition=0)
                batch = producer.create_batch()
                batch.append(key=key, value=value, timestamp=None, headers=HEADERS)
        last = await producer.send_batch(batch, topic, partition=0)
        if sent is not None:
            await sent
        await last


class Feed:
    """Writes messages to a topic at a steady rate, in a thread with a loop of its own.

    Attributes:
        sent: Messages that the broker has.
    """

    def __init__(self, bootstrap: str, topic: str, per_second: int, value_bytes: int) -> None:
        self.sent = 0
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        feeding = self._feed(bootstrap, topic, per_second, value_of(value_bytes))
        self._thread = threading.Thread(target=lambda: asyncio.run(feeding), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it. Raises the producer's error, if there was one."""
        self._stopping.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _count(self, done: asyncio.Future[object]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self.error = self.error or error
        else:
            self.sent += 1

    async def _feed(self, bootstrap: str, topic: str, per_second: int, value: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, linger_ms=5) as producer:
                started_s, number = loop.time(), 0
                while not self._stopping.is_set():
                    while number < (loop.time() - started_s) * per_second:
                        key = b"%05d" % (number % KEYS)
                        sent = await producer.send(topic, value, key=key, headers=HEADERS)
                        sent.add_done_callback(self._count)
                        number += 1
                    await asyncio.sleep(FEED_STEP_S)
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that stops this one
            self.error = self.error or error
