"""Compares a compacted topic with its copy, both of which the brokers compact, each at its time.

Rules, for each partition, of records that no writing goes on with:
1. Of every key both have the same latest record: timestamp, value (or tombstone), headers. So whatever of the
   source the copy has not, was replaced there by a later one.
2. What the copy has is in the source's order, and nothing is there twice: the numbers that `number_of` reads
   from the records of a partition rise. So they do in the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from app.kafka.client.cluster import ClusterClient, ClusterSpec
from tests.system.compare_topics import Cursor, Row

MOST = 20  # differences of a partition


@dataclass(slots=True)
class Compacted:
    """Keys that are the same, records that are left, and what differs."""

    same: int = 0
    source_records: int = 0
    copy_records: int = 0
    differences: list[str] = field(default_factory=list)


async def compare_compacted(
    source: str, copies: str, topic: str, number_of: Callable[[Row], int]
) -> Compacted:
    """Compares the topic of both clusters (bootstrap addresses); see the module.

    Raises:
        ValueError: a batch's checksum does not match.
        KafkaError, ClusterUnreachable: a broker does not answer.
    """
    found = Compacted()
    one, other = (
        ClusterClient(ClusterSpec(name, (at,))) for name, at in (("source", source), ("copies", copies))
    )
    await one.start()
    try:
        await other.start()
        for partition in range(await one.partitions(topic) or 0):
            rows, copied = [await _rows(client, topic, partition) for client in (one, other)]
            found.source_records += len(rows)
            found.copy_records += len(copied)
            differing = list(differences(rows, copied, number_of))
            found.same += len(_latest(rows)) - len(differing)
            found.differences += [f"partition {partition}: {told}" for told in differing[:MOST]]
    finally:
        await one.stop()
        await other.stop()
    return found


def differences(source: list[Row], copy: list[Row], number_of: Callable[[Row], int]) -> Iterator[str]:
    """Where a partition breaks the rules."""
    here, there = _latest(source), _latest(copy)
    for key in here.keys() | there.keys():
        if here.get(key) != there.get(key):
            yield f"key {key!r}: the source's latest is {here.get(key)!r}, the copy's {there.get(key)!r}"
    for name, rows in (("source", source), ("copy", copy)):
        for before, after in pairwise(map(number_of, rows)):
            if after <= before:
                yield f"record {after} is behind {before} in the {name}"


def _latest(rows: list[Row]) -> dict[bytes | None, Row]:
    return {row[1]: row for row in rows}


async def _rows(client: ClusterClient, topic: str, partition: int) -> list[Row]:
    cursor = await Cursor.over(client, topic, partition)
    wanted = 10_000
    while await cursor.want(wanted) >= wanted:
        wanted *= 2
    return cursor.rows
