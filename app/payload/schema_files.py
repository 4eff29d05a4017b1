"""Reads schema files safely: regular files only, within one folder, and up to a size.

Definitions name these files, so any user's paths come here. A device or a FIFO would block its reader for
ever, and a path may lead to any file of the host. So only regular files within the folder are opened, after
symbolic links are resolved.
"""

from __future__ import annotations

import os
import stat
import threading
import weakref
from pathlib import Path
from typing import Protocol

MAX_SET_BYTES = 16 * 1024 * 1024  # a larger file is hardly a schema
HOW = "make one with `protoc --include_imports -o x.binpb x.proto` or `buf build -o x.binpb`"
KINDS = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


class SchemaFinder(Protocol):
    """An opened folder of schemas, which can look for new ones."""

    def refresh(self) -> None:
        """Reads new files. Call it off the event loop. Never raises."""


class DescriptorError(ValueError):
    """A schema that cannot be used. `field` is the definition's wrong one: `descriptor` or `message`."""

    def __init__(self, source: Path | str, problem: str, remedy: str, field: str = "descriptor") -> None:
        super().__init__(f"{source}: {problem}; {remedy}")
        self.field = field
        self.source = str(source)
        self.problem = problem
        self.remedy = remedy


class FileRefused(OSError):
    """A file that may not be opened. `why` and `remedy` are for people."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(0, why)
        self.why = why
        self.remedy = remedy


class SchemaFiles:
    """Finds and reads files below `root`; None: anywhere, for callers that choose the files themselves."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        self._opened: weakref.WeakSet[SchemaFinder] = weakref.WeakSet()
        self._lock = threading.Lock()

    def find(self, name: str | Path) -> Path:
        """The path that a definition names, or FileRefused: it leads out of the folder. A NUL is a
        ValueError."""
        if self.root is None:
            return Path(name)
        found = Path(os.path.normpath(self.root.absolute() / name))
        roots = self.root.absolute(), self.root.resolve()
        # First by the path's text, so that files outside are not even looked up.
        if not any(found.is_relative_to(root) for root in roots) or not self.has(found):
            raise FileRefused(
                f"is not in the folder of schemas {self.root}",
                "put the file there, or name another folder as `schemas` in switchyard.yaml",
            )
        return found

    def has(self, path: Path) -> bool:
        """Whether the path lies in the folder after its links are resolved."""
        return self.root is None or path.resolve().is_relative_to(self.root.resolve())

    def read(self, path: Path, limit_bytes: int) -> bytes:
        """The first `limit_bytes` of a regular file, and one byte more of a longer one.

        Raises:
            OSError: It cannot be read, or may not be (`FileRefused`). A NUL in its path is a ValueError.
        """
        if not self.has(path):
            raise FileRefused(
                f"leads out of the folder of schemas {self.root}", "copy the file itself into it"
            )
        _check(path.stat().st_mode)  # because opening alone acts on some devices
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            _check(os.fstat(descriptor).st_mode)
            return file.read(limit_bytes + 1)

    def watch(self, finder: SchemaFinder) -> None:
        """Has `refresh` call this finder until the finder is no longer used."""
        with self._lock:
            self._opened.add(finder)

    def refresh(self) -> None:
        """Has all finders look for new schemas. Reads files, so call it off the event loop."""
        with self._lock:
            opened = list(self._opened)
        for finder in opened:
            finder.refresh()


def _check(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise FileRefused("is a folder", "name a file in it")
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "of an unknown kind")
        raise FileRefused(f"is {kind}, not a regular file", "name a regular file")


ANYWHERE = SchemaFiles()


def read_limited(path: Path, files: SchemaFiles = ANYWHERE) -> bytes:
    """The file's bytes, or DescriptorError: it cannot be read, or is larger than `MAX_SET_BYTES`."""
    try:
        data = files.read(path, MAX_SET_BYTES)
    except FileRefused as error:
        raise DescriptorError(path, error.why, error.remedy) from None
    except FileNotFoundError:
        raise DescriptorError(path, "does not exist", f"correct the path, or {HOW}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        words = getattr(error, "strerror", None) or str(error)
        raise DescriptorError(path, f"cannot be read: {words}", "give the worker access to it") from error
    if len(data) > MAX_SET_BYTES:
        limit = MAX_SET_BYTES // 1024 // 1024
        raise DescriptorError(path, f"is larger than {limit} MiB", "name the one file that is needed")
    return data
