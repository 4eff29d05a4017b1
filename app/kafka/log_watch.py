"""Whether a partition's log is still the one that its position speaks of.

A fetch names its topic, and the name stays when a topic is deleted and made anew: position 100 of the old
log is in the middle of the new one. Its id differs. Ids are looked at every `TOPIC_IDS_S` (one request a
cluster), and whenever the topic was not known for a moment; a difference is believed once the broker that
leads the partition tells it, since others may be behind.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from app.kafka.clusters import EARLIEST, LATEST
from app.kafka.fetched import Gap

if TYPE_CHECKING:
    from app.kafka.clusters import ClusterClient
    from app.kafka.fetched import PartitionFetch

TOPIC_IDS_S = 2.0


async def doubt_other_ids(client: ClusterClient, parts: Collection[PartitionFetch]) -> None:
    """Takes the ids of those that have none yet, doubts those whose id differs. Raises as `topic_ids`."""
    ids = await client.topic_ids({part.topic for part in parts})
    for part in parts:
        topic_id = ids.get(part.topic, "")
        if not part.topic_id:
            part.topic_id = topic_id
        elif topic_id and topic_id != part.topic_id:
            part.doubted = True


async def find_gap(client: ClusterClient, part: PartitionFetch) -> tuple[Gap | None, str]:
    """What became of a position that is out of range or whose topic is doubted, and the topic's id now.

    No gap: the position is in the log, and the log is what it was.

    Raises:
        LookupError: the partition's leader does not tell now. KafkaError, OSError, TimeoutError: the same.
    """
    at, position = (part.topic, part.partition), part.next_offset
    node = await client.leader(*at)
    topic_id = "" if node is None else (await client.topic_ids([part.topic], node)).get(part.topic, "")
    start = (await client.offsets([at], EARLIEST)).get(at)
    end = (await client.offsets([at], LATEST)).get(at)
    if start is None or end is None:
        raise LookupError("the ends of the log are not known yet")
    anew = bool(part.topic_id and topic_id and part.topic_id != topic_id)
    topic_id = topic_id or part.topic_id
    if start <= position <= end and not anew:
        return None, topic_id
    if anew:
        reason = "the topic was deleted and made anew"
    elif position > end:
        reason = f"the log ends at {end}, before the position: it was truncated or the topic was made anew"
    else:
        reason = "retention or a deletion moved the log's start past the position"
    return Gap(part.key, *at, position, start, reason, begun_anew=anew or position > end), topic_id
