"""A worker's event loop opens no file, runs no process and resolves no name; records of others in its topics
stop neither workers nor leadership.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from app.audit.definition import AuditPlan
from app.controllog import codec
from app.controllog.events import AnyControlEvent, AuditPut, Claim, compaction_key
from app.dev.demo.stage import DemoStage, Process, http, route, wait_until, workload
from app.dev.demo.traffic import create_topic
from app.dev.yard import Yard
from app.kernel.fencing import Takeover
from app.worker.tracker.client import tracker_partition
from tests.payload.schemas import file_of, set_of
from tests.system.as_worker import producing_as_worker
from tests.system.conftest import make_stage
from tests.system.fleet import assignments, incidents, start_workers
from tests.system.in_loop.sitecustomize import VARIABLE
from tests.system.test_audit import plan

pytestmark = pytest.mark.system

HOME, AWAY = "east-regional", "east-aggregate"
ENOUGH_S = 120.0
SOURCE = (
    'syntax = "proto3"; package acme; message Order { string id = 1; string behaviour = 2; int64 at = 3; }'
)
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "at", "type": "long"}]}


@pytest.fixture
def watched(killable_yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Iterator[DemoStage]:
    """A stage whose workers note blocking calls in their loops."""
    with make_stage(killable_yard) as stage:
        monkeypatch.setenv(VARIABLE, str(stage.home / "in-loop"))
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "in_loop"))
        yield stage


def schemas(stage: DemoStage) -> Path:
    """A folder beside switchyard.yaml with a schema of each kind."""
    folder = stage.home / "schemas"
    for part in ("registry", "avro"):
        (folder / part).mkdir(parents=True)
    (folder / "order.proto").write_text(SOURCE)
    (folder / "registry" / "1.proto").write_text(SOURCE)
    (folder / "registry" / "2.binpb").write_bytes(set_of(file_of("refund.proto", "Refund")))
    (folder / "avro" / "1.avsc").write_text(json.dumps(AVRO))
    os.mkfifo(folder / "fifo.binpb")
    return folder


def order(name: str) -> bytes:
    """An `acme.Order` that a JSON receiver takes."""
    return b"\x0a" + bytes([len(name)]) + name.encode() + b"\x12\x02ok\x18\x05"


async def _send(bootstrap: str, topic: str, values: list[bytes], at: int = 0) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=at)


class Region:
    """A stage with two workers, and jobs and payloads of all kinds."""

    def __init__(self, stage: DemoStage, topic: str) -> None:
        self.stage, self.topic = stage, topic
        self.home = stage.yard.bootstrap(HOME)
        self.folder = schemas(stage)
        asyncio.run(create_topic(self.home, topic, 2))
        self.workers = start_workers(stage)
        (stage.home / "in-loop").touch()
        self.receiver = stage.receiver("billing", topic)
        self.sent = 0

    def deploy_all(self) -> None:
        worker, topic = self.workers[0], self.topic
        delivery = {"deliver": "json", "message": "acme.Order"}
        for group, descriptor in (("billing", "order.proto"), ("others", str(self.folder / "registry"))):
            payload = {"protobuf": {"descriptor": descriptor, **delivery}}
            self.stage.deploy(worker, workload(group, topic, HOME, self.receiver.address, payload=payload))
        self.stage.deploy(worker, route("copy", HOME, AWAY, topic))
        field = {"field": "at", "format": "epoch-s"}
        for name, timestamp in {
            "proto": {"source": "protobuf", "descriptor": "order.proto", "message": "acme.Order", **field},
            "avro": {"source": "avro", "schema": "avro", "framing": "confluent", **field},
            "json": {"source": "json", **field},
        }.items():
            asyncio.run(create_topic(self.home, f"{topic}-{name}", 1))
            self.stage.deploy(worker, plan(name, f"{topic}-{name}", timestamp=timestamp))
            asyncio.run(_send(self.home, f"{topic}-{name}", [order(name), b"{}"]))
        self.stage.deploy(worker, plan("all", topic, tiers=["regional", "consumer"],
                                       timestamp={"source": "protobuf", "descriptor": "registry",
                                                  "message": "acme.Order", **field}))  # fmt: skip
        wait_until(lambda: len(assignments(worker)) >= 11, ENOUGH_S, lambda: str(assignments(worker)))

    def check_delivery(self) -> None:
        """Sends messages and waits until they have arrived."""
        names = {f"m{self.sent + n}" for n in range(10)}
        self.sent += 10
        for partition in (0, 1):
            asyncio.run(_send(self.home, self.topic, [order(f"{n}p{partition}") for n in sorted(names)],
                              at=partition))  # fmt: skip
        wanted = {f"{name}p{partition}" for name in names for partition in (0, 1)}

        def arrived() -> bool:
            found = {d["id"] for d in self.stage.deliveries() if d.get("id")}
            return wanted <= found

        wait_until(arrived, ENOUGH_S, lambda: "\n".join(w.tail() for w in self.workers))

    async def write(self, topic: str, value: bytes, key: str, partition: int = 0) -> None:
        """Writes a sealed record into a control topic, past every check of the API."""
        async with producing_as_worker(self.home, self.stage.region) as producer:
            name = f"switchyard-{self.stage.region}-{topic}"
            await producer.send_and_wait(name, value, key=key.encode(), partition=partition)

    def write_control_events(self, *events: AnyControlEvent) -> None:
        """Writes these events into the control log."""
        for event in events:
            asyncio.run(self.write("control", codec.encode(event), compaction_key(event)))


def plan_with_descriptor(name: str, topic: str, descriptor: str) -> dict[str, Any]:
    """A plan with this descriptor."""
    timestamp = {"source": "protobuf", "descriptor": descriptor, "message": "a.B", "field": "at"}
    return plan(name, topic, timestamp=timestamp)


def get_all_pages(worker: Process) -> None:
    """Requests every page of the API without parameters, and the console's."""
    document = http("GET", f"{worker.url}/api/v1/openapi.json")[1]
    for path, methods in document["paths"].items():
        if "get" in methods and "{" not in path and not path.endswith("/events"):
            http("GET", f"{worker.url}{path}")
    for page in ("/metrics", "/health/live", "/assets/dom.js", "/"):
        with contextlib.suppress(ValueError):  # no JSON
            http("GET", f"{worker.url}{page}")


def test_no_file_is_opened_no_process_run_and_no_name_resolved_in_a_workers_event_loop(
    watched: DemoStage, topic_name: str
) -> None:
    region = Region(watched, topic_name)
    region.deploy_all()
    region.check_delivery()
    for worker in region.workers:
        get_all_pages(worker)
    (region.folder / "registry" / "3.binpb").write_bytes(set_of(file_of("parcel.proto", "Parcel")))
    region.workers[1].kill()  # all of its jobs start at the other worker
    del region.workers[1]
    region.check_delivery()
    assert region.workers[0].terminate(60.0) == 0
    notes = (watched.home / "in-loop").read_text()
    assert not notes, notes


@pytest.mark.deep(minutes=0.3)
def test_a_device_or_fifo_named_as_a_schema_is_refused_and_does_not_block_a_worker(
    watched: DemoStage, topic_name: str
) -> None:
    region = Region(watched, topic_name)
    worker = region.workers[0]
    evil = {"ptmx": "/dev/ptmx", "fifo": "fifo.binpb"}
    for name, descriptor in evil.items():
        url = f"{worker.url}/api/v1/audit/plans/{name}"
        status, body = http("PUT", url, plan_with_descriptor(name, topic_name, descriptor))
        assert status == 422, body
        (problem,) = body["errors"]
        assert problem["field"] == "spec.timestamp.descriptor"
        assert descriptor in problem["message"]
        assert problem["remedy"]
    region.deploy_all()
    for name, descriptor in evil.items():
        asyncio.run(create_topic(region.home, f"{topic_name}-{name}", 1))
        put = AuditPlan.model_validate(plan_with_descriptor(name, f"{topic_name}-{name}", descriptor))
        region.write_control_events(AuditPut(
            at_ms=1, key=put.key, definition=put.to_wire(), etag=put.etag(), actor="evil",
            deployment=uuid.uuid4().hex,
        ))  # fmt: skip

    def incidents_reported() -> bool:
        found = [i["subject"] for i in incidents(worker, "job-cannot-start")]
        return all(any(f"{topic_name}-{name}" in subject for subject in found) for name in evil)

    wait_until(
        incidents_reported, ENOUGH_S, lambda: f"{incidents(worker, 'job-cannot-start')}\n{worker.tail()}"
    )
    region.check_delivery()
    assert all(worker.running for worker in region.workers)
    assert http("GET", f"{worker.url}/health/ready")[0] == 200


@pytest.mark.deep(minutes=0.3)
def test_forged_terms_and_epochs_end_neither_leadership_nor_a_job(
    watched: DemoStage, topic_name: str
) -> None:
    region = Region(watched, topic_name)
    region.deploy_all()
    region.check_delivery()
    highest = (1 << 63) - 1
    region.write_control_events(
        Claim(at_ms=1, term=highest, worker="evil"), Claim(at_ms=1, term=1 << 32, worker="evil")
    )
    for job in assignments(region.workers[0]):  # jobs of both workers: those of the killed one move
        forged = Takeover(job=job, epoch=highest, worker="evil", nonce="n", at_ms=1)
        asyncio.run(region.write("trackers", codec.encode(forged), job, tracker_partition(job)))
    wait_until(lambda: bool(incidents(region.workers[0], "term-refused")), ENOUGH_S, region.workers[0].tail)
    region.workers[1].kill()
    del region.workers[1]
    region.check_delivery()
    wait_until(lambda: bool(incidents(region.workers[0], "epoch-refused")), ENOUGH_S, region.workers[0].tail)
