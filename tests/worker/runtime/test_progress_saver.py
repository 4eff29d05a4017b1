"""Snapshots reach the tracker topic in the order in which they were taken, with a lease or without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from app.kernel.fencing import SnapshotItem
from app.kernel.job import JobId, Kind
from app.kernel.lease import Lease
from app.kernel.ranges import Snapshot
from app.replicate.pump.partition import ReplicaPump
from app.worker.runtime import progress_saver as module
from app.worker.runtime.progress_saver import BOOKKEEPING_INTERVAL_S, ProgressSaver
from app.worker.tracker.client import tracker_partition
from tests.worker.runtime.test_watchdog import a_pump


class Slow:
    """A sender to the tracker topic that holds up the first call."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.calls = 0
        self.sent: list[int] = []

    async def send_snapshots(self, items: Iterable[SnapshotItem]) -> list[asyncio.Future[Any]]:
        self.calls += 1
        if self.calls == 1:
            await self.go.wait()
        self.sent += [Snapshot.from_bytes(item.snapshot).base for item in items]
        return []


async def test_the_later_snapshot_of_a_job_wins() -> None:
    lease, pump, trackers = Lease(1e9), a_pump(), Slow()
    lease.renewed(time.monotonic())
    pump.epoch, pump.lineage = 1, 0
    fake: Any = trackers
    none: Any = None
    checkpoints = ProgressSaver({"j": pump}, none, fake, lease, lambda *_: None)
    savers = []
    for base in (6, 7):
        pump.version, pump.snapshot = base, lambda base=base: Snapshot(base)
        savers.append(asyncio.create_task(checkpoints._snapshot([pump])))
        await asyncio.sleep(0.05)
    trackers.go.set()
    await asyncio.gather(*savers)
    assert trackers.sent == [6, 7]
    assert pump.snapshot_version == 7


async def test_without_a_lease_snapshots_are_saved_and_nothing_is_committed() -> None:
    lease, pump, trackers = Lease(1e9), a_pump(), Slow()
    trackers.go.set()
    pump.epoch, pump.lineage, pump.version = 1, 0, 3
    pump.snapshot = lambda: Snapshot(3)
    fake: Any = trackers
    unreachable: Any = None  # committing would ask it for a cluster, and fail
    checkpoints = ProgressSaver({"j": pump}, unreachable, fake, lease, lambda *_: None)
    await checkpoints.save([pump])
    assert trackers.sent == [3]


async def a_round(saver: ProgressSaver) -> bool:
    return await saver._round(saver._changed(), 0.0)


class Half:
    """A sender to the tracker topic, one partition of which takes nothing; `stuck` are the records for it."""

    def __init__(self, takes_nothing: int) -> None:
        self.takes_nothing = takes_nothing
        self.fails = False
        self.sent: list[str] = []
        self.stuck: list[asyncio.Future[Any]] = []

    async def send_snapshots(self, items: Iterable[SnapshotItem]) -> list[asyncio.Future[Any]]:
        (partition,) = {tracker_partition(item.job) for item in items}
        if self.fails:
            raise OSError("it is away")
        self.sent += [item.job for item in items]
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if partition == self.takes_nothing:
            self.stuck.append(future)
        else:
            future.set_result(None)
        return [future]


async def test_a_stuck_tracker_partition_delays_only_its_own_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_LATE_S", 0.5)
    jobs = [f"replicate:r:t:{n}" for n in range(20)]
    trackers = Half(tracker_partition(jobs[0]))
    held_up = [job for job in jobs if tracker_partition(job) == trackers.takes_nothing]
    pumps: dict[str, Any] = {job: a_pump() for job in jobs}
    for job, pump in pumps.items():
        pump.job, pump.epoch, pump.lineage, pump.version = JobId.parse(job), 1, 0, 3
    fake: Any = trackers
    none: Any = None
    checkpoints = ProgressSaver(pumps, none, fake, Lease(1e9), lambda *_: None)

    assert not await a_round(checkpoints), "the latest progress is not saved yet"
    assert [job for job in jobs if pumps[job].snapshot_version != 3] == held_up
    for pump in pumps.values():
        pump.version = 4
    assert not await a_round(checkpoints)
    assert [job for job in jobs if pumps[job].snapshot_version != 4] == held_up
    assert all(trackers.sent.count(job) == 1 + (job not in held_up) for job in jobs), "one snapshot at a time"
    stuck, trackers.takes_nothing = trackers.takes_nothing, -1
    trackers.stuck[0].set_result(None)
    assert not await a_round(checkpoints), "offsets finished after the send are not saved"
    assert {pumps[job].snapshot_version for job in held_up} == {3}
    assert await a_round(checkpoints)
    assert {pump.snapshot_version for pump in pumps.values()} == {4}

    trackers.takes_nothing, pumps[held_up[0]].version = stuck, 5
    assert not await a_round(checkpoints)
    trackers.takes_nothing = -1
    trackers.stuck[1].set_exception(OSError("nobody took it"))
    assert not await a_round(checkpoints)
    assert await a_round(checkpoints), "it is sent again"
    trackers.fails, pumps[held_up[0]].version = True, 6
    assert not await a_round(checkpoints)
    trackers.fails = False
    assert await a_round(checkpoints)
    assert pumps[held_up[0]].snapshot_version == 6


class Copy(ReplicaPump):
    """A replica with an unsaved snapshot."""

    snapshot_version = 0

    @property
    def version(self) -> int:
        return 1


async def test_copied_control_topics_are_saved_rarely_but_awaited_snapshots_at_once() -> None:
    none: Any = None
    pumps: dict[str, Any] = {name: Copy.__new__(Copy) for name in ("copy", "orders")}
    for name, topic in (("copy", "switchyard-west-trackers-changelog"), ("orders", "orders")):
        pumps[name].job = JobId(Kind.REPLICATE, "a-route", topic, 0)
        pumps[name].session = SimpleNamespace(is_ready=False, is_saving=False)
        pumps[name].send_gate = SimpleNamespace(unsaved_s=0.0)
    checkpoints = ProgressSaver({}, none, none, Lease(1e9), lambda *_: None)

    def due(at_s: float) -> list[str]:
        return [name for name, pump in pumps.items() if checkpoints._is_due(pump, at_s)]

    assert due(0.0) == due(0.1) == ["copy", "orders"], "a new replica copies only once its snapshot is saved"
    for pump in pumps.values():
        pump.session.is_ready = True
    assert due(1.0) == ["copy", "orders"]
    assert due(1.1) == due(BOOKKEEPING_INTERVAL_S) == ["orders"]
    assert due(1.0 + BOOKKEEPING_INTERVAL_S) == ["copy", "orders"]
    copy = pumps["copy"]
    for waits, flows in (
        (partial(setattr, copy, "snapshot_version", -1), partial(setattr, copy, "snapshot_version", 0)),
        (
            partial(setattr, copy.session, "is_saving", True),
            partial(setattr, copy.session, "is_saving", False),
        ),
        (
            partial(setattr, copy.send_gate, "unsaved_s", 7.0),
            partial(setattr, copy.send_gate, "unsaved_s", 0.0),
        ),
    ):
        assert due(2.0 + BOOKKEEPING_INTERVAL_S) == ["orders"]
        waits()
        assert due(2.0 + BOOKKEEPING_INTERVAL_S) == ["copy", "orders"], (
            "the table lacks the snapshot, or the replica waits for it"
        )
        flows()


@pytest.mark.parametrize(("meanwhile", "wait_s"), [(0, 0.1), (2_000, 2.0)])
async def test_the_next_round_waits_for_what_it_sends_not_for_a_burst_that_is_saved(
    meanwhile: int, wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [f"replicate:r:t:{number}" for number in range(3_000)]
    pumps: dict[str, Any] = {job: a_pump() for job in jobs}
    for job, pump in pumps.items():
        pump.job, pump.epoch, pump.lineage = JobId.parse(job), 1, 0

    def change(count: int) -> None:
        for job in jobs[:count]:
            pumps[job].version += 1

    class Changing(Half):
        async def send_snapshots(self, items: Iterable[SnapshotItem]) -> list[asyncio.Future[Any]]:
            writes = await super().send_snapshots(items)
            if len(self.sent) == len(jobs):
                change(meanwhile)
            return writes

    fake: Any = Changing(-1)
    none: Any = None
    saver, waits = ProgressSaver(pumps, none, fake, Lease(1e9), lambda *_: None), list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            change(len(jobs))
        elif len(waits) == 2:
            saver._stopped.set()

    monkeypatch.setattr(saver, "sleep", sleep)
    await saver._snapshots(saver)
    assert waits == [0.1, wait_s]
    assert len(fake.sent) == len(jobs)
