"""aiokafka's producers that never create a topic, and end at once. By public names only, so that services
choose their version of aiokafka.

Brokers may create what a client asks for (Kafka's default), with their own partitions and settings. aiokafka
has no option against that, so `Metadata` asks in its place: every reason to ask goes through `add_topic`,
`set_topics` or `force_metadata_update` of the client, all but its own timer, which never comes.
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
MAX_AGE_MS = 300_000  # aiokafka's own
RETRY_S = 0.1  # aiokafka asks again at once when it gets no answer


class ProducerEnded(KafkaError):
    """It sends nothing any more. aiokafka does not try again."""


def careful_producer(**options: Any) -> AIOKafkaProducer:
    """aiokafka's producer of these options, to which a topic that does not exist is an error."""
    max_age_ms = options.pop("metadata_max_age_ms", MAX_AGE_MS)
    producer = AIOKafkaProducer(**options, metadata_max_age_ms=NEVER_MS)
    Metadata(producer.client, max_age_ms / 1000)
    return producer


class Metadata:
    """Keeps `client.cluster` up to date until the client is closed; creates no topic."""

    def __init__(self, client: AIOKafkaClient, max_age_s: float) -> None:
        self._client = client
        self._close_client = client.close
        self._max_age_s = max_age_s
        self._topics: set[str] = set()
        self._is_closed = False
        self._found: asyncio.Future[bool] | None = None  # what is asked now
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(max_age_s, self.update)
        client.add_topic = self.add_topic  # type: ignore[method-assign]
        client.set_topics = self.set_topics  # type: ignore[method-assign]
        client.force_metadata_update = self.update  # type: ignore[method-assign]
        client.close = self.close  # type: ignore[method-assign]

    def add_topic(self, topic: str) -> asyncio.Future[bool]:
        """Asks for it, too, from now on; ends as `update`, at once where it was added before."""
        return self.set_topics({*self._topics, topic})

    def set_topics(self, topics: Collection[str]) -> asyncio.Future[bool]:
        """Asks for these from now on; ends as `update`, at once where none is new."""
        is_known = self._topics.issuperset(topics)
        self._topics = set(topics)
        if not is_known:
            return self.update()
        known: asyncio.Future[bool] = self._loop.create_future()
        known.set_result(True)
        return known

    def update(self) -> asyncio.Future[bool]:
        """Asks now, unless that is being done; ends with whether a broker answered."""
        if self._found is None:
            self._found = self._loop.create_future()
            if self._is_closed:  # whoever waits goes on, but not in a loop without a pause
                self._loop.call_later(RETRY_S, self._tell, False)
            else:
                self._timer.cancel()
                self._task = self._loop.create_task(self._ask())
        return asyncio.shield(self._found)

    async def close(self) -> None:
        """The client's, after it asks for nothing more."""
        self._is_closed = True
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._tell(False)  # if it was cancelled before it began
        await self._close_client()  # type: ignore[no-untyped-call]

    def _tell(self, is_found: bool) -> None:
        if not self._is_closed:
            self._timer = self._loop.call_later(self._max_age_s, self.update)
        found, self._found = self._found, None
        if found is not None:
            found.set_result(is_found)

    async def _ask(self) -> None:
        is_found = False
        try:
            topics: set[str] | None = None
            while topics != self._topics:
                topics = self._topics
                is_found = await self._ask_any(topics)
            if not is_found:
                await asyncio.sleep(RETRY_S)
        finally:
            self._tell(is_found)

    async def _ask_any(self, topics: Collection[str]) -> bool:
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
            except Exception as error:  # noqa: BLE001 - whatever it is, the next broker may answer
                log.debug("broker %s tells no metadata: %r", node, error)
        cluster.failed_update(None)
        return False


_ending: set[asyncio.Task[None]] = set()


async def end_producer(producer: AIOKafkaProducer, timeout_s: float) -> None:
    """At once: what it holds fails. aiokafka's own `stop` waits until all is delivered, which may be never.
    What takes longer than `timeout_s` goes on by itself."""
    task = asyncio.get_running_loop().create_task(_end(producer))
    _ending.add(task)
    task.add_done_callback(_ending.discard)
    await asyncio.wait({task}, timeout=timeout_s)
    # An error is left to asyncio, which logs it: the producer is left behind, however it ends.


async def _end(producer: AIOKafkaProducer) -> None:
    client = producer.client
    client.send = _refuse  # type: ignore[method-assign]
    try:
        await client.close()  # what is on its way fails with its connection
    finally:
        await producer.stop()


async def _refuse(*_: object, **__: object) -> NoReturn:
    raise ProducerEnded("it was ended")
