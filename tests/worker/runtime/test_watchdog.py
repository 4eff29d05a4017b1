"""A worker whose commits stand still ends, unless it is the cluster that is away."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from app.kafka.client.cluster import ClusterSpec
from app.kernel.lease import Lease
from app.kernel.tracker import Tracker
from app.kernel.troubles import Troubles
from app.worker.runtime import progress_saver as module
from app.worker.runtime.progress_saver import ProgressSaver
from app.worker.runtime.watchdog import EXIT_STALLED, Watchdog, answers

ENOUGH_S = 150.0


class Clusters:
    """One cluster, whose committer raises the given error or refuses the given partitions."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.refused: dict[tuple[str, int], str] = {}
        self.commits = 0
        self.committer = self

    async def get(self, _: str) -> Any:
        return self

    async def commit(self, _group: str, _offsets: Any, _beside: Any) -> dict[tuple[str, int], str]:
        self.commits += 1
        if self.error is not None:
            raise self.error
        return self.refused


def a_pump(base: int = 5) -> Any:
    workload = SimpleNamespace(metadata=SimpleNamespace(cluster="east", group="g"))
    tracker = Tracker(base, 10)
    return SimpleNamespace(
        job=SimpleNamespace(topic="t", partition=0), tracker=tracker, closed=False, troubles=Troubles(),
        base=base, version=tracker.version, snapshot=tracker.snapshot, snapshot_version=tracker.version,
        runtime=SimpleNamespace(workload=workload), commits_to=("east", "g"), note=b"", may_save_seldom=False,
    )  # fmt: skip


def made(clusters: Clusters) -> ProgressSaver:
    lease = Lease(1e9)
    lease.renewed(time.monotonic())
    fake: Any = clusters
    none: Any = None
    return ProgressSaver({"j": a_pump()}, fake, none, lease, lambda *_: None)


def watching(checkpoints: ProgressSaver, *, reachable: bool = True, idle: bool = False) -> Watchdog:
    async def reported(_cluster: str, _group: str) -> bool:
        return reachable

    return Watchdog(checkpoints, lambda: idle, reported, lambda: None, stall_s=60.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_INTERVAL_S", 0.01)


async def commits(checkpoints: ProgressSaver, clusters: Clusters) -> None:
    """Lets it commit a few times."""
    wanted = clusters.commits + 3
    await checkpoints.start()
    async with asyncio.timeout(ENOUGH_S):
        while clusters.commits < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("quick")
async def test_a_worker_whose_commits_all_fail_ends_when_its_cluster_answers_a_new_connection() -> None:
    clusters = Clusters()
    clusters.error = OSError("nothing comes through")
    checkpoints = made(clusters)
    await commits(checkpoints, clusters)
    later_s = time.monotonic() + 50.0
    assert await watching(checkpoints).stalled(later_s) == ""
    since_s, group = checkpoints.unanswered["east"]
    assert group == "g"
    checkpoints.round_at_s = since_s + 61.0  # rounds do end: it is the cluster that answers none
    assert "east answers" in await watching(checkpoints).stalled(since_s + 61.0)
    assert await watching(checkpoints, reachable=False).stalled(since_s + 61.0) == ""
    assert await watching(checkpoints, idle=True).stalled(since_s + 61.0) == ""
    await checkpoints.stop()


@pytest.mark.usefixtures("quick")
async def test_an_accepted_or_refused_commit_ends_the_wait() -> None:
    clusters = Clusters()
    clusters.error = OSError("nothing comes through")
    checkpoints = made(clusters)
    await commits(checkpoints, clusters)
    assert checkpoints.unanswered
    clusters.error, clusters.refused = None, {("t", 0): "the group has members of an ordinary consumer"}
    async with asyncio.timeout(ENOUGH_S):
        while checkpoints.unanswered:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await checkpoints.stop()


async def test_a_worker_ends_when_no_round_of_commits_ends() -> None:
    checkpoints = made(Clusters())
    assert "no round" in await watching(checkpoints).stalled(checkpoints.round_at_s + 61.0)


async def test_an_unreachable_cluster_answers_no_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.worker.runtime.watchdog.WATCHDOG_POLL_INTERVAL_S", 0.1)
    assert not await answers(ClusterSpec("none", ("127.0.0.1:1",)), "g")


async def test_a_running_cluster_answers_a_new_connection(bootstrap: str) -> None:
    assert await answers(ClusterSpec("east", (bootstrap,)), "g")


def test_the_watchdog_ends_the_process() -> None:
    script = """
import asyncio
from types import SimpleNamespace
from app.worker.runtime.watchdog import Watchdog

async def main():
    stuck = SimpleNamespace(round_at_s=float("-inf"), unanswered={})
    await Watchdog(stuck, lambda: False, None, look_s=0.01).start()
    await asyncio.sleep(60)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], timeout=150, capture_output=True, check=False)
    assert ended.returncode == EXIT_STALLED, ended.stderr
