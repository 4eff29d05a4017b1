"""Whether a partition's log is still the one that its position speaks of.

A fetch names its topic, and the name stays when a topic is deleted and made anew: position 100 of the old
log is in the middle of the new one. Its id differs. Ids are looked at every `TOPIC_IDS_INTERVAL_S` (one
request a cluster), and whenever the topic was not known for a moment; a difference is believed once the
broker that leads the partition tells it, since others may be behind. The same answers tell the epochs of
leaders: in a new one the position is compared with the leader's log before it is fetched from
(`app.kafka.client.epoch_ends`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

import structlog

from app.kafka.client.cluster import EARLIEST, LATEST, READ_UNCOMMITTED
from app.kafka.client.epoch_ends import EpochEnd, epoch_ends
from app.kafka.fetch.deliveries import LogGap
from app.kafka.fetch.retention import RetentionWatch

if TYPE_CHECKING:
    from app.kafka.client.cluster import ClusterClient
    from app.kafka.fetch.deliveries import PartitionFetch

log = structlog.get_logger(__name__)

TOPIC_IDS_INTERVAL_S = 2.0
WATERMARKS_S = 1.0


class LogWatch:
    """What has become of the logs that are fetched; looks every `WATERMARKS_S`."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._retentions = RetentionWatch(client)
        self._ids_at_s = 0.0

    async def try_poll(self, parts: list[PartitionFetch], now_s: float) -> None:
        """Looks; what was missed is seen the next time. Never raises."""
        try:
            await self.poll(parts, now_s)
        except Exception as error:  # noqa: BLE001 - whatever the client does
            log.debug("a cluster's logs could not be looked at", cluster=self._client.name, error=repr(error))

    async def poll(self, parts: list[PartitionFetch], now_s: float) -> None:
        """Raises whatever the client does; what was missed is seen the next time."""
        if parts and now_s - self._ids_at_s >= TOPIC_IDS_INTERVAL_S:
            self._ids_at_s = now_s
            await doubt_other_ids(self._client, parts)
        stale = [part for part in parts if part.seen_at_s < now_s - WATERMARKS_S and not part.failures]
        ends = await self._client.offsets(
            [(part.topic, part.partition) for part in stale], LATEST, READ_UNCOMMITTED
        )
        for part in stale:
            part.high_watermark = ends.get((part.topic, part.partition), part.high_watermark)
        async with asyncio.timeout(WATERMARKS_S):  # the next look may know
            await self._retentions.refresh(parts, now_s)


async def doubt_other_ids(client: ClusterClient, parts: Collection[PartitionFetch]) -> None:
    """Takes the ids of those that have none yet, doubts those whose id differs, and is unsure of the
    positions of those that have another leader. Raises as `topic_ids`."""
    ids = await client.topic_ids({part.topic for part in parts})
    for part in parts:
        topic_id = ids.get(part.topic, "")
        if not part.topic_id:
            part.topic_id = topic_id
        elif topic_id and topic_id != part.topic_id:
            part.doubted, part.epoch = True, -1
            continue
        take_epoch(part, client.leader_epoch(part.topic, part.partition))


def take_epoch(part: PartitionFetch, epoch: int) -> None:
    """The partition's leader was said to lead in this epoch."""
    if epoch > part.epoch:
        part.epoch = epoch
        part.unsure = part.unsure or part.last_epoch < epoch


async def find_gap(
    client: ClusterClient, part: PartitionFetch, common: EpochEnd | None = None
) -> tuple[LogGap | None, str, int]:
    """What became of a position that is out of range, or whose topic is doubted, or which parts from its
    leader's log at `common`; the topic's id now, and the epoch of the last record before the gap's end.

    No gap: the position is in the log, and the log is what it was.

    Raises:
        LookupError: the partition's leader does not tell now. KafkaError, OSError, TimeoutError: the same.
    """
    at, position = (part.topic, part.partition), part.next_offset
    node = await client.leader(*at)
    topic_id = "" if node is None else (await client.topic_ids([part.topic], node)).get(part.topic, "")
    start = (await client.offsets([at], EARLIEST)).get(at)
    end = (await client.offsets([at], LATEST)).get(at)
    if node is None or start is None or end is None:
        raise LookupError("the ends of the log are not known yet")
    anew = bool(part.topic_id and topic_id and part.topic_id != topic_id)
    topic_id = topic_id or part.topic_id
    if anew:
        reason = "the topic was deleted and made anew"
        return LogGap(part.key, *at, position, start, reason, begun_anew=True), topic_id, -1
    parts = common is not None and common.parts_at(position)
    if start <= position <= end and not parts:
        return None, topic_id, part.last_epoch
    if position < start and not parts:
        reason = "retention or a deletion moved the log's start past the position"
        return LogGap(part.key, *at, position, start, reason), topic_id, -1
    if common is None and part.last_epoch >= 0:
        common = (await epoch_ends(client, node, {at: (-1, part.last_epoch)})).get(at)
    epoch = max(1, client.leader_epoch(*at))
    if common is not None and not common.code and common.parts_at(position):
        reason = (
            f"the log was truncated: from {common.end_offset} on it is another since leader epoch {epoch}"
        )
        goes_on, last_epoch = max(start, common.end_offset), common.epoch
    else:
        reason = f"the log ends at {end}, before the position: it was truncated or the topic was made anew"
        goes_on, last_epoch = start, -1
    return LogGap(part.key, *at, position, goes_on, reason, True, epoch), topic_id, last_epoch
