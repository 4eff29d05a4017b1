"""The data clusters of a worker, started on first use: a client, fetches, appends and commits of each.

A cluster that is only read needs no write permission. The producer starts with the first write
(`DataCluster.written_to`), because it needs a producer id; an appender's lanes get theirs later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from app.kafka.append.appender import Appender
from app.kafka.append.local_appends import LocalAppends
from app.kafka.append.producer import Producer
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter
from app.kafka.client.topic_tail import bounded
from app.kafka.fetch.deliveries import ByteBudget, FetchItem
from app.kafka.fetch.service import FetchService
from app.kernel.broker_throttle import BrokerThrottle

CLUSTER_STOP_TIMEOUT_S = 5.0


class Part(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class DataCluster:
    """All services of a worker for one cluster."""

    def __init__(
        self,
        spec: ClusterSpec,
        deliver: Callable[[FetchItem], Awaitable[None]],
        budget: ByteBudget,
        may_append: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = spec.name
        self.client = ClusterClient(spec)
        self.fetch = FetchService(self.client, deliver, budget)
        self.producer = Producer(spec)
        self.appender = Appender(self.client, may_send=may_append)
        self.appended = LocalAppends(self.client, self.fetch.shared_reads)
        self.committer = OffsetCommitter(self.client)

    async def start(self) -> None:
        """Starts all services, or none of them. Raises the client's errors."""
        started: list[tuple[str, Part]] = []
        try:
            for what, part in self._parts():
                await part.start()
                started.append((what, part))
        except BaseException:  # also CancelledError of the caller
            await _stop(started)
            raise

    async def written_to(self) -> Producer:
        """The started producer. Raises KafkaError: the cluster gives no producer id or does not answer."""
        await self.producer.start()
        return self.producer

    async def stop(self) -> None:
        """Stops all services; every step is bounded in time."""
        await _stop([(f"producer to {self.name}", self.producer), *self._parts()])

    def _parts(self) -> list[tuple[str, Part]]:
        return [
            (f"client of {self.name}", self.client),
            (f"appender to {self.name}", self.appender),
            (f"fetch from {self.name}", self.fetch),
            (f"appended to {self.name}", self.appended),
        ]


async def _stop(parts: list[tuple[str, Part]]) -> None:
    for what, part in reversed(parts):
        await bounded(part.stop(), CLUSTER_STOP_TIMEOUT_S, what)


class DataClusters:
    """The clusters by name, started on first use. Batches are appended while the worker `may_append`."""

    def __init__(
        self,
        specs: Mapping[str, ClusterSpec],
        deliver: Callable[[FetchItem], Awaitable[None]],
        budget: ByteBudget,
        may_append: Callable[[], bool] = lambda: True,
    ) -> None:
        self.specs = specs
        self.budget = budget
        self._deliver = deliver
        self._may_append = may_append
        self._started: dict[str, DataCluster] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, name: str) -> DataCluster:
        """The started cluster. Raises KeyError: this worker's configuration has no such cluster. Raises
        app.kafka.client.cluster.ClusterUnreachable: it cannot be started now."""
        spec = self.specs[name]
        async with self._locks.setdefault(name, asyncio.Lock()):
            found = self._started.get(name)
            if found is None:
                found = DataCluster(spec, self._deliver, self.budget, self._may_append)
                await found.start()
                self._started[name] = found
            return found

    def started(self) -> list[DataCluster]:
        return list(self._started.values())

    def throttles(self, *wanted: tuple[str, str]) -> list[BrokerThrottle]:
        """The present delays by brokers' quotas of these (cluster, request)."""
        now_s, started = time.monotonic(), self._started
        found = [
            started[name].client.throttle.throttles(now_s)
            for name in {at[0] for at in wanted} & started.keys()
        ]
        return [one for some in found for one in some if (one.cluster, one.request) in wanted]

    async def stop(self) -> None:
        await asyncio.gather(*(cluster.stop() for cluster in self._started.values()))
        self._started.clear()
