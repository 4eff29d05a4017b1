"""Killed at every step: what is on the disk after each single call of the system, and within each write.

A client consumes a partition, keeps, reports and commits by a random script. Behind every system call that
changes the log's folder a copy of it is made, with the reports that had arrived and the offset that was
committed by then. From each copy a new client goes on; in the end every record has to be counted once.
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
MOST_WINDOWS_PASS = 2  # a report has up to ten
IDS = [b"record %d" % number for number in range(RECORDS)]


class Moment(NamedTuple):
    """What a kill leaves."""

    files: dict[str, bytes]
    arrived: list[Report]
    committed: int


class World:
    """A disk that is looked at behind every call, and a receiver of reports."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.arrived: list[Report] = []
        self.committed = 0
        self.moments: list[Moment] = []
        self.has_limit = chance.random() < 0.5

    def look(self) -> None:
        files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        self.moments.append(Moment(files, list(self.arrived), self.committed))

    async def send(self, reports: Sequence[Report]) -> None:
        if self.has_limit and sum(len(report.windows) for report in reports) > MOST_WINDOWS_PASS:
            raise NotPassed("a proxy's limit")
        for report in reports:
            if self.chance.random() < 0.2:
                raise OSError("lost")
            self.arrived.append(report)
            self.look()
        if self.chance.random() < 0.2:
            raise OSError("arrived, and nobody knows")

    async def close(self) -> None:
        """It holds nothing."""

    def watched(self, patch: pytest.MonkeyPatch) -> None:
        """From now on every call is looked at."""
        write, rename, unlink = os.write, Path.rename, Path.unlink

        def write_slowly(descriptor: int, data: bytes) -> int:
            cut = self.chance.randrange(len(data)) + 1
            done = write(descriptor, memoryview(data)[:cut])
            self.look()
            return done

        def rename_watched(path: Path, target: Path) -> Path:
            found = rename(path, target)
            self.look()
            return found

        def unlink_watched(path: Path, **options: Any) -> None:
            unlink(path, **options)
            self.look()

        patch.setattr(write_ahead_log.os, "write", write_slowly)
        patch.setattr(Path, "rename", rename_watched)
        patch.setattr(Path, "unlink", unlink_watched)


def begun(folder: Path, output: World) -> SyncAudit:
    """A client that has taken over, without its thread: its steps are done one by one."""
    audit = SyncAudit(origin="web", tier="consumer", cluster="east", window_ms=100, wal=folder, output=output,
                      fsync=Fsync.NEVER)  # fmt: skip
    audit._open_log()
    assert not list(folder.glob("damaged-*"))
    return audit


def handle(audit: SyncAudit, numbers: range) -> None:
    for number in numbers:
        audit.handled("orders", 0, number, number * 37 % 1_000, 10, IDS[number])


def live(audit: SyncAudit, world: World) -> None:
    """A script of the client."""
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
                world.look()


def end(audit: SyncAudit, world: World) -> None:
    """The client goes on from what was committed, and everything arrives."""
    handle(audit, range(world.committed, RECORDS))
    audit._reports(6_000, leaves=True)
    while not asyncio.run(audit._deliver()):
        pass
    assert audit._wal is not None
    audit._wal.release()


def check(arrived: Sequence[Report]) -> None:
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
    world = World(tmp_path / "0", chance)
    monkeypatch.setattr(write_ahead_log, "ROTATE_BYTES", chance.choice([0, 2_000]))
    with monkeypatch.context() as patch:
        first = begun(world.folder, world)
        world.watched(patch)
        live(first, world)
        second = chance.choice(
            world.moments[: len(world.moments) // 2]
        )  # a second life has something to take over
        world.moments = []
    world.folder = restored(tmp_path / "1", second)
    world.arrived, world.committed = list(second.arrived), second.committed
    with monkeypatch.context() as patch:
        world.watched(patch)
        live(begun(world.folder, world), world)
    assert len(world.moments) > 10
    for number, moment in enumerate(world.moments):
        again = World(restored(tmp_path / f"again-{number}", moment), random.Random(number))
        again.arrived, again.committed = list(moment.arrived), moment.committed
        end(begun(again.folder, again), again)
        check(again.arrived)


def restored(folder: Path, moment: Moment) -> Path:
    folder.mkdir()
    for name, data in moment.files.items():
        (folder / name).write_bytes(data)
    return folder
