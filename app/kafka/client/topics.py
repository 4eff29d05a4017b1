"""Creates the topics that Switchyard needs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, NotControllerError, for_code

from app.kafka.client.aiokafka_internals import client_of
from app.kafka.client.aiokafka_types import ResponseFields
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.permissions import CLUSTER_NOT_AUTHORISED, NOT_AUTHORISED, allow, lacks

MAX_REPLICATION = 3
ALREADY_EXISTS, INVALID_NAME, TOO_FEW_BROKERS = 36, 17, 38
VISIBLE_TRIES = 50
RENAME = "choose another name"
CREATE_IT = "remove the reason, or create the topic in a way that the cluster allows"


class TopicMismatch(RuntimeError):
    """A topic exists with the wrong number of partitions."""


class TopicRefused(KafkaError):
    """The cluster permanently refuses to create a topic; has the cluster's reason and a remedy."""

    def __init__(self, topic: str, cluster: str, code: int, words: str) -> None:
        kind = f"{for_code(code).__name__}, error {code}"
        super().__init__(
            f"cluster {cluster} does not create topic {topic}: {words or 'no reason given'} ({kind})"
        )
        self.remedy = RENAME if code == INVALID_NAME else CREATE_IT
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create. Without `replication` it has three replicas, or as many as there are brokers."""

    name: str
    partitions: int
    replication: int | None = None
    config: dict[str, str] = field(default_factory=dict)
    exact: bool = False


def creation_error(topic: str, cluster: str, code: int, words: str | None) -> KafkaError:
    kind = for_code(code)
    if kind.retriable:
        found: KafkaError = kind(f"topic {topic} in {cluster}: {words}")
        return found
    return TopicRefused(topic, cluster, code, words or "")


async def ensure_topics(client: ClusterClient, wanted: Sequence[TopicSpec]) -> list[str]:
    """Creates missing topics and waits until they have leaders; returns the names created here.

    Other workers may do the same at the same time. An existing topic keeps its settings.

    Raises TopicMismatch: an existing `exact` topic has another number of partitions. Raises TopicRefused: the
    cluster refuses one (name, policy, setting); the other topics are created. Raises
    aiokafka.errors.KafkaError: permission is missing, or there is no controller.
    """
    existing = await client.topics()
    for spec in wanted:
        if spec.exact and existing.get(spec.name, spec.partitions) != spec.partitions:
            raise TopicMismatch(
                f"topic {spec.name} in {client.name} has {existing[spec.name]} partitions but needs "
                f"{spec.partitions}; delete it (its content is rebuilt) or restore its partitions"
            )
    missing = [spec for spec in wanted if spec.name not in existing]
    if not missing:
        return []
    replication = min(MAX_REPLICATION, max(1, await client.broker_count()))
    admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
    try:
        await admin.start()
        await _wait_for_controller(admin, client.name)
        answers = await _create(admin, missing, replication)
    finally:
        await admin.close()
    created, there, refused = list[str](), list[str](), list[KafkaError]()
    for name, (code, words) in answers.items():
        if code in {0, ALREADY_EXISTS}:
            there.append(name)
            created += [name] if code == 0 else []
        elif code in {NOT_AUTHORISED, CLUSTER_NOT_AUTHORISED}:
            allowed = allow(client.spec, "topic", name, "Create", "Describe", "Read", "Write")
            refused.append(for_code(code)(f"{lacks(client.spec, 'topic', name, 'Create')}; {allowed}"))
        else:
            refused.append(creation_error(name, client.name, code, words))
    if there:
        await _wait_for_leaders(client, there)
    if refused:
        raise refused[0]
    return created


async def _wait_for_leaders(client: ClusterClient, topics: Sequence[str]) -> None:
    """Waits until the topics have leaders, because the next request must not fail on an unfinished topic."""
    for _ in range(VISIBLE_TRIES):
        found = await client.metadata([*topics])
        if all(entry[0] == 0 and entry[3] and all(row[2] >= 0 for row in entry[3]) for entry in found.topics):
            return
        await asyncio.sleep(0.1)


async def _create(
    admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec], replication: int
) -> dict[str, tuple[int, str]]:
    """Topic -> code and message of the answer. A cluster counts too few brokers for a moment after a restart,
    so that answer is retried."""
    answers: dict[str, tuple[int, str]] = {}
    left = {spec.name: spec for spec in specs}
    for _ in range(VISIBLE_TRIES):
        wanted = [
            NewTopic(name, spec.partitions, spec.replication or replication, topic_configs=spec.config)
            for name, spec in left.items()
        ]
        response: ResponseFields = await admin.create_topics(wanted)
        answers |= {
            name: (code, (rest[0] or "") if rest else "") for name, code, *rest in response.topic_errors
        }
        left = {name: spec for name, spec in left.items() if answers.get(name, (0,))[0] == TOO_FEW_BROKERS}
        if not left:
            break
        await asyncio.sleep(0.1)
    return answers


async def _wait_for_controller(admin: AIOKafkaAdminClient, cluster: str) -> None:
    """Waits for a controller: a restarted cluster may have none yet, and the admin client would use that."""
    known = client_of(admin)
    for _ in range(VISIBLE_TRIES):
        if known.cluster.controller is not None:
            return
        await asyncio.sleep(0.1)
        await known.force_metadata_update()
    raise NotControllerError(f"{cluster} has no controller; check that a majority of its controllers runs")
