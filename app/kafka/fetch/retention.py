"""How long topics keep their records, so that none is left waiting in one beyond that.

Only time is looked at: of a topic that is cut by size (`retention.bytes`) nobody knows how long that takes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import structlog
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import DescribeConfigsRequest

from app.kafka.client.cluster import ClusterUnreachable

if TYPE_CHECKING:
    from app.kafka.client.cluster import ClusterClient
    from app.kafka.fetch.deliveries import PartitionFetch

log = structlog.get_logger(__name__)

RETENTION_POLL_INTERVAL_S = 30.0  # it is changed by hand
RETENTION, POLICY = "retention.ms", "cleanup.policy"
_TOPIC = 2  # a resource's type


class RetentionWatch:
    """Tells partitions what their topics keep: new ones at once, all of them every
    `RETENTION_POLL_INTERVAL_S`."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._next_s = 0.0
        self._asked: set[str] = set()

    async def refresh(self, parts: Collection[PartitionFetch], now_s: float) -> None:
        """What cannot be known now is asked for again at the next look."""
        topics = {part.topic for part in parts}
        if now_s < self._next_s and topics <= self._asked:
            return
        self._next_s, self._asked = now_s + RETENTION_POLL_INTERVAL_S, topics
        try:
            known = await retention_ms(self._client, topics)
        except (KafkaError, OSError, TimeoutError, ClusterUnreachable) as error:
            log.debug("retention is not known", cluster=self._client.name, error=repr(error))
            return
        for part in parts:
            part.retention.ms = known.get(part.topic, part.retention.ms)


async def retention_ms(client: ClusterClient, topics: Collection[str]) -> dict[str, int]:
    """How long each topic keeps a record, -1: for ever. What is not there or may not be seen is left out.

    Raises:
        KafkaError, OSError, TimeoutError, ClusterUnreachable: no broker answers.
    """
    if not topics:
        return {}
    wanted = [(_TOPIC, topic, [RETENTION, POLICY]) for topic in sorted(topics)]
    answer = await client.send(await client.any_node(), DescribeConfigsRequest(wanted))
    found: dict[str, int] = {}
    for code, _, _, topic, entries in answer.resources:
        told = {name: value for name, value, *_ in entries if value is not None}
        if not code and RETENTION in told:
            found[topic] = max(-1, int(told[RETENTION])) if "delete" in told.get(POLICY, "delete") else -1
    return found
