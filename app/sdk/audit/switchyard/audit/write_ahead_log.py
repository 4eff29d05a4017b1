"""The write-ahead log's folder: one file at a time, one process at a time.

    lock           held while a process uses the folder
    log-000007     the file: a frame that says everything, then frames of what has changed since
    damaged-000005 what could not be read to its end, kept to be looked at (the last few)
    refused        reports that the receiver will never take, a line each (`outputs.read_lines`)

Rules
1. A file is written under another name, synced and renamed before the older ones go: at any moment one whole
   first frame is there. So `start_file` does when a process starts, when the file has grown, and after any
   error.
2. `append` is one write. A process that is killed loses nothing of what was written: the kernel has it. Only
   a machine that stops loses what was not synced.
3. What is read is never written to: a process that starts begins a file of its own.
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
PRIVATE = 0o600  # topics and counts are nobody else's
MOST_DAMAGED = 3
ROTATE_BYTES = 4 << 20
MOST_REFUSED_BYTES = 16 << 20


class Left(NamedTuple):
    """What an earlier process has left.

    Attributes:
        payloads: of the frames, the first of which says everything; () of none.
        damage: what could not be read, "" where at most the last write was cut short.
    """

    payloads: tuple[bytes, ...]
    damage: str


class WriteAheadLog:
    """See the module. Not safe for threads. Errors of the disk are OSError."""

    __slots__ = ("_begun_bytes", "_descriptor", "_directory", "_frames", "_lock", "_number", "_size_bytes")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: IO[str] | None = None
        self._descriptor = -1
        self._number = self._frames = self._size_bytes = self._begun_bytes = 0

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def is_open(self) -> bool:
        """Whether `append` can do anything; if not, `start_file` first."""
        return self._descriptor >= 0

    @property
    def is_long(self) -> bool:
        """Whether it is time for `start_file`."""
        return self._size_bytes > ROTATE_BYTES + 4 * self._begun_bytes

    def lock_and_read(self) -> Left:
        """Locks the folder, and reads what is there.

        Raises:
            FolderTaken: another process has it. AuditError: it cannot be used.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._directory / LOCK).touch(mode=PRIVATE)
            self._lock = (self._directory / LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._lock.fileno()), (self._directory / LOCK).stat()):
                raise BlockingIOError  # the folder was removed, and made again, meanwhile
            return self._read()
        except BlockingIOError:
            self.release()
            raise FolderTaken(
                f"wal={str(self._directory)!r}: another process writes its audit there; give each process a "
                "folder of its own (FolderPerWorker does)"
            ) from None
        except OSError as error:
            self.release()
            raise AuditError(
                f"wal={str(self._directory)!r}: {error}; name a folder that can be written"
            ) from error

    def _read(self) -> Left:
        damage: list[str] = []
        files = sorted(self._directory.glob(f"{PREFIX}*"), key=_number, reverse=True)
        self._number = max((_number(path) for path in files), default=0)
        for path in files:
            found = wal_frames.found(path.read_bytes())
            if found.is_damaged or not found.payloads:
                damage.append(f"{path.name}: {found.torn_bytes} bytes behind byte {found.end}")
                self._keep_aside(path)
            if found.payloads:
                return Left(found.payloads, "; ".join(damage))
        return Left((), "; ".join(damage))

    def _keep_aside(self, path: Path) -> None:
        kept = self._directory / path.name.replace(PREFIX, DAMAGED, 1)
        with contextlib.suppress(FileExistsError):
            os.link(path, kept)
        for old in sorted(self._directory.glob(f"{DAMAGED}*"))[:-MOST_DAMAGED]:
            old.unlink()

    def start_file(self, payload: bytes) -> None:
        """Begins a file with a frame that says everything, and drops the older ones. Synced."""
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
        self._frames, self._size_bytes, self._begun_bytes = 1, len(data), len(data)
        for path in self._directory.glob(f"{PREFIX}*"):
            if _number(path) < number:
                path.unlink(missing_ok=True)

    def append(self, payload: bytes, *, sync: bool) -> None:
        """Writes a frame; after an error nothing more goes into this file."""
        if not self.is_open:
            raise OSError("no file was begun")
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
        """What was written survives the machine."""
        if self.is_open:
            os.fdatasync(self._descriptor)

    def keep_refused(self, lines: bytes) -> None:
        """Keeps reports that nobody takes, for people to look at. Synced."""
        descriptor = os.open(self._directory / REFUSED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        try:
            if os.fstat(descriptor).st_size + len(lines) > MOST_REFUSED_BYTES:
                raise OSError(f"{self._directory / REFUSED} is full; look at it, and move it away")
            _write(descriptor, b"\n" + lines)  # the write before may have been cut short
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @property
    def refused_bytes(self) -> int:
        """Of what is kept so, by earlier processes, too."""
        path = self._directory / REFUSED
        return path.stat().st_size if path.exists() else 0

    def remove(self) -> None:
        """Ends; the folder goes, unless there is something in it for people to look at. To be locked."""
        self.shut()
        for path in self._directory.glob(f"{PREFIX}*"):
            path.unlink()
        (self._directory / NEXT).unlink(missing_ok=True)
        if {path.name for path in self._directory.iterdir()} <= {LOCK}:
            (self._directory / LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something came in just now
                self._directory.rmdir()
        self.release()

    def release(self) -> None:
        """Ends, and gives the folder to whoever comes next."""
        self.shut()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def shut(self) -> None:
        """Writes nothing more into this file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def is_log(directory: Path) -> bool:
    """Whether a folder is one of a write-ahead log, also where others have folders beside it."""
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
