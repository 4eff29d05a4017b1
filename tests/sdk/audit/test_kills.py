"""A client is killed with SIGKILL hundreds of times at any moment; the tests check what the collector
counts."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from app.audit.folds.collector import Collector
from switchyard.audit.model.fingerprint import ids_of, of_ids
from switchyard.audit.model.totals import NO_TOTALS, Totals
from switchyard.audit.outputs import read_lines
from tests.sdk.audit import processes

LIVES = 30
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.deep(minutes=0.2)) for seed in range(1, 4))]


def run_lives(mode: str, folder: Path, seed: int) -> None:
    """Runs the lives; all but the last are killed."""
    command = [sys.executable, "-m", "tests.sdk.audit.processes", mode, str(folder), str(seed), str(LIVES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert int(done.stdout) == LIVES - 1


def collected_windows(folder: Path, source: str = "") -> dict[int, Totals]:
    """Totals by window, of one life or of all. The collector gets every report twice, in two orders."""
    reports = [
        report
        for report in read_lines((folder / processes.REPORTS).read_bytes())
        if source in {"", report.source}
    ]
    collector = Collector()
    for position, report in enumerate([*reports, *reversed(reports)]):
        collector.apply(report, position)
    return {key.start_ms: record.totals for key, record in collector.windows.items()}


def sum_of(windows: dict[int, Totals]) -> Totals:
    found = NO_TOTALS
    for totals in windows.values():
        found = found.plus(totals)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_consumed_record_is_counted_exactly_once_whenever_the_process_is_killed(
    tmp_path: Path, seed: int
) -> None:
    run_lives("consume", tmp_path, seed)
    expected: dict[int, list[bytes]] = defaultdict(list)
    for number in range(processes.RECORDS):
        time_ms = processes.timestamp_ms(number)
        expected[time_ms - time_ms % processes.WIDTH_MS].append(processes.record_id(number))
    found = collected_windows(tmp_path)
    counts = {start: totals.count for start, totals in found.items()}
    assert counts == {start: len(names) for start, names in expected.items()}
    assert {start: totals.nbytes for start, totals in found.items()} == {s: 10 * n for s, n in counts.items()}
    for start, names in expected.items():
        assert found[start].ids == of_ids(ids_of(names))


@pytest.mark.parametrize("seed", SEEDS)
def test_logged_counts_count_exactly_once_and_others_at_most_once(tmp_path: Path, seed: int) -> None:
    run_lives("produce", tmp_path, seed)
    logged: dict[str, list[range]] = defaultdict(list)
    unsure: dict[str, range] = {}
    for word, source, first, many in processes.read_notes(tmp_path):
        if word == "logged":
            logged[source].append(unsure.pop(source))
        else:
            assert source not in unsure
            unsure[source] = range(first, first + many)
    assert sum(map(len, logged.values())) > 100
    assert sum(sum_of(collected_windows(tmp_path, source)).count for source in {*logged, *unsure}) == (
        sum_of(collected_windows(tmp_path)).count
    )
    for source in {*logged, *unsure}:
        names = [processes.record_id(number) for numbers in logged[source] for number in numbers]
        more = [*names, *(processes.record_id(number) for number in unsure.get(source, ()))]
        found = sum_of(collected_windows(tmp_path, source))
        assert found.count in {len(names), len(more)}
        assert found.ids == of_ids(ids_of(names if found.count == len(names) else more))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_that_never_waits_loses_its_last_counts_at_most_and_nothing_counts_twice(
    tmp_path: Path, seed: int
) -> None:
    run_lives("hurry", tmp_path, seed)
    sources = {source: many for _, source, _, many in processes.read_notes(tmp_path)}
    counts = []
    for source, least in sources.items():
        found = sum_of(collected_windows(tmp_path, source))
        counts.append(found.count)
        assert found.count >= least
        assert found.ids == of_ids(ids_of([processes.record_id(number) for number in range(found.count)]))
    assert sum(counts) == sum_of(collected_windows(tmp_path)).count
    assert sum(count > 0 for count in counts) > LIVES // 4, "only the last life was counted"
