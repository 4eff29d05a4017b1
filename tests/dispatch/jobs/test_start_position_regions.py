"""A job's start position when another region's progress is further. The cluster is a fake, because its topic
changes between two requests."""

from __future__ import annotations

from typing import Any

import pytest

from app.controllog.events import StartRecorded
from app.dispatch.definition import Workload
from app.dispatch.jobs.start_position import find_start_position
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.job import JobId, Kind
from app.kernel.ranges import Snapshot
from app.offsets.sync.remote_progress import ImportedProgress
from app.worker.jobs.start_position import StartPosition

HERE = LogId("west-id", "t")
START = 3  # of the log
JOB = JobId(Kind.DISPATCH, "billing/orders", "orders", 0)


class FakeCluster:
    """A cluster with one topic and no committed offsets: client, committer and fetch service in one."""

    name = "west"

    def __init__(self) -> None:
        self.client = self.committer = self.fetch = self

    async def cluster_id(self) -> str:
        return HERE.cluster_id

    async def topic_ids(self, topics: list[str]) -> dict[str, str]:
        return dict.fromkeys(topics, HERE.topic_id)

    async def committed(self, _group: str, _wanted: object) -> dict[tuple[str, int], int | None]:
        return {}

    async def offsets_at(self, _topic: str, _partition: int, _at: int) -> int:
        return START


async def begin(carried: ImportedProgress, base: int | None = None) -> StartPosition:
    """The start position of a workload with `start: latest` that was deployed when the log ended at 8."""
    workload = Workload.from_wire({
        "apiVersion": "switchyard/v1", "kind": "Workload",
        "metadata": {"group": "billing", "topic": "orders", "cluster": "west"},
        "spec": {"target": {"address": "h:1"}, "start": "latest"},
    })  # fmt: skip
    answer = TakeoverAnswer(
        job=str(JOB), epoch=1, worker="w", nonce="n", granted=True, known_epoch=1,
        snapshot=b"" if base is None else Snapshot(base).to_bytes(), log=HERE,
    )  # fmt: skip
    recorded = StartRecorded(at_ms=0, key=workload.key, ends=[8], topic_id=HERE.topic_id)
    cluster: Any = FakeCluster()
    return await find_start_position(
        JOB,
        workload,
        cluster,
        answer,
        recorded=recorded,
        reset=None,
        report_incident=lambda *_: None,
        carried=carried,
    )


@pytest.mark.parametrize("log", [HERE, LogId("west-id"), LogId()])
async def test_progress_of_other_regions_counts_unless_it_is_of_another_log(log: LogId) -> None:
    carried = ImportedProgress(70, was_read=True, log=log)
    assert (await begin(carried)).snapshot == Snapshot(70)
    assert (await begin(carried, 9)).snapshot == Snapshot(70)


@pytest.mark.parametrize("log", [LogId("west-id", "before"), LogId("another", "t")])
async def test_progress_of_other_regions_does_not_count_for_a_topic_recreated_since(
    log: LogId,
) -> None:
    carried = ImportedProgress(70, was_read=True, log=log)
    assert (await begin(carried)).snapshot == Snapshot(START), "and no unread message is passed over"
    assert (await begin(carried, 9)).snapshot == Snapshot(9)
