"""An idempotent producer of copies (retry topics, dead letter queues) to one cluster."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from app.kafka.clusters import ClusterSpec

MAX_REQUEST_BYTES = 16 * 1024 * 1024
LINGER_MS = 2
_NULL = bytearray()  # this very object stands for no value: aiokafka refuses records without key and value


def _value(value: bytes | bytearray) -> bytes | bytearray | None:
    return None if value is _NULL else value


class Producer:
    """`send` returns once the record is acknowledged by all in-sync replicas.

    A record that the broker refuses (too large for its topic, say) leaves a hole in aiokafka's sequence
    numbers, and the broker takes nothing behind a hole: the connection is then made anew, under a new
    producer id, so that one record's fate is no other's.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self._producer: AIOKafkaProducer | None = None
        self._replacing = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connects. Raises KafkaError."""
        self._producer = await self._connect()

    async def stop(self) -> None:
        """Flushes and closes."""
        if self._producer is not None:
            await self._producer.stop()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        partition: int | None = None,
    ) -> Any:
        """Writes one record; its metadata. Raises KafkaError when it was not taken."""
        producer = self._producer
        assert producer is not None, "the producer has not been started"
        try:
            return await producer.send_and_wait(
                topic, _NULL if value is None else value, key=key, headers=headers, partition=partition
            )
        except KafkaError as error:
            if not error.retriable:
                await self._replace(producer)
            raise

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            acks="all",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            max_request_size=MAX_REQUEST_BYTES,
            request_timeout_ms=10_000,
            value_serializer=_value,
            **self.spec.aiokafka_options(),
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    async def _replace(self, broken: AIOKafkaProducer) -> None:
        """Sends through a new one from now on; what the broken one still holds ends with it."""
        async with self._replacing:
            if self._producer is not broken:
                return
            with contextlib.suppress(KafkaError, OSError):  # the next refusal tries again
                self._producer = await self._connect()
                retiring = asyncio.get_running_loop().create_task(self._retire(broken))
                self._retiring.add(retiring)
                retiring.add_done_callback(self._retiring.discard)

    async def _retire(self, broken: AIOKafkaProducer) -> None:
        with contextlib.suppress(KafkaError):  # told to those who wait for its records
            await broken.stop()
