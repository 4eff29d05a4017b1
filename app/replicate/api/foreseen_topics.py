"""The changes that the leader would make at a new or changed route's destination topics; for its deployment.

They come from the plan that the leader carries out (`app.replicate.topics.targets`), made with fresh reads of
both clusters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

from aiokafka.errors import KafkaError

from app.controllog.state import ControlState
from app.definitions.api.requests import ask_cluster
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_configs import TopicSettings, describe
from app.replicate.definition import RouteDefinition
from app.replicate.model.destination_topic import SETTINGS, SYNCED, TopicPlan, TopicState, plan_topic
from app.replicate.topics.targets import WantedTopic, own_topics, topic_to_create, wanted_topics
from app.web.http.context import ApiContext
from app.web.http.schemas import TopicChange

SHOWN_NOTES = 20
TOPICS_AT_ONCE = 100

TopicsAt = Callable[[str], Awaitable[Mapping[str, int] | None]]  # a cluster's topics; None: no answer


class ForeseenTopics(NamedTuple):
    """The changes to make, and differences that stay, for people."""

    changes: list[TopicChange]
    notes: list[str]


class _Destination(NamedTuple):
    """The topics that exist, those among them that are the routes' own, and the number of brokers."""

    states: Mapping[str, TopicState]
    own: Collection[str]
    unread: Collection[str]
    brokers: int


async def foresee_topics(
    api: ApiContext, definition: RouteDefinition, others: Iterable[RouteDefinition], topics_at: TopicsAt
) -> ForeseenTopics:
    """`others`: the other routes, which may copy to the same topics."""
    target = definition.spec.target
    routes = [definition, *(one for one in others if one.key != definition.key and one.spec.target == target)]
    sizes = {name: await topics_at(name) for name in {one.spec.source for one in routes}}
    if (own_sizes := sizes[definition.spec.source]) is None:
        return _unknown(target, definition.spec.source)
    named = [(one, await asyncio.to_thread(_copies, one, sizes[one.spec.source] or {})) for one in routes]
    copies = set(named[0][1].values())
    if not copies:
        return ForeseenTopics([], [])
    wanted = {topic: found for (_, topic), found in wanted_topics(named).items() if topic in copies}
    sources: dict[tuple[str, str], TopicState | None] = {}
    for cluster, at in sizes.items():
        topics = {name for found in wanted.values() for source, name in found.sources if source == cluster}
        read = await ask_cluster(api, cluster, partial(describe, topics=topics, names=SETTINGS))
        if read is None and at is own_sizes:
            return _unknown(target, cluster)
        sources |= {(cluster, name): _state((at or {})[name], (read or {}).get(name)) for name in topics}
    view = api.runtime.control.view
    there = await ask_cluster(api, target, partial(_destination, topics=wanted.keys(), view=view))
    if there is None:
        return _unknown(target, target)
    changes, notes = list[TopicChange](), list[str]()
    for number, (topic, found) in enumerate(sorted(wanted.items())):
        if number % TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)  # planning thousands takes long, and this worker delivers messages
        present = there.states.get(topic)
        plan = _planned(topic, found, sources, there)
        changes += _changes(target, topic, found, plan, present, there.brokers)
        notes += [f"topic {topic} in {target}: {why}" for why in (*plan.blocked, *plan.notes)]
    if len(notes) > SHOWN_NOTES:
        notes[SHOWN_NOTES:] = [f"{len(notes) - SHOWN_NOTES} more warnings; route describe lists them all"]
    return ForeseenTopics(changes, notes)


def _unknown(target: str, silent: str) -> ForeseenTopics:
    why = f"cluster {silent} does not answer now; the activity lists them once they are made"
    return ForeseenTopics([], [f"the changes of topics in {target} are not known: {why}"])


def _copies(definition: RouteDefinition, sizes: Iterable[str]) -> dict[str, str]:
    route = definition.route()
    return {topic: copy for topic in sizes if (copy := route.destination(topic)) is not None}


def _state(partitions: int, read: TopicSettings | KafkaError | None) -> TopicState | None:
    """None: the settings cannot be read."""
    return TopicState(partitions, read.config, read.own) if isinstance(read, TopicSettings) else None


async def _destination(client: ClusterClient, topics: Collection[str], view: ControlState) -> _Destination:
    """Raises ClusterUnreachable, KafkaError, OSError, TimeoutError: the cluster cannot be read now."""
    found = await client.metadata(sorted(topics))
    sizes = {entry[1]: len(entry[3]) for entry in found.topics if not entry[0]}
    read = await describe(client, sizes, SETTINGS)
    states = {topic: _state(count, read.get(topic)) for topic, count in sizes.items()}
    at = found.cluster_id or client.name
    examined = await own_topics(client, sizes, lambda topic: view.own_topics.get((at, topic)))
    return _Destination(
        {topic: state or TopicState(sizes[topic]) for topic, state in states.items()},
        {topic for topic, (_, is_own) in examined.items() if is_own},
        {topic for topic, state in states.items() if state is None},
        len(found.brokers),
    )


def _planned(
    topic: str,
    wanted: WantedTopic,
    sources: Mapping[tuple[str, str], TopicState | None],
    there: _Destination,
) -> TopicPlan:
    assert wanted.sync is not None, "a wanted topic has a route"
    states = {f"{name} in {cluster}": sources[cluster, name] for cluster, name in sorted(wanted.sources)}
    is_unread = None in states.values()
    sync = replace(
        wanted.sync,
        leave=frozenset(wanted.sync.leave) | (SYNCED if is_unread else frozenset()),
        configuration=wanted.sync.configuration and topic not in there.unread,
    )
    known = {label: state or TopicState(1) for label, state in states.items()}
    return plan_topic(known, there.states.get(topic), sync, is_own=topic in there.own)


def _changes(
    target: str, topic: str, wanted: WantedTopic, plan: TopicPlan, present: TopicState | None, brokers: int
) -> Iterator[TopicChange]:
    if plan.create is not None:
        spec = topic_to_create(topic, plan, wanted, brokers)
        plan = replace(plan, create=(spec.partitions, dict(spec.config)))
    elif not plan.changes:
        return
    for setting, old, new in plan.setting_changes(present):
        action: Literal["create", "grow", "alter"] = "grow" if setting == "partitions" else "alter"
        if plan.create is not None:
            action = "create"
        yield TopicChange(cluster=target, topic=topic, action=action, setting=setting, old=old, new=new)
