"""The free space of a disk, and the errors of one that takes no more."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

# As the system words ENOSPC, EDQUOT and EROFS; RocksDB passes its words on, without the number.
NO_ROOM = ("No space left on device", "Disk quota exceeded", "Read-only file system")

PROBE_BYTES = 64 * 1024
NEEDED_BYTES = 16 << 20  # for opening a small RocksDB database again after a refused write


def takes_no_more(error: BaseException) -> bool:
    """Whether the disk refused a write because it is full, over a quota or read-only."""
    return any(words in str(error) for words in NO_ROOM)


def free_bytes(path: Path) -> int:
    """What this user may still write to the disk of `path`. Raises OSError."""
    return shutil.disk_usage(path).free


def shortage(folder: Path, size: int) -> str:
    """Why a folder does not take so many bytes; "" if it does. It writes and deletes a file, because quotas,
    a disk without inodes and one that is read-only show only there."""
    try:
        if (free := free_bytes(folder)) < size:
            return f"{in_mib(free)} are free"
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
    except OSError as error:
        return str(error)
    return ""


def in_mib(size: float) -> str:
    """A size for people, such as `3.5 MiB`."""
    return f"{size / (1 << 20):,.{0 if size >= 10 << 20 else 1}f} MiB"
