"""Protobuf descriptors: message classes from a descriptor set, a `.proto` source or a registry folder.

`protoc --include_imports -o x.binpb` and `buf build -o x.binpb` write descriptor sets. If grpcio-tools is
installed, `app.payload.proto_compiler` compiles `.proto` sources. A registry folder holds any mixture of

    <folder>/<schema id>.binpb              the schema that Confluent's wire format names; or .proto
    <folder>/<subject>/<version>.binpb      versions count from 1, the highest is the latest; or .proto

Each file of a registry is one schema. Confluent's indexes count the messages of the set's last message file,
because protoc and buf write imports first.

Rules
1. Every schema has a private pool. So two files may define the same message differently, and nothing gets
   into the process's default pool.
2. A set may lack the well-known imports (google/protobuf/*.proto). It must hold all others.
3. Every fault raises a `DescriptorError` at load. It names the file, the problem and the remedy.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError, Message

from app.payload.message_classes import TooManyMessages, message_class_of
from app.payload.proto_compiler import compile_source
from app.payload.schema_files import ANYWHERE, HOW, DescriptorError, SchemaFiles, read_limited

MAX_LISTED = 10  # names in an error
SET_SUFFIXES = (".binpb", ".pb", ".desc", ".protoset")
WELL_KNOWN = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in (
        "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct",
        "timestamp", "type", "wrappers",
    )
}  # fmt: skip

FileProto = descriptor_pb2.FileDescriptorProto
Path_ = tuple[int, ...]


class Schema:
    """A loaded descriptor set: `source` is its file, `pool` is private, `files` have the order of the set.
    `doubts`: see `CompiledSource`."""

    def __init__(self, source: Path, files: Sequence[FileProto], doubts: Sequence[str] = ()) -> None:
        self.source = source
        self.doubts = list(doubts)
        self.files = list(files)
        self.pool = descriptor_pool.DescriptorPool()
        self._classes: dict[str, type[Message]] = {}
        self._indexes: dict[str, tuple[dict[Path_, str], dict[Path_, str]]] = {}
        for file in _ordered(source, self.files):
            try:
                self.pool.Add(file)
            except (TypeError, ValueError) as error:  # upb raises TypeError for every fault
                words = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
                raise DescriptorError(
                    source, f"file {file.name!r} does not fit the others: {words}", f"correct it, or {HOW}"
                ) from error

    @cached_property
    def messages(self) -> list[str]:
        """The full names of all messages of the set, without the well-known ones."""
        files = (file for file in self.files if file.name not in WELL_KNOWN)
        return [name for file in files for _, name in _indexed(file, entries=False)]

    def by_index(self, indexes: Path_, in_file_of: str = "") -> list[str]:
        """The full names of the messages that Confluent's indexes may mean, by Java's count first.

        Args:
            indexes: The outermost message's index in its file, then each nested message's in its parent.
            in_file_of: The full name of a message; the indexes count in its file. "": in the last file.
        """
        if in_file_of not in self._indexes:
            file = self.files[-1]
            if in_file_of:
                name = self.message_class(in_file_of).DESCRIPTOR.file.name
                file = next((other for other in self.files if other.name == name), file)
            self._indexes[in_file_of] = (
                dict(_indexed(file, entries=False)),
                dict(_indexed(file, entries=True)),
            )
        return [names[indexes] for names in self._indexes[in_file_of] if indexes in names]

    def message_class(self, name: str) -> type[Message]:
        """The class of the message with this full name, or DescriptorError: the set has none, or it refers
        to too many messages."""
        name = name.lstrip(".")
        found = self._classes.get(name)
        if found is None:
            try:
                descriptor = self.pool.FindMessageTypeByName(name)
            except (KeyError, ValueError):
                raise unknown_message(self.source, name, self.messages) from None
            try:
                found = self._classes[name] = message_class_of(descriptor)
            except TooManyMessages as error:
                raise DescriptorError(self.source, error.problem, error.remedy, "message") from None
        return found


def unknown_message(source: Path, name: str, known: Sequence[str]) -> DescriptorError:
    """The error for a message that does not exist. It suggests a similar name, or lists known ones."""
    same_name = [full for full in known if full.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    close = same_name or difflib.get_close_matches(name, known, 1, 0.5)
    if close:
        remedy = f"did you mean {close[0]}?"
    else:
        more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
        remedy = f"known: {', '.join(sorted(known)[:MAX_LISTED])}{more}" if known else "it has no messages"
    return DescriptorError(source, f"no message {name[:200]!r}", remedy, "message")


def load_schema(path: Path, files: SchemaFiles = ANYWHERE) -> Schema:
    """The schema of a descriptor set or `.proto` source among `files`, or DescriptorError (rule 3)."""
    if path.suffix == ".proto":
        compiled = compile_source(path, files)
        return Schema(path, parse_set(path, compiled.descriptor_set), compiled.doubts)
    return Schema(path, parse_set(path, read_limited(path, files)))


def parse_set(source: Path, data: bytes) -> list[FileProto]:
    """The message files of a set, each once, or DescriptorError: these bytes are not a proper set."""
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
                source,
                f"holds two different files {file.name!r}",
                "remove one, or make a set of each",
            )
    return list(found.values())


def _ordered(source: Path, files: Iterable[FileProto]) -> Iterator[FileProto]:
    """The files, each behind its imports, with the well-known imports that the set lacks (rule 2)."""
    known = {file.name: file for file in files}
    missing: dict[str, str] = {}
    done: set[str] = set()
    entered: set[str] = set()
    stack = [(name, False) for name in reversed(known)]
    ordered: list[FileProto] = []
    while stack:
        name, leaving = stack.pop()
        file = known[name]
        if leaving:
            entered.discard(name)
            done.add(name)
            ordered.append(file)
            continue
        if name in done:
            continue
        if name in entered:
            raise DescriptorError(source, f"file {name!r} is in an import cycle", "remove one of its imports")
        entered.add(name)
        stack.append((name, True))
        for wanted in file.dependency:
            if wanted not in known and wanted in WELL_KNOWN:
                known[wanted] = _well_known(wanted)
            if wanted not in known:
                missing.setdefault(wanted, name)
            elif wanted not in done:
                stack.append((wanted, False))
    if missing:
        imports = ", ".join(
            f"{wanted!r} (imported by {by!r})" for wanted, by in list(missing.items())[:MAX_LISTED]
        )
        raise DescriptorError(source, f"lacks imports: {imports}", "call protoc with --include_imports")
    return iter(ordered)


def _well_known(name: str) -> FileProto:
    """The file as the installed protobuf has it."""
    module: Any = importlib.import_module(WELL_KNOWN[name])
    return FileProto.FromString(module.DESCRIPTOR.serialized_pb)


def _indexed(file: FileProto, *, entries: bool) -> Iterator[tuple[Path_, str]]:
    """(path of indexes, full name) of each message; `entries`: the entry types of map fields count too."""
    prefix = f"{file.package}." if file.package else ""
    stack: list[tuple[Path_, str, Any]] = [((), prefix, file.message_type)]
    while stack:
        path, prefix, messages = stack.pop()
        counted = [message for message in messages if entries or not message.options.map_entry]
        for index, message in enumerate(counted):
            if not message.options.map_entry:
                yield (*path, index), prefix + message.name
                stack.append(((*path, index), f"{prefix}{message.name}.", message.nested_type))
