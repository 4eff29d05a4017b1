"""A deployment takes over a group that other consumers use only when it says so."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import create_topic
from tests.kafka import java_consumers

pytestmark = pytest.mark.system

CLUSTER = "east-aggregate"
ENOUGH_S = 60.0
EXIT_PRECONDITION = 5


@contextmanager
def consuming(bootstrap: str, topic: str, group: str) -> Iterator[None]:
    """A consumer outside Switchyard is a member of the group."""
    joined, ends = threading.Event(), threading.Event()

    async def consume() -> None:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, client_id="legacy")
        await consumer.start()
        try:
            while not consumer.assignment():  # noqa: ASYNC110 - the coordinator gives it
                await asyncio.sleep(0.05)
            joined.set()
            while not ends.is_set():
                await consumer.getmany(timeout_ms=200)
        finally:
            await consumer.stop()

    thread = threading.Thread(target=lambda: asyncio.run(consume()))
    thread.start()
    try:
        assert joined.wait(ENOUGH_S)
        yield
    finally:
        ends.set()
        thread.join()


def deploy(worker: Process, file: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "switchyard"), "config", "deploy", "-f", str(file), *flags]
    env = {**os.environ, "SWITCHYARD_URL": worker.url, "NO_COLOR": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=ENOUGH_S, check=False)


@pytest.mark.deep(minutes=0.3)
def test_a_new_workload_is_refused_for_a_group_with_other_members_unless_it_takes_over(
    stage: DemoStage, topic_name: str, tmp_path: Path
) -> None:
    bootstrap, group = stage.yard.bootstrap(CLUSTER), f"legacy-{topic_name}"
    asyncio.run(create_topic(bootstrap, topic_name, 2))
    worker = stage.worker()
    definition = workload(group, topic_name, CLUSTER, "127.0.0.1:9")
    file = tmp_path / "legacy.yaml"
    file.write_text(json.dumps(definition))
    url = f"{worker.url}/api/v1/workloads/{group}/{topic_name}"
    with consuming(bootstrap, topic_name, group):
        status, body = http("PUT", url, definition)
        assert status == 409
        assert group in body["detail"]
        assert "legacy" in body["detail"]
        assert "take_over=true" in body["detail"]
        refused = deploy(worker, file, "--execute", "--yes")
        assert refused.returncode == EXIT_PRECONDITION
        assert "--take-over" in refused.stderr
        assert http("GET", url)[0] == 404, "nothing was deployed"
        taken = deploy(worker, file, "--take-over", "--execute", "--yes")
        assert taken.returncode == 0, taken.stderr
        changed = {**definition, "spec": {**definition["spec"], "delay": "1s"}}
        assert http("PUT", url, changed)[0] == 200, "an existing workload can be changed as before"
    assert http("DELETE", url)[0] == 200
    wait_until(lambda: http("PUT", url, definition)[0] == 201, ENOUGH_S, lambda: str(http("GET", url)), 1.0)


@pytest.mark.deep(minutes=0.3)
def test_a_new_workload_is_refused_for_groups_of_kip_848_and_share_groups_as_well(
    stage: DemoStage, topic_name: str
) -> None:
    """Kafka recommends KIP-848 since 4.0; other clients cannot commit the positions of a share group."""
    bootstrap, worker = stage.yard.bootstrap(CLUSTER), stage.worker()
    asyncio.run(create_topic(bootstrap, topic_name, 2))

    def answer(group: str, query: str = "") -> tuple[int, str]:
        definition = workload(group, topic_name, CLUSTER, "127.0.0.1:9")
        status, body = http("PUT", f"{worker.url}/api/v1/workloads/{group}/{topic_name}{query}", definition)
        return status, body.get("detail", "")

    newer, share = f"newer-{topic_name}", f"share-{topic_name}"
    members = java_consumers.consuming(bootstrap, topic_name, newer, "legacy")
    with members, java_consumers.consuming(bootstrap, topic_name, share, shares=True):
        dry = "?dry_run=true"
        wait_until(lambda: answer(newer, dry)[0] == 409, ENOUGH_S, lambda: str(answer(newer, dry)), 1.0)
        assert "has 1 member (legacy), and they are not Switchyard's" in answer(newer)[1]
        wait_until(lambda: answer(share, dry)[0] == 409, ENOUGH_S, lambda: str(answer(share, dry)), 1.0)
        assert "is a share group (KIP-932)" in answer(share)[1]
        assert answer(newer, "?take_over=true")[0] == 201
