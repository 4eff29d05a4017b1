"""Servers that fork in C, unnoticed by Python (uWSGI, mod_wsgi), or with `os.fork` (gunicorn).

`ctypes.PyDLL(None).fork()` is fork(2) itself: none of Python's hooks run, and all locks keep their state, the
interpreter's included. So the audit's thread must be idle then (`quiet`), as it is in a server's master.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.audit.folds.collector import Collector
from switchyard.audit.outputs import read_lines

ENOUGH_S = 150.0
FORKS = {"in C": "ctypes.PyDLL(None).fork()", "by Python": "os.fork()"}
BEGIN = """
import contextlib, ctypes, os, signal, sys, time
from pathlib import Path
from switchyard.audit import *
folder = Path(sys.argv[1])
from switchyard.audit import background_thread
background_thread.BACKOFF_S = background_thread.MOST_BACKOFF_S = 3_600.0
options = dict(origin="web", tier="consumer", cluster="east", window_ms=1_000, log_interval_s=3_600.0,
               report_interval_s=3_600.0)
def switches():  # of the other threads; one may end while it is looked at
    found = {}
    for path in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found[path.name] = [line for line in (path / "status").read_text().splitlines() if "ctxt" in line]
    del found[str(os.getpid())]
    return found
def quiet():
    before = None
    while before != (before := switches()):
        time.sleep(0.05)
def has_ended_well(child):
    return os.waitpid(child, 0)[1] == 0
def end(is_well):  # as a server in C ends its workers: Python's own exit functions run
    if not is_well:
        os._exit(1)
    sys.exit(0)
"""


def run_script(tmp_path: Path, fork: str, script: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script.replace("FORK", FORKS[fork]), str(tmp_path)],
        check=False, timeout=ENOUGH_S, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def counted_records(path: Path) -> int:
    collector = Collector()
    for position, report in enumerate(read_lines(path.read_bytes())):
        collector.apply(report, position)
    return sum(record.totals.count for record in collector.windows.values())


@pytest.mark.parametrize("fork", FORKS)
def test_a_child_never_touches_its_parents_log(tmp_path: Path, fork: str) -> None:
    """A child counts, waits for the log and ends; then the parent is killed. All confirmed counts arrive."""
    script = """
def fails(_):
    raise OSError("nobody there")
audit = SyncAudit(wal=folder / "wal", output=CallOutput(fails), **options)
audit.sent("orders", 5, 10)  # first, so that the first report has it
audit.start()
assert audit.logged(60)
while "the output" not in audit.stats.wrong:  # it was called, in a thread that no child has
    time.sleep(0.01)
for _ in range(3):
    quiet()
    child = FORK
    if not child:
        for _ in range(5_000):
            audit.sent("orders", 5, 10)
            audit.handled("payments", 0, 7, 5, 10)
        audit.sent_many("orders", [5] * 100, 10)
        audit.handled_many("payments", 0, range(100), [5] * 100, [10] * 100)
        signal.alarm(100)  # it answers at once, however long it may take
        end(not audit.logged(1_000) and not audit.close(1_000) and "a forked process" in audit.stats.wrong)
    assert has_ended_well(child)
    audit.sent_many("orders", [5] * 100, 10)
    assert audit.logged(60)
Path(folder / "confirmed").write_text("yes")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script.replace("FORK", FORKS[fork]), str(tmp_path)],
        check=False, timeout=ENOUGH_S, capture_output=True, text=True,
    )  # fmt: skip
    assert (tmp_path / "confirmed").exists(), done.stderr
    assert done.stderr.count("a forked process: it counts nothing") == 3
    next_process = """
with SyncAudit(wal=folder / "wal", output=FileOutput(folder / "reports"), **options) as audit:
    assert audit.close(60)
"""
    assert "damaged" not in run_script(tmp_path, fork, next_process).stderr
    assert counted_records(tmp_path / "reports") == 301


@pytest.mark.parametrize("fork", FORKS)
def test_a_child_waits_for_no_lock_that_the_parent_held(tmp_path: Path, fork: str) -> None:
    script = """
audit = SyncAudit(wal=folder / "wal", output=FileOutput(folder / "reports"), **options)
audit.start()
audit.handled("orders", 0, 1, 5, 10)
quiet()
with audit._books["orders"].lock, audit._writing, audit._books_lock:
    child = FORK
    if not child:
        signal.alarm(100)
        audit.handled("orders", 0, 2, 5, 10)
        audit.handled_many("orders", 0, [3], [5], [10])
        audit.sent_many("orders", [5], 10)
        audit.sent("a-topic-of-its-own", 5, 10)
        end(not audit.logged() and not audit.close())
assert has_ended_well(child)
assert audit.close(60)
"""
    assert "a forked process" in run_script(tmp_path, fork, script).stderr
    assert counted_records(tmp_path / "reports") == 1


@pytest.mark.parametrize("fork", FORKS)
def test_an_audit_that_is_made_before_the_fork_and_started_behind_it_counts_in_every_child(
    tmp_path: Path, fork: str
) -> None:
    """As with gunicorn's --preload: each child is a source of its own, and none counts the parent's
    records."""
    script = """
audit = SyncAudit(wal=FolderPerWorker(folder / "wal"), output=FileOutput(folder / "reports"), **options)
audit.sent("orders", 5, 10)
children = []
for _ in range(4):
    child = FORK
    if not child:
        with audit:
            for _ in range(10):
                audit.sent("orders", 5, 10)
            end(audit.close(60))
    children.append(child)
for child in children:
    assert has_ended_well(child)
"""
    run_script(tmp_path, fork, script)
    reports = list(read_lines((tmp_path / "reports").read_bytes()))
    assert counted_records(tmp_path / "reports") == 40
    assert len({report.source for report in reports}) == 4


def test_a_child_cannot_start_the_audit_that_its_parent_started(tmp_path: Path) -> None:
    script = """
audit = SyncAudit(wal=FolderPerWorker(folder / "wal"), output=FileOutput(folder / "reports"), **options)
audit.start()
quiet()
child = FORK
if not child:
    try:
        audit.start()
    except AuditError as error:
        end("start it in the workers only" in str(error))
    os._exit(1)
assert has_ended_well(child)
assert audit.close(60)
"""
    run_script(tmp_path, "in C", script)
