"""Asks a cluster, at deployment, whether it would create the topics that a new or changed route copies to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_configs import refused
from app.kafka.client.topics import INVALID_NAME, TopicRefused, TopicSpec
from app.replicate.model.copy_graph import FoldedCopies, find_folded
from app.replicate.model.route import Route


class NewCopies(NamedTuple):
    """The names that a change adds at the destination, and two of them that collide in Kafka."""

    names: list[str]
    twins: FoldedCopies | None


def new_copies(route: Route, before: Route | None, source_topics: Iterable[str]) -> NewCopies:
    """The new copies of the source's topics and of named topics; `before`'s copies are not new. Slow for many
    topics."""
    known, new = set[str](), set[str]()
    has_same_target = before is not None and before.target == route.target
    for topic in {*source_topics, *route.names, *route.rename.names}:
        copy = route.destination(topic)
        if copy is None:
            continue
        known.add(copy)
        if before is None or not has_same_target or before.destination(topic) != copy:
            new.add(copy)
    twins = (pair for pair in find_folded([(route, sorted(known))]) if new & {pair.one[1], pair.other[1]})
    return NewCopies(sorted(new), next(twins, None))


async def refused_copies(client: ClusterClient, copies: Collection[str]) -> list[TopicRefused]:
    """The copies whose names collide with existing topics of the destination; creates nothing.

    Other refusals depend on settings and partitions, which are known only later.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable: The cluster does not answer now.
    """
    found = await refused(client, [TopicSpec(copy, 1, 1) for copy in copies])
    return [refusal for refusal in found if refusal.code == INVALID_NAME]
