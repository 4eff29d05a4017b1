"""Seconds of Spark's report over ten million audit rows, and of jobs on a hundred million archived records.

DuckDB reads the very same files. The bench also measures memory, and the cost of tenfold data.

The questions
- report: traffic, loss and percentiles of all windows; ours also keeps a verdict a window and reports lags.
- time range: ten minutes of one topic out of the whole archive (ours: the archive's reader, without Spark).
- counts: the records of each partition in each file (a topic and hour).
- by offset: the whole archive against a copy of it, record by record, by 128 bits of hash.
- by content: the same with a copy that has other offsets: equal records are matched, and their order
  compared.

Data comes from a seed and is in the formats of the store and the archive. It is made at a tenth of the size
and at the whole. Answers must be equal, and the differences of the copy found, or the bench fails. A process
of its own gives each answer, by turns. A plain Python process answers `report` at the small size, too. The
start of Spark's Java is a figure of its own (`start s`), and is in `cpu s`, the time of processors. The file
cache of the system helps both sides.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from spark.jobs.common import add_session, positive
from tests.bench.reporting import audits, records
from tests.bench.reporting.files import Progress
from tests.bench.reporting.measure import Measured, measure
from tests.bench.reporting.works import (
    CONTENTS,
    COUNTS,
    DUCK,
    OFFSETS,
    OURS,
    PLAIN,
    RANGE,
    REPORT,
    Work,
)

EXAMPLES = """\
examples:
  python -m tests.bench report
  python -m tests.bench report --audit-rows 1_000_000 --records 10_000_000 --content-records 1_000_000
  python -m tests.bench report --only audits --rounds 5 --conf spark.driver.memory=4g
"""
AUDIT_ROWS, RECORDS, CONTENT_RECORDS = 10_000_000, 100_000_000, 20_000_000
ROUNDS, LARGE_ROUNDS, GROWTH = 3, 1, 10
ARCHIVED = (RANGE, COUNTS, OFFSETS, CONTENTS)
# Disk space, measured: files, and temporary files of a comparison (a topic at once).
AUDIT_ROW_BYTES, RECORD_BYTES, COMPARED_BYTES = 600, 60, 200
PARTS = ("audits", "archive")

Key = tuple[str, int]  # work, and how many rows or records it is about


def add_arguments(parser: ArgumentParser) -> None:
    """Sizes, all with defaults."""
    for name, default, what in (
        ("audit-rows", AUDIT_ROWS, "records of windows in the dashboard's store"),
        ("records", RECORDS, "records in the archive"),
        ("content-records", CONTENT_RECORDS, "records that are compared by content"),
        ("growth", GROWTH, "the small size is so many times smaller"),
        ("rounds", ROUNDS, "of every question at the small size; medians count"),
        ("large-rounds", LARGE_ROUNDS, "of every question at the whole size"),
    ):
        parser.add_argument(
            f"--{name}", type=positive, default=default, metavar="N", help=f"{what} (default: {default:,})"
        )
    parser.add_argument("--seed", type=int, default=1, help="of the data (default: 1)")
    parser.add_argument("--only", choices=PARTS, help="this part (default: both)")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="for the data, deleted at the end (default: a temporary one)",
    )
    add_session(parser)


def run(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Both parts at both sizes.

    Raises:
        ValueError: Answers differ, or the disk is too small.
    """
    parts = (options.only,) if options.only else PARTS
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # data and processes go, however it ends
    bench = Bench(options, progress)
    for part in parts:
        for divisor in (options.growth, 1):
            bench.run(part, divisor)
    rows = [*bench.rows(), *bench.growths()]
    first = next(row for row in rows if row["records"] == bench.whole(parts[0]))
    return {
        **{name: first[name] for name in ("value", "unit", "peer", "peer_value")},
        "setup": {
            "of": first["bench"], "seed": options.seed, "conf": dict(options.conf),
            "rounds": {"small": options.rounds, "whole": options.large_rounds},
        },
        "rows": rows,
    }  # fmt: skip


class Bench:
    """The measurements of all rounds, by work and size, by engine."""

    def __init__(self, options: Namespace, progress: Progress) -> None:
        self.options = options
        self.progress = progress
        self.found: dict[Key, dict[str, list[Measured]]] = {}

    def whole(self, part: str) -> int:
        """The full size of a part, from the options."""
        return int(self.options.audit_rows if part == "audits" else self.options.records)

    def run(self, part: str, divisor: int) -> None:
        """Makes a part's data, measures all questions, deletes the data."""
        size = max(1, self.whole(part) // divisor)
        limit = max(1, self.options.content_records // divisor)
        rounds = self.options.large_rounds if divisor == 1 else self.options.rounds
        parent = self.options.folder
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="report-", dir=parent, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            check_disk(folder, part, size, limit)
            seed = self.options.seed
            if part == "audits":
                audits.make(folder / "store", size, seed, self.progress)
                engines = (OURS, DUCK, PLAIN) if divisor > 1 else (OURS, DUCK)
                self._ask(folder, REPORT, size, 0, rounds, engines)
                return
            records.make(folder / "archive", folder / "copy", size, seed, self.progress)
            for work in ARCHIVED:
                self._ask(folder, work, size, limit, rounds, (OURS, DUCK))

    def _ask(
        self, folder: Path, work: str, size: int, limit: int, rounds: int, engines: tuple[str, ...]
    ) -> None:
        """Measures the engines by turns; another engine begins in each round."""
        about = min(size, limit) if work == CONTENTS else size
        found = self.found.setdefault((work, about), {engine: [] for engine in engines})
        for number in range(rounds):
            for engine in engines if number % 2 == 0 else reversed(engines):
                one = measure(
                    Work(engine, work, str(folder), size, limit, dict(self.options.conf)), self.progress
                )
                found[engine].append(one)
                self.progress(
                    f"{work}, {about:,}, round {number + 1} of {rounds}: {engine} {one.seconds:.2f} s"
                    f" (start {one.start_s:.1f} s, cpu {one.cpu_s:.1f} s), {one.peak_mb:,.0f} MB"
                )
        check_same(work, {engine: [one.answer for one in measured] for engine, measured in found.items()})
        self.progress(f"{work}, {about:,}: the answers are the same")

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each question at each size: ours against each peer."""
        for (work, about), found in self.found.items():
            for peer in [engine for engine in found if engine != OURS]:
                yield {
                    "bench": f"report: {work}, {about:,}",
                    "records": about,
                    "value": _seconds(found[OURS]),
                    "unit": "s",
                    "peer": peer,
                    "peer_value": _seconds(found[peer]),
                    "ratio": round(_seconds(found[OURS]) / _seconds(found[peer]), 2),
                    "rounds": [[round(one.seconds, 3) for one in found[engine]] for engine in (OURS, peer)],
                    "start s": [_middle(found[engine], lambda one: one.start_s) for engine in (OURS, peer)],
                    "cpu s": [_middle(found[engine], lambda one: one.cpu_s) for engine in (OURS, peer)],
                    "peak MB": [_middle(found[engine], lambda one: one.peak_mb) for engine in (OURS, peer)],
                }

    def growths(self) -> Iterator[dict[str, Any]]:
        """How many times as long, and as much memory, the larger size takes; linear is `times`."""
        sizes: dict[str, list[int]] = {}
        for work, about in self.found:
            sizes.setdefault(work, []).append(about)
        for work, both in sizes.items():
            if len(both) < 2:
                continue
            small, large = (self.found[work, about] for about in both)
            times = [_seconds(large[engine]) / _seconds(small[engine]) for engine in (OURS, DUCK)]
            memory = [
                _middle(large[engine], lambda one: one.peak_mb)
                / _middle(small[engine], lambda one: one.peak_mb)
                for engine in (OURS, DUCK)
            ]
            yield {
                "bench": f"report: {work}, growth",
                "records": both[1],
                "value": round(times[0], 2),
                "unit": f"times the seconds, of {both[1] / both[0]:g} times the data",
                "peer": DUCK,
                "peer_value": round(times[1], 2),
                "ratio": round(times[0] / times[1], 2),
                "linear or better": times[0] <= both[1] / both[0],
                "memory, times": [round(one, 2) for one in memory],
            }


def check_same(work: str, answers: dict[str, list[Any]]) -> None:
    """All engines' answers of all rounds, and what is known of the copy.

    Raises:
        ValueError: They differ, with where.
    """
    expected = {OFFSETS: records.BY_OFFSET, CONTENTS: records.BY_CONTENT}.get(work)
    first = answers[OURS][0]
    if expected is not None:
        first = {kind: many * len(records.TOPICS) for kind, many in expected.items()}
    for engine, given in answers.items():
        for one in given:
            if one != first:
                raise ValueError(f"{work}: {engine} answers otherwise: {difference(first, one)}")


def difference(one: Any, other: Any, at: str = "") -> str:
    """The first place where two answers differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        name = next(name for name in one if one[name] != other[name])
        return difference(one[name], other[name], f"{at}.{name}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        number = next(number for number in range(len(one)) if one[number] != other[number])
        if not isinstance(one[number], list):
            return f"at {at}[{number}] {other} where {one} was to be"
        return difference(one[number], other[number], f"{at}[{number}]")
    return f"at {at or 'all'} {str(other)[:500]} where {str(one)[:500]} was to be"


def check_disk(folder: Path, part: str, size: int, limit: int) -> None:
    """Room for the data and for what is put aside.

    Raises:
        ValueError: There is too little, with how much is needed.
    """
    needed = size * AUDIT_ROW_BYTES
    if part == "archive":
        needed = size * RECORD_BYTES + max(size // len(records.TOPICS), limit) * COMPARED_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"{folder} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB are needed: give --folder on a"
            " larger disk, or smaller sizes"
        )


def _seconds(found: list[Measured]) -> float:
    return round(median(one.seconds for one in found), 3)


def _middle(found: list[Measured], figure: Callable[[Measured], float]) -> float:
    return round(median(figure(one) for one in found), 1)
