"""Snapshots reach the tracker topic in the order in which they were taken, with a lease or without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from app.control.checkpoints import BOOKKEEPING_S, Checkpoints
from app.core.fencing import SnapshotItem
from app.core.job import JobId, Kind
from app.core.lease import Lease
from app.core.tracker import Snapshot
from app.replica.pump import ReplicaPump
from tests.control.test_watchdog import a_pump


class Slow:
    """The way to the tracker topic; the first that goes it is held up."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = 0
        self.sent: list[int] = []

    async def send_snapshots(self, items: Iterable[SnapshotItem]) -> list[asyncio.Future[Any]]:
        self.asked += 1
        if self.asked == 1:
            await self.go.wait()
        self.sent += [Snapshot.from_bytes(item.snapshot).base for item in items]
        return []


async def test_of_two_savers_of_a_job_the_one_that_knows_more_has_the_last_word() -> None:
    lease, pump, trackers = Lease(1e9), a_pump(), Slow()
    lease.renewed(time.monotonic())
    pump.epoch, pump.lineage = 1, 0
    fake: Any = trackers
    none: Any = None
    checkpoints = Checkpoints({"j": pump}, none, fake, lease, lambda *_: None)
    savers = []
    for base in (6, 7):
        pump.version, pump.snapshot = base, lambda base=base: Snapshot(base)
        savers.append(asyncio.create_task(checkpoints._snapshot([pump])))
        await asyncio.sleep(0.05)
    trackers.go.set()
    await asyncio.gather(*savers)
    assert trackers.sent == [6, 7]
    assert pump.snapshot_version == 7


async def test_without_a_lease_what_was_finished_is_saved_all_the_same_and_nothing_is_committed() -> None:
    lease, pump, trackers = Lease(1e9), a_pump(), Slow()
    trackers.go.set()
    pump.epoch, pump.lineage, pump.version = 1, 0, 3
    pump.snapshot = lambda: Snapshot(3)
    fake: Any = trackers
    unreachable: Any = None  # committing would ask it for a cluster, and fail
    checkpoints = Checkpoints({"j": pump}, unreachable, fake, lease, lambda *_: None)
    await checkpoints.save([pump])
    assert trackers.sent == [3]


class Copy(ReplicaPump):
    """One with something to save."""

    @property
    def version(self) -> int:
        return 1


async def test_copies_of_bookkeeping_are_saved_rarely_but_what_they_wait_for_at_once() -> None:
    none: Any = None
    pumps: dict[str, Any] = {name: Copy.__new__(Copy) for name in ("copy", "orders")}
    for name, topic in (("copy", "switchyard-west-trackers-changelog"), ("orders", "orders")):
        pumps[name].job = JobId(Kind.REPLICATE, "a-route", topic, 0)
        pumps[name].way = SimpleNamespace(is_ready=False)
        pumps[name].snapshot_version = 0
    checkpoints = Checkpoints({}, none, none, Lease(1e9), lambda *_: None)

    def due(at_s: float) -> list[str]:
        return [name for name, pump in pumps.items() if checkpoints._is_due(pump, at_s)]

    assert due(0.0) == due(0.1) == ["copy", "orders"], "it waits for that before it copies anything"
    for pump in pumps.values():
        pump.way.is_ready = True
    assert due(1.0) == ["copy", "orders"]
    assert due(1.1) == due(BOOKKEEPING_S) == ["orders"]
    assert due(1.0 + BOOKKEEPING_S) == ["copy", "orders"]
    pumps["copy"].snapshot_version = -1
    assert due(2.0 + BOOKKEEPING_S) == ["copy", "orders"], "the table has to learn of it"
