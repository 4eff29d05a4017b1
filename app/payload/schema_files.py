"""Files of schemas: regular ones only, below one folder, read within a limit.

Definitions name them, so anybody's names come here. A device or a FIFO would hold its reader for ever, and a
path may lead to what is no schema at all: nothing is opened that is not a regular file below the folder,
symbolic links resolved.
"""

from __future__ import annotations

import os
import stat
import threading
import weakref
from pathlib import Path
from typing import Protocol

KINDS = {
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
}  # fmt: skip


class SchemaFinder(Protocol):
    """What was opened, and looks for schemas that have come since."""

    def refresh(self) -> None:
        """Reads files: to be called off the event loop. Never raises."""


class FileRefused(OSError):
    """A file that is not opened; `why` and `remedy` are for people."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(0, why)
        self.why = why
        self.remedy = remedy


class SchemaFiles:
    """Reads below `root`; None: anywhere, for those who name files themselves."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        self._opened: weakref.WeakSet[SchemaFinder] = weakref.WeakSet()
        self._lock = threading.Lock()

    def find(self, name: str | Path) -> Path:
        """The path that a definition names, relative to the folder.

        Raises:
            FileRefused: it leads out of the folder. ValueError: it has a NUL.
        """
        if self.root is None:
            return Path(name)
        found = Path(os.path.normpath(self.root.absolute() / name))
        roots = self.root.absolute(), self.root.resolve()
        # By its words first: not even the state of what lies outside is asked for.
        if not any(found.is_relative_to(root) for root in roots) or not self.has(found):
            raise FileRefused(
                f"is not in the folder of schemas {self.root}",
                "put the file there, or name another folder as `schemas` in switchyard.yaml",
            )
        return found

    def has(self, path: Path) -> bool:
        """Whether it stays below the folder where links lead."""
        return self.root is None or path.resolve().is_relative_to(self.root.resolve())

    def read(self, path: Path, limit_bytes: int) -> bytes:
        """The first `limit_bytes` of a regular file, and one byte more of a longer one.

        Raises:
            OSError: it cannot be read; `FileRefused` where it may not be. ValueError: a NUL in its path.
        """
        if not self.has(path):
            raise FileRefused(
                f"leads out of the folder of schemas {self.root}", "copy the file itself into it"
            )
        _check(path.stat().st_mode)  # opening alone does something to some devices
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            _check(os.fstat(descriptor).st_mode)
            return file.read(limit_bytes + 1)

    def watch(self, opened: SchemaFinder) -> None:
        """`refresh` will ask it, for as long as somebody uses it."""
        with self._lock:
            self._opened.add(opened)

    def refresh(self) -> None:
        """Finds schemas that have come since. Reads files: to be called off the event loop."""
        with self._lock:
            opened = list(self._opened)
        for one in opened:
            one.refresh()


def _check(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise FileRefused("is a folder", "name a file in it")
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "no file")
        raise FileRefused(f"is {kind}, not a regular file", "name a regular file")


ANYWHERE = SchemaFiles()
