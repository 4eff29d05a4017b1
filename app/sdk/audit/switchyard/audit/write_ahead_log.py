"""The folder of a write-ahead log: one file at a time, one process at a time.

    lock           held while a process uses the folder
    log-000007     the file: a snapshot frame, then frames of changes
    damaged-000005 files that could not be read to their end, for people (the last few)
    refused        reports that the receiver will never accept, one a line (`outputs.read_lines`)

Rules
1. A new file is written under another name, synced and renamed before the older ones are deleted. So at any
   moment one file has a whole first frame. `start_file` does this when a process starts, when the file has
   grown, and after any error.
2. `append` is one write. A killed process loses nothing that was written, because the kernel has it. Only a
   machine that stops loses what was not synced.
3. Files that were read are never written to: a starting process begins its own file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO, NamedTuple

from switchyard.audit import wal_frames
from switchyard.audit.errors import AuditError, FolderTaken

LOCK, PREFIX, DAMAGED, NEXT, REFUSED = "lock", "log-", "damaged-", "next", "refused"
PRIVATE = 0o600  # topics and counts are private
MOST_DAMAGED = 3
ROTATE_BYTES = 4 << 20
MOST_REFUSED_BYTES = 16 << 20


class EarlierLog(NamedTuple):
    """The log of an earlier process.

    Attributes:
        payloads: The payloads of its frames, a snapshot first; (): none.
        damage: The part that could not be read; "": at most the last write was cut short.
    """

    payloads: tuple[bytes, ...]
    damage: str


class WriteAheadLog:
    """The log in one folder. Not thread-safe. Errors of the disk are OSError."""

    __slots__ = (
        "_descriptor",
        "_directory",
        "_first_frame_bytes",
        "_frames",
        "_lock",
        "_number",
        "_size_bytes",
    )

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: IO[str] | None = None
        self._descriptor = -1
        self._number = self._frames = self._size_bytes = self._first_frame_bytes = 0

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def is_open(self) -> bool:
        """Whether `append` can be called; if not, call `start_file` first."""
        return self._descriptor >= 0

    @property
    def is_long(self) -> bool:
        """Whether `start_file` is due."""
        return self._size_bytes > ROTATE_BYTES + 4 * self._first_frame_bytes

    def lock_and_read(self) -> EarlierLog:
        """Locks the folder, and reads its log.

        Raises:
            FolderTaken: Another process uses it.
            AuditError: It cannot be used.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._directory / LOCK).touch(mode=PRIVATE)
            self._lock = (self._directory / LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._lock.fileno()), (self._directory / LOCK).stat()):
                raise BlockingIOError  # the folder was removed and recreated meanwhile
            return self._read()
        except BlockingIOError:
            self.release()
            raise FolderTaken(
                f"wal={str(self._directory)!r}: another process writes its audit there; give each process "
                "its own folder (FolderPerWorker does)"
            ) from None
        except OSError as error:
            self.release()
            raise AuditError(
                f"wal={str(self._directory)!r}: {error}; name a folder that can be written"
            ) from error

    def _read(self) -> EarlierLog:
        damage: list[str] = []
        files = sorted(self._directory.glob(f"{PREFIX}*"), key=_number, reverse=True)
        self._number = max((_number(path) for path in files), default=0)
        for path in files:
            found = wal_frames.found(path.read_bytes())
            if found.is_damaged or not found.payloads:
                damage.append(f"{path.name}: {found.torn_bytes} bytes after byte {found.end}")
                self._keep_aside(path)
            if found.payloads:
                return EarlierLog(found.payloads, "; ".join(damage))
        return EarlierLog((), "; ".join(damage))

    def _keep_aside(self, path: Path) -> None:
        kept = self._directory / path.name.replace(PREFIX, DAMAGED, 1)
        with contextlib.suppress(FileExistsError):
            os.link(path, kept)
        for old in sorted(self._directory.glob(f"{DAMAGED}*"))[:-MOST_DAMAGED]:
            old.unlink()

    def start_file(self, payload: bytes) -> None:
        """Begins a file with a snapshot, and deletes the older ones. Synced."""
        self.shut()
        written, number = self._directory / NEXT, self._number + 1
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, PRIVATE)
        try:
            data = wal_frames.written([payload])
            _write(descriptor, data)
            os.fsync(descriptor)
            written.rename(self._directory / f"{PREFIX}{number:06}")
            _sync(self._directory)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self._number = descriptor, number
        self._frames, self._size_bytes, self._first_frame_bytes = 1, len(data), len(data)
        for path in self._directory.glob(f"{PREFIX}*"):
            if _number(path) < number:
                path.unlink(missing_ok=True)

    def append(self, payload: bytes, *, sync: bool) -> None:
        """Writes a frame. After an error this file accepts no more frames."""
        if not self.is_open:
            raise OSError("the log has no open file")
        data = wal_frames.framed(self._frames, payload)
        try:
            _write(self._descriptor, data)
            if sync:
                os.fdatasync(self._descriptor)
        except BaseException:
            self.shut()
            raise
        self._frames += 1
        self._size_bytes += len(data)

    def sync(self) -> None:
        """Syncs the file, so that its frames survive a stop of the machine."""
        if self.is_open:
            os.fdatasync(self._descriptor)

    def keep_refused(self, lines: bytes) -> None:
        """Keeps refused reports for people. Synced."""
        descriptor = os.open(self._directory / REFUSED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        try:
            if os.fstat(descriptor).st_size + len(lines) > MOST_REFUSED_BYTES:
                raise OSError(f"{self._directory / REFUSED} is full; read it, then move it away")
            _write(descriptor, b"\n" + lines)  # an earlier write may have been cut short
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @property
    def refused_bytes(self) -> int:
        """The size of the refused reports, also of earlier processes."""
        path = self._directory / REFUSED
        return path.stat().st_size if path.exists() else 0

    def remove(self) -> None:
        """Closes the log, and deletes the folder unless it has files for people. It must be locked."""
        self.shut()
        for path in self._directory.glob(f"{PREFIX}*"):
            path.unlink()
        (self._directory / NEXT).unlink(missing_ok=True)
        if {path.name for path in self._directory.iterdir()} <= {LOCK}:
            (self._directory / LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a file has just appeared in it
                self._directory.rmdir()
        self.release()

    def release(self) -> None:
        """Closes the log, and unlocks the folder."""
        self.shut()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def shut(self) -> None:
        """Closes the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def is_log(directory: Path) -> bool:
    """Whether a folder has a write-ahead log, even beside folders of other processes."""
    for path in directory.glob(f"{PREFIX}*"):
        with path.open("rb") as file:
            if file.read(len(wal_frames.MAGIC)) == wal_frames.MAGIC:
                return True
    return False


def _number(path: Path) -> int:
    digits = path.name.removeprefix(PREFIX)
    return int(digits) if digits.isdecimal() else 0


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
