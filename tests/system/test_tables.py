"""The tables of the control log that people and Spark read, from their changelogs."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import orjson
import pytest

from app.controllog import codec
from app.controllog.events import WorkloadPut, compaction_key
from app.dev.demo.stage import DemoStage, wait_until, workload
from app.dev.demo.traffic import read_all
from tests.system.as_worker import producing_as_worker
from tests.system.fleet import control_log

pytestmark = pytest.mark.system

ENOUGH_S = 150.0


def test_definitions_that_the_control_log_refused_are_in_no_table(stage: DemoStage, topic_name: str) -> None:
    control = stage.yard.bootstrap("east-regional")
    app = f"switchyard-{stage.region}"
    worker = stage.worker()
    stage.deploy(worker, workload("g", topic_name, "east-aggregate", "127.0.0.1:1"))
    (accepted,) = [event for _, event in control_log(stage) if isinstance(event, WorkloadPut)]
    wrong = [msgspec.structs.replace(accepted, etag=f"wrong{n}", expected="another") for n in range(2)]

    async def append() -> int:
        async with producing_as_worker(control, stage.region) as producer:
            sent = [
                await producer.send_and_wait(
                    f"{app}-control", codec.encode(event), key=compaction_key(event).encode(), partition=0
                )
                for event in wrong
            ]
            return int(sent[-1].offset)

    last = asyncio.run(append())

    def activity() -> dict[int, dict[str, Any]]:
        records = asyncio.run(read_all(control, f"{app}-activity-changelog"))
        return {entry["offset"]: entry for entry in (orjson.loads(record.value) for record in records)}

    wait_until(lambda: last in activity(), ENOUGH_S, worker.tail, 0.5)
    puts = [(one["etag"], one["counted"]) for one in activity().values() if one["event"] == "workload-put"]
    assert {etag for etag, counted in puts if counted} == {accepted.etag}
    assert {etag for etag, counted in puts if not counted} >= {one.etag for one in wrong}
    records = asyncio.run(read_all(control, f"{app}-workloads-changelog"))
    assert {codec.control_event(record.value).etag for record in records} == {accepted.etag}  # type: ignore[union-attr]
