"""aiokafka's producers, changed so that they never create a topic and end at once.

Brokers may create a topic that a client asks for (Kafka's default), with their own partitions and settings.
aiokafka has no option against that, so `Metadata` sends the metadata requests instead. Every reason to send
one goes through the client's `add_topic`, `set_topics` or `force_metadata_update`; only its timer does not,
and that is set to never fire. All these names are public, so services choose their version of aiokafka.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection
from typing import Any, NoReturn

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

log = logging.getLogger("switchyard.producer")

NEVER_MS = 50 * 365 * 86_400_000
MAX_AGE_MS = 300_000  # aiokafka's default
RETRY_S = 0.1  # aiokafka retries at once after a failed query


class ProducerEnded(KafkaError):
    """The producer sends nothing any more. aiokafka does not retry after this error."""


def careful_producer(**options: Any) -> AIOKafkaProducer:
    """aiokafka's producer with these options. A topic that does not exist is an error."""
    max_age_ms = options.pop("metadata_max_age_ms", MAX_AGE_MS)
    producer = AIOKafkaProducer(**options, metadata_max_age_ms=NEVER_MS)
    Metadata(producer.client, max_age_ms / 1000)
    return producer


class Metadata:
    """Keeps `client.cluster` current until the client is closed, and creates no topic."""

    def __init__(self, client: AIOKafkaClient, max_age_s: float) -> None:
        self._client = client
        self._close_client = client.close
        self._max_age_s = max_age_s
        self._topics: set[str] = set()
        self._is_closed = False
        self._result: asyncio.Future[bool] | None = None  # the running query
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(max_age_s, self.update)
        client.add_topic = self.add_topic  # type: ignore[method-assign]
        client.set_topics = self.set_topics  # type: ignore[method-assign]
        client.force_metadata_update = self.update  # type: ignore[method-assign]
        client.close = self.close  # type: ignore[method-assign]

    def add_topic(self, topic: str) -> asyncio.Future[bool]:
        """Queries this topic too, from now on. The future is `update`'s, or done if the topic is not new."""
        return self.set_topics({*self._topics, topic})

    def set_topics(self, topics: Collection[str]) -> asyncio.Future[bool]:
        """Queries these topics from now on. The future is `update`'s, or done if none of them is new."""
        is_known = self._topics.issuperset(topics)
        self._topics = set(topics)
        if not is_known:
            return self.update()
        known: asyncio.Future[bool] = self._loop.create_future()
        known.set_result(True)
        return known

    def update(self) -> asyncio.Future[bool]:
        """Queries now, unless a query runs already. The future says whether a broker answered."""
        if self._result is None:
            self._result = self._loop.create_future()
            if self._is_closed:  # callers get an answer, but cannot loop without a pause
                self._loop.call_later(RETRY_S, self._finish_query, False)
            else:
                self._timer.cancel()
                self._task = self._loop.create_task(self._query())
        return asyncio.shield(self._result)

    async def close(self) -> None:
        """Stops querying, then closes the client."""
        self._is_closed = True
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._finish_query(False)  # the task may have been cancelled before it began
        await self._close_client()  # type: ignore[no-untyped-call]

    def _finish_query(self, is_found: bool) -> None:
        if not self._is_closed:
            self._timer = self._loop.call_later(self._max_age_s, self.update)
        found, self._result = self._result, None
        if found is not None:
            found.set_result(is_found)

    async def _query(self) -> None:
        is_found = False
        try:
            topics: set[str] | None = None
            while topics != self._topics:
                topics = self._topics
                is_found = await self._query_brokers(topics)
            if not is_found:
                await asyncio.sleep(RETRY_S)
        finally:
            self._finish_query(is_found)

    async def _query_brokers(self, topics: Collection[str]) -> bool:
        cluster = self._client.cluster
        request = MetadataRequest(list(topics), allow_auto_topic_creation=False)
        nodes = [broker.nodeId for broker in cluster.brokers()]
        random.shuffle(nodes)
        for node in nodes:
            try:
                found = await self._client.send(node, request)
                if found.brokers:
                    cluster.update_metadata(found)
                    return True
            except Exception as error:  # noqa: BLE001 - the next broker may answer
                log.debug("broker %s sent no metadata: %r", node, error)
        cluster.failed_update(None)
        return False


_ending: set[asyncio.Task[None]] = set()


async def end_producer(producer: AIOKafkaProducer, timeout_s: float) -> None:
    """Ends the producer at once; messages without an answer fail.

    aiokafka's `stop` waits until all is delivered, which may be never. After `timeout_s` the end continues in
    the background.
    """
    task = asyncio.get_running_loop().create_task(_end(producer))
    _ending.add(task)
    task.add_done_callback(_ending.discard)
    await asyncio.wait({task}, timeout=timeout_s)
    # asyncio logs an error of the task; the caller is done with the producer either way.


async def _end(producer: AIOKafkaProducer) -> None:
    client = producer.client
    client.send = _refuse  # type: ignore[method-assign]
    try:
        await client.close()  # sent batches fail with their connection
    finally:
        await producer.stop()


async def _refuse(*_: object, **__: object) -> NoReturn:
    raise ProducerEnded("the producer was ended")
