"""Which files of a folder are definitions, and which only look so.

Rules
1. A definition's name ends with one of `SUFFIXES`, in any case. Links are followed, to folders too. Each file
   and folder is read once, by where it really is.
2. A name that begins with a dot is passed over: editors' locks, macOS' `._x.yaml`, folders of version
   control. So are the folders in which Kubernetes keeps the contents of a ConfigMap; its links lead there.
3. What is passed over and reads like a definition is doubtful: a deployment that deletes what is not defined
   must not take it for gone. So is what cannot be looked into.

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
CONTENTS = "..data"  # the link that a ConfigMap's files lead through
_OF_CONFIG_MAP = re.compile(r"\.\.(data|data_tmp|\d{4}_.*)$")
_NAMED_ALIKE = re.compile(r"\.(ya?ml|json)(?![a-z0-9])", re.IGNORECASE)
_MAY_BE_ONE = re.compile(r"\.(ya?ml|json)|^\.*[^.]+$", re.IGNORECASE)  # or a name without an ending
_READS_ALIKE = re.compile(rb"""apiVersion["']?\s*:\s*["']?switchyard/""")


class Weight(Enum):
    """What a deployment makes of a file or folder that was not read."""

    TOLD = "a warning"
    DOUBTFUL = "it deletes nothing"
    WRONG = "refused"


class Unread(NamedTuple):
    """It was not read, and why."""

    path: Path
    why: str
    weight: Weight


@dataclass(slots=True)
class DefinitionFiles:
    """What a folder has, each in order of its path.

    Attributes:
        files: the definitions.
        unread: what people have to know of the rest.
        contents: folder -> where its `CONTENTS` led: another place tells that it was swapped meanwhile.
    """

    files: list[Path] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    contents: dict[Path, str] = field(default_factory=dict)


def find(folder: Path) -> DefinitionFiles:
    """See the module."""
    walk = _Walk()
    walk.enter(folder, is_hidden=False)
    for one in walk.hidden:  # last: what a link leads to is read as the link's
        walk.enter(one, is_hidden=True)
    found = walk.found
    read = {os.path.realpath(file) for file in found.files}
    for path, is_hidden in walk.others:
        if os.path.realpath(path) in read:
            continue
        if _reads_alike(path):
            why = "looks like a definition, and is not read"
            found.unread.append(Unread(path, why, Weight.DOUBTFUL))
        elif not is_hidden and _NAMED_ALIKE.search(path.name):
            found.unread.append(Unread(path, "is not read", Weight.TOLD))
    found.files.sort()
    found.unread.sort(key=lambda one: one.path)
    return found


class _Walk:
    """`hidden`: folders whose names begin with a dot. `others`: files that are no definitions by their names,
    and whether they are in such a folder."""

    def __init__(self) -> None:
        self.found = DefinitionFiles()
        self.hidden: list[Path] = []
        self.others: list[tuple[Path, bool]] = []
        self._seen: set[str] = set()

    def enter(self, folder: Path, *, is_hidden: bool) -> None:
        """Looks through a folder and those in it."""
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
                self.found.files.append(path)  # who reads it tells why it cannot be read
            elif not passes:
                why = f"cannot be followed: {error.strerror}"
                self.found.unread.append(Unread(path, why, Weight.DOUBTFUL))
            elif not is_hidden and _NAMED_ALIKE.search(entry.name):
                self.found.unread.append(Unread(path, "is not read", Weight.TOLD))
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
    """Where its `CONTENTS` lead now; "": nowhere."""
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
        return True  # nobody knows
    return b"\0" not in begin and _READS_ALIKE.search(begin) is not None
