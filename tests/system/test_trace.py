"""A trace of a workload on two workers, one of which is killed during the next trace."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Iterator

import orjson
import pytest

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, produce
from tests.system.fleet import id_of, run_command, start_command, start_workers

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, SETTLE_S = "east-aggregate", "billing", 8, 60.0
COUNT = 400
BEGINS_S = 1.0  # from when a command says that it traces, until the workers do
STEPS = ("append to fetched", "fetched to ready", "ready to sent", "sent to answered", "append to answered")


@contextlib.contextmanager
def tracing(worker: Process, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A trace that has begun."""
    with start_command(worker, "trace", *arguments) as command:
        try:
            assert command.stderr is not None
            assert "tracing for" in command.stderr.readline()
            time.sleep(BEGINS_S)
            yield command
        finally:
            command.kill()


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
    with tracing(first, name, "--for", "8s", "--workers", "-o", "json") as trace:
        asyncio.run(produce(bootstrap, topic_name, sent))
        stdout, stderr = trace.communicate(timeout=SETTLE_S)
    assert trace.returncode == 0, stderr
    found = orjson.loads(stdout)
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

    began_s = time.monotonic()
    with tracing(first, name, "--for", "4s") as trace:
        second.kill()
        while trace.poll() is None:
            asyncio.run(produce(bootstrap, topic_name, sent[:40]))
        stdout, stderr = trace.communicate()
    assert time.monotonic() - began_s < 30
    assert (trace.returncode, "append to answered" in stdout) == (0, True), stderr
    assert f"incomplete: {id_of(second, first)}" in stderr
