"""Detects that a partition's log is no longer the one that its fetch position belongs to.

A fetch names its topic, and a recreated topic has the same name. Position 100 of the old log is then in
the middle of the new one. But the topic's id differs. The watch reads ids every `TOPIC_IDS_INTERVAL_S`
(one request per cluster), and after a topic was unknown for a moment. A different id counts only when the
partition's leader confirms it, because other brokers may be out of date.

The same answers have the leader epochs. In a new epoch, the position is compared with the leader's log
before the next fetch (`app.kafka.client.epoch_ends`).
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
    """Watches the logs of fetched partitions; call it every `WATERMARKS_S`."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._retentions = RetentionWatch(client)
        self._ids_at_s = 0.0

    async def try_poll(self, parts: list[PartitionFetch], now_s: float) -> None:
        """Polls and never raises. The next poll finds what a failed one missed."""
        try:
            await self.poll(parts, now_s)
        except Exception as error:  # noqa: BLE001 - any error of the client
            log.debug(
                "the watch of a cluster's logs failed and will be repeated",
                cluster=self._client.name,
                error=repr(error),
            )

    async def poll(self, parts: list[PartitionFetch], now_s: float) -> None:
        """Checks topic ids, high watermarks and retention. Raises any error of the client."""
        if parts and now_s - self._ids_at_s >= TOPIC_IDS_INTERVAL_S:
            self._ids_at_s = now_s
            await doubt_other_ids(self._client, parts)
        stale = [part for part in parts if part.seen_at_s < now_s - WATERMARKS_S and not part.failures]
        ends = await self._client.offsets(
            [(part.topic, part.partition) for part in stale], LATEST, READ_UNCOMMITTED
        )
        for part in stale:
            part.high_watermark = ends.get((part.topic, part.partition), part.high_watermark)
        async with asyncio.timeout(WATERMARKS_S):  # the next poll tries again
            await self._retentions.refresh(parts, now_s)


async def doubt_other_ids(client: ClusterClient, parts: Collection[PartitionFetch]) -> None:
    """Stores the ids of partitions that have none, and marks those with another id as doubted. A new leader
    epoch marks a position as unsure. Raises the errors of `topic_ids`."""
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
    if epoch > part.epoch:
        part.epoch = epoch
        part.unsure = part.unsure or part.last_epoch < epoch


async def find_gap(
    client: ClusterClient, part: PartitionFetch, common: EpochEnd | None = None
) -> tuple[LogGap | None, str, int]:
    """Finds out what happened to a position that is out of range or in doubt, or diverges from its
    leader's log at `common`.

    Returns:
        The gap, the topic's present id, and the epoch of the last record before the gap's end. The gap is
        None if the log is the same and contains the position.

    Raises:
        LookupError, KafkaError, OSError, TimeoutError: The partition's leader does not answer now.
    """
    at, position = (part.topic, part.partition), part.next_offset
    node = await client.leader(*at)
    topic_id = "" if node is None else (await client.topic_ids([part.topic], node)).get(part.topic, "")
    start = (await client.offsets([at], EARLIEST)).get(at)
    end = (await client.offsets([at], LATEST)).get(at)
    if node is None or start is None or end is None:
        raise LookupError("the leader has not reported the start and end of the log")
    recreated = bool(part.topic_id and topic_id and part.topic_id != topic_id)
    topic_id = topic_id or part.topic_id
    if recreated:
        reason = "the topic was deleted and recreated"
        return LogGap(part.key, *at, position, start, reason, begun_anew=True), topic_id, -1
    parts = common is not None and common.diverges_at(position)
    if start <= position <= end and not parts:
        return None, topic_id, part.last_epoch
    if position < start and not parts:
        reason = "retention or a deletion moved the log's start past the position"
        return LogGap(part.key, *at, position, start, reason), topic_id, -1
    if common is None and part.last_epoch >= 0:
        common = (await epoch_ends(client, node, {at: (-1, part.last_epoch)})).get(at)
    epoch = max(1, client.leader_epoch(*at))
    if common is not None and not common.code and common.diverges_at(position):
        reason = (
            f"the log was truncated: it differs from offset {common.end_offset} on since leader epoch {epoch}"
        )
        resume_at, last_epoch = max(start, common.end_offset), common.epoch
    else:
        reason = f"the log ends at {end}, before the position: it was truncated or the topic was recreated"
        resume_at, last_epoch = start, -1
    return LogGap(part.key, *at, position, resume_at, reason, True, epoch), topic_id, last_epoch
