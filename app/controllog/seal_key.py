"""The workers' key for a purpose (`app.kernel.seals`)."""

from __future__ import annotations

from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kernel.seals import key_of

AUDIT_EVENTS = b"switchyard audit event"
CONTROL_RECORDS = b"switchyard control record"


class SealKey:
    """Asks the control cluster once. `control_topic`: of the control log."""

    def __init__(self, client: ClusterClient, control_topic: str, purpose: bytes) -> None:
        self._client = client
        self._control_topic = control_topic
        self._purpose = purpose
        self._key = b""

    async def known(self) -> bytes:
        """The key.

        Raises:
            ClusterUnreachable, KafkaError: it cannot be known now.
        """
        if not self._key:
            ids = await self._client.topic_ids([self._control_topic])
            if self._control_topic not in ids:
                raise ClusterUnreachable(f"topic {self._control_topic} is not known in {self._client.name}")
            topic_id = ids[self._control_topic]
            self._key = key_of(self._purpose, await self._client.cluster_id(), topic_id)
        return self._key
