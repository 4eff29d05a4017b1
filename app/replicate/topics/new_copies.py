"""Whether a cluster would make the topics that a new or changed route copies to: asked at its deployment."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_configs import refused
from app.kafka.client.topics import INVALID_NAME, TopicRefused, TopicSpec
from app.replicate.model.copy_graph import FoldedCopies, find_folded
from app.replicate.model.route import Route


class NewCopies(NamedTuple):
    """Names at the destination: those that a change adds, and two of which Kafka takes one for the other."""

    names: list[str]
    twins: FoldedCopies | None


def new_copies(route: Route, before: Route | None, there: Iterable[str]) -> NewCopies:
    """Of the topics that are `there` at the source, and of those that the route names. What it copied
    `before` is not new. Takes a moment where many are there."""
    known, new = set[str](), set[str]()
    has_same_target = before is not None and before.target == route.target
    for topic in {*there, *route.names, *route.rename.names}:
        copy = route.destination(topic)
        if copy is None:
            continue
        known.add(copy)
        if before is None or not has_same_target or before.destination(topic) != copy:
            new.add(copy)
    twins = (pair for pair in find_folded([(route, sorted(known))]) if new & {pair.one[1], pair.other[1]})
    return NewCopies(sorted(new), next(twins, None))


async def refused_copies(client: ClusterClient, copies: Collection[str]) -> list[TopicRefused]:
    """Those whose name the destination takes for another one's; nothing is made. Whatever else it may refuse
    depends on settings and partitions, which are the source's then.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable: it could not be asked now.
    """
    found = await refused(client, [TopicSpec(copy, 1, 1) for copy in copies])
    return [one for one in found if one.code == INVALID_NAME]
