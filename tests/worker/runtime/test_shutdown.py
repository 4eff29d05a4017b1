"""A worker stops in bounded time whatever has become of its control cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import uvloop

from app.controllog.events import WorkloadPut
from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topic_tail import TAIL_STOP_TIMEOUT_S
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.main import SwitchyardApp
from app.worker.runtime import service as module
from app.worker.runtime.cgroups import sample_container
from app.worker.runtime.container_watch import ContainerWatch
from app.worker.runtime.meter import Meter
from app.worker.runtime.options import WorkerOptions
from app.worker.runtime.service import Runtime
from tests.web.runtime_fake import definition, put

pytestmark = pytest.mark.system

GRACE_S = 1.0
PRODUCERS_AND_TAILS = 8
# The sum of all steps' timeouts: the worker ends within it even if each of them hangs.
BOUND_S = (
    2 * module.GOODBYE_TIMEOUT_S
    + (2 * GRACE_S + 5)
    + 10.0
    + 2 * TAIL_STOP_TIMEOUT_S
    + PRODUCERS_AND_TAILS * TAIL_STOP_TIMEOUT_S
)


async def a_runtime(spec: ClusterSpec) -> Runtime:
    """A worker's runtime with control topics of its own."""
    topics = ControlTopics(f"r{uuid.uuid4().hex[:8]}")
    client = ClusterClient(spec)
    await client.start()
    await ensure_topics(client, [TopicSpec(t.name, t.partitions, config=t.config) for t in topics.all()])
    await client.stop()

    async def nowhere(_: Any) -> None: ...

    options = WorkerOptions(
        name="w", url="http://h:1", topics=topics, control_cluster="east", clusters={"east": spec},
        memory_budget_bytes=1 << 20, grace_s=GRACE_S, directory=Path("unused"), schemas=Path("schemas"),
    )  # fmt: skip
    return Runtime(options, nowhere, Meter(None, None, None, ContainerWatch(sample_container())))


async def until(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.deep(minutes=0.4)
async def test_each_step_of_a_stop_has_a_timeout_while_the_control_cluster_is_unreachable(
    killable_yard: Yard, topic_name: str
) -> None:
    name = "east-regional"
    spec = ClusterSpec("east", (killable_yard.bootstrap(name),))
    runtime = await a_runtime(spec)
    await runtime.start()
    # It leads, and its job stays in takeover, because no worker writes the tracker table here.
    await ensure_topics(runtime._control_client, [TopicSpec(topic_name, 1)])
    event: WorkloadPut = put(definition("billing", topic_name))
    await runtime.control.append(event)
    await until(runtime.jobs.statuses)
    await asyncio.to_thread(killable_yard.pause, name)  # worse than dead: every connection hangs
    try:
        async with asyncio.timeout(BOUND_S):
            await runtime.stop()
    finally:
        await asyncio.to_thread(killable_yard.resume, name)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
async def test_a_rebalance_that_finds_the_consumers_thread_ended_at_the_stop_is_no_crash(
    new_loop: Any,
) -> None:
    closed = new_loop()
    closed.close()
    with pytest.raises(RuntimeError) as raised:
        closed.call_soon_threadsafe(print)
    for is_stopping, reason, crashes in (
        (True, raised.value, False),
        (True, RuntimeError("another one"), True),
        (False, raised.value, True),
    ):
        app = SwitchyardApp(
            "stopping", broker="aiokafka://127.0.0.1:1", store="memory://", autodiscover=False
        )
        if is_stopping:
            app._stopped.set()
        await app.crash(reason)
        assert (app.crash_reason is reason) == crashes


@pytest.mark.parametrize(("args", "code"), [("0.1, 0", 0), ("0.1", 1)])
def test_a_process_that_hangs_at_its_end_says_by_its_code_whether_all_was_handed_over(
    args: str, code: int
) -> None:
    ends = f"from app.main import _end_after; _end_after({args}); import time; time.sleep(600)"
    ended = subprocess.run(
        [sys.executable, "-c", ends], capture_output=True, text=True, timeout=150, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert "ending the process" in ended.stderr
