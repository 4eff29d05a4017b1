"""A whole worker on real brokers: a position counts only for its own log, and no message is stranded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, produce
from app.dev.yard import Yard
from tests.system.conftest import make_stage

pytestmark = pytest.mark.system

GROUP = "billing"
ENOUGH_S = 150.0
AGGREGATE, REGIONAL = "east-aggregate", "east-regional"


@pytest.fixture(scope="module")
def stage(_shared_yard: Yard) -> Iterator[DemoStage]:
    with make_stage(_shared_yard) as made:
        yield made


@pytest.fixture(scope="module")
def worker(stage: DemoStage) -> Process:
    return stage.worker()


def some(count: int, prefix: str, behaviour: str = "ok") -> list[SentMessage]:
    return [SentMessage(f"{prefix}-{number:05}", behaviour) for number in range(count)]


class Case:
    """A topic, its receiver and its workload on the shared worker."""

    def __init__(self, stage: DemoStage, worker: Process, topic: str) -> None:
        self.stage, self.worker, self.topic = stage, worker, topic
        self.receiver = stage.receiver(GROUP, topic)
        self.url = f"{worker.url}/api/v1/workloads/{GROUP}/{topic}"

    def create(self, partitions: int = 1, cluster: str = AGGREGATE) -> None:
        asyncio.run(create_topic(self.stage.yard.bootstrap(cluster), self.topic, partitions))

    def send(self, sent: list[SentMessage], cluster: str = AGGREGATE) -> None:
        asyncio.run(produce(self.stage.yard.bootstrap(cluster), self.topic, sent))

    def deploy(self, cluster: str = AGGREGATE, **spec: Any) -> None:
        self.stage.deploy(self.worker, workload(GROUP, self.topic, cluster, self.receiver.address, **spec))

    def delete(self) -> None:
        assert http("DELETE", self.url)[0] == 200

    def wait_delivered(self, sent: list[SentMessage], outcome: str = "ok") -> None:
        """Waits until each of them was delivered with this outcome."""
        wanted = {message.id for message in sent}

        def missing() -> set[str]:
            return wanted - {d["id"] for d in self.stage.deliveries() if d["outcome"] == outcome}

        wait_until(lambda: not missing(), ENOUGH_S, lambda: f"{len(missing())} missing\n{self.worker.tail()}")

    def wait_state(self, *states: str) -> None:
        """Waits until each of its jobs is in one of these states."""

        def found() -> set[str]:
            return {partition["state"] for partition in http("GET", self.url)[1]["partitions"]}

        wait_until(
            lambda: found() and found() <= set(states), ENOUGH_S, lambda: f"{found()}\n{self.worker.tail()}"
        )

    def wait_lag_gone(self) -> None:
        def status() -> Any:
            return http("GET", self.url)[1]["status"]

        wait_until(
            lambda: status()["lag_messages"] == 0, ENOUGH_S, lambda: f"{status()}\n{self.worker.tail()}"
        )

    def incidents(self) -> list[str]:
        items = http("GET", f"{self.worker.url}/api/v1/incidents?limit=500")[1]["items"]
        return [item["message"] for item in items if self.topic in item["subject"]]

    def wait_incident(self, words: str) -> str:
        """Waits for an incident with these words; its message."""

        def found() -> list[str]:
            return [message for message in self.incidents() if words in message]

        wait_until(found, ENOUGH_S, lambda: f"{self.incidents()}\n{self.worker.tail()}")
        return found()[0]

    def admin(self, what: str, *arguments: Any) -> Any:
        """Runs a method of Kafka's admin client."""

        async def run() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.stage.yard.bootstrap(AGGREGATE))
            await admin.start()
            try:
                return await getattr(admin, what)(*arguments)
            finally:
                await admin.close()

        return asyncio.run(run())


@pytest.fixture
def case(stage: DemoStage, worker: Process, topic_name: str) -> Iterator[Case]:
    made = Case(stage, worker, topic_name)
    yield made
    http("DELETE", made.url)


def test_a_recreated_topic_loses_nothing_although_it_reaches_the_old_position(case: Case) -> None:
    case.create()
    first, second = some(100, f"{case.topic}-first"), some(300, f"{case.topic}-second")
    case.send(first)
    case.deploy()
    case.wait_delivered(first)
    case.wait_lag_gone()
    case.admin("delete_topics", [case.topic])
    # Its broker learns late that the topic is gone.
    wait_until(lambda: case.topic not in case.admin("list_topics"), ENOUGH_S, case.worker.tail)
    case.create()
    case.send(second)
    case.wait_delivered(second)
    reported = case.wait_incident("recreated")
    assert reported.count("topic id") == 2
    assert "unknown" not in reported


@pytest.mark.deep(minutes=0.4)
def test_a_workload_deployed_to_another_cluster_starts_at_its_beginning(case: Case) -> None:
    case.create()
    case.create(cluster=REGIONAL)
    here, there = some(300, f"{case.topic}-here"), some(500, f"{case.topic}-there")
    case.send(here)
    case.send(there, REGIONAL)
    case.deploy()
    case.wait_delivered(here)
    case.delete()
    case.deploy(REGIONAL)  # at once: its jobs may not even have been released
    case.wait_delivered(there)
    case.wait_incident("went to another cluster")


def test_messages_of_a_removed_retry_tier_are_delivered_and_its_jobs_end(case: Case) -> None:
    case.create()
    sent = some(20, f"{case.topic}-r", "retryable")
    case.send(sent)
    case.deploy(retry=[{"delay": "1h", "attempts": 3}])
    case.wait_delivered(sent, "retryable")
    wait_until(lambda: http("GET", case.url)[1]["status"]["retried"] >= 20, ENOUGH_S, case.worker.tail)
    case.receiver.kill()  # otherwise the tier is empty before a look
    case.deploy(retry=[])
    case.wait_incident(f"{case.topic}__{GROUP}__retry_1")
    case.receiver = case.stage.receiver(GROUP, case.topic, port=case.receiver.port)
    case.wait_delivered(sent)

    def jobs() -> list[str]:
        return [partition["topic"] for partition in http("GET", case.url)[1]["partitions"]]

    wait_until(lambda: jobs() == [case.topic], ENOUGH_S, lambda: str(jobs()))


@pytest.mark.deep(minutes=0.3)
def test_latest_skips_no_message_of_an_added_partition(case: Case) -> None:
    case.create()
    case.send(some(50, f"{case.topic}-before"))
    case.deploy(start="latest")
    case.wait_state("flowing")
    case.admin("create_partitions", {case.topic: NewPartitions(total_count=4)})
    sent = some(400, f"{case.topic}-after")
    case.send(sent)
    case.wait_delivered(sent)
    ids = {d["id"] for d in case.stage.deliveries()}
    assert not {message.id for message in some(50, f"{case.topic}-before")} & ids


def test_a_worker_with_invalid_interceptors_ends_with_3_and_the_reason(yard: Yard) -> None:
    with make_stage(yard) as other:
        other.settings["interceptors"] = ["no.such:thing", "app.controllog.topics:not_there"]
        process = other.worker(wait=False)
        assert process.popen.wait(ENOUGH_S) == 3, process.tail()
        reported = process.log.read_text()
        assert "no module no" in reported
        assert "app.controllog.topics has no not_there" in reported
