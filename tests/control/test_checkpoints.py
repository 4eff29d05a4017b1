"""Snapshots reach the tracker topic in the order in which they were taken, with a lease or without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from app.control.checkpoints import Checkpoints
from app.core.fencing import SnapshotItem
from app.core.lease import Lease
from app.core.tracker import Snapshot
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
