"""Where the logs of leaders end. What lies there above the high watermark was sent, and may be shown later or
lost with its leader: who says that nothing more of somebody comes must look behind it, and who says where the
next one goes must not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from aiokafka.errors import KafkaError

from app.kafka.client.cluster import LATEST, ClusterClient
from app.kafka.client.commits import TopicAndPartition
from app.kafka.client.epoch_ends import epoch_ends


class LogEnd(NamedTuple):
    """The high watermark, and where the leader's log ended after that, in that leader epoch."""

    shown: int
    end: int
    leader_epoch: int


async def log_ends(
    client: ClusterClient, wanted: Iterable[TopicAndPartition]
) -> dict[TopicAndPartition, LogEnd]:
    """By partition. Left out is one whose leader does not answer, has changed since, or is too old to tell.

    Call `topic_ids` of these topics before: that learns the leaders' epochs.

    Raises:
        ClusterUnreachable, KafkaError: nobody says who leads.
    """
    asked: defaultdict[int, dict[TopicAndPartition, tuple[int, int]]] = defaultdict(dict)
    shown = await client.offsets(wanted, LATEST)
    for at in shown:
        node, epoch = await client.leader(*at), client.leader_epoch(*at)
        if node is not None and epoch >= 0:
            asked[node][at] = epoch, epoch
    found: dict[TopicAndPartition, LogEnd] = {}
    for node, epochs in asked.items():
        try:
            told = await epoch_ends(client, node, epochs)
        except (KafkaError, OSError, TimeoutError):
            told = {}
        ends = {
            at: LogEnd(shown[at], end.end_offset, epochs[at][0])
            for at, end in told.items()
            if not end.code and end.end_offset >= 0
        }
        if len(ends) < len(epochs):
            client.client.force_metadata_update()
        found |= ends
    return found
