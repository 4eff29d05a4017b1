"""Creating and describing topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, NotControllerError, for_code

from app.kafka.client.cluster import ClusterClient
from app.kafka.client.permissions import CLUSTER_NOT_AUTHORISED, NOT_AUTHORISED, allow, lacks

MAX_REPLICATION = 3
ALREADY_EXISTS, INVALID_NAME, TOO_FEW_BROKERS = 36, 17, 38
VISIBLE_TRIES = 50
RENAME = "choose another name"
CREATE_IT = "mend that, or create the topic as the cluster allows it"


class TopicMismatch(RuntimeError):
    """A topic exists, but not as it must be."""


class TopicRefused(KafkaError):
    """A cluster does not make a topic, and will not a moment later; why, in its words, and the remedy."""

    def __init__(self, topic: str, cluster: str, code: int, words: str) -> None:
        kind = f"{for_code(code).__name__}, error {code}"
        super().__init__(
            f"cluster {cluster} does not make topic {topic}: {words or 'no word of why'} ({kind})"
        )
        self.remedy = RENAME if code == INVALID_NAME else CREATE_IT
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it should be; `replication` None means three, or as many brokers as there are."""

    name: str
    partitions: int
    replication: int | None = None
    config: dict[str, str] = field(default_factory=dict)
    exact: bool = False


def not_made(topic: str, cluster: str, code: int, words: str | None) -> KafkaError:
    """What a cluster answered instead of making a topic."""
    kind = for_code(code)
    if kind.retriable:
        found: KafkaError = kind(f"topic {topic} in {cluster}: {words}")
        return found
    return TopicRefused(topic, cluster, code, words or "")


async def ensure_topics(client: ClusterClient, wanted: Sequence[TopicSpec]) -> list[str]:
    """Creates what is missing and waits until it has leaders; returns the names created here.

    Safe against others doing the same at the same time. A topic that exists keeps its settings.

    Raises:
        TopicMismatch: an existing `exact` topic has another number of partitions.
        TopicRefused: the cluster does not make one (its name, a policy, a setting); the others are made.
        aiokafka.errors.KafkaError: it may not be made by whom asks, or there is no controller.
    """
    existing = await client.topics()
    for spec in wanted:
        if spec.exact and existing.get(spec.name, spec.partitions) != spec.partitions:
            raise TopicMismatch(
                f"topic {spec.name} in {client.name} has {existing[spec.name]} partitions, "
                f"needs {spec.partitions}; "
                "delete it (its content is rebuilt) or restore its partitions"
            )
    missing = [spec for spec in wanted if spec.name not in existing]
    if not missing:
        return []
    replication = min(MAX_REPLICATION, max(1, await client.broker_count()))
    admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
    try:
        await admin.start()
        await _until_led(admin, client.name)
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
            refused.append(not_made(name, client.name, code, words))
    if there:
        await _until_seen(client, there)
    if refused:
        raise refused[0]
    return created


async def _until_seen(client: ClusterClient, topics: Sequence[str]) -> None:
    """Waits for their leaders: what comes next must not fail on a topic in the making."""
    for _ in range(VISIBLE_TRIES):
        found = await client.metadata([*topics])
        if all(entry[0] == 0 and entry[3] and all(p[2] >= 0 for p in entry[3]) for entry in found.topics):
            return
        await asyncio.sleep(0.1)


async def _create(
    admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec], replication: int
) -> dict[str, tuple[int, str]]:
    """Topic -> code and words of the answer.

    To a cluster whose brokers have just come back, or were slow for a moment, they are too few.
    """
    answers: dict[str, tuple[int, str]] = {}
    left = {spec.name: spec for spec in specs}
    for _ in range(VISIBLE_TRIES):
        wanted = [
            NewTopic(name, spec.partitions, spec.replication or replication, topic_configs=spec.config)
            for name, spec in left.items()
        ]
        response: Any = await admin.create_topics(wanted)
        answers |= {
            name: (code, (rest[0] or "") if rest else "") for name, code, *rest in response.topic_errors
        }
        left = {name: spec for name, spec in left.items() if answers.get(name, (0,))[0] == TOO_FEW_BROKERS}
        if not left:
            break
        await asyncio.sleep(0.1)
    return answers


async def _until_led(admin: AIOKafkaAdminClient, cluster: str) -> None:
    """A cluster that has just come back may have no controller yet, which the client takes for one."""
    known = admin._client
    for _ in range(VISIBLE_TRIES):
        if known.cluster.controller is not None:
            return
        await asyncio.sleep(0.1)
        await known.force_metadata_update()
    raise NotControllerError(f"{cluster} has no controller; see that a majority of its controllers is up")
