"""Finds the new leader of partitions at once when a broker fails or falls silent.

Neither a backoff, nor a request that was sent before the election, delays the partition.
"""

from __future__ import annotations

import asyncio

from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.deliveries import PartitionFetch

LEADER_SEARCH_TIMEOUT_S = 30.0
BROKER_SILENT_S = 2.0  # after this long without an answer, a broker may be frozen and deposed


class LeaderSeeker:
    """The leader search of one fetch service. `leaderless`: partitions, with the broker that failed them.
    `polls`: start and partitions of polls under way, by the timeout that can end them."""

    def __init__(self, client: ClusterClient) -> None:
        self.leaderless: dict[PartitionFetch, int | None] = {}
        self.polls: dict[asyncio.Timeout, tuple[float, list[PartitionFetch]]] = {}
        self._client = client

    async def seek(self, now_s: float) -> bool:
        """Searches once; False if there was nothing to search for."""
        for part in list(self.leaderless):
            if part.removed or not part.failures or part.failing_since_s < now_s - LEADER_SEARCH_TIMEOUT_S:
                del self.leaderless[part]
        if not self.leaderless and not self._silent(now_s):
            return False
        await self._client.client.force_metadata_update()
        for part, failed_node in self.leaderless.items():
            if self._is_led_by_another(part, failed_node):
                part.retry_at_s = 0.0
        for timeout, parts in self._silent(now_s):
            if any(self._is_led_by_another(part, part.node) for part in parts):
                timeout.reschedule(0.0)
        return True

    def _is_led_by_another(self, part: PartitionFetch, node: int | None) -> bool:
        return self._client.is_led_by_another(part.topic, part.partition, node)

    def _silent(self, now_s: float) -> list[tuple[asyncio.Timeout, list[PartitionFetch]]]:
        return [
            (timeout, parts)
            for timeout, (since_s, parts) in self.polls.items()
            if since_s < now_s - BROKER_SILENT_S and timeout.when() is None  # else it already ends
        ]
