"""Keeps the seals of the regions whose control topics are copied here
(`app.replicate.destination.sealed_copies`).

Rules
1. Seals are needed only if a route begins at the region's own control cluster. A copy of a copy has other
   offsets, and was checked before.
2. No such route begins before the region's seals are known, if it has any.
3. A region that returns to an earlier version deletes its seals, and a recreated control log has another key.
   So the ids of both topics are read every `POLL_INTERVAL_S`, and whenever a job begins.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable

import structlog
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from mode import Service

from app.controllog.seals import Seals
from app.controllog.topics import ControlTopics
from app.failover.topology import Layout
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.data_clusters import DataClusters
from app.kernel.incidents import ReportIncident
from app.kernel.repeated_trouble import RepeatedTrouble
from app.worker.jobs.unsealed_records import UnsealedRecords

log = structlog.get_logger(__name__)

POLL_INTERVAL_S = 10.0
READ_TIMEOUT_S = 10.0


class SealedSources(Service):
    def __init__(
        self, layout: Layout | None, clusters: DataClusters, report_incident: ReportIncident
    ) -> None:
        super().__init__()
        self._layout = layout
        self._clusters = clusters
        self._report_incident = report_incident
        self._unsealed = UnsealedRecords(report_incident)
        self._denied = defaultdict[str, RepeatedTrouble](RepeatedTrouble)
        self._unread = set[str]()  # regions whose seals may not be read
        self._wanted: dict[str, str] = {}  # region -> its control cluster
        self._ids: dict[str, dict[str, str]] = {}  # region -> the topic ids for which its seals were read
        self._seals: dict[str, Seals] = {}
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def of(self, cluster: str, topic: str) -> Callable[[], Seals | None] | None:
        """A function that returns the seals for a source topic, None while its region has none; None: it
        needs none.

        Raises:
            ClusterUnreachable, KafkaError, TimeoutError: The seals cannot be known now.
        """
        region = self._region_of(cluster, topic)
        if region is None:
            return None
        self._wanted[region] = cluster
        await self._refresh(region)
        return lambda: self._seals.get(region)

    def _region_of(self, cluster: str, topic: str) -> str | None:
        """The region whose seals the topic needs (rule 1)."""
        layout = self._layout
        if layout is None or cluster not in layout.sites:
            return None
        region = layout.sites[cluster].region
        try:
            control = layout.control if region == layout.own else layout.cluster(region, "regional")
        except LookupError:
            return None
        is_sealed = any(topic == sealed.name for sealed in ControlTopics(region).sealed)
        return region if is_sealed and cluster == control else None

    async def _refresh(self, region: str) -> None:
        """Reads the region's seals again if a topic id has changed (rule 3)."""
        async with self._locks[region]:
            client, topics = (await self._clusters.get(self._wanted[region])).client, ControlTopics(region)
            names = topics.control.name, topics.seals.name
            ids = await client.topic_ids(names)
            if ids == self._ids.get(region):
                return
            # Without ids the region's workers or brokers have an earlier version (`Seals.has_key`).
            seals = await self._read_seals(region, client, topics) if all(map(ids.get, names)) else None
            former = self._seals.pop(region, None)
            self._ids[region] = ids
            if seals is not None:
                self._seals[region] = seals
            if len(ids) == len(names):
                self._unread.discard(region)
            elif seals is None:
                await self._report_denied(region, client, names)
            if former is not None:
                await self.remove_dependency(former)

    async def _read_seals(self, region: str, client: ClusterClient, topics: ControlTopics) -> Seals:
        seals = Seals(topics, client.spec.aiokafka_options())
        await seals.learn(client, is_own=False)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.add_runtime_dependency(seals)
        except BaseException as error:
            await self.remove_dependency(seals)
            if isinstance(error, TimeoutError):
                raise TimeoutError(
                    f"the seals of region {region} ({topics.seals.name} in {client.name}) could not be read "
                    f"within {READ_TIMEOUT_S:g} s; see docs/permissions.md"
                ) from error
            raise
        return seals

    async def _report_denied(self, region: str, client: ClusterClient, names: tuple[str, ...]) -> None:
        """Reports a missing permission that makes a region seem to have no seals."""
        try:
            for name in names:
                await client.partitions(name)
        except TopicAuthorizationFailedError:
            self._unread.add(region)
            self._denied[region].record(name)
            if self._denied[region].due(time.monotonic()) is not None:
                self._report_incident(
                    "seals-unread", region,
                    f"Switchyard may not describe {name} in {client.name}, so routes copy the region's "
                    "control topics with unsealed records",
                    f"grant Read on switchyard-{region}- (prefixed) there (docs/permissions.md)",
                    lambda: region not in self._unread,
                )  # fmt: skip
        else:
            self._unread.discard(region)

    @Service.task
    async def _poll(self) -> None:
        while not self.should_stop:
            await self.sleep(POLL_INTERVAL_S)
            for region in list(self._wanted):
                try:
                    self._report_refused(region)
                    await self._refresh(region)
                except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
                    log.warning("a region's seals are not known now", region=region, error=repr(error))
                except Exception:
                    log.exception("a region's seals could not be read; the worker retries", region=region)

    def _report_refused(self, region: str) -> None:
        layout = self._layout
        is_own = layout is not None and layout.own == region  # the region's workers report it themselves
        if region in self._seals and not is_own:
            self._unsealed.report(self._seals[region].take_refused(), time.monotonic())
