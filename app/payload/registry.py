"""A registry folder (its layout: `app.payload.descriptors`), read when it is opened.

A schema id that is not there is looked for again, at most once in `LOOK_AGAIN_S` for all ids together, so
that a schema may be added while workers run, and hostile ids cost no more than a look into a dict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

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

MAX_SCHEMAS = 1_000  # each has a pool of its own in memory
MAX_SOURCES = 100  # compiled one by one when the folder is opened
MAX_ENTRIES = 20_000  # of the folder, looked at
MAX_SCHEMA_ID = 2**31 - 1
LOOK_AGAIN_S = 5.0
LAYOUT = "a registry holds <schema id>.binpb or <subject>/<version>.binpb"


class Source(Protocol):
    """Where messages are defined: a `Schema` or a `Registry`."""

    @property
    def source(self) -> Path: ...
    def message_class(self, name: str) -> type[Message]: ...


class Registry:
    """A folder of schemas.

    Attributes:
        source: the folder.
        by_id: the schemas that Confluent's wire format names.
        by_subject: subject -> version -> schema.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the folder.

        Raises:
            DescriptorError: it is none, holds no schema or too many, or one of its files is bad.
        """
        self.source = folder
        self.by_id: dict[int, Schema] = {}
        self.by_subject: dict[str, dict[int, Schema]] = {}
        self._clock = clock
        self._looked_s = clock()
        self._read()

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
        """The schema with this id, or None; see the module on how often the folder is asked.

        Raises:
            DescriptorError: its file has come since, and is bad.
        """
        found = self.by_id.get(schema_id)
        if found is not None:
            return found
        now_s = self._clock()
        if now_s < self._looked_s + LOOK_AGAIN_S or len(self.by_id) >= MAX_SCHEMAS:
            return None
        self._looked_s = now_s
        for suffix in SET_SUFFIXES:
            path = self.source / f"{schema_id}{suffix}"
            if path.is_file():
                found = self.by_id[schema_id] = load_schema(path)
                break
        return found

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
            versions[number] = load_schema(path)
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


def _number(path: Path) -> int:
    stem = path.stem
    if not (stem.isascii() and stem.isdigit() and len(stem) <= 10 and int(stem) <= MAX_SCHEMA_ID):
        raise DescriptorError(path, "has no schema id or version for a name", LAYOUT)
    return int(stem)


def open_source(path: Path) -> Schema | Registry:
    """A descriptor set file, a `.proto` source or a registry folder, whichever stands there.

    Raises:
        DescriptorError: it cannot be used; the error says why and what to do.
    """
    try:
        folder = path.is_dir()
    except ValueError:  # a NUL in the path
        folder = False
    return Registry(path) if folder else load_schema(path)
