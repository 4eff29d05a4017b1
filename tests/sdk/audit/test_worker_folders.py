"""A folder per worker: numbers are reused, and a worker takes over what ended processes left behind."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from app.audit.folds.collector import Collector
from switchyard.audit import AuditError, FileOutput, FolderPerWorker, SyncAudit
from switchyard.audit.outputs import read_lines
from switchyard.audit.write_ahead_log import WriteAheadLog

ENOUGH_S = 150.0
OPTIONS: dict[str, Any] = {"origin": "web", "tier": "consumer", "cluster": "east", "window_ms": 1_000,
                           "log_interval_s": 0.01}  # fmt: skip


def audit_in(folder: Path, **options: Any) -> SyncAudit:
    output = FileOutput(folder.parent / "reports")
    return SyncAudit(**{**OPTIONS, "wal": FolderPerWorker(folder), "output": output, **options})


def counted_records(folder: Path) -> int:
    collector = Collector()
    path = folder.parent / "reports"
    for position, report in enumerate(read_lines(path.read_bytes()) if path.exists() else ()):
        collector.apply(report, position)
    return sum(record.totals.count for record in collector.windows.values())


def run_and_kill(folder: str, script: str) -> None:
    """Runs a process that counts until its counts are logged, then kills it. Its output takes no report."""
    script = f"""
import os, signal
from switchyard.audit import *
def fails(_):
    raise OSError("nobody there")
audit = SyncAudit(wal={folder}, output=CallOutput(fails), **{OPTIONS!r})
audit.start()
{script}
assert audit.logged(60)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, timeout=ENOUGH_S, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def entry_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_workers_have_the_lowest_numbers_and_a_source_each(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    with ExitStack() as stack:
        audits = [stack.enter_context(audit_in(folder)) for _ in range(3)]
        assert entry_names(folder) == {"worker-0", "worker-1", "worker-2"}
        clients = [audit.source.partition("@")[0] for audit in audits]
        assert [client.rpartition(".")[2] for client in clients] == ["worker-0", "worker-1", "worker-2"]
        assert audits[1].close(60)
        restarted = stack.enter_context(audit_in(folder))
        assert ".worker-1@" in restarted.source
    assert entry_names(folder) == {"worker-0", "worker-1", "worker-2"}


def test_one_worker_takes_over_the_folders_of_many(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two numbered folders of processes that ran at one time; two named by process ids; and one of a time
    with a single process."""
    folder = tmp_path / "audit"
    base = f"FolderPerWorker({str(folder)!r})"
    run_and_kill(repr(str(folder)), "audit.sent('orders', 5, 10)")
    nested = f"""
audit.sent("orders", 5, 10)
if not os.fork():
    audit = SyncAudit(wal={base}, output=CallOutput(fails), **{OPTIONS!r})
    audit.start()
    audit.handled("payments", 3, 7, 5, 10)
    assert audit.logged(60)
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
"""
    for process in ("4711", "815"):
        run_and_kill(repr(str(folder / process)), "audit.handled('payments', 4, 9, 5, 10)")
    WriteAheadLog(folder / "815").keep_refused(b"{}")
    # A worker that starts while another runs gets the next number; both are killed.
    run_and_kill(base, nested)
    assert {"worker-0", "worker-1"} <= entry_names(folder)
    caplog.set_level(logging.WARNING)
    with audit_in(folder) as audit:
        assert not audit.handled("payments", 4, 9, 5, 10)  # from a folder named by a process id
        assert not audit.handled("payments", 3, 7, 5, 10)  # from the folder worker-1
        audit.sent("orders", 5, 10)
        assert audit.close(60)
    assert counted_records(folder) == 1 + 2 + 2 + 1
    assert entry_names(folder) == {"worker-0", "worker-1", "815", "lock"}
    assert entry_names(folder / "815") == {"lock", "refused"}
    with audit_in(folder) as first, audit_in(folder) as second:
        assert not second.handled("payments", 3, 7, 5, 10)  # a numbered folder keeps its positions
        assert not first.handled("payments", 4, 9, 5, 10)
        assert first.close(60)
        assert second.close(60)
    assert counted_records(folder) == 6


def test_folders_of_live_processes_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "audit"
    (folder / "database").mkdir(parents=True)
    (folder / "database" / "lock").write_text("4711")
    (folder / "database" / "log-1").write_text("somebody's")
    (folder / "file").write_text("a file")
    newer = WriteAheadLog(folder / "newer")
    newer.lock_and_read()
    newer.start_file(b"\xc0")
    newer.release()
    with audit_in(folder) as audit:
        assert audit.close(60)
    assert (folder / "database" / "lock").read_text() == "4711"
    assert "newer: frame 0 of the log" in caplog.text
    assert "its counts are not taken over" in caplog.text
    reread = WriteAheadLog(folder / "newer")
    assert reread.lock_and_read().payloads == (b"\xc0",)
    reread.release()


def test_a_folder_that_cannot_be_used_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file")
    with pytest.raises(AuditError, match="audit/worker-0"):
        audit_in(tmp_path / "audit").start()


def test_workers_that_are_killed_and_started_again_lose_nothing_that_was_confirmed(tmp_path: Path) -> None:
    """Four workers of one preloaded application are killed at any moment, by a server that forks in C."""
    script = f"""
import ctypes, os, random, signal, sys, time
from pathlib import Path
from switchyard.audit import *
folder = Path({str(tmp_path)!r})
audit = SyncAudit(wal=FolderPerWorker(folder / "audit"), output=FileOutput(folder / "reports"),
                  report_interval_s=0.02, **{OPTIONS!r})
confirmed = os.open(folder / "confirmed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
begun = os.open(folder / "begun", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def work():
    audit.start()
    while True:
        os.write(begun, b"x" * 10)
        audit.sent_many("orders", [5] * 10, 10)
        if audit.logged(60):
            os.write(confirmed, b"x" * 10)
def begin():
    child = ctypes.PyDLL(None).fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    return child
chance, workers = random.Random(7), [begin() for _ in range(4)]
for _ in range(40):
    done = os.stat(confirmed).st_size
    while os.stat(confirmed).st_size < done + 200:
        time.sleep(0.001)
    place = chance.randrange(4)
    os.kill(workers[place], signal.SIGKILL)
    assert os.waitpid(workers[place], 0)[1] == signal.SIGKILL
    workers[place] = begin()
for worker in workers:
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, timeout=ENOUGH_S, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "audit"
    with audit_in(folder) as audit:
        assert audit.close(60)
    least, most = ((tmp_path / name).stat().st_size for name in ("confirmed", "begun"))
    assert least <= counted_records(folder) <= most
    assert len(entry_names(folder)) <= 8
