"""Clients that are killed: one process after another works on the same log, and is killed at a random moment.

    python -m tests.sdk.audit.processes <mode> <folder> <seed> <lives>

A life is one process. Each is forked, so that hundreds of them cost seconds. It works until it is killed
(SIGKILL), after a random time or once it has reported something; the last life ends by itself. All lives
append their reports to `reports`, and the batches that they send to `known`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from switchyard.audit import Audit, FileOutput, SyncAudit, background_thread, write_ahead_log
from switchyard.audit.model.reports import Report
from switchyard.audit.outputs import Output, read_lines

TOPIC, CLUSTER, WIDTH_MS = "orders", "east", 1_000
RECORDS = 30_000  # in the consumed partition
HURRIED = 60_000  # messages that the last life sends
BEGAN_MS = 1_700_000_000_000
MOST_LIFE_S, MOST_CPU_S, MOST_REPORTED_BYTES = 0.1, 0.06, 3_000
WAL, REPORTS, KNOWN, COMMITTED = "audit-wal", "reports", "known", "committed"


def timestamp_ms(number: int) -> int:
    """Returns a record's timestamp. Records take turns over ten windows, so every report has several
    windows."""
    return BEGAN_MS + number * 137 % (10 * WIDTH_MS)


def record_id(number: int) -> bytes:
    return b"record %d" % number


class UnreliableOutput(FileOutput):
    """Delivers reports, loses them, or delivers them and raises an error."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        super().__init__(path)
        self._chance = chance

    async def send(self, reports: Sequence[Report]) -> None:
        fate = self._chance.random()
        if fate < 0.2:
            raise OSError("not delivered")
        await super().send(reports)
        if fate < 0.4:
            raise OSError("delivered, unknown to the client")


def options(folder: Path, output: Output) -> dict[str, Any]:
    return {
        "origin": "client", "tier": "consumer", "cluster": CLUSTER, "window_ms": WIDTH_MS,
        "wal": folder / WAL, "output": output, "log_interval_s": 0.003, "report_interval_s": 0.005,
    }  # fmt: skip


def replace_file(path: Path, data: bytes) -> None:
    """Writes the file atomically, by a rename."""
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").rename(path)


def note(known: int, word: str, source: str, first: int, many: int) -> None:
    """Adds a line to `known`. It begins with the newline, because a kill may cut the line before off."""
    os.write(known, b"\n" + json.dumps([word, source, first, many]).encode())


def read_notes(folder: Path) -> Iterator[tuple[str, str, int, int]]:
    """The lines of `known`, without those that a kill cut off."""
    for line in (folder / KNOWN).read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def consume(folder: Path, chance: random.Random, is_last: bool) -> None:
    """Consumes the partition from the committed offset, and commits only what is in the log. A life that is
    to be killed starts over at the end, so a fast machine does not end it early."""
    with SyncAudit(**options(folder, UnreliableOutput(folder / REPORTS, chance))) as audit:
        committed = folder / COMMITTED
        at = int(committed.read_bytes()) if committed.exists() else 0
        while at < RECORDS:
            end = min(RECORDS, at + chance.choice([1, 3, 40]))
            numbers = range(at, end)
            if chance.random() < 0.3:
                for number in numbers:
                    audit.handled(TOPIC, 0, number, timestamp_ms(number), 10, record_id(number))
            else:
                times, names = (
                    [timestamp_ms(number) for number in numbers],
                    [record_id(number) for number in numbers],
                )
                audit.handled_many(TOPIC, 0, numbers, times, [10] * len(numbers), names)
            at = end
            if chance.random() < 0.3:
                assert audit.logged(60)
                replace_file(committed, b"%d" % at)
            if at == RECORDS and not is_last:
                at = 0
        assert audit.logged(60)
        replace_file(committed, b"%d" % at)
        assert audit.close(60), audit.stats


def produce(folder: Path, chance: random.Random, is_last: bool) -> None:
    """Sends batches. Writes to `known` which batches it sends, and which the audit confirmed as logged."""
    asyncio.run(_produce(folder, chance, is_last))


async def _produce(folder: Path, chance: random.Random, is_last: bool) -> None:
    known = os.open(folder / KNOWN, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with Audit(**options(folder, UnreliableOutput(folder / REPORTS, chance))) as audit:
        batches = 0
        while batches < 300 or not is_last:
            first, many = chance.randrange(1 << 40), chance.choice([1, 20, 300])
            numbers = np.arange(first, first + many)
            times = BEGAN_MS + numbers * 137 % (10 * WIDTH_MS)
            note(known, "begun", audit.source, first, many)
            audit.sent_many(TOPIC, times, 10, [record_id(number) for number in numbers.tolist()])
            if await audit.logged(60):
                note(known, "logged", audit.source, first, many)
            batches += 1
        assert await audit.close(60), audit.stats


def hurry(folder: Path, chance: random.Random, is_last: bool) -> None:
    """Sends one message after the other, and never waits for the log."""
    known = os.open(folder / KNOWN, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with SyncAudit(**options(folder, UnreliableOutput(folder / REPORTS, chance))) as audit:
        note(known, "begun", audit.source, 0, 0)
        for number in range(HURRIED) if is_last else itertools.count():
            audit.sent(TOPIC, timestamp_ms(number), 10, record_id(number))
            if number % 1_000 == 0:
                time.sleep(0.001)
        assert audit.close(60), audit.stats
        note(known, "logged", audit.source, 0, HURRIED)


MODES: dict[str, Callable[[Path, random.Random, bool], None]] = {
    "consume": consume, "produce": produce, "hurry": hurry,
}  # fmt: skip


def wait_random_time(
    child: int, chance: random.Random, life_s: float = MOST_LIFE_S, cpu_s: float = MOST_CPU_S
) -> None:
    """Waits a random time, by the wall clock or by the child's CPU time (a busy machine gives the child
    little)."""
    cpu_clock = ~child << 3 | 2  # as clock_getcpuclockid(3) makes it
    clock, most_s = chance.choice([(time.CLOCK_MONOTONIC, life_s), (cpu_clock, cpu_s)])
    until_s = time.clock_gettime(clock) + chance.uniform(0, most_s)
    while time.clock_gettime(clock) < until_s and not os.waitid(
        os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT
    ):
        time.sleep(0.0005)


def wait_for_reports(child: int, reports: Path, more_than: int, former: set[str]) -> None:
    """Waits until `reports` is longer than `more_than` bytes and has a source that is not in `former`, or
    until the child has ended."""

    def has_enough() -> bool:
        return size_bytes(reports) > more_than and bool(reported_sources(reports) - former)

    while not has_enough() and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.0005)


def size_bytes(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def reported_sources(reports: Path) -> set[str]:
    """The sources, one a life, that have reports in the file."""
    return {report.source for report in read_lines(reports.read_bytes())} if reports.exists() else set()


def main(mode: str, folder: str, seed: str, lives: str) -> None:
    chance = random.Random(int(seed))
    background_thread.BACKOFF_S = 0.005
    write_ahead_log.ROTATE_BYTES = chance.choice([2_000, 50_000])
    killed = 0
    for life in range(int(lives)):
        own, is_last = random.Random(chance.random()), life == int(lives) - 1
        reports = Path(folder) / REPORTS
        reported, former = size_bytes(reports), reported_sources(reports)
        child = os.fork()
        if not child:
            MODES[mode](Path(folder), own, is_last)
            os._exit(0)
        if not is_last:
            if life % 3:
                wait_random_time(child, chance)
            else:
                wait_for_reports(child, reports, reported + chance.randrange(MOST_REPORTED_BYTES), former)
            os.kill(child, signal.SIGKILL)
            killed += os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.waitpid(child, 0)[1] == 0, "the last life failed"
    sys.stdout.write(f"{killed}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
