"""Finds the definitions in a folder, and the files that only look like definitions.

Rules
1. A definition's file name ends with one of `SUFFIXES`, in any case. Links are followed, also to folders.
   Each folder is searched once, by its real path. A file and a link to it may both be listed; the caller
   reads it once.
2. Names that begin with a dot are ignored: editors' locks, macOS' `._x.yaml`, folders of version control.
   So are the folders in which Kubernetes keeps a ConfigMap's contents; its links lead there.
3. Ignored files whose names contain a suffix, or have none at all, are searched for a definition (their first
   64 KiB). One that reads like a definition is doubtful, and so is one that cannot be read. A visible folder
   that cannot be opened is refused. A deployment that deletes undefined things must not take its definitions
   for removed.

Source: Kubernetes' atomic_writer.go.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".yaml", ".yml", ".json")
LOOKED_AT_BYTES = 64 * 1024
CONTENTS = "..data"  # the link on the way to a ConfigMap's files
_OF_CONFIG_MAP = re.compile(r"\.\.(data|data_tmp|\d{4}_.*)$")
_NAMED_ALIKE = re.compile(r"\.(ya?ml|json)(?![a-z0-9])", re.IGNORECASE)
_MAY_BE_ONE = re.compile(r"\.(ya?ml|json)|^\.*[^.]+$", re.IGNORECASE)  # or a name without a suffix
_READS_ALIKE = re.compile(rb"""apiVersion["']?\s*:\s*["']?switchyard/""")


class Weight(Enum):
    """The effect of an unread file or folder on a deployment."""

    WARNED = "a warning"
    DOUBTFUL = "it deletes nothing"
    WRONG = "refused"


class Unread(NamedTuple):
    """A file or folder that was not read, and why."""

    path: Path
    why: str
    weight: Weight


@dataclass(slots=True)
class DefinitionFiles:
    """The files of a folder, in order of their paths.

    Attributes:
        files: The definitions.
        unread: Other files and folders that people should know of.
        contents: Folder -> the target of its `CONTENTS`. Another target later means that the ConfigMap was
            swapped.
    """

    files: list[Path] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    contents: dict[Path, str] = field(default_factory=dict)


def find(folder: Path) -> DefinitionFiles:
    """The definitions below `folder`, and the doubtful files."""
    walk = _Walk()
    walk.enter(folder, is_hidden=False)
    for one in walk.hidden:  # last, so that a linked file is found under its link
        walk.enter(one, is_hidden=True)
    found = walk.found
    read = {os.path.realpath(file) for file in found.files}
    for path, is_hidden in walk.others:
        if os.path.realpath(path) in read:
            continue
        if _reads_alike(path):
            why = "looks like a definition, but is not read"
            found.unread.append(Unread(path, why, Weight.DOUBTFUL))
        elif not is_hidden and _NAMED_ALIKE.search(path.name):
            found.unread.append(Unread(path, "is not read", Weight.WARNED))
    found.files.sort()
    found.unread.sort(key=lambda one: one.path)
    return found


class _Walk:
    """`hidden`: folders whose names begin with a dot. `others`: files that are not definitions by name,
    and whether they are in a hidden folder."""

    def __init__(self) -> None:
        self.found = DefinitionFiles()
        self.hidden: list[Path] = []
        self.others: list[tuple[Path, bool]] = []
        self._seen: set[str] = set()

    def enter(self, folder: Path, *, is_hidden: bool) -> None:
        """Searches a folder and its subfolders."""
        real = os.path.realpath(folder)
        if real in self._seen:
            return
        self._seen.add(real)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            weight = Weight.DOUBTFUL if is_hidden else Weight.WRONG
            self.found.unread.append(Unread(folder, f"cannot be looked into: {error.strerror}", weight))
            return
        for entry in entries:
            if entry.name == CONTENTS:
                self.found.contents[folder] = contents_of(folder)
            if not _OF_CONFIG_MAP.match(entry.name):
                self._take(folder / entry.name, entry, is_hidden=is_hidden)

    def _take(self, path: Path, entry: os.DirEntry[str], *, is_hidden: bool) -> None:
        passes = is_hidden or entry.name.startswith(".")
        is_definition = not passes and entry.name.lower().endswith(SUFFIXES)
        try:
            is_folder = stat.S_ISDIR(entry.stat().st_mode)
        except OSError as error:
            if is_definition:
                self.found.files.append(path)  # reading it gives the reason
            elif not passes:
                why = f"cannot be followed: {error.strerror}"
                self.found.unread.append(Unread(path, why, Weight.DOUBTFUL))
            elif not is_hidden and _NAMED_ALIKE.search(entry.name):
                self.found.unread.append(Unread(path, "is not read", Weight.WARNED))
            return
        if not is_folder:
            if is_definition:
                self.found.files.append(path)
            elif _MAY_BE_ONE.search(entry.name):
                self.others.append((path, is_hidden))
        elif passes and not is_hidden:
            self.hidden.append(path)
        elif not (is_hidden and entry.is_symlink()):
            self.enter(path, is_hidden=is_hidden)


def contents_of(folder: Path) -> str:
    """The target of the folder's `CONTENTS`; "": none."""
    try:
        return str((folder / CONTENTS).readlink())
    except OSError:
        return ""


def _reads_alike(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            begin = file.read(LOOKED_AT_BYTES)
    except OSError:
        return True  # it may be one
    return b"\0" not in begin and _READS_ALIKE.search(begin) is not None
