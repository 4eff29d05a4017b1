"""The ends of leaders' logs, which may be above the high watermark.

Records above the high watermark may become visible later or be lost with the leader. To know that nothing
more of a writer follows, use the log's end; to know where the next record goes, the high watermark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from aiokafka.errors import KafkaError

from app.kafka.client.cluster import LATEST, ClusterClient
from app.kafka.client.commits import TopicAndPartition
from app.kafka.client.epoch_ends import epoch_ends


class LogEnd(NamedTuple):
    """The high watermark, and where the leader's log ended afterwards, in its epoch."""

    shown: int
    end: int
    leader_epoch: int


async def log_ends(
    client: ClusterClient, wanted: Iterable[TopicAndPartition]
) -> dict[TopicAndPartition, LogEnd]:
    """The log ends by partition; call `topic_ids` for the topics first, to learn the leader epochs. A
    partition is missing if its leader does not answer, has changed since, or is too old. Raises
    ClusterUnreachable, KafkaError: no broker names the leaders."""
    by_node: defaultdict[int, dict[TopicAndPartition, tuple[int, int]]] = defaultdict(dict)
    watermarks = await client.offsets(wanted, LATEST)
    for at in watermarks:
        node, epoch = await client.leader(*at), client.leader_epoch(*at)
        if node is not None and epoch >= 0:
            by_node[node][at] = epoch, epoch
    found: dict[TopicAndPartition, LogEnd] = {}
    for node, epochs in by_node.items():
        try:
            answers = await epoch_ends(client, node, epochs)
        except (KafkaError, OSError, TimeoutError):
            answers = {}
        ends = {
            at: LogEnd(watermarks[at], end.end_offset, epochs[at][0])
            for at, end in answers.items()
            if not end.code and end.end_offset >= 0
        }
        if len(ends) < len(epochs):
            client.client.force_metadata_update()
        found |= ends
    return found
