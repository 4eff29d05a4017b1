"""The permissions in docs/permissions.md suffice on secured brokers, and keep other users out."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError

from app.controllog.topics import ControlTopics
from app.dev.demo.stage import DemoStage, Process, http, route, wait_until, workload
from app.dev.demo.traffic import messages
from app.dev.yard import Yard
from app.dev.yard.security import ADMIN
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topics import TopicSpec, ensure_topics
from tests.kafka import acls
from tests.kafka.acls import LITERAL, PREFIXED, Acls, spec_of
from tests.system.conftest import make_stage
from tests.system.fleet import incidents, start_workers
from tests.system.test_seals import wait_sealed

pytestmark = pytest.mark.system

PAGE = Path(__file__).parents[2] / "docs" / "permissions.md"
HOME, AWAY = "east-regional", "east-aggregate"
USER, SERVICE = "switchyard", "service"
MESSAGES, ENOUGH_S = 200, 90.0
OPERATIONS = {
    "Read": acls.READ, "Write": acls.WRITE, "Create": acls.CREATE, "Alter": acls.ALTER,
    "DescribeConfigs": acls.DESCRIBE_CONFIGS, "AlterConfigs": acls.ALTER_CONFIGS,
}  # fmt: skip


def commands() -> Iterator[tuple[str, dict[str, list[str]]]]:
    """For each command of the page: the cluster, and option -> its values."""
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line)
            assert program == "kafka-acls.sh"
            options: dict[str, list[str]] = {}
            for word in words:
                if word.startswith("--"):
                    values = options.setdefault(word.removeprefix("--"), [])
                else:
                    values.append(word)
            yield options["bootstrap-server"][0].partition(":")[0], options


async def grant_documented(clients: dict[str, ClusterClient], names: dict[str, str]) -> None:
    """Grants the page's permissions with these names in the place of the page's."""
    for cluster, options in commands():
        kind = "group" if "group" in options else "topic"
        (name,) = options[kind]
        for former, present in names.items():
            name = name.replace(former, present)
        await Acls(clients[cluster]).allow(
            USER, acls.GROUP if kind == "group" else acls.TOPIC, name,
            *(OPERATIONS[one] for one in options["operation"]),
            pattern=PREFIXED if options.get("resource-pattern-type") == ["prefixed"] else LITERAL,
        )  # fmt: skip


def configure_login(stage: DemoStage, yard: Yard) -> None:
    """Makes the stage's workers log in as `USER`."""
    assert yard.security is not None
    login = {"protocol": "sasl_plaintext", "mechanism": "PLAIN"}
    for field, secret in (("username", USER), ("password", yard.security.users[USER])):
        (stage.home / field).write_text(secret)
        login[field] = f"file:{stage.home / field}"
    stage.settings["clusters"] = [
        {"name": one.cluster, "region": stage.region, "tier": one.tier, "bootstrap": one.bootstrap,
         "security": login}
        for one in yard.clusters
    ]  # fmt: skip


async def write(yard: Yard, topic: str, *values: bytes) -> None:
    """Writes as the service. Raises TopicAuthorizationFailedError."""
    options = spec_of(yard, HOME, SERVICE).aiokafka_options()
    async with AIOKafkaProducer(**options, enable_idempotence=False) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, key=b"k", partition=0)


def all_incidents(worker: Process) -> list[Any]:
    return list(http("GET", f"{worker.url}/api/v1/incidents?limit=1000")[1]["items"])


def test_the_documented_grants_suffice_and_unsealed_records_of_other_users_are_reported(
    secured: Yard, topic_name: str
) -> None:
    with make_stage(secured) as stage:
        asyncio.run(_check_permissions(secured, stage, topic_name))


async def _check_permissions(yard: Yard, stage: DemoStage, topic: str) -> None:
    clients = {name: ClusterClient(spec_of(yard, name, ADMIN)) for name in (HOME, AWAY)}
    service, topics = ClusterClient(spec_of(yard, HOME, SERVICE)), ControlTopics(stage.region)
    for client in (*clients.values(), service):
        await client.start()
    try:
        await ensure_topics(clients[HOME], [TopicSpec(topic, 2, 1)])
        await grant_documented(
            clients,
            {
                "switchyard-east": topics.app_id,
                "orders": topic,
                "billing": f"billing-{topic}",
                "switchyard-copy": f"switchyard-{topic}",
            },
        )
        home = Acls(clients[HOME])
        await home.allow(SERVICE, acls.TOPIC, topic, acls.WRITE)
        await home.allow(SERVICE, acls.TOPIC, topics.audit.name, acls.WRITE)
        configure_login(stage, yard)
        await asyncio.to_thread(_check_delivery, yard, stage, topic)
        for one in topics.all():
            if one.name != topics.audit.name:
                with pytest.raises(TopicAuthorizationFailedError):
                    await write(yard, one.name, b"{}")
        ids = await service.topic_ids([topics.control.name, topics.audit.name])
        assert ids.keys() == {topics.audit.name}, (
            "the id of the control topic must stay secret: the seals' key is derived from it"
        )
        await home.allow(SERVICE, acls.TOPIC, topics.trackers.name, acls.WRITE)
        await _wait_granted(lambda: write(yard, topics.trackers.name, b"{}"))
        worker = stage.processes[0]
        await asyncio.to_thread(
            wait_until, lambda: bool(incidents(worker, "unsealed")), ENOUGH_S, worker.tail, 0.5
        )
    finally:
        for client in (*clients.values(), service):
            await client.stop()


def _check_delivery(yard: Yard, stage: DemoStage, topic: str) -> None:
    workers = start_workers(stage, 2)
    group = f"billing-{topic}"
    receiver = stage.receiver(group, topic)
    stage.deploy(workers[0], route(topic, HOME, AWAY, topic))
    stage.deploy(workers[0], workload(group, topic, AWAY, receiver.address))
    sent = list(messages(MESSAGES))
    asyncio.run(write(yard, topic, *(one.value() for one in sent)))
    wanted = {one.id for one in sent if one.behaviour == "ok"}
    wait_until(
        lambda: wanted <= {one["id"] for one in stage.deliveries() if one["outcome"] == "ok"},
        ENOUGH_S, lambda: f"{all_incidents(workers[0])}\n{workers[0].tail()}", 0.3,
    )  # fmt: skip
    wait_sealed(workers)
    assert not [one for one in all_incidents(workers[0]) if "lacks" in one["message"]]
    for worker in workers:
        assert "AuthorizationFailed" not in worker.log.read_text()


async def _wait_granted(write_once: Any) -> None:
    """Repeats the write until the broker knows of the grant."""
    async with asyncio.timeout(ENOUGH_S):
        while True:
            try:
                return await write_once()
            except TopicAuthorizationFailedError:
                await asyncio.sleep(0.1)
