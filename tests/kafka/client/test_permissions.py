"""The permissions that Switchyard needs on secured brokers; a missing one is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from aiokafka.errors import ClusterAuthorizationFailedError

from app.audit.definition import AuditPlan
from app.controllog.events import Assignment, AuditPut
from app.controllog.topic_times import use_brokers_time
from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from app.dev.yard.security import ADMIN
from app.dispatch.topics import catalog as workloads_catalog
from app.failover.topology import Layout, Site
from app.kafka.append.producer import Producer
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_configs import alter, expand
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.producers.ids import new_producer
from app.replicate.destination import verification
from app.replicate.model.destination_topic import ANY_AGE, NEWEST
from app.replicate.topics import catalog as topics_catalog
from app.replicate.topics import targets
from app.worker.jobs import topic_inventory
from tests.kafka.acls import (
    ALTER,
    ALTER_CONFIGS,
    CREATE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    WRITE,
    Acls,
    spec_of,
)
from tests.kafka.conftest import ENOUGH_S, write
from tests.replicate.rig import Row, rows
from tests.replicate.topics.test_catalog import TwoClusters
from tests.web.runtime_fake import definition, put
from tests.worker.runtime.replica_manager import AWAY, HOME, ReplicaManagerRig, replica_manager_rig

USER, READER = "switchyard", "reader"  # the latter is never allowed to write anywhere
OPERATIONS = {
    READ: "Read", WRITE: "Write", CREATE: "Create", ALTER: "Alter", DESCRIBE: "Describe",
    DESCRIBE_CONFIGS: "DescribeConfigs", ALTER_CONFIGS: "AlterConfigs",
}  # fmt: skip


@dataclass
class Secured:
    """Two clusters whose administrator this is, and a topic that is on both."""

    yard: Yard
    topic: str
    clients: dict[str, ClusterClient]

    def acls(self, cluster: str) -> Acls:
        return Acls(self.clients[cluster])

    async def write(self, *values: str) -> None:
        options = self.clients[HOME].spec.aiokafka_options()
        await write(options.pop("bootstrap_servers"), self.topic, map(str.encode, values), **options)

    async def rows(self, cluster: str) -> list[Row]:
        return await rows(self.clients[cluster], self.topic)


@pytest.fixture
async def administered(secured: Yard, topic_name: str) -> AsyncIterator[Secured]:
    clients = {name: ClusterClient(spec_of(secured, name, ADMIN)) for name in (HOME, AWAY)}
    for client in clients.values():
        await client.start()
    yield Secured(secured, topic_name, clients)
    for client in clients.values():
        await client.stop()


@pytest.fixture
def source_user() -> str:
    """The job manager's user at the source."""
    return USER


@pytest.fixture
async def manager(administered: Secured, source_user: str) -> AsyncIterator[ReplicaManagerRig]:
    """A job manager that logs in as users who may do nothing with the topic yet."""
    yard, topic = administered.yard, administered.topic
    for client in administered.clients.values():
        await ensure_topics(client, [TopicSpec(topic, 1, 1)])
    specs = {HOME: spec_of(yard, HOME, source_user), AWAY: spec_of(yard, AWAY, USER)}
    layout = Layout("east", {HOME: Site("east", "regional"), AWAY: Site("east", "aggregate")}, HOME)
    async with replica_manager_rig(yard, topic, specs, layout) as made:
        yield made


def remedy_for(manager: ReplicaManagerRig, text: str) -> str | None:
    """The remedy of the first incident whose message has this text."""
    found = zip(manager.incidents, manager.remedies, strict=True)
    return next((remedy for (_, message), remedy in found if text in message), None)


@pytest.mark.parametrize("source_user", [READER])
async def test_read_permission_suffices_for_the_source_of_a_route(
    administered: Secured, manager: ReplicaManagerRig
) -> None:
    topic = administered.topic
    await administered.acls(HOME).allow(READER, TOPIC, topic, READ, DESCRIBE)
    await administered.acls(AWAY).allow(USER, TOPIC, topic, READ, WRITE, DESCRIBE)
    await administered.write("a", "b", "c")
    manager.put()
    manager.assign()
    await manager.copied(3)
    assert await administered.rows(AWAY) == await administered.rows(HOME)

    # Commits are only for people and their tools: a missing permission is reported, and copying continues.
    denied = f"User:{READER} lacks Read on group switchyard-r in {HOME}"
    await manager.until(lambda: remedy_for(manager, denied))
    assert "--group switchyard-r" in (remedy_for(manager, denied) or "")
    assert {kind for kind, _ in manager.incidents} == {"commit-refused"}
    assert manager.jobs.progress_saver.unanswered == {}, "the cluster answers, so the worker does not end"
    await administered.acls(HOME).allow(READER, GROUP, "switchyard-r", READ)
    pump = await manager.copied(3)
    await manager.until(lambda: not pump.troubles.words)


@pytest.mark.deep(minutes=0.4)
@pytest.mark.parametrize("source_user", [READER])
async def test_read_permission_suffices_for_an_audit(
    administered: Secured, manager: ReplicaManagerRig
) -> None:
    topic = administered.topic
    await administered.acls(HOME).allow(READER, TOPIC, topic, READ, DESCRIBE)
    await administered.write("a", "b", "c")
    plan = AuditPlan.model_validate({
        "apiVersion": "switchyard/v1", "kind": "AuditPlan", "metadata": {"name": "all"},
        "spec": {"topics": [topic], "clusters": [HOME]},
    })  # fmt: skip
    job = f"audit:all//{HOME}:{topic}:0"
    manager.log.apply(
        AuditPut(at_ms=1, key=plan.key, definition=plan.to_wire(), etag=plan.etag(), actor="test")
    )
    manager.log.apply(Assignment(at_ms=0, job=job, worker="me", epoch=1, term=1, reason=""))
    pumps = manager.jobs.kinds.audit.pumps
    await manager.until(lambda: job in pumps and pumps[job].status().fetched == 3)


@pytest.mark.parametrize(
    ("cluster", "operation"),
    [
        pytest.param(HOME, READ, id="source-read", marks=pytest.mark.deep(minutes=0.1)),
        pytest.param(AWAY, WRITE, id="destination-write"),
        pytest.param(AWAY, READ, id="destination-read", marks=pytest.mark.deep(minutes=0.1)),
    ],
)
async def test_withdrawn_permission_is_named_and_delivery_resumes_without_loss_once_granted(
    administered: Secured,
    manager: ReplicaManagerRig,
    monkeypatch: pytest.MonkeyPatch,
    cluster: str,
    operation: int,
) -> None:
    monkeypatch.setattr(verification, "UNREAD_S", 1.0)  # instead of a minute
    topic, acls = administered.topic, administered.acls(cluster)
    await administered.acls(HOME).allow(USER, TOPIC, topic, READ, DESCRIBE)
    await administered.acls(HOME).allow(USER, GROUP, "switchyard-r", READ)
    await administered.acls(AWAY).allow(USER, TOPIC, topic, READ, WRITE, DESCRIBE)
    await administered.write("a")
    manager.put(verify="all")
    manager.assign()
    await manager.copied(1)
    assert manager.incidents == []
    await acls.withdraw(USER, TOPIC, topic, operation)
    await administered.write("b", "c")
    denied = f"User:{USER} lacks {OPERATIONS[operation]} on topic {topic} in {cluster}"
    await manager.until(lambda: remedy_for(manager, denied))
    remedy = remedy_for(manager, denied) or ""
    assert f"--bootstrap-server {administered.yard.bootstrap(cluster)} --add" in remedy
    assert f"--operation {OPERATIONS[operation]}" in remedy
    assert f"--topic {topic}" in remedy

    await acls.allow(USER, TOPIC, topic, operation)
    await administered.write("d")
    await manager.copied(4)
    here = await administered.rows(HOME)
    assert await administered.rows(AWAY) == here
    assert len(here) == 4


@pytest.mark.deep(minutes=0.1)
@pytest.mark.parametrize(
    ("cluster", "operation", "incident_text"),
    [
        (HOME, READ, "lacks Describe on topic"),
        (AWAY, WRITE, "lacks Write on topic"),
        (AWAY, READ, "lacks Read on topic"),
    ],
    ids=["source-read", "destination-write", "destination-read"],
)
async def test_route_without_a_permission_names_it_and_begins_once_granted(
    administered: Secured,
    manager: ReplicaManagerRig,
    monkeypatch: pytest.MonkeyPatch,
    cluster: str,
    operation: int,
    incident_text: str,
) -> None:
    monkeypatch.setattr(verification, "UNREAD_S", 1.0)
    topic = administered.topic
    grants = {HOME: {READ}, AWAY: {READ, WRITE}}
    grants[cluster] -= {operation}
    # A principal that may write to any topic gets a producer id.
    await administered.acls(AWAY).allow(USER, TOPIC, f"{topic}.other", WRITE)
    for name, granted in grants.items():
        if granted:
            await administered.acls(name).allow(USER, TOPIC, topic, *granted)
    await administered.write("a", "b")
    manager.put(verify="all")
    manager.assign()
    await manager.until(lambda: remedy_for(manager, f"User:{USER} {incident_text}"))
    await administered.acls(cluster).allow(USER, TOPIC, topic, operation)
    await manager.copied(2)
    assert await administered.rows(AWAY) == await administered.rows(HOME)


async def test_each_permission_missing_for_a_destination_is_named_with_its_grant_command(
    administered: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_catalog, "REFRESH_INTERVAL_S", 0.0)
    monkeypatch.setattr(topic_inventory, "SETTINGS_INTERVAL_S", 0.0)
    monkeypatch.setattr(targets, "TOPIC_RETRY_INTERVAL_S", 0.5)
    yard = administered.yard
    specs = {"east": spec_of(yard, HOME, USER, "east"), "west": spec_of(yard, AWAY, USER, "west")}
    two = TwoClusters(yard, administered.topic, specs)
    orders, source = two.name("orders"), administered.clients[HOME]
    here, there = administered.acls(HOME), administered.acls(AWAY)

    async def lacks(operation: int, cluster: str = "west") -> None:
        """Runs the leader until it reports the missing permission, then grants it."""
        name, acls = OPERATIONS[operation], here if cluster == "east" else there
        incident_text = f"User:{USER} lacks {name} on topic {orders} in {cluster}"
        await two.rounds(
            lambda _: any(incident_text in message for _, _, message, _ in two.incidents), incident_text
        )
        (remedy,) = {remedy for _, _, message, remedy in two.incidents if incident_text in message}
        assert f"--operation {name}" in remedy
        assert f"--topic {orders}" in remedy
        await acls.allow(USER, TOPIC, orders, operation)

    try:
        await ensure_topics(source, [TopicSpec(orders, 1, 1)])
        await here.allow(USER, TOPIC, orders, READ)
        await two.deploy()
        await lacks(DESCRIBE_CONFIGS, "east")
        await lacks(DESCRIBE)
        await lacks(CREATE)
        await lacks(DESCRIBE_CONFIGS)
        await two.until({"mirror orders": {0}})
        assert await expand(source, {orders: 2}) == {}
        await lacks(ALTER)
        await two.until({"mirror orders": {0, 1}})
        assert await alter(source, {orders: {"retention.ms": "3600000"}}) == {}
        await lacks(ALTER_CONFIGS)

        async def followed() -> bool:
            return (await two.topic("west", orders))[1].get("retention.ms") == "3600000"

        while not await followed():
            await two.jobs()
    finally:
        await two.clusters.stop()


@pytest.mark.parametrize("smaller", ["block", None])
async def test_destination_without_alter_permission_is_copied_to_unless_the_route_says_block(
    administered: Secured, monkeypatch: pytest.MonkeyPatch, smaller: str | None
) -> None:
    """Like managed clusters, or Kafka 4 copied from Kafka 3, whose topics take records of the future."""
    monkeypatch.setattr(topics_catalog, "REFRESH_INTERVAL_S", 0.0)
    monkeypatch.setattr(topic_inventory, "SETTINGS_INTERVAL_S", 0.0)
    yard = administered.yard
    specs = {"east": spec_of(yard, HOME, USER, "east"), "west": spec_of(yard, AWAY, USER, "west")}
    two = TwoClusters(yard, administered.topic, specs)
    orders = two.name("orders")
    source = {"max.message.bytes": "2000000", NEWEST: ANY_AGE, "retention.ms": "3600000"}
    target = {"max.message.bytes": "3000", NEWEST: "3600000"}
    try:
        for cluster, config in ((HOME, source), (AWAY, target)):
            await ensure_topics(administered.clients[cluster], [TopicSpec(orders, 1, 1, config)])
        await administered.acls(HOME).allow(USER, TOPIC, orders, READ, DESCRIBE_CONFIGS)
        await administered.acls(AWAY).allow(USER, TOPIC, orders, READ, WRITE, DESCRIBE_CONFIGS)
        await two.deploy(**({"sync": {"onSmallerLimits": smaller}} if smaller else {}))
        kind = "route-blocked" if smaller else "route-topic"
        texts = {"max.message.bytes is 3000: larger", f"{NEWEST} is 3600000: records from the future"}

        def are_reported(jobs: dict[str, set[int]]) -> bool:
            messages = [message for reported_kind, _, message, _ in two.incidents if reported_kind == kind]
            return all(any(one in message for message in messages) for one in texts) and bool(jobs) == (
                smaller is None
            )

        await two.rounds(are_reported)
        assert await two.jobs() == ({} if smaller else {"mirror orders": {0}})
        assert any("lacks AlterConfigs on topic" in message for _, _, message, _ in two.incidents)
        if smaller:
            assert any("sync.onSmallerLimits: divide" in remedy for _, _, _, remedy in two.incidents)
            await two.deploy()
            await two.until({"mirror orders": {0}})
    finally:
        await two.clusters.stop()


async def test_each_permission_missing_for_a_workload_is_named_and_it_begins_once_all_are_granted(
    administered: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads_catalog, "REFRESH_INTERVAL_S", 0.0)
    two = TwoClusters(
        administered.yard, administered.topic, {"east": spec_of(administered.yard, HOME, READER, "east")}
    )
    orders, acls = two.name("orders"), administered.acls(HOME)
    key = f"billing/{orders}"
    job = f"dispatch:{key}:{orders}:0"

    async def remedy_for(permission: str) -> str:
        """Runs rounds of the leader until an incident names the missing permission; its remedy."""
        while not (
            found := [one[3] for one in two.incidents if f"User:{READER} lacks {permission}" in one[2]]
        ):
            assert job not in await two.catalog.jobs()
        return found[0]

    try:
        await ensure_topics(administered.clients[HOME], [TopicSpec(orders, 1, 1)])
        await two.append(put(definition("billing", orders)))
        assert "--operation Describe" in await remedy_for(f"Describe on topic {orders} in east")
        await acls.allow(READER, TOPIC, orders, READ)
        workload = two.catalog.workloads.workload(key)
        assert workload is not None
        assert "--operation Create" in await remedy_for("Create on topic")
        for topic in (*workload.retry_topics(), workload.dlq_topic()):
            await acls.allow(READER, TOPIC, topic, CREATE, DESCRIBE, DESCRIBE_CONFIGS)
        while job not in await two.catalog.jobs():
            pass
    finally:
        await two.clusters.stop()


async def test_principal_without_any_write_permission_learns_what_a_producer_needs(
    administered: Secured,
) -> None:
    spec = spec_of(administered.yard, HOME, READER)
    client, producer = ClusterClient(spec), Producer(spec)
    denied = f"User:{READER} lacks IdempotentWrite on cluster {HOME}"
    await client.start()
    try:
        with pytest.raises(ClusterAuthorizationFailedError, match=denied):
            await new_producer(client)
        with pytest.raises(ClusterAuthorizationFailedError, match=f"{denied}.*kafka-acls.sh .*--cluster"):
            await producer.start()
    finally:
        await client.stop()
        await producer.stop()


async def test_worker_without_alter_permission_on_control_topics_starts_and_names_the_grant(
    administered: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    topics, acls = ControlTopics(administered.topic), administered.acls(HOME)
    older = [TopicSpec(topic.name, topic.partitions, 1) for topic in topics.all()]
    await ensure_topics(administered.clients[HOME], older)
    client = ClusterClient(spec_of(administered.yard, HOME, USER))
    await client.start()
    try:
        for lacked, granted in (("DescribeConfigs", DESCRIBE_CONFIGS), ("AlterConfigs", ALTER_CONFIGS)):
            await use_brokers_time(client, topics)
            output = capsys.readouterr().out
            assert "control topics may keep their writers' timestamps" in output
            assert lacked in output
            assert "kafka-configs.sh" in output
            for topic in topics.all():
                await acls.allow(USER, TOPIC, topic.name, granted)

            async def is_granted(lacked: str = lacked) -> bool:
                await use_brokers_time(client, topics)
                return f"lacks {lacked}" not in capsys.readouterr().out

            async with asyncio.timeout(ENOUGH_S):  # brokers apply a grant a moment later
                while not await is_granted():  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.1)
        await use_brokers_time(client, topics)
        assert "control topics" not in capsys.readouterr().out
    finally:
        await client.stop()
