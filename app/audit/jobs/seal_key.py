"""The key with which workers seal events of the audit topic (`app.audit.folds.seals`)."""

from __future__ import annotations

from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kernel.seals import key_of

PURPOSE = b"switchyard audit event"


class SealKey:
    """Derives the key from the control cluster's ids, which it requests once. `control_topic`: the control
    log's."""

    def __init__(self, client: ClusterClient, control_topic: str) -> None:
        self._client = client
        self._control_topic = control_topic
        self._key = b""

    async def known(self) -> bytes:
        """Raises ClusterUnreachable, KafkaError: The control cluster does not answer."""
        if not self._key:
            ids = await self._client.topic_ids([self._control_topic])
            if self._control_topic not in ids:
                raise ClusterUnreachable(f"topic {self._control_topic} is not known in {self._client.name}")
            self._key = key_of(PURPOSE, await self._client.cluster_id(), ids[self._control_topic])
        return self._key
