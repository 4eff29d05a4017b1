"""A client's audit with real files and threads: start, continue, end; outputs and disks that fail."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.audit.folds.collector import Collector
from switchyard.audit import (
    Audit,
    AuditError,
    CallOutput,
    FileOutput,
    Fsync,
    NotPassed,
    Refused,
    SyncAudit,
    background_thread,
    recovery,
    wal_frames,
    write_ahead_log,
)
from switchyard.audit.model.reports import Report
from switchyard.audit.outputs import Output, read_lines

ENOUGH_S = 150.0
QUICK: dict[str, Any] = {"origin": "billing", "tier": "consumer", "cluster": "east", "window_ms": 1_000,
                         "log_interval_s": 0.01, "report_interval_s": 0.01}  # fmt: skip


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_thread, "BACKOFF_S", 0.005)
    monkeypatch.setattr(background_thread, "MOST_BACKOFF_S", 0.02)


class RecordingOutput:
    """Keeps the reports that it gets, or raises `fails`."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.fails: Exception | None = None
        self.tries = 0
        self.is_closed = False

    async def send(self, reports: Sequence[Report]) -> None:
        self.tries += 1
        if self.fails is not None:
            raise self.fails
        self.reports += reports

    async def close(self) -> None:
        self.is_closed = True


def counted_records(reports: Sequence[Report]) -> int:
    collector = Collector()
    for position, report in enumerate(reports):
        collector.apply(report, position)
    return sum(record.totals.count for record in collector.windows.values())


def until(condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + ENOUGH_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)


async def test_counts_are_sent_and_the_end_is_reported(tmp_path: Path) -> None:
    output = RecordingOutput()
    async with Audit(**QUICK, wal=tmp_path, output=output) as audit:
        audit.sent("orders", 5, 10)
        assert await audit.logged()
        await asyncio.to_thread(until, lambda: output.reports)
        audit.sent("orders", 6, 10)
        assert await audit.close()
    assert counted_records(output.reports) == 2
    assert output.is_closed
    assert output.reports[-1].leaves
    assert {report.source for report in output.reports} == {audit.source}
    assert (audit.stats.waiting, audit.stats.wrong) == (0, {})


def test_the_next_process_sends_what_could_not_be_sent(tmp_path: Path) -> None:
    unreachable, output = RecordingOutput(), RecordingOutput()
    unreachable.fails = OSError("nobody there")
    first = SyncAudit(**QUICK, wal=tmp_path, output=unreachable)
    first.start()
    first.handled("orders", 0, 7, 5, 10)
    until(lambda: unreachable.tries > 3)
    first.sent("payments", 5, 10)
    assert not first.close(0.05)
    assert first.stats.waiting >= 2
    with SyncAudit(**QUICK, wal=tmp_path, output=output) as second:
        second.handled("orders", 0, 7, 5, 10)  # the record is redelivered
        second.handled("orders", 0, 8, 5, 10)
        assert second.stats.redelivered == 1
        until(lambda: counted_records(output.reports) == 3)
    assert counted_records(output.reports) == 3
    assert {report.source for report in output.reports} == {first.source, second.source}
    with SyncAudit(**QUICK, wal=tmp_path, output=RecordingOutput()) as third:
        assert third.stats.waiting == 0
        assert not third.handled("orders", 0, 8, 5, 10)  # positions outlast every process


def test_a_failing_output_is_logged_once_and_once_more_when_it_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = RecordingOutput()
    output.fails = OSError("nobody there")
    with SyncAudit(**QUICK, wal=tmp_path, output=output) as audit:
        for number in range(20):
            audit.sent("orders", 5, 10)
            until(lambda number=number: output.tries > number)
        assert audit.stats.wrong == {"the output": "OSError: nobody there"}
        assert audit.stats.waiting == 1  # later counts go into one report
        output.fails = None
        until(lambda: counted_records(output.reports) == 20)
        until(lambda: not audit.stats.wrong)
    messages = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert messages == [
        (logging.ERROR, "audit: the output: OSError: nobody there"),
        (logging.WARNING, "audit: the output: works again"),
    ]


def test_an_output_that_hangs_delays_neither_the_client_nor_the_log_nor_the_end(tmp_path: Path) -> None:
    stuck = asyncio.Event()

    async def hang(_: object) -> None:
        stuck.set()
        await asyncio.sleep(3_600)

    audit = SyncAudit(**QUICK, wal=tmp_path, output=CallOutput(hang))
    audit.start()
    audit.sent("orders", 5, 10)
    until(stuck.is_set)
    audit.sent("orders", 5, 10)
    assert audit.logged()
    assert not audit.close(0.05)
    output = RecordingOutput()
    with SyncAudit(**QUICK, wal=tmp_path, output=output):
        until(lambda: counted_records(output.reports) == 2)


def test_a_refused_report_delays_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = RecordingOutput()

    def refuse(reports: Sequence[Report]) -> None:
        if any(report.topic == "poison" for report in reports):
            raise Refused("422: it says nothing")
        output.reports += reports

    with SyncAudit(**QUICK, wal=tmp_path, output=CallOutput(refuse)) as audit:
        for topic in ("a", "poison", "z"):
            audit.sent(topic, 5, 10)
        until(lambda: {report.topic for report in output.reports} == {"a", "z"})
        until(lambda: audit.stats.refused)
    assert "/refused has it: 422: it says nothing" in caplog.text


def test_a_refused_report_is_lost_without_a_log_and_the_logger_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(_: Sequence[Report]) -> None:
        raise Refused("422: it says nothing")

    with SyncAudit(**QUICK, wal=None, output=CallOutput(refuse)) as audit:
        audit.sent("a", 5, 10)
        until(lambda: audit.stats.refused)
    assert "it is lost, because there is no log: 422: it says nothing" in caplog.text


def test_a_report_that_does_not_pass_is_found_by_halves_and_delays_no_other(tmp_path: Path) -> None:
    """Several such reports lie side by side, more than one round finds; none of them is lost."""
    output, stuck = RecordingOutput(), {f"topic-{number:03}" for number in range(100, 104)}

    def send(reports: Sequence[Report]) -> None:
        if stuck & {report.topic for report in reports}:
            raise NotPassed("403: not this")
        output.reports += reports

    with SyncAudit(**QUICK, wal=tmp_path, output=CallOutput(send)) as audit:
        for number in range(300):
            audit.sent(f"topic-{number:03}", 5, 10)
        until(lambda: counted_records(output.reports) == 296)
        until(
            lambda: "others are sent: 403: not this" in audit.stats.wrong.get("the way to the receiver", "")
        )
        stuck.clear()
        until(lambda: counted_records(output.reports) == 300 and not audit.stats.wrong)
        assert audit.close(60)


def test_where_no_report_passes_a_round_tries_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_thread, "BACKOFF_S", 3_600.0)
    monkeypatch.setattr(background_thread, "MOST_BACKOFF_S", 3_600.0)
    output = RecordingOutput()
    output.fails = NotPassed("400: plain HTTP on a TLS port")
    audit = SyncAudit(**QUICK, wal=tmp_path, output=output)
    for number in range(300):
        audit.sent(f"topic-{number}", 5, 10)
    audit.start()
    until(lambda: "nothing passes: 400" in audit.stats.wrong.get("the output", ""))
    assert output.tries == background_thread.MOST_NOT_PASSED + 1
    assert (audit.stats.waiting, audit.stats.refused) == (300, 0)
    assert not audit.close(0.05)


def test_a_refused_report_waits_while_there_is_no_room_to_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(write_ahead_log, "MOST_REFUSED_BYTES", 10)
    output = RecordingOutput()
    output.fails = Refused("422: it says nothing")
    with SyncAudit(**QUICK, wal=tmp_path, output=output) as audit:
        audit.sent("orders", 5, 10)
        until(lambda: "refused is full" in audit.stats.wrong.get("the receiver of reports", ""))
        assert (audit.stats.refused, audit.stats.waiting) == (0, 1)
        monkeypatch.setattr(write_ahead_log, "MOST_REFUSED_BYTES", 1 << 20)
        until(lambda: audit.stats.refused)
        output.fails = None
        assert not audit.close(60)
    assert counted_records(list(read_lines((tmp_path / write_ahead_log.REFUSED).read_bytes()))) == 1
    with SyncAudit(**QUICK, wal=tmp_path, output=RecordingOutput()) as audit:
        assert audit.close(60)
    assert "has reports that the receiver refused" in caplog.text


def test_a_disk_that_fails_stops_neither_the_client_nor_the_counting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log's folder disappears, and comes back."""
    output, folder = RecordingOutput(), tmp_path / "audit"
    with SyncAudit(**QUICK, wal=folder, output=output) as audit:
        audit.sent("orders", 5, 10)
        assert audit.logged()
        until(lambda: counted_records(output.reports) == 1)
        folder.rename(tmp_path / "away")
        assert audit._wal is not None
        audit._wal.shut()  # as after an error: the next write needs a new file
        audit.sent("orders", 5, 10)
        assert not audit.logged()
        assert "No such file" in audit.stats.wrong["the write-ahead log"]
        tries = output.tries
        audit.sent("orders", 5, 10)
        assert not audit.logged()
        assert (counted_records(output.reports), output.tries) == (
            1,
            tries,
        )  # a report is only sent once it is in the log
        (tmp_path / "away").rename(folder)
        assert audit.logged()
        until(lambda: counted_records(output.reports) == 3)
    assert len(caplog.records) == 2
    assert counted_records(output.reports) == 3


def test_a_change_that_a_fault_kept_out_of_the_log_is_in_the_next_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SyncAudit(**{**QUICK, "log_interval_s": 100.0, "report_interval_s": 100.0}, wal=tmp_path,
                   output=RecordingOutput()) as audit:  # fmt: skip
        audit.handled("orders", 0, 7, 5, 10)
        monkeypatch.setattr(recovery, "encode", lambda _: {}["a fault"])
        assert not audit.logged()
        assert "a fault" in audit.stats.wrong["keeping counts"]
        monkeypatch.undo()
        audit.handled("orders", 1, 3, 5, 10)
        assert audit.logged()
        log_ = max(tmp_path.glob(f"{write_ahead_log.PREFIX}*"))
        assert recovery.read(wal_frames.found(log_.read_bytes()).payloads).positions == {
            "orders": {0: (8, 5), 1: (4, 5)}
        }


def test_a_damaged_log_is_reported_and_the_audit_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unreachable = RecordingOutput()
    unreachable.fails = OSError("nobody there")
    with SyncAudit(**QUICK, wal=tmp_path, output=unreachable) as audit:
        for number in range(3):
            audit.handled("orders", 0, number, 5, 10)
            assert audit.logged()
        audit.close(0.01)
    (path,) = tmp_path.glob("log-*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    output = RecordingOutput()
    with SyncAudit(**QUICK, wal=tmp_path, output=output) as audit:
        audit.sent("orders", 5, 10)
    assert "the write-ahead log is damaged" in caplog.text
    assert 1 <= counted_records(output.reports) <= 4


def test_a_log_of_another_version_is_left_as_it_is(tmp_path: Path) -> None:
    log = write_ahead_log.WriteAheadLog(tmp_path)
    log.lock_and_read()
    log.start_file(b"\xc0")
    log.release()
    for _ in range(2):
        with pytest.raises(
            AuditError, match="another version wrote the log: start that version to send its reports"
        ):
            SyncAudit(**QUICK, wal=tmp_path, output=RecordingOutput()).start()
    found = write_ahead_log.WriteAheadLog(tmp_path)
    assert found.lock_and_read().payloads == (b"\xc0",)
    found.release()


def test_a_log_has_one_process(tmp_path: Path) -> None:
    with SyncAudit(**QUICK, wal=tmp_path, output=RecordingOutput()):
        other = SyncAudit(**QUICK, wal=tmp_path, output=RecordingOutput())
        with pytest.raises(AuditError, match="give each process its own folder"):
            other.start()
        other.sent("orders", 5, 10)  # a call on the refused audit does no harm
        assert not other.logged()
        assert not other.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"origin": "a/b"}, r"origin='a/b': use letters"),
        ({"tier": ""}, r"tier='': use letters"),
        ({"cluster": "e st"}, r"cluster='e st'"),
        ({"window_ms": 0}, "window_ms=0: must be above 0"),
        ({"report_interval_s": float("nan")}, "report_interval_s=nan"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(AuditError, match=message):
        Audit(**{**QUICK, "wal": None, "output": RecordingOutput(), **wrong})


def test_without_a_log_reports_are_sent_all_the_same() -> None:
    output = RecordingOutput()
    with SyncAudit(**QUICK, wal=None, output=output) as audit:
        audit.sent("orders", 5, 10)
        assert not audit.logged()
        until(lambda: counted_records(output.reports) == 1)


@pytest.mark.parametrize("fsync", list(Fsync))
def test_there_are_as_many_syncs_as_fsync_says(
    tmp_path: Path, fsync: Fsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(write_ahead_log.os, "fdatasync", synced.append)
    output, slow = RecordingOutput(), {**QUICK, "report_interval_s": 3_600.0, "log_interval_s": 3_600.0}
    with SyncAudit(**slow, wal=tmp_path, output=output, fsync=fsync) as audit:
        until(lambda: synced or fsync is Fsync.NEVER)  # the first round, which looks for reports to send
        synced.clear()
        for _ in range(5):
            audit.sent("orders", 5, 10)
            assert audit.logged()
        assert len(synced) == (5 if fsync is Fsync.ALWAYS else 0)
        synced.clear()
    assert bool(synced) == (fsync is not Fsync.NEVER)
    assert counted_records(output.reports) == 5


def test_a_process_that_ends_without_close_keeps_its_counts(tmp_path: Path) -> None:
    script = (
        "from switchyard.audit import *\n"
        f"audit = SyncAudit(origin='a', tier='consumer', wal={str(tmp_path)!r}, log_interval_s=3600,\n"
        "                  output=CallOutput(print))\n"
        "audit.start()\n"
        "for _ in range(5): audit.sent('orders', 5, 10)\n"
        "raise SystemExit(3)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 3
    output = RecordingOutput()
    with SyncAudit(**QUICK, wal=tmp_path, output=output):
        until(lambda: counted_records(output.reports) == 5)


def test_a_forked_child_does_no_harm_and_may_have_another_audit(tmp_path: Path) -> None:
    script = f"""
import os, sys
from switchyard.audit import *
audit = SyncAudit(origin="a", tier="consumer", wal={str(tmp_path / "parent")!r},
                  output=FileOutput({str(tmp_path / "reports")!r}))
audit.start()
audit.sent("orders", 5, 10)
child = os.fork()
if not child:
    audit.sent("orders", 5, 10)
    assert not audit.logged() and not audit.close()
    with SyncAudit(origin="a", tier="consumer", wal={str(tmp_path / "child")!r},
                   output=FileOutput({str(tmp_path / "reports-child")!r})) as own:
        own.sent("orders", 5, 10)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
try:
    SyncAudit(origin="a", tier="consumer", wal={str(tmp_path / "parent")!r}, output=CallOutput(print)).start()
except AuditError:
    audit.close()
    sys.exit(0)
sys.exit("the child took the parent's lock with it")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "it counts nothing; start another Audit" in done.stderr
    for name in ("reports", "reports-child"):
        assert counted_records(list(read_lines((tmp_path / name).read_bytes()))) == 1


def test_ten_thousand_reports_that_wait_do_not_grow_with_time(tmp_path: Path) -> None:
    """The output is unavailable: the log is rotated, and stays small."""
    unreachable = RecordingOutput()
    unreachable.fails = OSError("nobody there")
    with SyncAudit(**QUICK, wal=tmp_path, output=unreachable) as audit:
        for _ in range(300):
            for topic in range(20):
                audit.sent(f"topic-{topic}", int(time.time() * 1000), 10)
            assert audit.logged()
        assert audit.stats.waiting <= 20
        unreachable.fails = None
    assert counted_records(unreachable.reports) == 6_000


async def test_many_wait_for_one_write(tmp_path: Path) -> None:
    async with Audit(**{**QUICK, "log_interval_s": 3_600.0}, wal=tmp_path, output=RecordingOutput()) as audit:

        async def send() -> bool:
            audit.sent("orders", 5, 10)
            return await audit.logged()

        assert all(await asyncio.gather(*(send() for _ in range(500))))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100 * 400  # noqa: ASYNC240


async def test_a_caller_that_stops_waiting_for_the_log_does_no_harm(tmp_path: Path) -> None:
    async with Audit(**QUICK, wal=tmp_path, output=RecordingOutput()) as audit:
        for _ in range(20):
            audit.sent("orders", 5, 10)
            waiting = asyncio.create_task(audit.logged())
            await asyncio.sleep(0)
            waiting.cancel()
            audit.sent("orders", 5, 10)
            assert await audit.logged()


def test_the_library_needs_numpy_and_msgspec_only(tmp_path: Path) -> None:
    script = f"""
import sys
class Only:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {{*sys.stdlib_module_names, "switchyard", "numpy", "msgspec"}}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Only())
from switchyard.audit import FileOutput, FolderPerWorker, HttpOutput, SyncAudit
HttpOutput("http://127.0.0.1:9/x")
with SyncAudit(origin="a", tier="consumer", wal=FolderPerWorker({str(tmp_path / "wal")!r}),
               output=FileOutput({str(tmp_path / "reports")!r})) as audit:
    audit.sent("orders", 5, 10, b"id")
print(*{{name.partition(".")[0] for name in sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"numpy", "msgspec", "switchyard"} <= set(done.stdout.split())
    assert counted_records(list(read_lines((tmp_path / "reports").read_bytes()))) == 1


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = threading.active_count()
    for _ in range(3):
        with SyncAudit(**QUICK, wal=tmp_path, output=FileOutput(tmp_path / "reports")) as audit:
            audit.sent("orders", 5, 10)
    assert threading.active_count() == before
    assert len(os.listdir("/proc/self/fd")) < 200  # noqa: PTH208


def check(output: Output) -> None:
    """mypy checks here that the tests' output has the type of an output."""


check(RecordingOutput())
