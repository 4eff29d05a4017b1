"""The jobs that there should be, on a real cluster: no waiting message is without a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from app.controllog.events import AnyControlEvent, StartRecorded, WorkloadDeleted
from app.controllog.state import ControlState
from app.dispatch.definition import Workload
from app.dispatch.topics import catalog as module
from app.dispatch.topics import leftovers, settings
from app.dispatch.topics.settings import (
    COPY_HEADERS_BYTES,
    COPY_MAX_BYTES,
    RETRY_RETENTION_MS,
    refused_topics,
    safe_replication,
    topics_of,
)
from app.kafka.client import topics
from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.topic_configs import alter, expand
from app.kafka.client.topics import INVALID_NAME, TopicSpec, ensure_topics
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import ByteBudget
from app.placement.model.plan import HIBERNATED
from app.worker.catalog import Catalog
from app.worker.readable_definitions import ReadableDefinitions
from tests.web.runtime_fake import Alone, assigned, definition, put

DAY_MS = 24 * 3_600_000
ENOUGH_S = 120.0  # ends a test that would hang; nothing is measured with it


class Region:
    """A fake control log, a real data cluster, and the leader's catalog of them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.view = ControlState()
        self.options: dict[str, Any] = {"bootstrap_servers": bootstrap}
        self.reported: list[str] = []
        self.clusters = DataClusters(
            {"east": ClusterSpec("east", (bootstrap,))}, self._nowhere, ByteBudget(1 << 20)
        )
        self.restart()

    async def _nowhere(self, _: Any) -> None: ...

    def restart(self) -> None:
        """Replaces the leader by one that has no state yet."""
        log: Any = SimpleNamespace(view=self.view, worker="", append=self.append)
        definitions = ReadableDefinitions(log, self._report)
        self.catalog = Catalog(log, self.clusters, self._report, definitions, Alone())

    def _report(self, *trouble: str) -> None:
        self.reported.append(trouble[2])

    async def append(self, *events: AnyControlEvent) -> int:
        for event in events:
            self.view.apply(event)
        return 0

    async def deploy(self, **spec: Any) -> None:
        await self.append(put(definition("billing", self.topic, **spec)))

    async def jobs(self) -> dict[str, set[int]]:
        """The partitions of the jobs, by topic."""
        found: dict[str, set[int]] = {}
        for name in await self.catalog.jobs():
            _, _, topic, partition = name.split(":")
            found.setdefault(topic, set()).add(int(partition))
        return found

    async def client(self) -> Any:
        return (await self.clusters.get("east")).client

    async def make(self, topic: str, partitions: int, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        await ensure_topics(await self.client(), [TopicSpec(topic, partitions, config=settings)])

    async def delete(self, topic: str) -> None:
        admin = AIOKafkaAdminClient(**self.options)
        await admin.start()
        await admin.delete_topics([topic])
        await admin.close()
        client = await self.client()
        await until(lambda: client.partitions(topic), None)

    async def send(self, topic: str, partition: int = 0, count: int = 3) -> None:
        producer = AIOKafkaProducer(**self.options)
        await producer.start()
        for _ in range(count):
            await producer.send_and_wait(topic, b"m", partition=partition)
        await producer.stop()

    async def commit(self, topic: str, partition: int, offset: int) -> None:
        cluster = await self.clusters.get("east")
        assert await cluster.committer.commit("billing", {(topic, partition): offset}) == {}

    async def settings(self, topic: str) -> dict[str, str]:
        admin = AIOKafkaAdminClient(**self.options)
        await admin.start()
        try:
            answers: Any = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        finally:
            await admin.close()
        return {entry[0]: entry[1] for answer in answers for found in answer.resources for entry in found[4]}

    async def setting(self, topic: str, name: str) -> str:
        return (await self.settings(topic))[name]


async def until(look: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    """Asks until it finds this: a broker learns a little later what the controller has changed."""
    async with asyncio.timeout(ENOUGH_S):
        while await look() != wanted:  # noqa: ASYNC110 - brokers change it
            await asyncio.sleep(0.05)


@pytest.fixture
async def region(bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Region]:
    monkeypatch.setattr(module, "REFRESH_INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "REFRESH_TIMEOUT_S", 30.0)
    monkeypatch.setattr(leftovers, "LEFTOVER_LINGER_S", 0.0)
    made = Region(bootstrap, topic_name)
    await made.make(topic_name, 2)
    yield made
    await made.clusters.stop()


async def test_a_removed_retry_tier_is_pumped_until_it_is_empty(region: Region) -> None:
    tier = f"{region.topic}__billing__retry_1"
    await region.deploy(retry=[{"delay": "1s"}])
    assert await region.jobs() == {region.topic: {0, 1}, tier: {0, 1}}
    await region.send(tier, partition=1)
    await region.deploy(retry=[])
    assert await region.jobs() == {region.topic: {0, 1}, tier: {1}}
    assert [reported for reported in region.reported if "no longer defined" in reported] == region.reported
    assert len(region.reported) == 1
    await region.commit(tier, 1, 2)
    assert tier in await region.jobs()
    await region.commit(tier, 1, 3)
    assert await region.jobs() == {region.topic: {0, 1}}
    await region.send(tier, partition=1)  # a copy that was still in flight
    assert (await region.jobs())[tier] == {1}


async def test_a_new_leader_keeps_jobs_of_a_removed_tier_until_it_has_read_it(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = f"{region.topic}__billing__retry_4"
    await region.deploy()
    held = assigned(f"dispatch:billing/{region.topic}:{tier}:0")
    await region.append(held)
    monkeypatch.setattr(module, "REFRESH_TIMEOUT_S", 0.0)
    assert tier in await region.jobs()


async def test_the_topic_of_another_workload_is_no_removed_tier(region: Region) -> None:
    other = f"{region.topic}__billing__retry_2"
    await region.make(other, 1)
    await region.send(other)
    await region.deploy()
    assert (await region.jobs())[other] == {0}
    await region.append(put(definition("another", other)))
    jobs = await region.catalog.jobs()
    assert {job for job in jobs if f":{other}:" in job} >= {f"dispatch:another/{other}:{other}:0"}
    assert f"dispatch:billing/{region.topic}:{other}:0" not in await region.catalog.jobs()


@pytest.mark.parametrize("name", ["merge_topic", "delayed_topic"])
async def test_merged_and_delayed_messages_have_jobs_while_any_wait(region: Region, name: str) -> None:
    await region.deploy()
    assert await region.jobs() == {region.topic: {0, 1}}
    workload = region.catalog.workloads.workload(f"billing/{region.topic}")
    assert workload is not None
    merged = getattr(workload, name)()
    await region.make(merged, 2)
    assert await region.jobs() == {region.topic: {0, 1}}
    await region.send(merged, partition=1)
    assert await region.jobs() == {region.topic: {0, 1}, merged: {1}}
    assert region.reported == []
    await region.commit(merged, 1, 3)
    assert await region.jobs() == {region.topic: {0, 1}}


async def test_where_latest_begins_is_recorded_once_a_deployment_before_any_job_is_placed(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"billing/{region.topic}"
    await region.send(region.topic, 1, count=4)
    await region.deploy(start="latest")
    monkeypatch.setattr(module, "REFRESH_TIMEOUT_S", 0.0)
    assert region.topic not in await region.jobs()
    monkeypatch.setattr(module, "REFRESH_TIMEOUT_S", 30.0)
    while region.topic not in (found := await region.jobs()):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.05)
    assert found[region.topic] == {0, 1}
    assert [start.ends for start in region.view.start_parts_of(key)] == [[0, 4]]
    # A changed definition, another leader, more messages and more partitions do not change the start.
    await region.send(region.topic, 1, count=4)
    admin = AIOKafkaAdminClient(**region.options)
    await admin.start()
    await admin.create_partitions({region.topic: NewPartitions(total_count=4)})
    await admin.close()
    await region.deploy(start="latest", delay="1s")
    region.restart()
    while len((await region.jobs())[region.topic]) < 4:
        pass
    start = region.view.start_of(key)
    assert isinstance(start, StartRecorded)
    assert start.ends == [0, 4]
    assert start.topic_id == (await (await region.client()).topic_ids([region.topic]))[region.topic]
    # After a deletion, a deployment records a new start.
    await region.append(WorkloadDeleted(at_ms=0, key=key, actor="me"))
    await region.jobs()
    await region.deploy(start="latest")
    await region.jobs()
    assert [start.ends for start in region.view.start_parts_of(key)] == [[0, 8, 0, 0]]
    assert region.reported == []


async def test_retry_topics_keep_messages_for_twice_the_longest_delay_and_existing_ones_are_raised(
    region: Region,
) -> None:
    first, second = (f"{region.topic}__billing__retry_{n}" for n in (1, 2))
    await region.make(first, 1, retention_ms=str(DAY_MS), segment_ms="3600000")
    await region.make(second, 1, retention_ms="-1")
    await region.deploy(retry=[{"delay": "1h"}, {"delay": "30d"}])
    await region.jobs()
    await until(lambda: region.setting(first, "retention.ms"), str(60 * DAY_MS))
    found = await region.settings(first)
    assert int(found["max.message.bytes"]) == COPY_MAX_BYTES
    assert found["segment.ms"] == "3600000"
    assert await region.setting(second, "retention.ms") == "-1"
    assert region.reported == []
    made = await region.settings(f"{region.topic}__billing__dlq")
    assert (int(made["max.message.bytes"]), made["min.insync.replicas"]) == (COPY_MAX_BYTES, "1")


async def test_retry_topics_and_the_dlq_grow_with_the_topic_up_to_their_most(region: Region) -> None:
    first, dlq = f"{region.topic}__billing__retry_1", f"{region.topic}__billing__dlq"
    await region.deploy(retry=[{"delay": "1s"}])
    assert (await region.jobs())[first] == {0, 1}
    client = await region.client()
    for partitions, wanted in ((5, 5), (12, 8)):
        await expand(client, {region.topic: partitions})
        await until(region.jobs, {region.topic: {*range(partitions)}, first: {*range(wanted)}})
        await until(lambda: client.partitions(dlq), wanted)
    assert region.reported == []


async def test_a_topic_recreated_with_fewer_partitions_loses_the_other_jobs(
    region: Region,
) -> None:
    client = await region.client()
    await expand(client, {region.topic: 4})
    await region.deploy()
    await until(region.jobs, {region.topic: {0, 1, 2, 3}})
    for partition in range(4):
        await region.append(assigned(f"dispatch:billing/{region.topic}:{region.topic}:{partition}"))
    await region.delete(region.topic)
    assert await region.jobs() == {region.topic: {0, 1, 2, 3}}  # it may come back: nothing is forgotten
    await region.make(region.topic, 2)
    await until(region.jobs, {region.topic: {0, 1}})


async def test_a_lagging_broker_removes_no_jobs(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    await region.deploy()
    assert await region.jobs() == {region.topic: {0, 1}}
    actual = module._sizes

    async def fewer(*arguments: Any) -> dict[str, int]:
        return dict.fromkeys(await actual(*arguments), 1)

    monkeypatch.setattr(module, "_sizes", fewer)
    assert await region.jobs() == {region.topic: {0, 1}}


async def test_retention_is_at_least_a_week_and_three_replicas_need_two_in_sync(
    region: Region,
) -> None:
    await region.deploy(retry=[{"delay": "1s"}])
    workload = region.catalog.workloads.workload(f"billing/{region.topic}")
    assert workload is not None
    for brokers, replication, in_sync in ((1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (9, 3, "2")):
        assert safe_replication(brokers) == (replication, {"min.insync.replicas": in_sync})
        retry = topics_of(workload, 100, brokers)[0]
        assert (retry.replication, retry.partitions) == (replication, 8)
        assert retry.config["min.insync.replicas"] == in_sync
        assert retry.config["cleanup.policy"] == "delete"
        assert int(retry.config["retention.ms"]) == RETRY_RETENTION_MS


async def test_a_sleeping_workload_wakes_when_letters_are_merged_back(region: Region) -> None:
    await region.deploy(hibernate={"after": "1m"})
    await region.jobs()
    asleep = region.catalog.workloads.hibernation.asleep
    assert set(asleep) == {f"billing/{region.topic}"}
    merged = f"{region.topic}__billing__merge"
    await region.make(merged, 1)
    await region.send(merged)
    assert (await region.jobs())[merged] == {0}
    assert asleep == {}


async def test_a_new_leader_wakes_no_workload_that_it_has_not_read(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_TIMEOUT_S", 0.0)
    await region.deploy(hibernate={"after": "1m"})
    asleep, homeless = (
        assigned(f"dispatch:billing/{region.topic}:{region.topic}:{number}", "", reason=reason)
        for number, reason in enumerate((f"{HIBERNATED}nothing arrived", "its worker stopped"))
    )
    await region.append(asleep, homeless)
    assert await region.catalog.jobs() == {homeless.job}


async def test_an_unanswering_cluster_delays_no_jobs_of_other_clusters(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        region.clusters.specs = {**region.clusters.specs, "west": ClusterSpec("west", (f"127.0.0.1:{port}",))}
        for group in ("one", "other"):
            there = definition(group, region.topic)
            await region.append(put(there | {"metadata": {**there["metadata"], "cluster": "west"}}))
        monkeypatch.setattr(module, "REFRESH_TIMEOUT_S", 0.01)
        assert await region.jobs() == {}
        monkeypatch.setattr(module, "REFRESH_TIMEOUT_S", 3600.0)
        await region.deploy()
        async with asyncio.timeout(120):
            assert await region.jobs() == {region.topic: {0, 1}}
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


async def test_a_topic_that_the_cluster_refuses_is_reported_with_its_error_until_it_exists(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CREATE_AGAIN_S", 0.0)
    key, tier = f"pay_eu/{region.topic}", f"{region.topic}__pay_eu__retry_1"
    dlq, other = f"{region.topic}__pay_eu__dlq", f"{region.topic}__pay.eu__dlq"
    await region.make(other, 1)
    workload = Workload.model_validate(definition("pay_eu", region.topic, retry=[{"delay": "1s"}]))
    client = await region.client()
    (refused,) = await refused_topics(client, workload)
    assert (refused.code, await client.partitions(tier)) == (INVALID_NAME, None)
    await region.append(put(workload.to_wire()))
    jobs = {region.topic: {0, 1}, tier: {0, 1}}
    assert await region.jobs() == await region.jobs() == jobs, (
        "they flow, and all topics that can be created are"
    )
    (reported,) = region.reported
    assert reported == str(refused)
    assert reported.startswith(f"cluster east does not create topic {dlq}: ")
    assert reported.endswith(f"collides with existing topic: {other} (InvalidTopicError, error 17)")
    assert region.catalog.workloads.troubles()[key].startswith(
        f"{reported}; choose another name; the leader tries again every"
    )
    await region.delete(other)
    await until(region.jobs, jobs)
    assert await client.partitions(dlq) == 2
    assert (len(region.reported), region.catalog.workloads.troubles()) == (1, {})


async def test_a_refused_setting_is_reported_with_the_clusters_error(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "safe_replication", lambda _: (5, {}))  # there is one broker
    monkeypatch.setattr(topics, "VISIBLE_TRIES", 2)
    await region.deploy()
    assert await region.jobs() == {region.topic: {0, 1}}
    (reported,) = region.reported
    assert "does not create topic" in reported
    assert "InvalidReplicationFactorError, error 38" in reported
    assert "cannot be read" not in reported


async def test_a_deleted_retry_topic_or_dlq_is_created_again(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CREATE_AGAIN_S", 0.0)
    tier, dlq = f"{region.topic}__billing__retry_1", f"{region.topic}__billing__dlq"
    await region.deploy(retry=[{"delay": "1s"}])
    jobs = await region.jobs()
    for topic in (tier, dlq):
        await region.delete(topic)
        await until(region.jobs, jobs)
        assert await (await region.client()).partitions(topic) == 2
        assert int((await region.settings(topic))["max.message.bytes"]) == COPY_MAX_BYTES
    assert (region.reported, region.catalog.workloads.troubles()) == ([], {})


async def test_foreign_settings_of_its_topics_are_reported_with_the_needed_ones_and_kept(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_AGAIN_S", 0.0)
    tier, dlq, merged, delayed = (
        f"{region.topic}__billing__{name}" for name in ("retry_1", "dlq", "merge", "delayed")
    )
    bad = {"max_message_bytes": "1000", "retention_ms": "1000", "cleanup_policy": "compact,delete"}
    await region.make(dlq, 2, **bad)
    await region.make(tier, 2, **bad)
    await region.make(merged, 2, cleanup_policy="compact")
    await region.make(delayed, 2, max_message_bytes="1000")
    await region.deploy(retry=[{"delay": "1s"}])
    assert (await region.jobs())[tier] == {0, 1}, "its jobs run"
    await region.jobs()

    compacted = (
        "cleanup.policy is {}, but must be delete (otherwise a record replaces earlier records of its key)"
    )
    small = "max.message.bytes is {}, but must be {} or more (otherwise larger records do not fit)"
    short = f"retention.ms is 1000, but must be {7 * DAY_MS} or more (otherwise waiting records expire)"
    enough = 1_048_588 + COPY_HEADERS_BYTES  # the topic's limit, and headers
    tiny = small.format(1000, enough)
    assert region.reported == [  # once each
        f"topic {delayed} in east: {tiny}",
        f"topic {dlq} in east: {compacted.format('compact,delete')}, {tiny}, {short}",
        f"topic {merged} in east: {compacted.format('compact')}, {small.format(1048588, enough)}",
        f"topic {tier} in east: {compacted.format('compact,delete')}",  # the catalog has raised its limits
    ]
    command = (
        f"kafka-configs.sh --bootstrap-server {region.options['bootstrap_servers']} --alter --topic {delayed}"
    )
    assert region.catalog.workloads.troubles()[f"billing/{region.topic}"] == (
        f"{region.reported[0]}; alter it: {command} --add-config max.message.bytes={enough}; "
        "incidents topic-settings name 3 more of its topics"
    )
    found = await region.settings(dlq)
    assert {name: found[name.replace("_", ".")] for name in bad} == bad, "a foreign topic keeps its settings"
    await until(lambda: region.setting(tier, "max.message.bytes"), str(COPY_MAX_BYTES))

    good = {"cleanup.policy": "delete", "max.message.bytes": str(COPY_MAX_BYTES), "retention.ms": "-1"}
    assert await alter(await region.client(), dict.fromkeys((tier, dlq, merged, delayed), good)) == {}

    async def troubles() -> dict[str, str]:
        await region.jobs()
        return region.catalog.workloads.troubles()

    await until(troubles, {})
    assert len(region.reported) == 4


@pytest.mark.parametrize("key", ["bad key:0", "", "billing/another", "billing/" + "x" * 600])
async def test_a_workload_under_an_invalid_key_affects_only_itself_and_is_reported(
    region: Region, key: str
) -> None:
    await region.append(msgspec.structs.replace(put(definition("billing", region.topic)), key=key))
    await region.append(put(definition("other", region.topic)))
    assert await region.jobs() == {region.topic: {0, 1}}
    (reported,) = region.reported
    assert "the definition under" in reported


async def test_jobs_of_a_definition_that_cannot_be_read_stay(region: Region) -> None:
    job = f"dispatch:billing/{region.topic}:{region.topic}:0"
    newer = put(definition("billing", region.topic))
    newer.definition["spec"]["ordering"] = "by-a-newer-version"
    await region.append(newer, assigned(job))
    assert await region.catalog.jobs() == await region.catalog.jobs() == {job}
    (reported,) = region.reported
    assert "cannot be read" in reported
    assert reported in region.catalog.workloads.troubles()[newer.key]
    await region.append(put(definition("billing", region.topic, flow={"max_inflight": 7})))
    await region.catalog.jobs()
    assert not region.catalog.workloads.troubles()
