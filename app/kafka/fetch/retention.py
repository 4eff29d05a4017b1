"""The retention time of topics, so that no record waits in a topic until it expires.

Only `retention.ms` counts. How long a topic limited by size (`retention.bytes`) keeps a record is not known.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import structlog
from aiokafka.errors import KafkaError

from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.topic_configs import TopicSettings, describe

if TYPE_CHECKING:
    from app.kafka.client.cluster import ClusterClient
    from app.kafka.fetch.deliveries import PartitionFetch

log = structlog.get_logger(__name__)

RETENTION_POLL_INTERVAL_S = 30.0  # people change it, rarely
RETENTION, POLICY = "retention.ms", "cleanup.policy"


class RetentionWatch:
    """Updates the retention of partitions: new ones at once, all every `RETENTION_POLL_INTERVAL_S`."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._next_s = 0.0
        self._known_topics: set[str] = set()

    async def refresh(self, parts: Collection[PartitionFetch], now_s: float) -> None:
        """Updates the partitions when due. If the cluster does not answer, the next interval tries again."""
        topics = {part.topic for part in parts}
        if now_s < self._next_s and topics <= self._known_topics:
            return
        self._next_s, self._known_topics = now_s + RETENTION_POLL_INTERVAL_S, topics
        try:
            known = await retention_ms(self._client, topics)
        except (KafkaError, OSError, TimeoutError, ClusterUnreachable) as error:
            log.debug("retention is not known", cluster=self._client.name, error=repr(error))
            return
        for part in parts:
            part.retention.ms = known.get(part.topic, part.retention.ms)


async def retention_ms(client: ClusterClient, topics: Collection[str]) -> dict[str, int]:
    """Each topic's retention time in ms; -1: for ever. Missing and unauthorised topics are left out. Raises
    KafkaError, OSError, TimeoutError, ClusterUnreachable: no broker answers."""
    return {
        topic: max(-1, int(found.config[RETENTION])) if "delete" in found.config.get(POLICY, "delete") else -1
        for topic, found in (await describe(client, topics, (RETENTION, POLICY))).items()
        if isinstance(found, TopicSettings) and RETENTION in found.config
    }
