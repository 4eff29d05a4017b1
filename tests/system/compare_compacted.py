"""Compares a compacted topic with its copy, which brokers compact independently, at different times.

Rules, for each partition, once no producer writes to it:
1. Both logs have the same latest record of every key: timestamp, value (or tombstone), headers. A source
   record that the copy lacks was therefore replaced by a later one.
2. The numbers that `number_of` reads rise within each partition of both logs: the copy has the source's order
   and no repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from app.kafka.client.cluster import ClusterClient, ClusterSpec
from tests.system.compare_topics import Cursor, Row

MAX_DIFFERENCES = 20  # differences of a partition


@dataclass(slots=True)
class Compacted:
    """Equal keys, remaining records, and differences."""

    same: int = 0
    source_records: int = 0
    copy_records: int = 0
    differences: list[str] = field(default_factory=list)


async def compare_compacted(
    source: str, copies: str, topic: str, number_of: Callable[[Row], int]
) -> Compacted:
    """Compares the topic of both clusters (bootstrap addresses).

    Raises:
        ValueError: A batch's checksum does not match.
        KafkaError, ClusterUnreachable: A broker does not answer.
    """
    found = Compacted()
    source_client, copy_client = (
        ClusterClient(ClusterSpec(name, (at,))) for name, at in (("source", source), ("copies", copies))
    )
    await source_client.start()
    try:
        await copy_client.start()
        for partition in range(await source_client.partitions(topic) or 0):
            rows, copied = [await _rows(client, topic, partition) for client in (source_client, copy_client)]
            found.source_records += len(rows)
            found.copy_records += len(copied)
            differing = list(differences(rows, copied, number_of))
            found.same += len(_latest(rows)) - len(differing)
            found.differences += [f"partition {partition}: {text}" for text in differing[:MAX_DIFFERENCES]]
    finally:
        await source_client.stop()
        await copy_client.stop()
    return found


def differences(source: list[Row], copy: list[Row], number_of: Callable[[Row], int]) -> Iterator[str]:
    """A sentence for each violation of the rules in a partition."""
    latest, copied = _latest(source), _latest(copy)
    for key in latest.keys() | copied.keys():
        if latest.get(key) != copied.get(key):
            yield f"key {key!r}: the source's latest is {latest.get(key)!r}, the copy's {copied.get(key)!r}"
    for name, rows in (("source", source), ("copy", copy)):
        for before, after in pairwise(map(number_of, rows)):
            if after <= before:
                yield f"record {after} is behind {before} in the {name}"


def _latest(rows: list[Row]) -> dict[bytes | None, Row]:
    return {row[1]: row for row in rows}


async def _rows(client: ClusterClient, topic: str, partition: int) -> list[Row]:
    cursor = await Cursor.over(client, topic, partition)
    wanted = 10_000
    while await cursor.load_rows(wanted) >= wanted:
        wanted *= 2
    return cursor.rows
