"""Records on control topics without a seal of the region's workers do not count."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer

from app.controllog import codec
from app.controllog.codec import Heartbeat
from app.controllog.events import Claim, WorkloadDeleted, WorkloadPut, compaction_key
from app.controllog.topics import CHECKPOINT_PARTITIONS, TRACKER_PARTITIONS, ControlTopics
from app.dev.demo.background_thread import Background
from app.dev.demo.stage import DemoStage, Process, wait_until
from app.dev.demo.traffic import create_topic, read_all
from app.kernel.clock import now_ms
from app.kernel.fencing import SnapshotItem, Snapshots, Takeover, TrackerRecord
from app.kernel.ranges import Snapshot
from app.kernel.seals import HEADER
from app.worker.tracker.client import tracker_partition
from tests.system.as_worker import seals_of
from tests.system.fleet import OwnerByJob, assignments, id_of, incidents, start_workers
from tests.system.test_delivery import SETTLE_S, DeliveryScenario

pytestmark = pytest.mark.system

MESSAGES, PARTITIONS, LATENCY_MS = 2_000, 4, 500
ALL_OF_IT = Snapshot(MESSAGES)  # finished, and more
HIGH = 1_000  # an epoch, or term, that no worker has had


class Forged(NamedTuple):
    """A record: topic, partition, key, value."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None


def control_of(stage: DemoStage) -> str:
    return stage.yard.bootstrap(f"{stage.yard.clusters[0].region}-regional")


def wait_sealed(workers: Iterable[Process]) -> None:
    """Waits until all of them require seals."""
    for worker in workers:
        wait_until(partial(has_seals, worker), SETTLE_S, worker.tail)


def has_seals(worker: Process, region: str = "") -> bool:
    """Whether the worker has logged that the control topics of this region, or of any, are sealed."""
    lines = worker.log.read_text().splitlines()
    return any("control topics are sealed" in line and region in line for line in lines)


def forged_job_records(topics: ControlTopics, owner_by_job: OwnerByJob) -> Iterator[Forged]:
    """Records that all messages are finished, and that another worker has the jobs."""
    changelog = topics.changelog("trackers", TRACKER_PARTITIONS).name
    for job, (worker, epoch) in owner_by_job.items():
        at, key = tracker_partition(job), job.encode()
        done = [SnapshotItem(job, epoch, ALL_OF_IT.to_bytes())]
        snapshots = Snapshots(worker=worker, at_ms=now_ms(), items=done)
        yield Forged(topics.trackers.name, at, worker.encode(), codec.encode(snapshots))
        later = Takeover(job=job, epoch=epoch + HIGH, worker="evil", nonce="n", at_ms=now_ms())
        yield Forged(topics.trackers.name, at, key, codec.encode(later))
        record = TrackerRecord(
            epoch=epoch, worker=worker, base=MESSAGES, snapshot=ALL_OF_IT.to_bytes(), at_ms=now_ms()
        )
        yield Forged(changelog, at, key, codec.encode(record))


def forged_region_records(
    topics: ControlTopics, owner_by_job: OwnerByJob, put: WorkloadPut
) -> Iterator[Forged]:
    """Records that the workload is deleted, that another worker leads, and that all workers have stopped."""
    name, key = topics.control.name, compaction_key(put).encode()
    deleted = WorkloadDeleted(at_ms=now_ms(), key=put.key, actor="evil")
    yield Forged(name, 0, key, codec.encode(deleted))
    yield Forged(name, 0, key, None)
    claim = Claim(at_ms=now_ms(), term=HIGH, worker="evil")
    yield Forged(name, 0, compaction_key(claim).encode(), codec.encode(claim))
    for worker in {worker for worker, _ in owner_by_job.values()}:
        beat = Heartbeat(worker=worker, at_ms=now_ms(), started_ms=0, url="", state="stopped", term=0)
        yield Forged(topics.heartbeats.name, 0, worker.encode(), codec.encode(beat))
    for topic in topics.sealed:
        yield Forged(topic.name, 0, b"evil", b"{}")
    yield Forged(topics.changelog("checkpoints", CHECKPOINT_PARTITIONS).name, 1, b"evil", b"{}")


async def forge(bootstrap: str, records: Iterable[Forged]) -> None:
    """Writes the records, every other one with an invalid seal."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number, one in enumerate(records):
            headers = [(HEADER, secrets.token_bytes(32))] if number % 2 else []
            await producer.send_and_wait(
                one.topic, one.value, key=one.key, partition=one.partition, headers=headers
            )


def last_record(stage: DemoStage, key: str) -> Any:
    """The last record of the control log with this key, which compaction keeps."""
    records = asyncio.run(read_all(control_of(stage), ControlTopics(stage.region).control.name))
    return [record for record in records if record.key == key.encode()][-1]


def test_unsealed_records_in_control_topics_lose_no_message_and_delete_no_workload(
    stage: DemoStage, topic_name: str
) -> None:
    scenario, topics = (
        DeliveryScenario(stage, topic_name, MESSAGES, PARTITIONS, LATENCY_MS),
        ControlTopics(stage.region),
    )
    workers, bootstrap = start_workers(stage, 2), control_of(stage)
    stage.deploy(workers[0], scenario.definition())
    put = WorkloadPut(at_ms=0, key=f"billing/{topic_name}", definition={}, etag="", actor="")
    wait_sealed(workers)
    owner_by_job, last = assignments(workers[0]), compaction_key(put)
    asyncio.run(forge(bootstrap, forged_region_records(topics, owner_by_job, put)))

    def unsealed_topics() -> set[str]:
        return {one["subject"] for one in incidents(workers[0], "unsealed")}

    def wait_reported(names: set[str]) -> None:
        wait_until(
            lambda: names <= unsealed_topics(),
            SETTLE_S,
            lambda: f"{names - unsealed_topics()}\n{workers[0].tail()}",
            0.5,
        )

    wait_reported({topics.control.name, topics.heartbeats.name})
    scenario.produce()
    scenario.wait_delivered_share(0.1)
    owner_by_job = assignments(workers[0])
    assert owner_by_job, "forged goodbyes must not count"
    asyncio.run(forge(bootstrap, forged_job_records(topics, owner_by_job)))
    for worker in workers:
        worker.kill()
    assert len(stage.deliveries()) < MESSAGES
    workers = start_workers(stage, 2)
    assert scenario.settle().lost == ()
    owners = {worker for worker, _ in assignments(workers[0]).values()}
    assert owners, "the first to start may own all jobs, but some worker does"
    assert owners <= {id_of(one) for one in workers}
    wait_reported({topic.name for topic in topics.sealed} - {topics.answers.name, topics.heartbeats.name})

    def is_repaired() -> bool:
        record = last_record(stage, last)
        is_put = isinstance(codec.control_event(record.value), WorkloadPut)
        return is_put and seals.is_sealed(topics.control.name, record)

    seals = asyncio.run(seals_of(bootstrap, stage.region))
    wait_until(is_repaired, SETTLE_S, workers[0].tail, 0.5)


class Forger(Background):
    """Writes heartbeats of a worker on another host, twice a second, into a region that has no seals yet."""

    def __init__(self, stage: DemoStage) -> None:
        super().__init__()
        self.bootstrap, self.topic = control_of(stage), ControlTopics(stage.region).heartbeats.name

    def work(self) -> None:
        asyncio.run(self._forge())

    async def _forge(self) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            while not self.ended.is_set():
                beat = Heartbeat(
                    worker="evil", at_ms=now_ms(), started_ms=0, url="http://10.9.9.9:1", state="running",
                    term=0, place="elsewhere",
                )  # fmt: skip
                await producer.send_and_wait(self.topic, codec.encode(beat), key=b"evil", partition=0)
                await asyncio.sleep(0.5)


def test_forged_heartbeats_of_another_host_keep_no_worker_from_starting(stage: DemoStage) -> None:
    """Regression: workers with a loopback address ended for as long as somebody wrote such heartbeats."""
    asyncio.run(create_topic(control_of(stage), ControlTopics(stage.region).heartbeats.name, 1))
    with Forger(stage):
        worker = stage.worker()
        wait_until(lambda: incidents(worker, "loopback-address"), SETTLE_S, worker.tail, 0.5)
        assert "evil on another host cannot reach" in incidents(worker, "loopback-address")[0]["message"]
        assert worker.running
