"""Writes reports into Kafka, through aiokafka.

Workers of the region create the topic. This client never does (`switchyard.producer.topic_creation`): a
missing topic is an error that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)

from switchyard.audit.errors import NotPassed
from switchyard.audit.model.reports import Report
from switchyard.audit.outputs import encode
from switchyard.producer.topic_creation import careful_producer, end_producer

SEND_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0


def audit_topic(region: str) -> str:
    """The topic of a region's reports."""
    return f"switchyard-{region}-audit"


class NoTopic(LookupError):
    """The topic of the reports does not exist. The message names it, and the remedy."""


class KafkaOutput:
    """Writes each report to the region's audit topic.

    The key is the audited topic, so the reports of all its tiers get into one partition. `options` are
    aiokafka's own, for security and the like. Raises `NoTopic` while the topic does not exist; the reports
    wait.
    """

    def __init__(
        self, bootstrap: str, region: str, options: Mapping[str, Any] | None = None, topic: str | None = None
    ) -> None:
        self._bootstrap = bootstrap
        self._region = region
        self._options = dict(options or {})
        self._topic = topic or audit_topic(region)
        self._producer: AIOKafkaProducer | None = None

    async def send(self, reports: Sequence[Report]) -> None:
        try:
            await asyncio.wait_for(self._send(reports), SEND_TIMEOUT_S)
        except MessageSizeTooLargeError as error:
            raise NotPassed(str(error)) from error  # it is then sent as several reports with fewer windows
        except BaseException as error:
            is_missing = isinstance(error, (asyncio.TimeoutError, KafkaError)) and self._lacks_topic()
            await self.close()  # the next try makes a new producer
            if is_missing:
                raise self._no_topic() from error
            raise

    async def _send(self, reports: Sequence[Report]) -> None:
        producer = self._producer or await self._started()
        waiting = [
            await producer.send(self._topic, encode(report), key=report.topic.encode()) for report in reports
        ]
        await asyncio.gather(*waiting)

    def _lacks_topic(self) -> bool:
        """Whether the topic has been deleted meanwhile, as far as the client knows."""
        if self._producer is None:
            return False
        known = self._producer.client.cluster
        return (
            known.partitions_for_topic(self._topic) is None and self._topic not in known.unauthorized_topics
        )

    def _no_topic(self) -> NoTopic:
        what = f"topic {self._topic} does not exist in Kafka at {self._bootstrap}"
        if self._topic != audit_topic(self._region):
            return NoTopic(f"{what}: create it with as many partitions as {audit_topic(self._region)}")
        return NoTopic(
            f"{what}: workers of region {self._region} create it when they start; start one, or correct "
            f"region={self._region!r} or bootstrap"
        )

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await end_producer(producer, STOP_TIMEOUT_S)

    async def _started(self) -> AIOKafkaProducer:
        producer = careful_producer(bootstrap_servers=self._bootstrap, **{**self._options, "acks": "all"})
        client = producer.client
        try:
            await producer.start()
            client.add_topic(self._topic)
            if not await client.force_metadata_update():
                raise KafkaConnectionError(
                    f"Kafka at {self._bootstrap} answers, but its brokers do not at the addresses that they "
                    "advertise"
                )
            if self._topic in client.cluster.unauthorized_topics:
                raise TopicAuthorizationFailedError(self._topic)
            if client.cluster.partitions_for_topic(self._topic) is None:
                raise self._no_topic()
        except BaseException:
            await end_producer(producer, STOP_TIMEOUT_S)
            raise
        self._producer = producer
        return producer
