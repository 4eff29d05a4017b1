"""The topics that a workload needs beside its own, and settings that existing ones must have.

A message waits in a retry topic for its tier's delay and for as long as its receiver is away: retention is
twice the longest delay, at least a week. Nothing may be compacted: a message would replace others of its key.
Retry topics that exist are raised to what they need. Of other topics, which somebody may have made so on
purpose, only the problem is told. With three replicas a copy counts as safe once two brokers have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog
from aiokafka.errors import KafkaError

from app.dispatch.definition import Workload
from app.dispatch.model.delayed_delivery import LEVELS_MS
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.needed_settings import (
    DELETE,
    KEPT_MS,
    LEAST,
    MOST_BYTES,
    POLICY,
    SettingsProblem,
    problem_of,
    wrong_settings,
)
from app.kafka.client.topic_configs import TopicSettings, alter, describe, expand, refused
from app.kafka.client.topics import MAX_REPLICATION, TopicRefused, TopicSpec, ensure_topics

log = structlog.get_logger(__name__)

MAX_PARTITIONS = 8  # retry traffic is a small share of the topic's
DAY_MS = 24 * 3_600_000
RETRY_RETENTION_MS = 7 * DAY_MS
DLQ_RETENTION_MS = 30 * DAY_MS
UNCOMPACTED = {POLICY: DELETE}  # brokers may have another default
COPY_MAX_BYTES = 16 * 1024 * 1024  # a copy is larger than its source by the headers; never refuse one
COPY_HEADERS_BYTES = 16 * 1024  # of these: about so many at the most


def safe_replication(brokers: int) -> tuple[int, dict[str, str]]:
    """Replication factor and settings with which a record, once acknowledged, outlives a broker."""
    replication = min(MAX_REPLICATION, max(1, brokers))
    return replication, {"min.insync.replicas": "2" if replication >= 3 else "1"}


def retry_retention_ms(workload: Workload) -> int:
    """How long a retry topic must keep messages."""
    longest_s = max((tier.delay for tier in workload.spec.retry), default=0.0)
    return max(RETRY_RETENTION_MS, int(2 * longest_s * 1000))


def topics_of(workload: Workload, partitions: int, brokers: int) -> list[TopicSpec]:
    """Retry topics and dead letter queue of a workload whose topic has so many partitions."""
    replication, safe = safe_replication(brokers)
    kept = dict.fromkeys(workload.retry_topics(), retry_retention_ms(workload))
    if workload.spec.dlq.enabled:
        kept[workload.dlq_topic()] = DLQ_RETENTION_MS
    return [
        TopicSpec(
            topic,
            partitions=min(partitions, MAX_PARTITIONS),
            replication=replication,
            config={
                **safe, **UNCOMPACTED, KEPT_MS: str(retention_ms), MOST_BYTES: str(COPY_MAX_BYTES),
            },
        )
        for topic, retention_ms in kept.items()
    ]  # fmt: skip


async def create_topics(client: ClusterClient, workload: Workload, partitions: int) -> list[str]:
    """Creates what is missing; returns the names of topics created here.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable: it could not be done now.
    """
    return await ensure_topics(client, topics_of(workload, partitions, await client.broker_count()))


async def refused_topics(client: ClusterClient, workload: Workload) -> list[TopicRefused]:
    """Those of its own topics that the cluster would not make, and why; nothing is made.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable: it could not be asked now.
    """
    specs = topics_of(workload, 1, await client.broker_count())
    known = {spec.name for spec in specs}
    later = [TopicSpec(topic, 1, 1) for topic in workload.own_topics() if topic not in known]
    return await refused(client, [*specs, *later])


async def grow_topics(client: ClusterClient, workload: Workload, partitions: int) -> None:
    """Gives existing retry topics and the DLQ as many partitions as new ones would have.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable, NotImplementedError: it could not be done now.
    """
    wanted = {spec.name: spec.partitions for spec in topics_of(workload, partitions, 1)}
    sizes = {topic: len(found) for _, topic, _, found in (await client.metadata([*wanted])).topics}
    changes = {topic: count for topic, count in wanted.items() if 0 < sizes.get(topic, 0) < count}
    for error in (await expand(client, changes)).values():
        raise error
    if changes:
        log.info("added partitions to topics", cluster=client.name, workload=workload.key, partitions=changes)


async def create_delayed(client: ClusterClient, workload: Workload) -> int:
    """Creates the workload's topic of delayed messages when it is missing; returns its number of partitions.

    No record waits there for long: what is due later is copied on. Raises as `create_topics`.
    """
    topic = workload.delayed_topic()
    replication, safe = safe_replication(await client.broker_count())
    kept = {KEPT_MS: str(RETRY_RETENTION_MS), MOST_BYTES: str(COPY_MAX_BYTES)}
    config = {**safe, **UNCOMPACTED, **kept}
    await ensure_topics(client, [TopicSpec(topic, len(LEVELS_MS), replication, config)])
    return await client.partitions(topic) or len(LEVELS_MS)


def needed_settings(workload: Workload, most_bytes: int = COPY_MAX_BYTES) -> dict[str, dict[str, str]]:
    """Own topic -> settings that it must have, of records of `most_bytes`. A DLQ may keep letters for less
    long than one made here."""
    kept = dict.fromkeys(workload.own_topics(), RETRY_RETENTION_MS)
    kept |= dict.fromkeys(workload.retry_topics(), retry_retention_ms(workload))
    return {
        topic: {**UNCOMPACTED, KEPT_MS: str(retention_ms), MOST_BYTES: str(most_bytes)}
        for topic, retention_ms in kept.items()
    }


async def check_settings(
    client: ClusterClient, workload: Workload, topics: Collection[str]
) -> tuple[list[SettingsProblem], dict[str, KafkaError]]:
    """What is wrong with settings of its own `topics`, which exist; and those of which they cannot be read.

    Raises limits of retry topics; of these, what the cluster refuses is told. A cluster may cap records: what
    its source takes is enough.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable, NotImplementedError: nothing could be read.
    """
    source, names = workload.metadata.topic, {POLICY, KEPT_MS, MOST_BYTES}
    needed = {topic: wanted for topic, wanted in needed_settings(workload).items() if topic in topics}
    found = await describe(client, [*needed, source], names)
    taken = found.pop(source, None)
    unread = {topic: settings for topic, settings in found.items() if isinstance(settings, KafkaError)}
    configs = {topic: {**one.config} for topic, one in found.items() if isinstance(one, TopicSettings)}
    low: dict[str, dict[str, str]] = {}
    for topic in configs.keys() & {*workload.retry_topics()}:
        wrong = wrong_settings(configs[topic], needed[topic])
        if changes := {name: value for name, value in wrong.items() if name in LEAST}:
            low[topic] = changes
    unraised = await _raised(client, low)
    for topic in low.keys() - unraised.keys():
        configs[topic] |= low[topic]
    if isinstance(taken, TopicSettings):
        most_bytes = min(COPY_MAX_BYTES, _most_bytes(taken) + COPY_HEADERS_BYTES)
        needed = needed_settings(workload, most_bytes)
    problems = [
        problem_of(client.spec, topic, config, wrong, str(unraised.get(topic, "")))
        for topic, config in sorted(configs.items())
        if (wrong := wrong_settings(config, needed[topic]))
    ]
    return problems, unread


def _most_bytes(settings: TopicSettings) -> int:
    try:
        return int(settings.config[MOST_BYTES])
    except (KeyError, ValueError):  # which is not told
        return COPY_MAX_BYTES


async def _raised(
    client: ClusterClient, changes: Mapping[str, Mapping[str, str]]
) -> Mapping[str, KafkaError]:
    """Those that refuse, and why."""
    try:
        unraised = await alter(client, changes)
    except NotImplementedError:  # brokers before Kafka 2.3
        unraised = {topic: KafkaError("its brokers are too old for it") for topic in changes}
    if raised := {topic: values for topic, values in changes.items() if topic not in unraised}:
        log.info("raised settings of topics", cluster=client.name, changes=raised)
    return unraised


async def raise_settings(client: ClusterClient, workload: Workload, topics: Collection[str]) -> None:
    """Raises limits of existing retry topics to what the workload needs, before something is copied there.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable, NotImplementedError: they cannot be read or changed.
    """
    problems, unread = await check_settings(client, workload, topics)
    for error in unread.values():
        raise error
    for problem in problems:
        raise KafkaError(f"{problem.message}; {problem.remedy}")
