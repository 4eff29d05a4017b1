"""Routes change while they run, with real workers: topics come and go, partitions are added, and other routes
copy on undisturbed.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from app.controllog.topics import ControlTopics
from app.dev.demo.stage import DemoStage, Process, http, route, wait_until
from app.dev.demo.traffic import create_topic
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topic_configs import expand
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.replicate.model.route import RENAME
from tests.kafka.second_broker import delete
from tests.system.fleet import id_of, incidents, known_workers, start_workers

pytestmark = pytest.mark.system

SOURCE, TARGET = "east-regional", "east-aggregate"
ENOUGH_S = 150.0
EXIT_PRECONDITION = 5


class RouteScenario:
    """A region's workers and their REST API."""

    def __init__(self, stage: DemoStage, prefix: str) -> None:
        self.stage, self.prefix = stage, prefix
        self.source, self.target = (stage.yard.bootstrap(cluster) for cluster in (SOURCE, TARGET))
        self.workers = start_workers(stage)

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def deploy(self, name: str, *topics: str) -> None:
        definition = route(name, SOURCE, TARGET, *topics, rename="{cluster}.{topic}")
        self.stage.deploy(self.workers[0], definition)

    def ask(self, method: str, path: str, worker: Process | None = None) -> Any:
        status, body = http(method, f"{(worker or self.workers[1]).url}/api/v1/routes/{path}")
        assert status == 200, body
        return body

    def flowing(self, name: str) -> dict[tuple[str, int], int]:
        """(topic, partition) -> epoch of the partitions that a route copies now."""
        status, answer = http("GET", f"{self.workers[1].url}/api/v1/routes/{name}")
        if status == 404:
            return {}  # deployed at the other worker, and not known here yet
        assert status == 200, answer
        return {
            (row["topic"].removeprefix(f"{self.prefix}."), row["partition"]): row["epoch"]
            for row in answer["partitions"]
            if row["state"] == "flowing"
        }

    def until_flowing(self, name: str, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        wait_until(
            lambda: self.flowing(name).keys() == set(wanted),
            ENOUGH_S,
            lambda: f"{self.flowing(name)} {self.ask('GET', f'{name}/topics')}",
        )
        return self.flowing(name)

    async def send(self, topic: str, partition: int, *values: str) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.source) as producer:
            for value in values:
                await producer.send_and_wait(self.topic(topic), value.encode(), partition=partition)

    async def copies(self, topic: str, partition: int, count: int) -> list[str]:
        """The first `count` records of a topic's copy."""
        found: list[str] = []
        async with AIOKafkaConsumer(
            bootstrap_servers=self.target, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            consumer.assign([TopicPartition(f"{SOURCE}.{self.topic(topic)}", partition)])
            async with asyncio.timeout(ENOUGH_S):
                while len(found) < count:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        found += [record.value.decode() for record in records]
        return found

    async def until_in_table(self, wanted: set[str]) -> None:
        """Waits until the `routes` table's changelog, read from its beginning, has exactly these names."""
        changelog = ControlTopics(self.stage.region).changelog("routes", 1).name
        found: set[str] = set()
        async with AIOKafkaConsumer(
            bootstrap_servers=self.source, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            consumer.assign([TopicPartition(changelog, 0)])
            async with asyncio.timeout(ENOUGH_S):
                while found != wanted:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        for record in records:
                            change = found.add if record.value else found.discard
                            change(record.key.decode())


async def test_a_route_follows_added_and_removed_topics_and_leaves_other_routes_undisturbed(
    stage: DemoStage, topic_name: str
) -> None:
    scenario = await asyncio.to_thread(RouteScenario, stage, topic_name)
    for topic, partitions in (("a.one", 2), ("b.one", 1)):
        await create_topic(scenario.source, scenario.topic(topic), partitions)
    scenario.deploy("first", f"{topic_name}\\.a\\..*")
    scenario.deploy("other", scenario.topic("b.one"))
    first = await asyncio.to_thread(scenario.until_flowing, "first", [("a.one", 0), ("a.one", 1)])
    other = await asyncio.to_thread(scenario.until_flowing, "other", [("b.one", 0)])
    await scenario.send("a.one", 1, "1", "2")
    assert await scenario.copies("a.one", 1, 2) == ["1", "2"]

    await create_topic(scenario.source, scenario.topic("a.two"), 1)  # a new topic that matches the expression
    client = ClusterClient(ClusterSpec(SOURCE, (scenario.source,)))
    await client.start()
    assert await expand(client, {scenario.topic("a.one"): 3}) == {}
    await client.stop()
    await scenario.send("a.two", 0, "x")
    wanted = [("a.one", 0), ("a.one", 1), ("a.one", 2), ("a.two", 0)]
    grown = await asyncio.to_thread(scenario.until_flowing, "first", wanted)
    assert {at: grown[at] for at in first} == first, "flowing partitions were neither moved nor restarted"
    await scenario.send("a.one", 2, "3")
    assert await scenario.copies("a.one", 2, 1) == ["3"]
    assert await scenario.copies("a.two", 0, 1) == ["x"]

    answer = await asyncio.to_thread(scenario.ask, "DELETE", f"first/topics/{scenario.topic('a.two')}")
    assert answer["done"] == f"{scenario.topic('a.two')}: added to exclude"
    await asyncio.to_thread(scenario.until_flowing, "first", wanted[:3])
    await scenario.send("a.two", 0, "y")
    await asyncio.to_thread(scenario.ask, "PUT", f"first/topics/{scenario.topic('a.two')}")
    await asyncio.to_thread(scenario.until_flowing, "first", wanted)
    assert await scenario.copies("a.two", 0, 2) == ["x", "y"], "it continues at its position"

    await scenario.until_in_table({"first", "other"})
    await asyncio.to_thread(scenario.ask, "DELETE", "first")
    assert (await asyncio.to_thread(scenario.flowing, "other")) == other, "other routes were not disturbed"
    await scenario.send("b.one", 0, "z")
    assert await scenario.copies("b.one", 0, 1) == ["z"]
    await scenario.until_in_table({"other"})


@pytest.mark.deep(minutes=0.6)
async def test_a_vanished_topic_is_reported_also_by_the_next_leader_until_an_operator_drops_it(
    stage: DemoStage, topic_name: str
) -> None:
    scenario = await asyncio.to_thread(RouteScenario, stage, topic_name)
    for topic in ("a.one", "a.two"):
        await create_topic(scenario.source, scenario.topic(topic), 1)
    scenario.deploy("first", f"{topic_name}\\.a\\..*")
    await asyncio.to_thread(scenario.until_flowing, "first", [("a.one", 0), ("a.two", 0)])
    client = ClusterClient(ClusterSpec(SOURCE, (scenario.source,)))
    await client.start()
    await delete(client, scenario.topic("a.two"))
    await client.stop()

    def series() -> list[str]:
        """Metrics of vanished topics, from all running workers."""
        live = [worker for worker in scenario.workers if worker.running]
        texts = [http("GET", f"{worker.url}/metrics")[1] for worker in live]
        return [
            line for text in texts for line in text.splitlines() if line.startswith("switchyard_topic_van")
        ]

    def is_shown() -> bool:
        return [f'topic="{scenario.topic("a.two")}"' in line for line in series()] == [True]

    await asyncio.to_thread(wait_until, is_shown, ENOUGH_S, lambda: f"{series()}")
    await asyncio.to_thread(scenario.until_flowing, "first", [("a.one", 0)])

    def vanished_incidents() -> list[dict[str, Any]]:
        return incidents(scenario.workers[1], "topic-vanished")

    await asyncio.to_thread(wait_until, vanished_incidents, ENOUGH_S, lambda: "no incident")
    (incident,) = vanished_incidents()
    assert incident["subject"] == "first"
    assert f"switchyard route drop-topic first {scenario.topic('a.two')}" in incident["remedy"]

    leader_id = next(one["worker"] for one in known_workers(scenario.workers[0]) if one["leader"])
    leader = next(worker for worker in scenario.workers if id_of(worker) == leader_id)
    await asyncio.to_thread(leader.kill)
    await asyncio.to_thread(wait_until, is_shown, ENOUGH_S, lambda: f"{series()}")
    (survivor,) = (worker for worker in scenario.workers if worker is not leader)
    http("DELETE", f"{survivor.url}/api/v1/routes/first/topics/{scenario.topic('a.two')}")
    await asyncio.to_thread(wait_until, lambda: not series(), ENOUGH_S, lambda: f"{series()}")
    assert len(incidents(survivor, "topic-returned")) == 0

    def has_ended() -> bool:
        # The leader that was killed wrote no end, and the new leader has written one.
        found = incidents(survivor, "topic-vanished")
        ends = {(one["worker"], one["open"], one["ended_ms"] is None, one["ended_why"]) for one in found}
        return ends == {
            (leader_id, False, True, "its worker is gone"), (id_of(survivor), False, False, "")
        }  # fmt: skip

    await asyncio.to_thread(
        wait_until, has_ended, ENOUGH_S, lambda: f"{incidents(survivor, 'topic-vanished')}"
    )
    still_open = http("GET", f"{survivor.url}/api/v1/incidents?open=true")[1]["items"]
    assert "topic-vanished" not in {one["kind"] for one in still_open}


def test_a_plan_the_activity_and_the_description_show_the_changes_of_destination_topics(
    stage: DemoStage, topic_name: str, tmp_path: Path
) -> None:
    source, target = stage.yard.bootstrap(SOURCE), stage.yard.bootstrap(TARGET)

    async def prepare() -> None:
        await create_topic(source, topic_name, 2)
        client = ClusterClient(ClusterSpec(TARGET, (target,)))
        await client.start()
        await ensure_topics(client, [TopicSpec(topic_name, 1, config={"cleanup.policy": "compact"})])
        await client.stop()
        async with AIOKafkaProducer(bootstrap_servers=target) as producer:
            await producer.send_and_wait(topic_name, b"theirs", key=b"k")

    asyncio.run(prepare())
    worker, file = stage.worker(), tmp_path / "route.yaml"
    file.write_text(json.dumps(route("mirror", SOURCE, TARGET, topic_name)))
    planned = config_command(worker, file, "plan", "-o", "json")
    topics = [row for row in json.loads(planned.stdout) if row["workload"].startswith("topic ")]
    assert topics == [
        {"action": "grow", "workload": f"topic {topic_name} in {TARGET}", "field": "partitions", "old": "1",
         "new": "2"},
    ]  # fmt: skip
    kept = "it has records, and Switchyard did not see it empty, so cleanup.policy stays compact"
    assert f"warning: route mirror: topic {topic_name} in {TARGET}: {kept}" in planned.stderr
    assert "write sync.adopt: true" in planned.stderr
    done = config_command(worker, file, "deploy", "--execute", "--yes")
    assert done.returncode == 0, done.stderr

    def changes() -> list[Any]:
        _, answer = http("GET", f"{worker.url}/api/v1/activity?limit=1000")
        return [one["changes"] for one in answer["items"] if one["event"] == "destination-topic"]

    wait_until(lambda: changes() == [[["partitions", "1", "2"]]], ENOUGH_S, lambda: f"{changes()}")

    def why() -> str:
        _, answer = http("GET", f"{worker.url}/api/v1/routes/mirror/topics")
        return "".join(row["why"] for row in answer["items"])

    wait_until(lambda: "sync.adopt: true" in why(), ENOUGH_S, why)


@pytest.mark.deep(minutes=0.3)
def test_a_route_is_refused_when_its_copy_collides_with_an_existing_topic_name(
    stage: DemoStage, topic_name: str, tmp_path: Path
) -> None:
    existing, colliding = f"{topic_name}.pay_eu", f"{topic_name}.pay.eu"
    asyncio.run(create_topic(stage.yard.bootstrap(TARGET), existing, 1))
    asyncio.run(create_topic(stage.yard.bootstrap(SOURCE), colliding, 1))
    worker, file = stage.worker(), tmp_path / "route.yaml"
    url = f"{worker.url}/api/v1/routes/pays"
    for entry in (colliding, f"{topic_name}\\..*"):
        definition = route("pays", SOURCE, TARGET, entry)
        file.write_text(json.dumps(definition))
        for dry_run in ("?dry_run=true", ""):
            status, body = http("PUT", url + dry_run, definition)
            assert (status, body["title"]) == (409, "Topic name refused"), body
            assert f"collides with existing topic: {existing}" in body["detail"]
            assert body["detail"].endswith(f"; {RENAME}")
        for command in (("plan",), ("deploy", "--execute", "--yes")):
            refused = config_command(worker, file, *command)
            assert refused.returncode == EXIT_PRECONDITION, refused.stdout
            assert colliding in refused.stderr
            assert existing in refused.stderr
    renamed = route("pays", SOURCE, TARGET, colliding, rename={"names": {colliding: f"{topic_name}.other"}})
    file.write_text(json.dumps(renamed))
    done = config_command(worker, file, "deploy", "--execute", "--yes")
    assert done.returncode == 0, done.stderr


def config_command(
    worker: Process, file: Path, command: str, *flags: str
) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.argv[0] = 'switchyard'; from app.cli.main import main; main()"
    arguments = [sys.executable, "-c", code, "config", command, "-f", str(file), *flags]
    env = {**os.environ, "SWITCHYARD_URL": worker.url, "NO_COLOR": "1"}
    return subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=ENOUGH_S, check=False)
