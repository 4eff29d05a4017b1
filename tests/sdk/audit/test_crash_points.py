"""A client is killed at every step: after each system call that changes the log's folder, and within each
write.

A client consumes a partition, and keeps, reports and commits by a random script. After every system call that
changes the folder the test copies it, with the reports that had arrived and the offset that was committed. A
new client continues from each copy. In the end every record must be counted once.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.audit.folds.collector import Collector
from switchyard.audit import Fsync, NotPassed, SyncAudit, write_ahead_log
from switchyard.audit.model.fingerprint import ids_of, of_ids
from switchyard.audit.model.reports import Report
from switchyard.audit.model.totals import NO_TOTALS

RECORDS = 60
MOST_WINDOWS_PASS = 2  # a report has up to ten windows
IDS = [b"record %d" % number for number in range(RECORDS)]


class CrashPoint(NamedTuple):
    """The state that a kill at this moment leaves behind."""

    files: dict[str, bytes]
    arrived: list[Report]
    committed: int


class CrashRecorder:
    """Records a crash point after every call that changes the disk, and receives reports."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.arrived: list[Report] = []
        self.committed = 0
        self.crash_points: list[CrashPoint] = []
        self.has_limit = chance.random() < 0.5

    def record(self) -> None:
        files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        self.crash_points.append(CrashPoint(files, list(self.arrived), self.committed))

    async def send(self, reports: Sequence[Report]) -> None:
        if self.has_limit and sum(len(report.windows) for report in reports) > MOST_WINDOWS_PASS:
            raise NotPassed("a proxy's limit")
        for report in reports:
            if self.chance.random() < 0.2:
                raise OSError("lost")
            self.arrived.append(report)
            self.record()
        if self.chance.random() < 0.2:
            raise OSError("arrived, but the client cannot know")

    async def close(self) -> None:
        """Nothing to close."""

    def watch_calls(self, patch: pytest.MonkeyPatch) -> None:
        """Records a crash point after each call from now on."""
        write, rename, unlink = os.write, Path.rename, Path.unlink

        def write_slowly(descriptor: int, data: bytes) -> int:
            cut = self.chance.randrange(len(data)) + 1
            done = write(descriptor, memoryview(data)[:cut])
            self.record()
            return done

        def rename_watched(path: Path, target: Path) -> Path:
            found = rename(path, target)
            self.record()
            return found

        def unlink_watched(path: Path, **options: Any) -> None:
            unlink(path, **options)
            self.record()

        patch.setattr(write_ahead_log.os, "write", write_slowly)
        patch.setattr(Path, "rename", rename_watched)
        patch.setattr(Path, "unlink", unlink_watched)


def taken_over(folder: Path, output: CrashRecorder) -> SyncAudit:
    """A client that has taken over the folder, without its thread: the test runs its steps."""
    audit = SyncAudit(origin="web", tier="consumer", cluster="east", window_ms=100, wal=folder, output=output,
                      fsync=Fsync.NEVER)  # fmt: skip
    audit._open_log()
    assert not list(folder.glob("damaged-*"))
    return audit


def handle(audit: SyncAudit, numbers: range) -> None:
    for number in numbers:
        audit.handled("orders", 0, number, number * 37 % 1_000, 10, IDS[number])


def run_script(audit: SyncAudit, world: CrashRecorder) -> None:
    """The client handles, keeps, reports and commits at random until all records are handled."""
    at = world.committed
    while at < RECORDS:
        match world.chance.choice(["handle", "handle", "keep", "report", "commit"]):
            case "handle":
                end = min(RECORDS, at + world.chance.randrange(1, 9))
                handle(audit, range(at, end))
                at = end
            case "keep":
                assert audit._keep(sync=False)
            case "report":
                audit._reports(5_000)
                asyncio.run(audit._deliver())
            case _:
                assert audit._keep(sync=False)
                world.committed = at
                world.record()


def finish(audit: SyncAudit, world: CrashRecorder) -> None:
    """The client continues from the committed offset, and delivers all reports."""
    handle(audit, range(world.committed, RECORDS))
    audit._reports(6_000, leaves=True)
    while not asyncio.run(audit._deliver()):
        pass
    assert audit._wal is not None
    audit._wal.release()


def check_counts(arrived: Sequence[Report]) -> None:
    collector, found = Collector(), NO_TOTALS
    for position, report in enumerate(arrived):
        collector.apply(report, position)
    for record in collector.windows.values():
        found = found.plus(record.totals)
    assert (found.count, found.ids) == (RECORDS, of_ids(ids_of(IDS)))


@pytest.mark.parametrize("seed", range(6))
def test_from_every_step_on_every_record_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    world = CrashRecorder(tmp_path / "0", chance)
    monkeypatch.setattr(write_ahead_log, "ROTATE_BYTES", chance.choice([0, 2_000]))
    with monkeypatch.context() as patch:
        first = taken_over(world.folder, world)
        world.watch_calls(patch)
        run_script(first, world)
        second = chance.choice(
            world.crash_points[: len(world.crash_points) // 2]
        )  # early, so the second life still has work to do
        world.crash_points = []
    world.folder = restore(tmp_path / "1", second)
    world.arrived, world.committed = list(second.arrived), second.committed
    with monkeypatch.context() as patch:
        world.watch_calls(patch)
        run_script(taken_over(world.folder, world), world)
    assert len(world.crash_points) > 10
    for number, moment in enumerate(world.crash_points):
        next_run = CrashRecorder(restore(tmp_path / f"again-{number}", moment), random.Random(number))
        next_run.arrived, next_run.committed = list(moment.arrived), moment.committed
        finish(taken_over(next_run.folder, next_run), next_run)
        check_counts(next_run.arrived)


def restore(folder: Path, moment: CrashPoint) -> Path:
    folder.mkdir()
    for name, data in moment.files.items():
        (folder / name).write_bytes(data)
    return folder
