"""An idempotent producer of copies (retry topics, dead letter queues) to one cluster."""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaProducer

from app.kafka.clusters import ClusterSpec

MAX_REQUEST_BYTES = 16 * 1024 * 1024
LINGER_MS = 2


class Producer:
    """`send` returns once the record is acknowledged by all in-sync replicas."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self._producer: AIOKafkaProducer | None = None

    async def start(self) -> None:
        """Connects. Raises KafkaError."""
        self._producer = AIOKafkaProducer(
            acks="all",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            max_request_size=MAX_REQUEST_BYTES,
            request_timeout_ms=10_000,
            **self.spec.aiokafka_options(),
        )
        await self._producer.start()

    async def stop(self) -> None:
        """Flushes and closes."""
        if self._producer is not None:
            await self._producer.stop()

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        partition: int | None = None,
    ) -> Any:
        """Writes one record; its metadata. Raises KafkaError when it was not taken."""
        assert self._producer is not None, "the producer has not been started"
        return await self._producer.send_and_wait(topic, value, key=key, headers=headers, partition=partition)
