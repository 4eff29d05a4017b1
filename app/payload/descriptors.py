"""Protobuf descriptors: from a file or a registry folder to message classes in pools of their own.

A descriptor set is what `protoc --include_imports -o x.binpb` and `buf build -o x.binpb` write. `.proto`
sources are compiled by `app.payload.proto_compiler` where grpcio-tools is installed. A registry folder holds

    <folder>/<schema id>.binpb              what Confluent's wire format names; or .proto
    <folder>/<subject>/<version>.binpb      versions count from 1, the highest is the latest; or .proto

in any mixture. A file of a registry is one schema: its last message file (protoc and buf write imports
first) is the one whose messages Confluent's indexes count, and imports stand in the same set.

Rules
1. Every schema has a private pool: two files may define the same message differently, and nothing leaks
   into the process's default pool.
2. Well-known imports (google/protobuf/*.proto) may be left out of a set; all others must be in it.
3. Whatever is wrong is a `DescriptorError` at load: it names the file, the message and the remedy.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from app.payload.schema_files import ANYWHERE, FileRefused, SchemaFiles

MAX_SET_BYTES = 16 * 1024 * 1024  # a set this large is no schema but an accident
MAX_LISTED = 10  # names in an error
SET_SUFFIXES = (".binpb", ".pb", ".desc", ".protoset")
WELL_KNOWN = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in (
        "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct",
        "timestamp", "type", "wrappers",
    )
}  # fmt: skip
HOW = "make one with `protoc --include_imports -o x.binpb x.proto` or `buf build -o x.binpb`"

FileProto = descriptor_pb2.FileDescriptorProto
Path_ = tuple[int, ...]


class DescriptorError(ValueError):
    """A descriptor that cannot be used: `source` is its file, `remedy` what to do, `field` which of the
    definition's (`descriptor` or `message`) is wrong."""

    def __init__(self, source: Path | str, problem: str, remedy: str, field: str = "descriptor") -> None:
        super().__init__(f"{source}: {problem}; {remedy}")
        self.field = field
        self.source = str(source)
        self.problem = problem
        self.remedy = remedy


class Schema:
    """A loaded descriptor set.

    Attributes:
        source: its file.
        pool: private to it.
        files: its message files, imports first.
    """

    def __init__(self, source: Path, files: Sequence[FileProto]) -> None:
        self.source = source
        self.files = list(files)
        self.pool = descriptor_pool.DescriptorPool()
        self._classes: dict[str, type[Message]] = {}
        self._indexes: dict[str, tuple[dict[Path_, str], dict[Path_, str]]] = {}
        for file in _ordered(source, self.files):
            try:
                self.pool.Add(file)
            except (TypeError, ValueError) as error:  # TypeError is upb's word for whatever is wrong
                words = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
                raise DescriptorError(
                    source, f"file {file.name!r} does not fit the others: {words}", f"correct it, or {HOW}"
                ) from error

    @cached_property
    def messages(self) -> list[str]:
        """The full names of all messages of the set, well-known ones left out."""
        return [name for file in self.files if file.name not in WELL_KNOWN for name in _names(file)]

    def by_index(self, indexes: Path_, beside: str = "") -> list[str]:
        """The full names of the messages that Confluent's indexes may mean: as its Java serializer counts,
        and as clients count that go by descriptors, where the entries of map fields have numbers, too.

        Args:
            indexes: the message's in its file, then in the message around it.
            beside: the full name of a message whose file is meant; "": the last file.
        """
        if beside not in self._indexes:
            file = self.files[-1]
            if beside:
                name = self.message_class(beside).DESCRIPTOR.file.name
                file = next((one for one in self.files if one.name == name), file)
            self._indexes[beside] = dict(_indexed(file, entries=False)), dict(_indexed(file, entries=True))
        return [names[indexes] for names in self._indexes[beside] if indexes in names]

    def message_class(self, name: str) -> type[Message]:
        """The class of the message with this full name.

        Raises:
            DescriptorError: the set has no such message.
        """
        name = name.lstrip(".")
        found = self._classes.get(name)
        if found is None:
            try:
                descriptor = self.pool.FindMessageTypeByName(name)
            except (KeyError, ValueError):
                raise unknown_message(self.source, name, self.messages) from None
            found = self._classes[name] = message_factory.GetMessageClass(descriptor)
        return found


def unknown_message(source: Path, name: str, known: Sequence[str]) -> DescriptorError:
    """The error for a message that does not exist, with what may have been meant."""
    same_end = [full for full in known if full.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    close = same_end or difflib.get_close_matches(name, known, 1, 0.5)
    if close:
        remedy = f"did you mean {close[0]}?"
    else:
        more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
        remedy = f"known: {', '.join(sorted(known)[:MAX_LISTED])}{more}" if known else "it defines none"
    return DescriptorError(source, f"no message {name[:200]!r}", remedy, "message")


def load_schema(path: Path, files: SchemaFiles = ANYWHERE) -> Schema:
    """The schema of one descriptor set file or `.proto` source, among `files`.

    Raises:
        DescriptorError: see the module's rule 3.
    """
    if path.suffix == ".proto":
        from app.payload.proto_compiler import compile_source

        return Schema(path, parse_set(path, compile_source(path, files)))
    return Schema(path, parse_set(path, read_limited(path, files)))


def read_limited(path: Path, files: SchemaFiles = ANYWHERE) -> bytes:
    """The file's bytes.

    Raises:
        DescriptorError: it is missing, no regular file, larger than `MAX_SET_BYTES` or not to be read.
    """
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


def parse_set(source: Path, data: bytes) -> list[FileProto]:
    """The message files of a descriptor set, each once.

    Raises:
        DescriptorError: these bytes are none, or two files of the same name differ.
    """
    start = data[:4096].lstrip()
    if start.startswith((b"{", b"[")):
        raise DescriptorError(source, "is JSON (a JSON Schema?), not a descriptor set", HOW)
    if start.startswith((b"syntax", b"edition", b"package", b"import", b"message", b"//", b"/*")):
        raise DescriptorError(source, "is .proto source, not a descriptor set", f"name it x.proto, or {HOW}")
    if data.startswith(b"\x1f\x8b"):
        raise DescriptorError(source, "is compressed by gzip", "gunzip it")
    try:
        files = list(descriptor_pb2.FileDescriptorSet.FromString(data).file)
    except (DecodeError, RecursionError):
        raise DescriptorError(source, "is not a descriptor set", HOW) from None
    if not files:
        raise DescriptorError(source, "holds no message files: not a descriptor set", HOW)
    found: dict[str, FileProto] = {}
    for file in files:
        if not file.name:
            raise DescriptorError(source, "holds a file without a name: not a descriptor set", HOW)
        first = found.setdefault(file.name, file)
        if first is not file and first != file:
            raise DescriptorError(
                source, f"holds two different files {file.name!r}", "leave one out, or make a set of each"
            )
    return list(found.values())


def _ordered(source: Path, files: Iterable[FileProto]) -> Iterator[FileProto]:
    """The files with every import before who imports it, well-known ones supplied (rule 2)."""
    known = {file.name: file for file in files}
    missing: dict[str, str] = {}
    done: set[str] = set()
    open_: set[str] = set()
    stack = [(name, False) for name in reversed(known)]
    ordered: list[FileProto] = []
    while stack:
        name, leaving = stack.pop()
        file = known[name]
        if leaving:
            open_.discard(name)
            done.add(name)
            ordered.append(file)
            continue
        if name in done:
            continue
        if name in open_:
            raise DescriptorError(source, f"file {name!r} imports itself in a circle", "break the circle")
        open_.add(name)
        stack.append((name, True))
        for wanted in file.dependency:
            if wanted not in known and wanted in WELL_KNOWN:
                known[wanted] = _well_known(wanted)
            if wanted not in known:
                missing.setdefault(wanted, name)
            elif wanted not in done:
                stack.append((wanted, False))
    if missing:
        told = ", ".join(
            f"{wanted!r} (imported by {by!r})" for wanted, by in list(missing.items())[:MAX_LISTED]
        )
        raise DescriptorError(source, f"lacks imports: {told}", "add --include_imports to protoc's call")
    return iter(ordered)


def _well_known(name: str) -> FileProto:
    """The file as this installation of protobuf has it."""
    module: Any = importlib.import_module(WELL_KNOWN[name])
    return FileProto.FromString(module.DESCRIPTOR.serialized_pb)


def _names(file: FileProto) -> Iterator[str]:
    yield from dict.fromkeys(name for _, name in _indexed(file, entries=False))


def _indexed(file: FileProto, *, entries: bool) -> Iterator[tuple[Path_, str]]:
    """(path of indexes, full name) of each message in the file; `entries`: map entries are counted, too."""
    prefix = f"{file.package}." if file.package else ""
    stack: list[tuple[Path_, str, Any]] = [((), prefix, file.message_type)]
    while stack:
        at, before, messages = stack.pop()
        kept = [message for message in messages if entries or not message.options.map_entry]
        for index, message in enumerate(kept):
            if not message.options.map_entry:
                yield (*at, index), before + message.name
                stack.append(((*at, index), f"{before}{message.name}.", message.nested_type))
