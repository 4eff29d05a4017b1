"""Creating and describing topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import NotControllerError, for_code

from app.kafka.client.cluster import ClusterClient
from app.kafka.client.permissions import CLUSTER_NOT_AUTHORISED, NOT_AUTHORISED, allow, lacks

MAX_REPLICATION = 3
ALREADY_EXISTS, TOO_FEW_BROKERS = 36, 38
VISIBLE_TRIES = 50


class TopicMismatch(RuntimeError):
    """A topic exists, but not as it must be."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it should be; `replication` None means three, or as many brokers as there are."""

    name: str
    partitions: int
    replication: int | None = None
    config: dict[str, str] = field(default_factory=dict)
    exact: bool = False


async def ensure_topics(client: ClusterClient, wanted: Sequence[TopicSpec]) -> list[str]:
    """Creates what is missing and waits until it has leaders; returns the names created here.

    Safe against others doing the same at the same time. A topic that exists keeps its settings.

    Raises:
        TopicMismatch: an existing `exact` topic has another number of partitions.
        aiokafka.errors.KafkaError: the cluster refused (authorisation, policy, invalid config), or has no
            controller.
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
    created = []
    for name, (code, words) in answers.items():
        if code == 0:
            created.append(name)
        elif code in {NOT_AUTHORISED, CLUSTER_NOT_AUTHORISED}:
            allowed = allow(client.spec, "topic", name, "Create", "Describe", "Read", "Write")
            raise for_code(code)(f"{lacks(client.spec, 'topic', name, 'Create')}; {allowed}")
        elif code != ALREADY_EXISTS:
            raise for_code(code)(f"topic {name} in {client.name}: {words}")
    for _ in range(VISIBLE_TRIES):
        found = await client.metadata([spec.name for spec in missing])
        # Seen, and every partition led: what comes next must not fail on a topic in the making.
        if all(entry[0] == 0 and entry[3] and all(p[2] >= 0 for p in entry[3]) for entry in found.topics):
            break
        await asyncio.sleep(0.1)
    return created


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
