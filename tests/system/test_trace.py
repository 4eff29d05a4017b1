"""A trace of a workload on two workers, one of which is killed during the next trace."""

from __future__ import annotations

import asyncio
import threading
import time

import orjson
import pytest

from app.dev.demo.stage import DemoStage, http, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, produce
from tests.system.fleet import id_of, run_command, start_workers

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, SETTLE_S = "east-aggregate", "billing", 8, 60.0
COUNT = 400
STEPS = ("append to fetched", "fetched to ready", "ready to sent", "sent to answered", "append to answered")


def test_a_trace_counts_every_message_on_all_workers_and_says_which_worker_is_missing(
    stage: DemoStage, topic_name: str
) -> None:
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    receiver = stage.receiver(GROUP, topic_name)
    workers = start_workers(stage, 2)
    first, second = workers
    stage.deploy(first, workload(GROUP, topic_name, CLUSTER, receiver.address))
    name = f"{GROUP}/{topic_name}"

    def is_spread() -> bool:
        return sorted(first.jobs().values()) == [PARTITIONS // 2] * 2

    wait_until(is_spread, SETTLE_S, lambda: f"{first.jobs()} {first.tail()}")
    sent = [SentMessage(f"traced-{number}", "ok") for number in range(COUNT)]

    def delivered() -> set[str]:
        return {one["id"] for one in stage.deliveries() if one["outcome"] == "ok"}

    asyncio.run(produce(bootstrap, topic_name, [SentMessage("before", "ok")]))
    wait_until(lambda: "before" in delivered(), SETTLE_S, first.tail)
    producing = threading.Timer(2.0, lambda: asyncio.run(produce(bootstrap, topic_name, sent)))
    producing.start()
    ended = run_command(first, "trace", name, "--for", "8s", "--workers", "-o", "json")
    producing.join()
    assert ended.returncode == 0, ended.stderr
    found = orjson.loads(ended.stdout)
    wait_until(lambda: {one.id for one in sent} <= delivered(), SETTLE_S, first.tail)
    assert {one["stage"]: one["count"] for one in found["stages"]} | dict.fromkeys(STEPS, COUNT) == {
        one["stage"]: one["count"] for one in found["stages"]
    }
    ids = {id_of(worker, first) for worker in workers}
    assert {one["worker"]: one["partitions"] for one in found["workers"]} == dict.fromkeys(ids, 4)
    assert not found["problems"]

    table = run_command(first, "trace", name, "--for", "1s")
    assert table.returncode == 0, table.stderr
    assert "event loop late" in table.stdout

    url = f"{first.url}/api/v1/workloads/{name}/trace"
    for wrong in ("abc", "0", "61", "-1", "1.5"):
        status, problem = http("GET", f"{url}?seconds={wrong}")
        assert (status, "1 to 60" in problem["detail"]) == (400, True)
    with pytest.raises(TimeoutError):
        http("GET", f"{url}?seconds=60", timeout_s=1.0)  # the trace ends with the one who asked

    def is_free() -> bool:
        return http("GET", f"{url}?seconds=1")[1].get("problems") == []

    wait_until(is_free, 5.0, first.tail)

    killing = threading.Timer(1.0, second.kill)
    killing.start()
    producing = threading.Timer(1.5, lambda: asyncio.run(produce(bootstrap, topic_name, sent)))
    producing.start()
    began_s = time.monotonic()
    ended = run_command(first, "trace", name, "--for", "4s")
    assert time.monotonic() - began_s < 20
    producing.join()
    assert (ended.returncode, "append to answered" in ended.stdout) == (0, True), ended.stderr
    assert f"incomplete: {id_of(second, first)}" in ended.stderr
