"""A registry folder of schemas (`app.payload.descriptors` shows its layout).

The folder is read when it is opened. Workers look for new files every `REGISTRY_POLL_INTERVAL_S`, off their
event loop (`refresh`). So a set `<schema id>` may be added while workers run. Subjects, sources and changed
files count from the next start. An id costs one dict lookup.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import Message

from app.payload.descriptors import MAX_LISTED, SET_SUFFIXES, Schema, load_schema, unknown_message
from app.payload.schema_files import ANYWHERE, HOW, DescriptorError, FileRefused, SchemaFiles

MAX_SCHEMAS = 1_000  # each has its own pool in memory
MAX_SOURCES = 100  # compiled one by one when the folder is opened
MAX_ENTRIES = 20_000  # directory entries
MAX_SCHEMA_ID = 2**31 - 1
REGISTRY_POLL_INTERVAL_S = 1.0
SETTLED_NS = 2_000_000_000  # a younger change may have been followed by another with the same time
LAYOUT = "a registry holds <schema id>.binpb or <subject>/<version>.binpb"


class SchemaRegistry:
    """A folder of schemas: `by_id`, and `by_subject` by version."""

    def __init__(self, folder: Path, files: SchemaFiles = ANYWHERE) -> None:
        """Reads the folder, or raises DescriptorError: it has no schema, too many, or a bad one."""
        self.source = folder
        self.by_id: dict[int, Schema] = {}
        self.by_subject: dict[str, dict[int, Schema]] = {}
        self._files = files
        self._bad: dict[int, tuple[int, DescriptorError]] = {}  # id -> (size of its file, fault)
        self._seen_ns = changed_ns(folder)
        self._read()
        files.watch(self)

    @property
    def doubts(self) -> list[str]:
        """The doubts of all schemas, each once."""
        return list(dict.fromkeys(doubt for schema in self._latest_first() for doubt in schema.doubts))

    def message_class(self, name: str) -> type[Message]:
        """The message's class from the latest version of the first subject that defines it.

        If no subject does, the highest schema id that defines it counts; if none does, DescriptorError.
        """
        wanted = name.lstrip(".")
        for schema in self._latest_first():
            if wanted in schema.messages:
                return schema.message_class(wanted)
        known = sorted({found for schema in self._latest_first() for found in schema.messages})
        raise unknown_message(self.source, name, known)

    def schema(self, schema_id: int) -> Schema | None:
        """The schema with this id, or None; DescriptorError: its file was added later, and is bad."""
        found = self.by_id.get(schema_id)
        if found is None and (bad := self._bad.get(schema_id)) is not None:
            raise bad[1]
        return found

    def refresh(self) -> None:
        """Reads sets `<schema id>` that are new, but no `.proto` sources. Call it off the event loop."""
        at_ns = changed_ns(self.source)
        if at_ns == self._seen_ns and not self._bad and time.time_ns() - at_ns > SETTLED_NS:
            return
        self._seen_ns = at_ns
        try:
            entries = list(_entries(self.source, self.source))
        except (DescriptorError, OSError):
            return  # known schemas stay, and the next look may find more
        for path in entries:
            with contextlib.suppress(DescriptorError, OSError):  # a misnamed file, or one that is gone
                if path.suffix in SET_SUFFIXES and _is_schema(path) and path.is_file():
                    self._add(path)

    def _add(self, path: Path) -> None:
        """Raises DescriptorError, OSError: The file has no id for a name, or is gone."""
        number, size = _number(path), path.stat().st_size
        bad = self._bad.get(number)
        if number in self.by_id or len(self.by_id) >= MAX_SCHEMAS or (bad is not None and bad[0] == size):
            return
        try:
            self.by_id[number] = load_schema(path, self._files)
            self._bad.pop(number, None)
        except DescriptorError as error:
            self._bad[number] = size, error

    def known_ids(self) -> str:
        """The ids, for an error message."""
        ids = sorted(self.by_id)
        more = f" and {len(ids) - MAX_LISTED} more" if len(ids) > MAX_LISTED else ""
        return ", ".join(map(str, ids[:MAX_LISTED])) + more if ids else "none"

    def _latest_first(self) -> Iterator[Schema]:
        for _, versions in sorted(self.by_subject.items()):
            for _, schema in sorted(versions.items(), reverse=True):
                yield schema
        for _, schema in sorted(self.by_id.items(), reverse=True):
            yield schema

    def _read(self) -> None:
        sources = 0
        for count, path in enumerate(_files(self.source), 1):
            if count > MAX_SCHEMAS:
                raise DescriptorError(
                    self.source, f"holds more than {MAX_SCHEMAS} schemas", "split the folder"
                )
            sources += path.suffix == ".proto"
            if sources > MAX_SOURCES:
                raise DescriptorError(
                    self.source, f"holds more than {MAX_SOURCES} .proto files", f"compile them: {HOW}"
                )
            number = _number(path)
            versions = self.by_id
            if path.parent != self.source:
                versions = self.by_subject.setdefault(path.parent.name, {})
            if number in versions:
                other = versions[number].source.name
                raise DescriptorError(path, f"has the same number as {other}", "remove one of them")
            versions[number] = load_schema(path, self._files)
        if not self.by_id and not self.by_subject:
            raise DescriptorError(self.source, "holds no schema", LAYOUT)


def _files(folder: Path) -> Iterator[Path]:
    """The schema files in a fixed order, without `.proto` files that other sources import."""
    try:
        below = list(_entries(folder, folder))
        for entry in below:
            if entry.is_dir():
                yield from (path for path in _entries(folder, entry) if _is_schema(path))
            elif _is_schema(entry):
                yield entry
    except OSError as error:
        raise DescriptorError(
            folder, f"cannot be read: {error.strerror}", "give the worker access to it"
        ) from error


def _entries(folder: Path, part: Path) -> Iterator[Path]:
    entries: list[Path] = []
    for entry in part.iterdir():
        entries.append(entry)
        if len(entries) > MAX_ENTRIES:
            raise DescriptorError(folder, "holds too many files", LAYOUT)
    return iter(sorted(entries))


def _is_schema(path: Path) -> bool:
    """A set by its suffix alone, so that a wrong name is an error; a source only with a number for a name."""
    if path.name.startswith("."):
        return False
    return path.suffix in SET_SUFFIXES or (
        path.suffix == ".proto" and path.stem.isascii() and path.stem.isdigit()
    )


def number_of(path: Path) -> int | None:
    """The schema id or version that is the file's name; None: the name is not a number."""
    stem = path.stem
    is_number = stem.isascii() and stem.isdigit() and len(stem) <= 10 and int(stem) <= MAX_SCHEMA_ID
    return int(stem) if is_number else None


def _number(path: Path) -> int:
    number = number_of(path)
    if number is None:
        raise DescriptorError(path, "has a name that is not a schema id or version", LAYOUT)
    return number


def changed_ns(folder: Path) -> int:
    """The time of the last file added to the folder or removed from it; -1: it cannot be read."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return -1


def open_source(name: str | Path, files: SchemaFiles = ANYWHERE) -> Schema | SchemaRegistry:
    """The set, `.proto` source or registry folder of this name among `files`, or DescriptorError."""
    try:
        path = files.find(name)
        is_folder = path.is_dir()
    except FileRefused as error:
        raise DescriptorError(name, error.why, error.remedy) from None
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, a name too long, a circle of links
        raise DescriptorError(name, f"is not a valid path: {error}", "correct the path") from None
    return SchemaRegistry(path, files) if is_folder else load_schema(path, files)


def import_doubts(name: str, files: SchemaFiles) -> list[str]:
    """Which files the sources of this name import, where several have an import's name. Raises as
    `open_source`."""
    return open_source(name, files).doubts
