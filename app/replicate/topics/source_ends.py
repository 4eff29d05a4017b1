"""Records where a route with `start: latest` begins: the ends of its source when it is first defined.

Earlier records are not copied. Later ones are, and topics and partitions that are found later are copied from
their first record on. The control log keeps the ends (`app.controllog.events.StartRecorded`), so neither an
edit of the definition nor another leader moves them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import uuid4

from app.controllog.events import RoutePut, StartOffsets, StartRecorded
from app.controllog.state import ControlState
from app.kafka.client.cluster import ClusterClient
from app.kernel.clock import now_ms

PART_BYTES = 300_000  # of an event, roughly
TOPIC_BYTES, OFFSET_BYTES = 300, 20  # at most
NOT_KNOWN = -1


def lacks_beginning(view: ControlState, name: str, start: str) -> bool:
    return start == "latest" and name in view.routes and not view.start_parts_of(name)


async def beginning_of(client: ClusterClient, put: RoutePut, sizes: Mapping[str, int]) -> list[StartRecorded]:
    """The events that record where a route begins. `sizes`: the partitions of its topics.

    Raises:
        ClusterUnreachable, KafkaError: It cannot be known now.
    """
    # Read before any offset: if a topic is recreated in between, its ends are known to be another's.
    ids = await client.topic_ids(sizes) if sizes else {}
    ends = await client.committed_ends([(topic, at) for topic, count in sizes.items() for at in range(count)])
    parts: list[dict[str, StartOffsets]] = [{}]
    left = PART_BYTES
    for topic, count in sorted(sizes.items()):
        left -= TOPIC_BYTES + OFFSET_BYTES * count
        if left < 0 and parts[-1]:
            parts.append({})
            left = PART_BYTES - TOPIC_BYTES - OFFSET_BYTES * count
        offsets = [ends.get((topic, at), NOT_KNOWN) for at in range(count)]
        parts[-1][topic] = StartOffsets(ids.get(topic, ""), offsets)
    at_ms, nonce = now_ms(), uuid4().hex
    return [
        StartRecorded(
            at_ms=at_ms, key=put.key, deployment=put.deployment, nonce=nonce, ends=[], others=others,
            part=part, parts=len(parts),
        )
        for part, others in enumerate(parts)
    ]  # fmt: skip


def not_known(starts: Collection[StartRecorded]) -> list[str]:
    """The partitions without a known end, for messages."""
    return [
        f"{topic}-{at}"
        for start in starts
        for topic, position in start.others.items()
        for at, offset in enumerate(position.offsets)
        if offset < 0
    ]
