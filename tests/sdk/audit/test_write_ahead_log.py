"""The write-ahead log's folder: locked, rotated, damaged, full."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.audit import AuditError, wal_frames, write_ahead_log
from switchyard.audit.write_ahead_log import WriteAheadLog


def open_log(folder: Path) -> WriteAheadLog:
    found = WriteAheadLog(folder)
    found.lock_and_read()
    return found


def logged_payloads(folder: Path) -> tuple[bytes, ...]:
    """The payloads that the next process reads."""
    found = WriteAheadLog(folder)
    try:
        return found.lock_and_read().payloads
    finally:
        found.release()


def log_file(folder: Path) -> Path:
    (found,) = folder.glob("log-*")
    return found


def test_a_process_finds_what_the_one_before_has_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.start_file(b"all")
    for number in range(3):
        log.append(b"%d" % number, sync=number == 1)
    log.release()
    assert logged_payloads(tmp_path) == (b"all", b"0", b"1", b"2")


def test_a_new_file_takes_the_place_of_the_older_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(4):
        log.start_file(b"all %d" % number)
        log.append(b"more", sync=False)
    log.release()
    assert logged_payloads(tmp_path) == (b"all 3", b"more")
    assert log_file(tmp_path).name == "log-000004"


def test_the_newest_file_is_known_by_its_number(tmp_path: Path) -> None:
    """A process was killed before it deleted the older file."""
    for number in (999_999, 1_000_000):
        (tmp_path / f"log-{number:06}").write_bytes(wal_frames.written([b"all %d" % number]))
    assert logged_payloads(tmp_path) == (b"all 1000000",)


def test_a_log_is_long_once_its_changes_outweigh_its_first_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead_log, "ROTATE_BYTES", 1_000)
    log = open_log(tmp_path)
    log.start_file(bytes(500))
    while not log.is_long:
        log.append(bytes(100), sync=False)
    assert 3_000 < log_file(tmp_path).stat().st_size < 3_200
    log.start_file(bytes(500))
    assert not log.is_long
    log.release()


def test_two_processes_never_share_a_folder(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(AuditError, match=r"wal='.*another process.*its own folder"):
        WriteAheadLog(tmp_path).lock_and_read()
    script = (
        "from pathlib import Path; from switchyard.audit.write_ahead_log import WriteAheadLog; "
        f"WriteAheadLog(Path({str(tmp_path)!r})).lock_and_read()"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "another process writes its audit there" in other.stderr
    log.release()
    open_log(tmp_path).release()


def test_the_lock_goes_with_a_process_that_is_killed(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        open_log(tmp_path).start_file(b"all")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert logged_payloads(tmp_path) == (b"all",)


def test_an_unusable_folder_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match="name a folder that can be written"):
        WriteAheadLog(tmp_path / "file").lock_and_read()


def test_a_write_that_was_cut_short_is_left_out_and_nothing_is_kept_aside(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.start_file(b"all")
    log.append(b"first", sync=False)
    log.append(b"second", sync=False)
    log.release()
    path = log_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    found = WriteAheadLog(tmp_path)
    assert found.lock_and_read() == ((b"all", b"first"), "")
    found.release()


@given(bit=st.integers(0, 8 * 300), sizes=st.lists(st.integers(0, 60), min_size=3, max_size=6))
def test_a_damaged_file_is_read_up_to_the_damage_reported_and_kept(
    tmp_path_factory: pytest.TempPathFactory, bit: int, sizes: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("wal")
    log = open_log(folder)
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    log.start_file(payloads[0])
    for payload in payloads[1:]:
        log.append(payload, sync=False)
    log.release()
    path = log_file(folder)
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)
    reopened = WriteAheadLog(folder)
    found = reopened.lock_and_read()
    assert found.payloads == tuple(payloads[: len(found.payloads)])
    assert len(found.payloads) < len(payloads)
    if len(found.payloads) < len(payloads) - 1:
        assert path.name in found.damage
        assert [kept.read_bytes() for kept in folder.glob("damaged-*")] == [bytes(data)]
    reopened.start_file(b"all")
    reopened.release()
    assert logged_payloads(folder) == (b"all",)


def test_where_a_new_files_first_frame_is_lost_the_older_one_is_read(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.start_file(b"old")
    log.append(b"more", sync=True)
    log.release()
    (tmp_path / "log-000002").write_bytes(b"")  # its data never reached the disk
    (tmp_path / "next").write_bytes(b"half")
    reopened = WriteAheadLog(tmp_path)
    assert reopened.lock_and_read().payloads == (b"old", b"more")
    reopened.start_file(b"new")
    reopened.release()
    assert (logged_payloads(tmp_path), log_file(tmp_path).name) == ((b"new",), "log-000003")


def test_a_full_disk_spoils_nothing_that_was_written(tmp_path: Path) -> None:
    """The kernel accepts part of a write, and then refuses more."""
    log = open_log(tmp_path)
    log.start_file(b"all")
    log.append(b"first", sync=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log_file(tmp_path).stat().st_size + 50, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            log.append(bytes(500), sync=False)
        assert not log.is_open
        with pytest.raises(OSError, match="the log has no open file"):
            log.append(b"second", sync=False)
        with pytest.raises(OSError, match="too large"):
            log.start_file(bytes(500))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    log.release()
    assert logged_payloads(tmp_path) == (b"all", b"first")
