"""Records with keys and headers of a test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer

from app.dev.demo.traffic import read_all


class NewRecord(NamedTuple):
    """A record to produce."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes]] = []
    partition: int | None = None


def send_records(bootstrap: str, topic: str, records: Iterable[NewRecord], **options: Any) -> None:
    """Produces the records with acks=all; `options` are the producer's."""

    async def send() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=5, **options
        ) as producer:
            waiting = [
                await producer.send(
                    topic, one.value, key=one.key, partition=one.partition, headers=one.headers
                )
                for one in records
            ]
            await asyncio.gather(*waiting)

    asyncio.run(send())


def dead_letters(bootstrap: str, topic: str, group: str) -> dict[str, tuple[bytes | None, str]]:
    """The values and reasons of a workload's dead letters, by their keys."""
    found = asyncio.run(read_all(bootstrap, f"{topic}__{group}__dlq"))
    return {one.key.decode(): (one.value, dict(one.headers)["switchyard-reason"].decode()) for one in found}
