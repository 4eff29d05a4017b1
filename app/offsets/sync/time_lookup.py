"""Offsets at a point in time, in every cluster that has a topic or a copy of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from app.kafka.client.cluster import EARLIEST, LATEST, ClusterClient, ClusterUnreachable
from app.kafka.fetch.offsets_at_time import offsets_at_time
from app.replicate.model.route import Route

Note = Literal["", "before-start", "beyond-end"]


@dataclass(frozen=True, slots=True)
class TimeLookup:
    """The first record of a partition at or after the time: its offset and timestamp (ms). `note`:
    "beyond-end": no record is that new, so the offset is the log's end without a timestamp. "before-start":
    the log's first record is newer than the time; older records may have been deleted."""

    partition: int
    next_offset: int
    timestamp_ms: int | None
    log_start: int
    log_end: int
    note: Note


async def at_time(client: ClusterClient, topic: str, time_ms: int) -> list[TimeLookup] | None:
    """By partition; None: the topic does not exist. Raises ClusterUnreachable, KafkaError."""
    count = await client.partitions(topic)
    if count is None:
        return None
    wanted = [(topic, partition) for partition in range(count)]
    starts = await client.offsets(wanted, EARLIEST)
    found = await offsets_at_time(client, wanted, time_ms)
    ends = await client.offsets(wanted, LATEST)  # last, so that they lie behind all offsets found
    for at in wanted:
        if not (at in starts and at in found and at in ends):
            raise ClusterUnreachable(f"{client.name}: the leader of {topic}-{at[1]} does not answer")
    return [_at(at[1], found[at], starts[at], ends[at], time_ms) for at in wanted]


def _at(partition: int, found: tuple[int, int], start: int, end: int, time_ms: int) -> TimeLookup:
    offset, timestamp_ms = found
    if offset < 0:
        return TimeLookup(partition, end, None, start, end, "beyond-end")
    note: Note = "before-start" if offset <= start and start > 0 and timestamp_ms > time_ms else ""
    return TimeLookup(partition, offset, timestamp_ms, start, end, note)


def copies_of(topic: str, clusters: Iterable[str], routes: Mapping[str, Route]) -> dict[str, set[str]]:
    """By cluster, the names of the topic and of its copies by these routes."""
    found = {cluster: {topic} for cluster in clusters}
    for route in routes.values():
        copy = route.destination(topic)
        if copy is not None and route.target in found:
            found[route.target].add(copy)
    return found
