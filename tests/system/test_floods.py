"""A batch of very many tiny records on a control topic, which any producer may send: deliveries continue."""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache

import pytest

from app.controllog import codec
from app.controllog.codec import Heartbeat
from app.controllog.topics import ControlTopic, ControlTopics
from app.dev.demo.stage import DemoStage, Process, http, wait_until
from app.dev.demo.traffic import messages
from app.kernel.clock import now_ms
from tests.kafka.conftest import connected
from tests.kafka.odd_batches import append, batch, record
from tests.kafka.records.batches import CODECS
from tests.system.as_worker import producing_as_worker
from tests.system.fleet import assignments, incidents, known_workers, start_workers
from tests.system.test_delivery import SETTLE_S, DeliveryScenario
from tests.system.test_refused_batches import wait_more_deliveries
from tests.system.test_seals import control_of, wait_sealed

pytestmark = pytest.mark.system

PER_SECOND = 40
MOST_STOP_S = 2.0  # of a loop, in CPU time: 5 s before readers took turns
FEW, MANY = 200_000, 1_000_000  # records; the larger batch has 800 kB
BEHIND = "behind-the-flood"


@lru_cache
def flood(count: int) -> bytes:
    """`count` tiny records in one batch; they have keys because a compacted topic refuses records without."""
    return bytes(batch([record(at, b"x", key=b"k") for at in range(count)], CODECS["gzip"]))


async def send(bootstrap: str, topics: list[ControlTopic], data: bytes) -> None:
    """Appends `data` to the first partition of each topic."""
    async with connected(bootstrap) as client:
        for topic in topics:
            answer = await append(client, topic.name, 0, bytearray(data))
            assert answer.code == 0, (topic.name, answer)


async def send_sealed(stage: DemoStage, topic: ControlTopic, value: bytes) -> None:
    """Sends a record with a worker's seal."""
    async with producing_as_worker(control_of(stage), stage.region) as producer:
        await producer.send_and_wait(topic.name, value, partition=0)


def longest_stop_s(worker: Process) -> float:
    """The longest time for which the worker's loop stood still in the last minute."""
    metrics = http("GET", f"{worker.url}/metrics")[1]
    (found,) = re.findall(r"^switchyard_loop_longest_stop_seconds\{.*\} (\S+)$", metrics, re.MULTILINE)
    return float(found)


def knows_later_worker(worker: Process) -> bool:
    """Whether the worker has read the heartbeat behind the flood."""
    return any(one["worker"] == BEHIND for one in known_workers(worker))


def test_no_worker_loses_its_jobs_to_a_million_tiny_records_on_the_heartbeat_topic(
    stage: DemoStage, topic_name: str
) -> None:
    scenario = DeliveryScenario(stage, topic_name, 0)
    workers = start_workers(stage, 2)
    stage.deploy(workers[0], scenario.definition())
    heartbeats = ControlTopics(stage.region).heartbeats
    with scenario.load(messages(10_000_000), PER_SECOND):
        wait_more_deliveries(stage)
        before = assignments(workers[0])
        wait_sealed(workers)
        asyncio.run(send(control_of(stage), [heartbeats], flood(MANY)))
        behind = Heartbeat(
            worker=BEHIND, at_ms=now_ms(), started_ms=now_ms(), url="", state="stopped", term=0
        )
        asyncio.run(send_sealed(stage, heartbeats, codec.encode(behind)))
        for worker in workers:
            stops_s: list[float] = []  # each sample covers the last minute only

            def knows_and_samples(worker: Process = worker, stops_s: list[float] = stops_s) -> bool:
                stops_s.append(longest_stop_s(worker))
                return knows_later_worker(worker)

            wait_until(knows_and_samples, SETTLE_S, worker.tail, 0.5)
            assert max(stops_s) < MOST_STOP_S
        wait_more_deliveries(stage)
        assert assignments(workers[0]) == before
    assert scenario.settle().lost == ()
    for worker in workers:
        assert worker.running
    (incident,) = [one for one in incidents(workers[0], "unsealed") if one["subject"] == heartbeats.name]
    assert "records without a worker's seal do not count" in incident["message"]


@pytest.mark.deep(minutes=1.5)
def test_deliveries_continue_and_workers_start_while_all_control_topics_are_flooded(
    stage: DemoStage, topic_name: str
) -> None:
    scenario, later = DeliveryScenario(stage, topic_name, 0), f"{topic_name}-later"
    workers = start_workers(stage, 2)
    stage.deploy(workers[0], scenario.definition())
    with scenario.load(messages(10_000_000), PER_SECOND):
        wait_more_deliveries(stage)
        asyncio.run(send(control_of(stage), ControlTopics(stage.region).all(), flood(FEW)))
        wait_more_deliveries(stage)
        workers.append(stage.worker())
        second = DeliveryScenario(stage, later, 200)
        stage.deploy(workers[2], {**second.definition()})
        second.produce()
        wait_more_deliveries(stage)
    for scene in (scenario, second):
        assert scene.settle().lost == ()
    assert all(worker.running for worker in workers)
