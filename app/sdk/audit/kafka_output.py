"""Reports into Kafka, through aiokafka."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError

from app.audit.counts.reports import Report
from app.sdk.audit.errors import NotPassed
from app.sdk.audit.outputs import encode

SEND_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0


def audit_topic(region: str) -> str:
    """The reports' topic of a region."""
    return f"switchyard-{region}-audit"


class KafkaOutput:
    """Writes each report to the region's audit topic, by the name of the topic that it is about, so that all
    tiers of a topic come to one partition. `options`: aiokafka's own, for security and such."""

    def __init__(
        self, bootstrap: str, region: str, options: Mapping[str, Any] | None = None, topic: str | None = None
    ) -> None:
        self._bootstrap = bootstrap
        self._options = dict(options or {})
        self._topic = topic or audit_topic(region)
        self._producer: AIOKafkaProducer | None = None

    async def send(self, reports: Sequence[Report]) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                producer = self._producer or await self._started()
                waiting = [
                    await producer.send(self._topic, encode(report), key=report.topic.encode())
                    for report in reports
                ]
                await asyncio.gather(*waiting)
        except MessageSizeTooLargeError as error:
            raise NotPassed(str(error)) from error  # as several reports of fewer windows
        except BaseException:
            await self.close()  # another one is made for the next try
            raise

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await _ended(producer)

    async def _started(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, **{**self._options, "acks": "all"})
        try:
            await producer.start()
        except BaseException:
            await _ended(producer)
            raise
        self._producer = producer
        return producer


async def _ended(producer: AIOKafkaProducer) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await producer.stop()
