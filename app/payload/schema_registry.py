"""A registry folder (its layout: `app.payload.descriptors`), read when it is opened.

A worker looks at it again every `REGISTRY_POLL_INTERVAL_S`, off its event loop (`refresh`), so that a schema
may be added while workers run, and an id that a value names costs no more than a look into a dict.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import Message

from app.payload.descriptors import (
    HOW,
    MAX_LISTED,
    SET_SUFFIXES,
    DescriptorError,
    Schema,
    load_schema,
    unknown_message,
)
from app.payload.schema_files import ANYWHERE, FileRefused, SchemaFiles

MAX_SCHEMAS = 1_000  # each has a pool of its own in memory
MAX_SOURCES = 100  # compiled one by one when the folder is opened
MAX_ENTRIES = 20_000  # of the folder, looked at
MAX_SCHEMA_ID = 2**31 - 1
REGISTRY_POLL_INTERVAL_S = 1.0
SETTLED_NS = 2_000_000_000  # a folder that changed within this time may have changed again at the same time
LAYOUT = "a registry holds <schema id>.binpb or <subject>/<version>.binpb"


class SchemaRegistry:
    """A folder of schemas.

    Attributes:
        source: the folder.
        by_id: the schemas that Confluent's wire format names.
        by_subject: subject -> version -> schema.
    """

    def __init__(self, folder: Path, files: SchemaFiles = ANYWHERE) -> None:
        """Reads the folder, which is among `files`.

        Raises:
            DescriptorError: it is none, holds no schema or too many, or one of its files is bad.
        """
        self.source = folder
        self.by_id: dict[int, Schema] = {}
        self.by_subject: dict[str, dict[int, Schema]] = {}
        self._files = files
        self._bad: dict[int, tuple[int, DescriptorError]] = {}  # with the size of its file
        self._seen_ns = changed_ns(folder)
        self._read()
        files.watch(self)

    def message_class(self, name: str) -> type[Message]:
        """The message's class, by the latest version of the first subject that defines it, else by the
        highest schema id.

        Raises:
            DescriptorError: no schema of the folder has it.
        """
        wanted = name.lstrip(".")
        for schema in self._latest_first():
            if wanted in schema.messages:
                return schema.message_class(wanted)
        known = sorted({found for schema in self._latest_first() for found in schema.messages})
        raise unknown_message(self.source, name, known)

    def schema(self, schema_id: int) -> Schema | None:
        """The schema with this id, or None, as the folder was last read.

        Raises:
            DescriptorError: its file has come since, and is bad.
        """
        found = self.by_id.get(schema_id)
        if found is None and (bad := self._bad.get(schema_id)) is not None:
            raise bad[1]
        return found

    def refresh(self) -> None:
        """Reads the sets that have come since. To be called off the event loop."""
        at_ns = changed_ns(self.source)
        if at_ns == self._seen_ns and not self._bad and time.time_ns() - at_ns > SETTLED_NS:
            return
        self._seen_ns = at_ns
        try:
            for path in _limited(self.source, self.source):
                if path.suffix in SET_SUFFIXES and _is_schema(path) and path.is_file():
                    self._add(path)
        except (DescriptorError, OSError):
            return  # what is known stays; the next look may see more

    def _add(self, path: Path) -> None:
        """Raises DescriptorError, OSError: it is none, or gone."""
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
        """The ids, for an error."""
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
                raise DescriptorError(path, f"is there twice, as {other}, too", "remove one of them")
            versions[number] = load_schema(path, self._files)
        if not self.by_id and not self.by_subject:
            raise DescriptorError(self.source, "holds no schema", LAYOUT)


def _files(folder: Path) -> Iterator[Path]:
    """The schema files, in a fixed order. Imports of `.proto` files, named by words, are passed over."""
    try:
        below = list(_limited(folder, folder))
        for entry in below:
            if entry.is_dir():
                yield from (path for path in _limited(folder, entry) if _is_schema(path))
            elif _is_schema(entry):
                yield entry
    except OSError as error:
        raise DescriptorError(
            folder, f"cannot be read: {error.strerror}", "give the worker access to it"
        ) from error


def _limited(folder: Path, part: Path) -> Iterator[Path]:
    entries: list[Path] = []
    for entry in part.iterdir():
        entries.append(entry)
        if len(entries) > MAX_ENTRIES:
            raise DescriptorError(folder, "holds too many files", LAYOUT)
    return iter(sorted(entries))


def _is_schema(path: Path) -> bool:
    """A descriptor set by its suffix (named by a word, that is an error), a source only by its number."""
    if path.name.startswith("."):
        return False
    return path.suffix in SET_SUFFIXES or (
        path.suffix == ".proto" and path.stem.isascii() and path.stem.isdigit()
    )


def number_of(path: Path) -> int | None:
    """The schema id or version that the file's name gives; None: it gives none."""
    stem = path.stem
    is_number = stem.isascii() and stem.isdigit() and len(stem) <= 10 and int(stem) <= MAX_SCHEMA_ID
    return int(stem) if is_number else None


def _number(path: Path) -> int:
    number = number_of(path)
    if number is None:
        raise DescriptorError(path, "has no schema id or version for a name", LAYOUT)
    return number


def changed_ns(folder: Path) -> int:
    """When something was last put into the folder, or taken out of it."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return -1


def open_source(name: str | Path, files: SchemaFiles = ANYWHERE) -> Schema | SchemaRegistry:
    """A descriptor set file, a `.proto` source or a registry folder of `files`, whichever stands there.

    Raises:
        DescriptorError: it cannot be used; the error says why and what to do.
    """
    try:
        path = files.find(name)
        is_folder = path.is_dir()
    except FileRefused as error:
        raise DescriptorError(name, error.why, error.remedy) from None
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # a NUL in the path, too long a name, a circle of links
        raise DescriptorError(name, f"is no path: {error}", "correct the path") from None
    return SchemaRegistry(path, files) if is_folder else load_schema(path, files)
