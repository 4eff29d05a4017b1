"""Who leads a partition whose leader has failed, or is silent, is found out at once: neither a backoff nor a
request that began before the election is waited for."""

from __future__ import annotations

import asyncio

from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.deliveries import PartitionFetch

LEADER_SEARCH_TIMEOUT_S = 30.0
BROKER_SILENT_S = 2.0  # a broker that has not answered a poll for so long may be frozen, and deposed


class LeaderSeeker:
    """See the module; of one fetch service.

    Attributes:
        leaderless: partitions, and who has failed them.
        asked: of polls under way, since when, and for which partitions; to be ended by their timeouts.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.leaderless: dict[PartitionFetch, int | None] = {}
        self.asked: dict[asyncio.Timeout, tuple[float, list[PartitionFetch]]] = {}
        self._client = client

    async def seek(self, now_s: float) -> bool:
        """Looks once; whether there was anything to look for."""
        for part in list(self.leaderless):
            if part.removed or not part.failures or part.failing_since_s < now_s - LEADER_SEARCH_TIMEOUT_S:
                del self.leaderless[part]
        if not self.leaderless and not self._silent(now_s):
            return False
        await self._client.client.force_metadata_update()
        for part, former in self.leaderless.items():
            if self._is_led_by_another(part, former):
                part.retry_at_s = 0.0
        for patience, parts in self._silent(now_s):
            if any(self._is_led_by_another(part, part.node) for part in parts):
                patience.reschedule(0.0)
        return True

    def _is_led_by_another(self, part: PartitionFetch, node: int | None) -> bool:
        return self._client.is_led_by_another(part.topic, part.partition, node)

    def _silent(self, now_s: float) -> list[tuple[asyncio.Timeout, list[PartitionFetch]]]:
        return [
            (patience, parts)
            for patience, (since_s, parts) in self.asked.items()
            if since_s < now_s - BROKER_SILENT_S and patience.when() is None  # else it is ending already
        ]
